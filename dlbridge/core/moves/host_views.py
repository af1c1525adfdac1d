"""Host views: a device's memory as CPU memory, without a copy."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge.core.public import public
from dlbridge.core.tensor.array_tensor import NumpyTensor, expire_host_view
from dlbridge.core.tensor.memory import open_views
from dlbridge.core.tensor.metadata import carrier_of, describe, release_shared
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.values.devices import CPU
from dlbridge.errors import ExchangeError
from dlbridge.kit.resources import remember

from .transfer import move, why_no_host_view

if TYPE_CHECKING:
    from dlbridge.core.tensor.memory import Memory
    from dlbridge.core.tensor.tensor import Tensor


_HOW = "write `with t.host_view() as h:`, and in the block h is the tensor, as in h.numpy()"


@public
class HostView:
    """A tensor's memory as CPU memory, without a copy. Made by `Tensor.host_view`.

    ``with t.host_view() as h`` gives the CPU tensor, and the memory goes back to
    the device when the block ends: BufferError if arrays made from ``h`` still
    exist then. Without ``with`` it is a DLPack producer, and the memory goes
    back when its last consumer is gone.

    While the block is open, work of dlbridge on the device's memory raises
    BufferError, in any thread: copies, `Tensor.operand`, kernels and calls that
    get the tensor or a part of it. It does not wait, because the block may
    itself wait for the thread that does the work, and neither would go on.
    `Tensor.tolist`, `Tensor.item` and ``print`` work: they read through a view of
    their own, and see what was written through this one. Work
    that other libraries queue, on memory that they got before, is not noticed:
    it neither waits nor fails.

    Examples
    --------
    >>> t = bridge.zeros(2)
    >>> with t.host_view() as h:
    ...     h.numpy()[:] = [1, 2]
    >>> np.from_dlpack(t.host_view())
    array([1., 2.], dtype=float32)
    """

    def __init__(self, tensor: Tensor, viewed: Memory | None) -> None:
        self._tensor: Tensor | None = tensor
        self._references = 0
        self.viewed: Memory | None = viewed
        self.description: str = ""

    def __enter__(self) -> Tensor:
        tensor = self._view()
        if isinstance(tensor, NumpyTensor):
            tensor.expires = True
        self._references = sys.getrefcount(carrier_of(tensor))
        if self.viewed is not None:
            self.description = (
                f"a host view of {self.viewed.device} ({tensor.dtype}, shape {tensor.shape}), "
                f"entered by the thread {threading.current_thread().name!r},"
            )
            remember(open_views, id(self), self)
        return tensor

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        open_views.pop(id(self), None)
        tensor = self._view()
        release_shared(tensor)
        extra = sys.getrefcount(carrier_of(tensor)) - self._references
        if extra > 0:
            if kind is not None:
                return  # the block's own error matters more; the view ends with its users
            raise ExchangeError(
                f"the host view is still used by {extra} array(s) or capsule(s) when its block "
                "ends; drop them first, or copy what must stay (copy=True)"
            )
        expire_host_view(tensor)
        self._tensor = None

    def __repr__(self) -> str:
        tensor = self._tensor
        if tensor is None:
            return "dlbridge.HostView(expired)"
        device = tensor.device if self.viewed is None else self.viewed.device
        return f"dlbridge.HostView({tensor.dtype}, shape={tensor.shape}, on {device})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a HostView can be neither pickled nor copied: it is the device's own memory, which "
            "has one owner; send the tensor, or a copy (dlbridge.to_device(t, 'cpu', copy=True))"
        )

    def __dlpack__(self, **keywords: Any) -> Any:  # a PyCapsule, without a name before 3.13
        """Return a capsule as `Tensor.__dlpack__` does, on the CPU."""
        return self._view().__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the CPU's ``(device_type, device_id)``."""
        return self._view().__dlpack_device__()

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Raise TypeError: numpy would make an array of one object."""
        raise TypeError(f"numpy takes no HostView: {_HOW}; or numpy.from_dlpack(t.host_view())")

    if not TYPE_CHECKING:  # to a type checker it would say that every name is there

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, which says how to get the tensor."""
            hint = f"; {_HOW}" if hasattr(NumpyTensor, name) else ""
            raise AttributeError(f"'HostView' object has no attribute {name!r}{hint}")

    def _view(self) -> Tensor:
        if self._tensor is None:
            raise ExchangeError("this host view has expired; ask the tensor for another")
        return self._tensor


def host_view(tensor: Tensor) -> HostView:
    """See `Tensor.host_view`."""
    operand = operand_of(tensor)
    refusal = why_no_host_view(operand)
    if refusal:
        raise ExchangeError(
            f"no host view of {describe(tensor)}: {refusal}; copy it: dlbridge.to_device(t, 'cpu')"
        )
    if operand.device is CPU:
        return HostView(tensor[...], None)
    return HostView(move(tensor, CPU, False), operand.memory)


def shared_on_host(tensor: Tensor) -> Tensor | None:
    """The memory as a CPU tensor without a copy, None where that cannot be."""
    return None if why_no_host_view(operand_of(tensor)) else move(tensor, CPU, False)
