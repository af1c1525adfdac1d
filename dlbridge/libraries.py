"""The description of a library's arrays, for packages that give one by entry point.

The group is ``dlbridge.libraries``; `Library` has the details.
"""

from dlbridge.core.libraries.library import Library

__all__ = ["Library"]
