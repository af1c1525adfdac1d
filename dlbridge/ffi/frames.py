"""The memory of a call: arguments packed into a frame, the frame passed to C, the result taken.

A *frame* is the memory of one call: a result and up to six arguments, and the
Tensor objects in which tensors are lent. One frame lies ready; a call takes it and
puts it back when its result is read, and whoever comes meanwhile, by recursion or
in another thread, makes a new one. (A pool in a list costs 60 ns more for each
call, a `threading.local` 50; without the GIL it is a pool.) A call that fails leaves
its frame to the collector.
A bound call has a frame of its own, with nothing but a result, and puts it back always.
A frame that lies ready has the result None, which is what a callee that returns
nothing leaves, and keeps nothing.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from dlbridge.abi import undisguised

from ._lib import HAS_GIL, C, address, ffi, py
from .any import (
    LAST_INDEX,
    OBJECT_BEGIN,
    ByteArray,
    Handle,
    Members,
    Temporaries,
    made_with_gil,
    new_slot,
    owned,
    pack,
    release,
    unpack,
)
from .errors import drop_untaken, interrupted, raised, untaken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Copied: an attribute of a cffi library costs 30 ns, a global 2.
CALL: Final = C.TVMFFIFunctionCall
INT: Final[int] = C.kTVMFFIInt
FLOAT: Final[int] = C.kTVMFFIFloat
TENSOR: Final[int] = C.kTVMFFITensor
_FEW: Final = 6

Memory = tuple[memoryview, Any, Any]
"""64-bit words, TVMFFIAny *arguments, TVMFFIAny *result."""

Frame = tuple[memoryview, "memoryview[float]", Any, Any, list[Any], Temporaries]
"""`Memory`, and in it, behind the words, the same as doubles; the objects that lie ready
for tensors, made when they are first needed; and what the arguments need."""


def new_memory(count: int) -> Memory:
    """Memory for *count* arguments: word 0 and 1 the result, then two for each."""
    memory = ffi.new("TVMFFIAny[]", count + 1)
    words = memoryview(ffi.buffer(memory)).cast("B").cast("q")
    # Pointer arithmetic does not keep the array alive; the memoryview does.
    return words, memory + 1, memory + 0


def new_frame(count: int) -> Frame:
    """A frame for *count* arguments."""
    words, arguments, result = new_memory(count)
    doubles = words.cast("B").cast("d")
    return words, doubles, arguments, result, [None] * count, Temporaries()


_F = TypeVar("_F")


class _Pool(Generic[_F]):
    """What `ready_frames` gives where there is no GIL: to read an element claims it."""

    def __init__(self, frame: _F) -> None:
        self._frames = deque([frame])

    def __getitem__(self, _index: int) -> _F | None:
        try:
            return self._frames.pop()
        except IndexError:
            return None

    def __setitem__(self, _index: int, frame: _F | None) -> None:
        if frame is not None:
            self._frames.append(frame)


def ready_frames(frame: _F) -> list[_F | None]:
    """Where *frame* lies ready, for ``frame, ready[0] = ready[0], None``, which claims it.

    With the GIL no other thread, signal handler or trace function comes between reading and
    writing, as no function is called. (A list and no variable: CPython before 3.13 writes a
    traced frame's variables back, bpo-30744.)
    """
    return [frame] if HAS_GIL else cast("list[_F | None]", _Pool(frame))


def pack_frame(arguments: Sequence[Any], keep: Temporaries) -> Memory:
    """New memory with *arguments*, good while *keep* lives."""
    count = len(arguments)
    memory = new_memory(count)
    words = memory[0]
    if count > _FEW and set(map(type, arguments)) == {int}:  # what large arrays are made of
        try:
            words[3::2] = memoryview(array("q", arguments))
        except OverflowError:
            pass  # a BigInt among them
        else:
            words[2::2] = memoryview(array("q", (INT,)) * count)
            return memory
    for position, argument in enumerate(arguments, 1):
        words[2 * position], words[2 * position + 1] = pack(argument, keep)
    return memory


def abandon(words: memoryview) -> None:
    """Let go of the result in a frame, and of an error: an exception came before they were read.

    So a result goes that a callee wrote before it failed, as in C++.
    """
    release(words)
    if untaken:
        drop_untaken()


def perform(words: memoryview, function: Callable[..., int], *arguments: Any) -> tuple[int, int]:
    """Call the C *function*, which writes its result into *words*: tag and payload, owned.

    Every call ends so that is not made by the fast forms of ``_calls.py``. Their generator has
    these lines, too (``cdefs/ffi_calls.py``), since to call this function would cost them 60 ns.
    """
    try:
        try:
            failed = function(*arguments)
        except SystemError as error:
            raise interrupted(error) from None
        if failed:
            raise raised()
        if untaken:
            drop_untaken()
        tag = words[0]
        return tag, owned(words) if OBJECT_BEGIN <= tag <= LAST_INDEX else words[1]
    except BaseException as exc:  # its own, or one that came meanwhile
        abandon(words)
        if isinstance(exc, ctypes.ArgumentError):
            raise undisguised(exc) from None
        raise


def call_with_gil(
    function: int, arguments: Sequence[Any], keep: Temporaries | None = None
) -> tuple[int, int]:
    """Call a function that touches tables without a lock: the GIL is theirs.

    The registry, the type table, and lists and dicts under change. Tag and payload, owned.
    *keep*: that of the call for which the function makes an argument.
    """
    keep = Members() if keep is None else keep
    words, first, result = pack_frame(arguments, keep)
    location = address(first)
    count = len(arguments)
    return perform(words, py.TVMFFIFunctionCall, function, location, count, address(result))


def ask(name: str, *arguments: Any) -> Any:
    """The result of the library's own function *name*, with the GIL held."""
    return unpack(*call_with_gil(builtin(name), arguments))


_builtins: dict[str, Handle] = {}


def builtin(name: str) -> Handle:
    """The handle of a function of the library's own, kept."""
    handle = _builtins.get(name)
    if handle is None:
        _status, handle = look_up(ByteArray(name))
        if handle is None:
            raise ValueError(f"this libtvm_ffi has no {name}")
        _builtins[name] = handle
    return handle


def look_up(name: ByteArray) -> tuple[int, Handle | None]:
    """The status of the look-up of a global function, and the function or None."""
    return made_with_gil(new_slot(), py.TVMFFIFunctionGetGlobal, name)
