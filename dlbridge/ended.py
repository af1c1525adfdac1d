"""What the tensor of a host view becomes when the view's block ends: every use of it says so."""

from __future__ import annotations

from typing import Any, NoReturn

from .errors import ExchangeError
from .exchange import NAMES
from .tensor import ArrayTensor, Tensor

__all__ = ["end"]


def end(tensor: Tensor) -> None:
    """Let *tensor* go of its memory, whatever names it still has."""
    if isinstance(tensor, ArrayTensor):
        del tensor._array, tensor.__dlpack__
        tensor.__class__ = _EndedArrayTensor
    else:
        del tensor._array, tensor._memory
        tensor.__class__ = _EndedTensor


def _say(self: Tensor, name: str) -> NoReturn:
    """``__getattr__``: what the class has is missing because the memory is gone."""
    if not hasattr(type(self), name):
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")
    raise ExchangeError(
        "this tensor was a host view, which ended with its block: make another with host_view(), "
        "or copy in the block what must stay (numpy.array(h), to_device(h, 'cpu', copy=True))"
    )


_CLASS: dict[str, Any] = {
    "__slots__": (),
    "__getattr__": _say,
    "__repr__": lambda self: "dlbridge.Tensor(a host view that has ended)",
    # No exchange table: what raises in one, a consumer cannot understand.
    **dict.fromkeys(NAMES),
}
_EndedTensor = type("Tensor", (Tensor,), _CLASS)
_EndedArrayTensor = type("Tensor", (ArrayTensor,), _CLASS)
