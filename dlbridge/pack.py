"""Fast copies inside host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["copy_host"]


def copy_host(
    target: np.ndarray[Any, Any],
    source: np.ndarray[Any, Any],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Copy the bytes of *source* to *target*: same shape and item size, any strides."""
    import numpy as np

    np.copyto(target, source)
    if progress is not None:
        progress(source.nbytes, source.nbytes)
