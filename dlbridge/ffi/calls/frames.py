"""Calls: arguments packed into a frame, the frame passed to C, the result taken.

A *frame* is the memory of one call: a result and up to `FAST` arguments. One
frame lies ready; a call takes it and puts it back when its result is read, and
whoever comes meanwhile, by recursion or in another thread, makes a new one. (A
pool in a list costs 60 ns more for each call, a `threading.local` 50.) A call
that fails leaves its frame to the collector. A frame that lies ready has the
result None, which is what a callee that returns nothing leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.plugins.lookup import backend_of
from dlbridge.core.values.devices import Device
from dlbridge.protocol import SupportsStreams

from .._lib import C, address, ffi, py
from ..values.errors import drop_untaken, interrupted, raised, untaken
from ..values.words import LAST_INDEX, OBJECT_BEGIN, Handle, Temporaries, pack, release, unpack
from .environment import restore_stream, swap_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "FAST",
    "Frame",
    "abandon",
    "call",
    "call_with_gil",
    "failure",
    "new_frame",
    "on_streams",
]

FAST: Final = 6
"""Arguments of a call that is unrolled; more of them take a loop."""

Frame = tuple[memoryview, Any, Any, list[Any]]
"""64-bit words, TVMFFIAny *arguments, TVMFFIAny *result, and the class that each
argument's tag was last written for (None: look anew)."""


def new_frame(count: int) -> Frame:
    """A frame for *count* arguments: word 0 and 1 the result, then two for each."""
    memory = ffi.new("TVMFFIAny[]", count + 1)
    words = memoryview(ffi.buffer(memory)).cast("B").cast("q")
    # Pointer arithmetic does not keep the array alive; the memoryview does.
    return words, memory + 1, memory + 0, [None] * count


def failure(words: memoryview) -> BaseException:
    """The exception for the call with this frame, which has just failed.

    A result that the callee wrote before it failed is let go, as C++ does.
    """
    error = raised()
    abandon(words)
    return error


def abandon(words: memoryview) -> None:
    """Let go of the result in a frame, if there is one: an exception came before it was read."""
    tag, payload, words[0], words[1] = words[0], words[1], 0, 0
    release(tag, payload)


def call(pointer: Any, arguments: Sequence[Any]) -> Any:
    """Call the function at *pointer* with any number of arguments."""
    keep = Temporaries()
    words, first, result, _kinds = pack_frame(arguments, keep)
    try:
        if keep.streams:
            failed = on_streams(keep.streams, pointer, first, len(arguments), result)
        else:
            failed = C.TVMFFIFunctionCall(pointer, first, len(arguments), result)
    except SystemError as exc:
        raise interrupted(exc) from None
    except BaseException:
        abandon(words)
        raise
    if failed:
        raise failure(words)
    if untaken:
        drop_untaken()
    tag, payload = words[0], words[1]
    # In line: a Ctrl-C before the first instruction of a function would leave it without owner.
    return unpack(tag, Handle(payload) if OBJECT_BEGIN <= tag <= LAST_INDEX else payload)


def call_with_gil(handle: int, *arguments: Any) -> Any:
    """Call a function that touches tables without a lock: the GIL is theirs.

    The registry, the type table, and lists and dicts under change.
    """
    keep = Temporaries()
    words, first, result, _kinds = pack_frame(arguments, keep)
    try:
        failed = py.TVMFFIFunctionCall(handle, address(first), len(arguments), address(result))
    except BaseException:
        abandon(words)
        raise
    if failed:
        raise failure(words)
    tag, payload = words[0], words[1]
    # In line: a Ctrl-C before the first instruction of a function would leave it without owner.
    return unpack(tag, Handle(payload) if OBJECT_BEGIN <= tag <= LAST_INDEX else payload)


def pack_frame(arguments: Sequence[Any], keep: Temporaries) -> Frame:
    """A new frame with *arguments*, good while *keep* lives."""
    frame = new_frame(len(arguments))
    words = frame[0]
    place = 2
    for argument in arguments:
        words[place], words[place + 1] = pack(argument, keep)
        place += 2
    return frame


def on_streams(
    streams: Sequence[tuple[int, int, Callable[[], int | None]]],
    pointer: Any,
    first: Any,
    count: int,
    result: Any,
) -> int:
    """Call with the stream of every device in the environment; put them back after."""
    before: dict[tuple[int, int], tuple[int, Any]] = {}
    try:
        for device_type, device_id, stream in streams:
            handle = stream()
            if handle is None:
                continue
            known = before.get((device_type, device_id))
            if known is None:
                previous = swap_stream(device_type, device_id, handle)
                before[device_type, device_id] = (handle, previous)
            elif known[0] != handle:
                # Another library's stream on the same device: the callee works on the first.
                _order(Device.of(device_type, device_id), known[0], handle)
        return C.TVMFFIFunctionCall(pointer, first, count, result)  # type: ignore[no-any-return]
    finally:
        for (device_type, device_id), (_handle, previous) in before.items():
            # Cannot fail: the place exists since it was set above.
            restore_stream(device_type, device_id, previous)


def _order(device: Device, stream: int, on: int) -> None:
    """Make *stream* wait for *on*. BackendUnavailable where nothing here can."""
    plugin = backend_of(device)
    if isinstance(plugin, SupportsStreams):
        plugin.wait(device.index, stream, on)
