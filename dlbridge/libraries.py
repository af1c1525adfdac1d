"""The description of a library's arrays, for packages that give one by entry point.

The group is ``dlbridge.libraries``; `Library` has the details.
"""

from dlbridge.extending import Library

__all__ = ["Library"]
