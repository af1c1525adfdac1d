"""What a tensor becomes whose memory was lent for a time: afterwards every use of it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge.core.dlpack.foreign_tables import NAMES
from dlbridge.errors import ExchangeError

from .tensor import ArrayTensor, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["end_host_view", "end_lent", "ending"]


def ending(what: str, says: str) -> Callable[[Tensor], None]:
    """A function that lets a tensor go of its memory, whatever names it still has.

    The tensor was *what*; each use of it is an ExchangeError that *says* why.
    """

    def say(self: Tensor, name: str) -> NoReturn:
        # As __getattr__: what the class has is missing because the memory is gone.
        if not hasattr(type(self), name):
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        raise ExchangeError(f"this tensor was {what}, {says}")

    members: dict[str, Any] = {
        "__slots__": (),
        "__getattr__": say,
        "__repr__": lambda self: f"dlbridge.Tensor({what} that has ended)",
        # No exchange table: what raises in one, a consumer cannot understand.
        **dict.fromkeys(NAMES),
    }
    ended = type("Tensor", (Tensor,), members)
    ended_array = type("Tensor", (ArrayTensor,), members)

    def end(tensor: Tensor) -> None:
        if isinstance(tensor, ArrayTensor):
            del tensor._array, tensor.__dlpack__
            tensor.__class__ = ended_array
        else:
            del tensor._array, tensor._memory
            tensor.__class__ = ended

    return end


end_host_view = ending(
    "a host view",
    "which ended with its block: make another with host_view(), "
    "or copy in the block what must stay (numpy.array(h), to_device(h, 'cpu', copy=True))",
)

end_lent = ending(
    "lent to a callback",
    "which has returned: copy in the callback what must stay "
    "(numpy.array(t), to_device(t, 'cpu', copy=True))",
)
