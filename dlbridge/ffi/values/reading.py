"""Read-only memory as an argument, where the callee is known to read only.

A ``DLTensor`` cannot say that its memory must not be written, and libtvm_ffi
drops the flag of DLPack that does. So the caller has to say that the function
reads only.
"""

from __future__ import annotations

from typing import Any

from dlbridge.core.public import public_in

from .words import Temporaries, pack

__all__ = ["ReadOnlyArgument", "pack_reading", "readonly"]


class ReadOnlyArgument:
    """The result of `readonly`: a value to be passed, whose tensors may be read-only."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value

    def __repr__(self) -> str:
        return f"dlbridge.ffi.readonly({self.value!r})"


@public_in("dlbridge.ffi")
def readonly(value: Any) -> ReadOnlyArgument:
    """Say that the function that gets *value* as an argument only reads it.

    A read-only tensor is refused as an argument otherwise, because a ``DLTensor``
    cannot tell the function that its memory must not be written.

    Parameters
    ----------
    value : object
        A tensor of any library, or a value with tensors in it.

    Returns
    -------
    ReadOnlyArgument
        To be passed to a function, or put into a container.

    Examples
    --------
    >>> x = np.arange(3.0)
    >>> x.flags.writeable = False
    >>> ffi.get_global_func("ffi.Array")(ffi.readonly(x))[0].readonly
    True
    """
    return ReadOnlyArgument(value)


def pack_reading(value: ReadOnlyArgument, keep: Temporaries) -> tuple[int, int]:
    """The value itself; its tensors, nested ones included, may be read-only."""
    before, keep.reading = keep.reading, True
    try:
        return pack(value.value, keep)
    finally:
        keep.reading = before
