"""The description of a library's arrays, for packages that give one by entry point.

The group is ``dlbridge.libraries``; `Library` has the details, `Exchange` what `dlbridge.watch`
looks for.
"""

from dlbridge.core.libraries.library import Exchange, Library

__all__ = ["Exchange", "Library"]
