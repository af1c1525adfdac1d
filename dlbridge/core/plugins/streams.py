"""The current stream of each device in each thread; waiting for streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from threading import get_ident
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from dlbridge.core.public import public
from dlbridge.core.values.devices import Device, DLDeviceType
from dlbridge.errors import BackendError, BackendUnavailable, Error, ExchangeError
from dlbridge.kit.resources import join

from .lookup import check_device
from .registry import plugin_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import ParamSpec, TypeVar
    from weakref import ref

    from dlbridge.core.tensor.memory import Memory
    from dlbridge.typing import DeviceLike, StreamLike

    from .registry import Plugin

    _Arguments = ParamSpec("_Arguments")
    _Result = TypeVar("_Result")


class StreamUse(SimpleNamespace):
    """The native handle of a stream, and whether work is on it: ours, or what it waits for.

    All memory that is used in one ``use_stream`` block shares it, and is in its `memories`. The
    end of the block replaces the handle, because the stream may be destroyed after it. Outside
    of such blocks it never changes, and memory shares it as well.
    """

    handle: int
    used: bool
    memories: set[ref[Memory]] | None
    by_call: bool
    """Whether a call through TVM-FFI has chosen it, and not the user."""
    ended: set[ref[StreamUse]]
    """Those of the blocks that have ended inside its own."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # as a member of `ended`

    def end(self, outer: StreamUse) -> None:
        """At the end of the block, name *outer*'s stream instead, which has waited for it.

        If *outer* is a block, too, its end does the same for all that this block has named.
        """
        within = [use for known in self.ended.copy() if (use := known()) is not None]
        for use in (self, *within):
            use.handle = outer.handle
            if outer.memories is not None:
                join(outer.ended, use)
        for known in self.memories.copy() if self.memories else ():
            memory = known()
            if memory is None:
                continue
            if outer.memories is not None:
                join(outer.memories, memory)
            allocation, written = memory.allocation, None
            # Another thread may use the memory meanwhile: it writes `last_use` before the stream,
            # and this the stream before it looks at `last_use` again.
            while allocation is not None and written is not (last := memory.last_use):
                written = last
                allocation.stream = (last or outer).handle


class _Chosen(threading.local):
    """The streams that `use_stream` has chosen in this thread.

    The dictionary is replaced and never changed. The first one belongs to the class: a
    finalizer that runs while an ``__init__`` makes the thread's own would find none.
    """

    streams: Mapping[Device, StreamUse] = MappingProxyType({})


_chosen = _Chosen()

_latest: dict[Device, StreamUse] = {}
"""The use that the last memory outside of ``use_stream`` blocks got: most get the same."""


class StreamBlock:
    """What `use_stream` gives: each ``with`` of it is a block of its own, in any thread."""

    __slots__ = ("_device", "_open", "_stream")

    def __init__(self, device: DeviceLike, stream: StreamLike | None) -> None:
        self._device, self._stream = device, stream
        self._open: dict[int, list[AbstractContextManager[int]]] = {}  # by thread

    def __enter__(self) -> int:
        block = stream_block(self._device, self._stream)
        handle = block.__enter__()
        self._open.setdefault(get_ident(), []).append(block)
        return handle

    def __exit__(self, *raised: Any) -> None:
        self._open[get_ident()].pop().__exit__(*raised)

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """*function*, each of whose calls is a block."""

        @wraps(function)
        def inside(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with stream_block(self._device, self._stream):
                return function(*args, **kwargs)

        return inside


@public
def use_stream(device: DeviceLike, stream: StreamLike | None) -> StreamBlock:
    """Queue this thread's work on *device* on *stream* inside the block.

    After the block, later work is ordered after the work of the block.

    Parameters
    ----------
    device : DeviceLike
        The device of the stream; `dlbridge.device` says what is accepted.
    stream : StreamLike or None
        An integer by the rules of the device (array API 2025.12,
        ``__dlpack__``), or a stream object of torch, cupy or cuda.core, or a
        pyopencl queue. It must exist until the block ends. None: the default.

    Returns
    -------
    context manager
        It gives the native handle of the stream, and can be entered again. It is also a
        decorator of functions.

    Raises
    ------
    TypeError
        When entered: if the device has no streams, or *stream* is not a stream.
    ValueError
        For an integer that the rules of the device forbid.
    BackendUnavailable
        If no backend here serves *device*.

    Notes
    -----
    `Tensor.to_native` gives an array on this stream where its library has such: inside
    the block, ``t.to_native().queue`` of an OpenCL tensor is the queue, if the tensor's
    memory belongs to the context of the queue.

    The stream is chosen for the whole thread, as with ``torch.cuda.stream`` and cupy's streams:
    also for other tasks of asyncio that run while the block waits, and for the caller of a
    generator that stops inside the block. So end the block before ``await`` and ``yield``, and
    enter it again after them.

    Examples
    --------
    With ``stream`` from any library, all copies and allocations follow it:

    >>> def upload(array, stream):
    ...     with bridge.use_stream("cuda:0", stream):
    ...         return bridge.to_device(array, "cuda:0")
    """
    return StreamBlock(device, stream)


@contextmanager
def stream_block(device: DeviceLike, stream: StreamLike | None) -> Iterator[int]:
    """One block of `use_stream`."""
    where = check_device(device)
    plugin = plugin_of(where)
    if plugin.normalize_stream is None or plugin.wait is None:
        raise TypeError(f"{where} has no streams to choose from")
    handle = _to_work_on(plugin.normalize_stream(where.index, stream))
    begun: list[Begun] = []
    # Of this thread: where a signal handler's exception cuts a generator off, it may end in
    # another one.
    mine = vars(_chosen)
    begin_block(where, handle, begun)
    try:
        yield handle
    finally:
        _leave(begun, mine)
        if vars(_chosen) is mine:
            end_blocks(begun)


def _to_work_on(handle: int) -> int:
    if handle == -1:
        raise ValueError("stream -1 means 'do not synchronise'; it is not a stream to work on")
    return handle


Begun = tuple[Device, StreamUse, StreamUse | None]
"""The device of a block, its stream, and what was chosen before."""


def begin_block(device: Device, handle: int, begun: list[Begun], *, by_call: bool = False) -> None:
    """Queue this thread's work on *device* on stream *handle*, until the block is ended.

    It is added to *begun* before. *by_call*: a call through TVM-FFI has chosen the stream.
    """
    inside = StreamUse(handle=handle, used=False, memories=set(), by_call=by_call, ended=set())
    begun.append((device, inside, _chosen.streams.get(device)))
    _chosen.streams = {**_chosen.streams, device: inside}


def begin_call(device: Device, stream: int, begun: list[Begun]) -> None:
    """`begin_block` for a call through TVM-FFI on *stream*, if our work goes to another one."""
    try:
        plugin = plugin_of(device)
        if plugin.normalize_stream is None or current_use(device, plugin).handle == stream:
            return
    except (BackendUnavailable, BackendError):  # no work of ours is on it
        return
    handle = _to_work_on(plugin.normalize_stream(device.index, stream))
    begin_block(device, handle, begun, by_call=True)


def end_blocks(begun: list[Begun]) -> None:
    """End the blocks in *begun*, the last first; what an exception cuts off may be done again."""
    _leave(begun, vars(_chosen))
    failures: list[Error] = []
    for device, inside, _ in reversed(begun):
        plugin = plugin_of(device)
        outer = current_use(device, plugin)
        try:
            if inside.used and outer.handle != inside.handle and plugin.wait is not None:
                plugin.wait(device.index, outer.handle, inside.handle)
            outer.used = outer.used or inside.used
            inside.end(outer)
        except Error as exc:
            failures.append(exc)
    if failures:
        raise failures[0]


def _leave(begun: list[Begun], of_thread: dict[str, Any]) -> None:
    """Let the streams in *of_thread* be what they were before the blocks."""
    streams = {**of_thread.get("streams", {})}
    for device, _, before in reversed(begun):
        if before is None:
            streams.pop(device, None)
        else:
            streams[device] = before
    of_thread["streams"] = streams


def current_use(device: Device, plugin: Plugin | None = None) -> StreamUse:
    """The stream that our work on *device* is queued on; *plugin* is its backend, if known."""
    chosen = _chosen.streams
    if device in chosen:
        return chosen[device]
    if plugin is None:
        plugin = plugin_of(device)
    try:  # as `plugin.current_stream`, without a call: each operation asks
        handle = plugin.backend.current_stream(device.index)
    except Exception as exc:
        plugin.fail(exc, "current_stream")
    try:
        latest = _latest[device]
    except KeyError:
        latest = None
    if latest is None or latest.handle != handle:
        latest = _latest[device] = StreamUse(
            handle=handle, used=True, memories=None, by_call=False, ended=set()
        )
    return latest


@public
def current_stream(device: DeviceLike) -> int:
    """Return the stream that this thread's work on *device* is queued on.

    Parameters
    ----------
    device : DeviceLike
        `dlbridge.device` says what is accepted.

    Returns
    -------
    int
        The native handle; 0 for the default stream, and on devices without
        streams.

    Raises
    ------
    BackendUnavailable
        If no backend here serves *device*.

    Examples
    --------
    >>> bridge.current_stream("cpu")
    0
    """
    where = device if type(device) is Device else check_device(device)
    return current_use(where).handle


def chosen_stream(device: Device) -> int:
    """The stream that `use_stream` has chosen for *device* in this thread; 0 if none."""
    chosen = _chosen.streams.get(device)
    return 0 if chosen is None else chosen.handle


def user_stream(device: Device) -> int | None:
    """The stream that the user has chosen for *device* in this thread by `use_stream`, if any."""
    chosen = _chosen.streams.get(device)
    return None if chosen is None or chosen.by_call else chosen.handle


def note_work(device: Device, handle: int) -> None:
    """Note work of others on stream *handle*, if that is chosen in this thread: ours is behind."""
    chosen = _chosen.streams.get(device)
    if chosen is not None and chosen.handle == handle:
        chosen.used = True


def consumer_stream(device: Device) -> tuple[int | None, StreamUse | None]:
    """The stream that we, as a consumer, pass to ``__dlpack__(stream=)``; None: no stream.

    The values for CUDA and ROCm are those of the array API 2025.12: the default
    stream of CUDA is 1, because 0 is ambiguous there. The array API has no
    values for other devices, so their producers get none.
    """
    if device.type not in _STREAM_DEVICES:
        return None, None
    try:
        use = current_use(device)
    except BackendUnavailable:
        return None, None
    default = None if device.type is DLDeviceType.kDLROCM else 1
    return use.handle or default, use


_STREAM_DEVICES = {DLDeviceType.kDLCUDA, DLDeviceType.kDLCUDAManaged, DLDeviceType.kDLROCM}


def wait(device: Device, on: int, plugin: Plugin | None = None) -> StreamUse:
    """Make our stream on *device* wait for the work now on stream *on*; its use.

    *plugin* is the backend of the device, if it is known.
    """
    if plugin is None:
        plugin = plugin_of(device)
    use = current_use(device, plugin)
    if plugin.wait is not None and use.handle != on:
        plugin.wait(device.index, use.handle, on)
    return use


@public
def synchronize(device: DeviceLike, stream: StreamLike | None = None) -> None:
    """Block until the work on a stream of *device* is done.

    Parameters
    ----------
    device : DeviceLike
        `dlbridge.device` says what is accepted.
    stream : StreamLike, optional
        As in `use_stream`; the current stream if None.

    Raises
    ------
    DeviceError
        If work on the stream has failed.
    TypeError, ValueError
        As in `use_stream`.
    BackendUnavailable
        If no backend here serves *device*.

    Examples
    --------
    >>> bridge.synchronize("cpu")
    """
    where = check_device(device)
    with nullcontext() if stream is None else stream_block(where, stream):
        finish(plugin_of(where), where, current_stream(where))


def finish(plugin: Plugin, device: Device, stream: int) -> None:
    """Block until the work on *stream* is done."""
    if plugin.synchronize is not None:
        plugin.synchronize(device.index, stream)


_leaked: list[object] = []
"""Host memory leaked on purpose: a transfer may still be using it, and could not be awaited."""


def drain_then_release(host: object, device: Device, stream: int) -> None:
    """After a failure or a Ctrl-C: wait for the copies that are queued, then release *host*."""
    try:
        finish(plugin_of(device), device, stream)
    except ExchangeError:  # a stream that captures: nothing was queued
        return
    except BaseException:
        _leaked.append(host)
