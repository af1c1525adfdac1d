"""Calls: arguments packed into a frame, the frame passed to C, the result taken.

A *frame* is the memory of one call: a result and up to `FAST` arguments. One
frame lies ready; a call takes it and puts it back when its result is read, and
whoever comes meanwhile, by recursion or in another thread, makes a new one. (A
pool in a list costs 60 ns more for each call, a `threading.local` 50.) A call
that fails leaves its frame to the collector. A frame that lies ready has the
result None, which is what a callee that returns nothing leaves.

Most time goes to packing, so `Function.__call__` is generated: unrolled for up
to `FAST` arguments, with integers, which most calls have, stored in line.
"""

from __future__ import annotations

from functools import cache
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.plugins.lookup import backend_of
from dlbridge.core.values.devices import Device
from dlbridge.protocol import SupportsStreams

from ._lib import C, ffi, py
from .any import Temporaries, pack, release, unpack
from .error import drop_untaken, interrupted, raised, untaken
from .plain import pack_int

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .any import Packer

__all__ = [
    "FAST",
    "Frame",
    "call",
    "call_with_gil",
    "failure",
    "make_fast_call",
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
    tag, payload, words[0], words[1] = words[0], words[1], 0, 0
    release(tag, payload)
    return error


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
    if failed:
        raise failure(words)
    if untaken:
        drop_untaken()
    return unpack(words[0], words[1])


def call_with_gil(handle: int, *arguments: Any) -> Any:
    """Call a function that touches tables without a lock: the GIL is theirs.

    The registry, the type table, and lists and dicts under change.
    """
    keep = Temporaries()
    words, first, result, _kinds = pack_frame(arguments, keep)
    if py.TVMFFIFunctionCall(
        handle, int(ffi.cast("intptr_t", first)), len(arguments), int(ffi.cast("intptr_t", result))
    ):
        raise failure(words)
    return unpack(words[0], words[1])


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
                previous = _set_stream(device_type, device_id, ffi.cast("void *", handle))
                before[device_type, device_id] = (handle, previous)
            elif known[0] != handle:
                # Another library's stream on the same device: the callee works on the first.
                _order(Device.of(device_type, device_id), known[0], handle)
        return C.TVMFFIFunctionCall(pointer, first, count, result)  # type: ignore[no-any-return]
    finally:
        for (device_type, device_id), (_handle, previous) in before.items():
            # Cannot fail: the place exists since it was set above.
            C.TVMFFIEnvSetStream(device_type, device_id, previous, ffi.NULL)


def _order(device: Device, stream: int, on: int) -> None:
    """Make *stream* wait for *on*. BackendUnavailable where nothing here can."""
    plugin = backend_of(device)
    if isinstance(plugin, SupportsStreams):
        plugin.wait(device.index, stream, on)


def _set_stream(device_type: int, device_id: int, stream: Any) -> Any:
    previous = ffi.new("void **")
    if C.TVMFFIEnvSetStream(device_type, device_id, stream, previous):
        raise raised()
    return previous[0]


# Without arguments there is nothing to pack: 40 ns less.
_HEAD = """\
def make(ready):
    def __call__(self, {parameters}, /, *rest):
        if rest:
            return call(self._pointer, ({names}, *rest))
        # One statement without a call: no other thread, signal handler or trace
        # function comes between reading and writing. (A list and no variable:
        # CPython 3.10 writes a traced frame's variables back, bpo-30744.)
        frame, ready[0] = ready[0], None
        if frame is None:
            frame = new_frame(FAST)
        words, arguments, result, kinds = frame
        if a0 is MISSING:
            try:
                failed = CALL(self._pointer, arguments, 0, result)
            except SystemError as error:
                raise interrupted(error) from None
        else:
            keep = None
"""
_ARGUMENT = """\
kind = type(a{i})
if kind is int:
    if kinds[{i}] is not int:
        kinds[{i}] = int
        words[{tag}] = INT
    try:
        words[{payload}] = a{i}
    except ValueError:
        if keep is None:
            keep = Temporaries()
        kinds[{i}] = None
        words[{tag}], words[{payload}] = pack_int(a{i}, keep)
else:
    kinds[{i}] = None
    if keep is None:
        keep = Temporaries()
    words[{tag}], words[{payload}] = (packers.get(kind) or packer_of(kind))(a{i}, keep)
"""
_NEXT = """\
if a{next} is MISSING:
    count = {next}
else:
"""
_TAIL = """\
            try:
                if keep is None or keep.streams is None:
                    failed = CALL(self._pointer, arguments, count, result)
                else:
                    failed = on_streams(keep.streams, self._pointer, arguments, count, result)
            except SystemError as error:
                raise interrupted(error) from None
        if failed:
            raise failure(words)
        if untaken:
            drop_untaken()
        tag = words[0]
        if not tag:
            ready[0] = frame
            return None
        payload = words[1]
        words[0] = words[1] = 0
        ready[0] = frame
        if tag == INT:
            return payload
        return unpack(tag, payload)
    return __call__
"""


def _indent(text: str, depth: int) -> str:
    return "".join("    " * depth + line for line in text.splitlines(keepends=True))


def make_fast_call(
    packers: dict[type, Packer], packer_of: Callable[[type], Packer]
) -> Callable[..., Any]:
    """`Function.__call__`, compiled from the four templates above.

    *packers* is asked first, by exact class, then *packer_of*.
    """
    scope: dict[str, Any] = {
        "CALL": C.TVMFFIFunctionCall,
        "FAST": FAST,
        "INT": C.kTVMFFIInt,
        "MISSING": object(),
        "Temporaries": Temporaries,
        "call": call,
        "drop_untaken": drop_untaken,
        "failure": failure,
        "interrupted": interrupted,
        "new_frame": new_frame,
        "on_streams": on_streams,
        "pack_int": pack_int,
        "packer_of": packer_of,
        "packers": packers,
        "unpack": unpack,
        "untaken": untaken,
        "__name__": __name__,
    }
    exec(_fast_call_code(), scope)
    return scope["make"]([new_frame(FAST)])  # type: ignore[no-any-return]


@cache
def _fast_call_code() -> CodeType:
    names = [f"a{i}" for i in range(FAST)]
    source = _HEAD.format(
        parameters=", ".join(f"{name}=MISSING" for name in names), names=", ".join(names)
    )
    for i in range(FAST):
        part = _ARGUMENT.format(i=i, tag=2 * i + 2, payload=2 * i + 3)
        if i + 1 < FAST:
            part += _NEXT.format(next=i + 1)
        source += _indent(part, i + 3)
    source += _indent(f"count = {FAST}\n", FAST + 2) + _TAIL
    return compile(source, "<dlbridge.ffi: generated call>", "exec")
