"""The environment that a callee sees: streams per device, and the allocator."""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.outgoing.own_table import _managed_tensor_allocator as managed_tensor_allocator
from dlbridge.core.plugins.streams import use_stream as use_backend_stream
from dlbridge.core.public import public_in
from dlbridge.core.values.devices import device
from dlbridge.errors import BackendUnavailable

from .._lib import C, ffi
from ..values.errors import raised

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "get_raw_stream",
    "restore_stream",
    "set_stream",
    "use_raw_stream",
    "use_stream",
    "use_torch_stream",
]

# The environment's table has a row for each type and a column for each id up to
# the highest that was set; beyond any real device it would only take memory.
_MAX_TYPE: Final = 1 << 10
_MAX_INDEX: Final = 1 << 16
_MAX_HANDLE: Final = sys.maxsize * 2 + 1


def set_stream(device_type: int, device_id: int, stream: int) -> None:
    """Set the stream of a device in this thread's environment.

    Who wants to put the one before back has to read it first: after an interruption it is known
    then, whether it was replaced or not.
    """
    if C.TVMFFIEnvSetStream(device_type, device_id, ffi.cast("void *", stream), ffi.NULL):
        raise raised()


def restore_stream(device_type: int, device_id: int, before: Any) -> None:
    """Put back what ``TVMFFIEnvGetStream`` gave."""
    if C.TVMFFIEnvSetStream(device_type, device_id, before, ffi.NULL):
        raised()  # takes the error away: `set_stream` failed, too, and has replaced nothing


@public_in("dlbridge.ffi")
def get_raw_stream(device_like: Any) -> int:
    """The stream that a callee on a device sees now in this thread.

    Parameters
    ----------
    device_like : Device or str
        For example ``"cuda:0"``.

    Returns
    -------
    int
        The native handle; 0 is the default stream.

    Examples
    --------
    >>> ffi.get_raw_stream("cuda:0")
    0
    """
    where = device(device_like)
    return int(ffi.cast("uintptr_t", C.TVMFFIEnvGetStream(where.type, where.index)))


def _handle(stream: object) -> int | None:
    """*stream* as a native handle; None if it is another kind of object."""
    if isinstance(stream, ctypes.c_void_p):
        return stream.value or 0
    return stream if isinstance(stream, int) else None


@public_in("dlbridge.ffi")
@contextmanager
def use_raw_stream(device_like: Any, stream: int | ctypes.c_void_p) -> Iterator[None]:
    """Show callees the native handle *stream* for a device, inside the block.

    An argument on that device shows its own library's stream instead;
    `use_stream` has precedence over that.

    Parameters
    ----------
    device_like : Device or str
        For example ``"cuda:0"``.
    stream : int or ctypes.c_void_p
        The native handle, for example a ``cudaStream_t``.

    Raises
    ------
    TypeError
        If *stream* is not a native handle.
    ValueError
        If it is an int that no pointer has.

    Examples
    --------
    >>> with ffi.use_raw_stream("cuda:0", 0x1234):
    ...     ffi.get_raw_stream("cuda:0") == 0x1234
    True
    """
    where, handle = device(device_like), _handle(stream)
    if handle is None:
        raise TypeError(
            f"stream must be an int or a ctypes.c_void_p, not {type(stream).__name__}; "
            "use_stream takes the stream objects of a device's ecosystem"
        )
    if not 0 <= handle <= _MAX_HANDLE:
        raise ValueError(
            f"{handle:#x} is not a stream's native handle, which is a pointer: give an int from 0 "
            f"to {_MAX_HANDLE:#x}"
        )
    if where.type >= _MAX_TYPE or where.index >= _MAX_INDEX:
        raise ValueError(
            f"{where} is outside the environment's table of devices (1024 types, 65536 ids)"
        )
    thread, before = threading.get_ident(), C.TVMFFIEnvGetStream(where.type, where.index)
    try:
        set_stream(where.type, where.index, handle)
        yield
    finally:
        # Where a signal handler's exception cuts a generator off, it may end in another thread.
        if threading.get_ident() == thread:
            restore_stream(where.type, where.index, before)


@public_in("dlbridge.ffi")
@contextmanager
def use_stream(device_like: Any, stream: Any) -> Iterator[int]:
    """Send work on a device to *stream* inside the block: callees' and dlbridge's own.

    Parameters
    ----------
    device_like : Device or str
        For example ``"cuda:0"``.
    stream : object
        A stream as the device's backend knows it (`dlbridge.use_stream`); for a
        device without a backend a native handle.

    Yields
    ------
    int
        The native handle.

    Raises
    ------
    BackendUnavailable
        If the device has no backend and *stream* is not a native handle.

    Examples
    --------
    >>> with ffi.use_stream("vpi:0", 0x1234) as handle:
    ...     handle == ffi.get_raw_stream("vpi:0")
    True
    """
    with ExitStack() as stack:
        try:
            handle = stack.enter_context(use_backend_stream(device_like, stream))
        except BackendUnavailable:
            native = _handle(stream)
            if native is None:
                raise
            handle = native
        stack.enter_context(use_raw_stream(device_like, handle))
        yield handle


@public_in("dlbridge.ffi")
@contextmanager
def use_torch_stream(context: AbstractContextManager[Any] | None = None) -> Iterator[None]:
    """Show callees torch's current CUDA stream inside the block.

    Parameters
    ----------
    context : context manager, optional
        A ``torch.cuda.stream(...)`` or ``torch.cuda.graph(...)`` to enter first.

    Examples
    --------
    >>> with ffi.use_torch_stream(torch.cuda.stream(s)):  # doctest: +SKIP
    ...     f(x)
    """
    import torch

    with ExitStack() as stack:
        if context is not None:
            stack.enter_context(context)
        current = torch.cuda.current_stream()
        stack.enter_context(use_raw_stream(str(current.device), current.cuda_stream))
        yield


def _provide_allocator() -> None:
    """Let ``TVMFFIEnvTensorAlloc`` allocate by our backends, unless somebody else does.

    tvm_ffi sets another one in its thread during each of its own calls.
    """
    if not C.TVMFFIEnvGetDLPackManagedTensorAllocator():
        pointer = ffi.cast("DLPackManagedTensorAllocator", managed_tensor_allocator)
        if C.TVMFFIEnvSetDLPackManagedTensorAllocator(pointer, 1, ffi.NULL):
            raise raised()


_provide_allocator()
