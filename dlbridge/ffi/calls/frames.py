"""Calls: arguments packed into a frame, the frame passed to C, the result taken.

A *frame* is the memory of one call: a result and up to `FAST` arguments, and the
Tensor objects that tensors are lent in. One frame lies ready; a call takes it and
puts it back when its result is read, and whoever comes meanwhile, by recursion or
in another thread, makes a new one. (A pool in a list costs 60 ns more for each
call, a `threading.local` 50.) A call that fails leaves its frame to the collector.
A frame that lies ready has the result None, which is what a callee that returns
nothing leaves, and keeps nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.plugins.lookup import backend_of
from dlbridge.core.plugins.streams import order
from dlbridge.core.values.devices import Device
from dlbridge.errors import ExchangeError
from dlbridge.protocol import SupportsStreams

from .._lib import C, address, ffi, py
from ..values.errors import drop_untaken, interrupted, raised, untaken
from ..values.tensors import name_argument
from ..values.words import LAST_INDEX, OBJECT_BEGIN, Handle, Temporaries, pack, release, unpack
from .environment import restore_stream, set_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..values.ready_tensors import ReadyTensor

__all__ = [
    "FAST",
    "Frame",
    "abandon",
    "call",
    "call_with_gil",
    "failure",
    "new_frame",
    "new_memory",
    "on_streams",
    "owner_of_result",
]

FAST: Final = 6
"""Arguments of a call that is unrolled; more of them take a loop."""

Memory = tuple[memoryview, Any, Any]
"""64-bit words, TVMFFIAny *arguments, TVMFFIAny *result."""

Frame = tuple[memoryview, "memoryview[float]", Any, Any, "list[ReadyTensor | None]", Temporaries]
"""`Memory` with its words as doubles in the second place; the objects that lie ready
for tensors, made when they are first needed; and what the arguments need."""


def new_memory(count: int) -> Memory:
    """Memory for *count* arguments: word 0 and 1 the result, then two for each."""
    memory = ffi.new("TVMFFIAny[]", count + 1)
    words = memoryview(ffi.buffer(memory)).cast("B").cast("q")
    # Pointer arithmetic does not keep the array alive; the memoryview does.
    return words, memory + 1, memory + 0


def new_frame() -> Frame:
    """A frame for `FAST` arguments."""
    words, arguments, result = new_memory(FAST)
    doubles = words.cast("B").cast("d")
    return words, doubles, arguments, result, [None] * FAST, Temporaries()


def failure(words: memoryview) -> BaseException:
    """The exception for the call with this frame, which has just failed.

    A result that the callee wrote before it failed is let go, as C++ does.
    """
    error = raised()
    abandon(words)
    return error


def abandon(words: memoryview) -> None:
    """Let go of the result in a frame, and of an error: an exception came before they were read."""
    tag, payload, words[0], words[1] = words[0], words[1], 0, 0
    release(tag, payload)
    if untaken:
        drop_untaken()


def owner_of_result(failed: int, words: memoryview) -> type[int]:
    """The class that takes over the payload of the call with this frame: `Handle` or int.

    Raises the exception of the call if it has failed.
    """
    if failed:
        raise failure(words)
    if untaken:
        drop_untaken()
    return Handle if OBJECT_BEGIN <= words[0] <= LAST_INDEX else int


def call(pointer: Any, arguments: Sequence[Any]) -> Any:
    """Call the function at *pointer* with any number of arguments."""
    keep = Temporaries()
    try:
        words, first, result = pack_frame(arguments, keep)
    except ExchangeError as exc:
        name_argument(exc, arguments)
        raise
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
    try:
        owner = owner_of_result(failed, words)
    except BaseException:
        abandon(words)
        raise
    # In line: a Ctrl-C before the first instruction of a function would leave it without owner.
    return unpack(words[0], owner(words[1]))


def call_with_gil(handle: int, *arguments: Any) -> Any:
    """Call a function that touches tables without a lock: the GIL is theirs.

    The registry, the type table, and lists and dicts under change.
    """
    keep = Temporaries()
    words, first, result = pack_frame(arguments, keep)
    try:
        failed = py.TVMFFIFunctionCall(handle, address(first), len(arguments), address(result))
        owner = owner_of_result(failed, words)
    except BaseException:
        abandon(words)
        raise
    return unpack(words[0], owner(words[1]))  # in line, as in `call`


def pack_frame(arguments: Sequence[Any], keep: Temporaries) -> Memory:
    """New memory with *arguments*, good while *keep* lives."""
    memory = new_memory(len(arguments))
    words = memory[0]
    place = 2
    for argument in arguments:
        words[place], words[place + 1] = pack(argument, keep)
        place += 2
    return memory


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
                # Noted before it is replaced: an interruption may come between the two.
                previous = C.TVMFFIEnvGetStream(device_type, device_id)
                before[device_type, device_id] = (handle, previous)
                set_stream(device_type, device_id, handle)
            elif known[0] != handle:
                # Another library's stream on the same device: the callee works on the first.
                _order(Device.of(device_type, device_id), known[0], handle)
        return C.TVMFFIFunctionCall(pointer, first, count, result)  # type: ignore[no-any-return]
    finally:
        for (device_type, device_id), (_handle, previous) in before.items():
            restore_stream(device_type, device_id, previous)


def _order(device: Device, stream: int, on: int) -> None:
    """Make *stream* wait for *on*. BackendUnavailable where nothing here can."""
    plugin = backend_of(device)
    if isinstance(plugin, SupportsStreams):
        order(plugin, device, stream, on)
