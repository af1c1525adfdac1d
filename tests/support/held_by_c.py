"""What C or another library holds of ours now: there is no public count."""

from __future__ import annotations

from dlbridge.core.dlpack import exports
from dlbridge.core.interfaces import own_table


def structs_in_capsules() -> int:
    """Structs of our own, which nobody has deleted yet."""
    return len(exports._loans)


def structs_of_the_table() -> int:
    """Structs that functions of the exchange table have lent."""
    return len(own_table._lent)
