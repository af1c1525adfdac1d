"""Expired tensors: using one after its loan has ended raises ExchangeError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge.core.dlpack.foreign_tables import NAMES
from dlbridge.errors import ExchangeError

from .array_tensor import ArrayTensor, NumpyTensor
from .tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable


def expirer(what: str, reason: str) -> Callable[[Tensor], None]:
    """A function that expires a tensor: the memory can no longer be used through it.

    The tensor was *what*; each later use raises ExchangeError with the *reason*,
    through all references to the tensor. It changes the class of the tensor to one
    with the same layout (``core/implementation_details``).
    """

    def refuse(self: Tensor, name: str) -> NoReturn:
        # As __getattr__: it is called for the memory, which is no longer set.
        if not hasattr(type(self), name):
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        raise ExchangeError(f"this tensor was {what}, {reason}")

    members: dict[str, Any] = {
        "__slots__": (),
        "__getattr__": refuse,
        "__repr__": lambda self: f"dlbridge.Tensor({what} that has expired)",
        # No exchange table: a consumer cannot understand what raises in one.
        **dict.fromkeys(NAMES),
    }
    expired = {cls: type("Tensor", (cls,), members) for cls in (Tensor, NumpyTensor, ArrayTensor)}

    def expire(tensor: Tensor) -> None:
        tensor._forget_memory()
        tensor.__class__ = expired[type(tensor)]

    return expire


expire_host_view = expirer(
    "a host view",
    "which expired with its block: make another with host_view(), "
    "or copy in the block what must stay (numpy.array(h), to_device(h, 'cpu', copy=True))",
)

expire_lent = expirer(
    "lent to a callback",
    "which has returned: copy in the callback what must stay "
    "(numpy.array(t), to_device(t, 'cpu', copy=True))",
)
