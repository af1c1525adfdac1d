"""Streams: what a callee sees as each device's stream, inside blocks and during one call.

Also the allocator that a callee asks for memory.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from dlbridge import Device, device, use_stream as use_backend_stream
from dlbridge.abi import (
    Begun,
    begin_call,
    end_blocks,
    managed_tensor_allocator,
    note_work,
    user_stream,
)
from dlbridge.errors import BackendUnavailable
from dlbridge.extending import plugin_of, public_in

from ._lib import C, ffi
from .any import OBJECT_BEGIN, Work
from .errors import raised

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    if stream >= 1 << 64:  # the cast would take a part of it
        raise ValueError(f"stream {stream:#x} is none: a handle has 64 bits")
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


# --- The streams of one call --------------------------------------------------------


def on_streams(streams: list[Work], *passed: Any) -> int:
    """Call with the stream of every device in the environment; put them back after.

    That is the one of `dlbridge.use_stream`, or else the first argument's. The call is a block of
    `use_stream` for a stream of another library: our work in callbacks is behind what it has
    queued, and our later work behind what it has got from the call.
    """
    before: dict[Device, tuple[int, Any]] = {}
    begun: list[Begun] = []
    try:
        try:
            return _on_streams(streams, before, begun, passed)
        finally:
            _put_back(before, begun)
    except BaseException:  # a signal handler's may have cut off the first
        _put_back(before, begun)
        raise


def _on_streams(streams: list[Work], before: Any, begun: list[Begun], passed: Any) -> int:
    """`on_streams`, which notes in *before* and *begun* what is to be put back."""
    others: list[tuple[Device, int, int]] = []
    for where, stream in streams:
        handle = stream()
        if handle is None:
            continue
        if where not in before:
            device_type, device_id = where.dlpack
            chosen = user_stream(where)
            # Noted before it is replaced: an interruption may come between the two.
            previous = C.TVMFFIEnvGetStream(device_type, device_id)
            before[where] = (handle if chosen is None else chosen, previous)
            set_stream(device_type, device_id, before[where][0])
            if handle and chosen is None:
                begin_call(where, handle, begun)
        worked_on = before[where][0]
        if handle != worked_on:  # another library's, which goes on behind the call
            _order(where, worked_on, handle)
            others.append((where, handle, worked_on))
    try:
        failed: int = C.TVMFFIFunctionCall(*passed)
    finally:
        for device, stream_of_other, worked_on in others:
            _order(device, stream_of_other, worked_on)
    if passed[-1].type_index >= OBJECT_BEGIN:  # of the result
        for device, (worked_on, _) in before.items():
            note_work(device, worked_on)
    return failed


def _put_back(before: dict[Device, tuple[int, Any]], begun: list[Begun]) -> None:
    """Set the streams of before the call again; it may be done twice."""
    for where, (_, previous) in before.items():
        restore_stream(where.type, where.index, previous)
    if begun:
        end_blocks(begun)


def _order(device: Device, stream: int, on: int) -> None:
    """Make *stream* wait for *on*. BackendUnavailable where nothing here can."""
    plugin = plugin_of(device)
    if plugin.wait is not None:
        plugin.wait(device.index, stream, on)
