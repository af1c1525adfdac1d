"""Basic indexing: the indices that make a view without reading an element."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["basic_index"]


def basic_index(index: Any) -> tuple[Any, ...]:
    """*index* in a form that is safe for numpy: int, slice, None and Ellipsis.

    Other indices would make numpy read the carrier, whose address may not be
    memory. They raise TypeError or IndexError.
    """
    if type(index) is slice:
        return index, Ellipsis
    given = index if isinstance(index, tuple) else (index,)
    parts = tuple(map(_part, given))
    if Ellipsis not in parts:
        parts = (*parts, Ellipsis)  # numpy then gives an array and never reads an element
    return parts


def _part(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    try:
        if not isinstance(part, bool):
            index = operator.index(part)
            if not -(1 << 63) <= index < 1 << 63:
                raise IndexError(f"index {index} is out of bounds: no dimension is as long")
            return index
    except TypeError:
        pass
    raise TypeError(
        "a Tensor is indexed by int, slice, None and Ellipsis, not "
        f"{type(part).__name__}; use the array library's own indexing on like='numpy' or "
        "like='torch'"
    )
