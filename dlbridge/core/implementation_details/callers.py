"""Which library asks us for a capsule: the protocol does not say it."""

from __future__ import annotations

import sys

__all__ = ["is_called_by_torch"]

_CONSUMER = 4
"""The frames below the consumer's: this one, who asks it, ``produce`` and ``__dlpack__``."""


def is_called_by_torch() -> bool:
    """Whether ``torch.from_dlpack``, which is Python, has called the ``__dlpack__`` that asks."""
    try:
        frame = sys._getframe(_CONSUMER)
    except ValueError:  # called from C, and nothing of Python above
        return False
    return frame.f_globals.get("__name__") == "torch.utils.dlpack"
