"""Calls: arguments packed into a frame, the frame passed to C, the result taken; streams.

A *frame* is the memory of one call: a result and up to `FAST` arguments, and the
Tensor objects that tensors are lent in. One frame lies ready; a call takes it and
puts it back when its result is read, and whoever comes meanwhile, by recursion or
in another thread, makes a new one. (A pool in a list costs 60 ns more for each
call, a `threading.local` 50.) A call that fails leaves its frame to the collector.
A frame that lies ready has the result None, which is what a callee that returns
nothing leaves, and keeps nothing.
"""

from __future__ import annotations

import ctypes
import linecache
import sys
import threading
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Protocol

from dlbridge.core.interfaces.own_table import _managed_tensor_allocator as managed_tensor_allocator
from dlbridge.core.plugins.lookup import backend_of
from dlbridge.core.plugins.streams import order, use_stream as use_backend_stream
from dlbridge.core.public import public_in
from dlbridge.core.tensor.array_tensor import ArrayTensor
from dlbridge.core.values.devices import Device, device
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.protocol import SupportsStreams

from ._lib import C, address, ffi, py
from .any import (
    CACHED_CLASSES,
    LAST_INDEX,
    OBJECT_BEGIN,
    Handle,
    Packer,
    Temporaries,
    pack,
    pack_int,
    pack_str,
    packer_of,
    release,
    short_texts,
    unpack,
    untrack,
)
from .errors import drop_untaken, interrupted, raised, untaken
from .tensors import (
    ALONE,
    HostHandle,
    Lender,
    ReadyTensor,
    lender_of,
    name_argument,
    pack_own,
    take_back,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType


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


@public_in("dlbridge.ffi")
class BoundCall(Protocol):
    """The result of `Function.bind`: a plain Python function, the fastest to call.

    Examples
    --------
    >>> step = ffi.convert_func(lambda x, y: x + y).bind(1, 2)
    >>> step()
    3
    >>> step.replace(1, 10)
    >>> step()
    11
    """

    def __call__(self) -> Any:
        """Call with the bound arguments."""

    def replace(self, index: int, value: Any) -> None:
        """Bind *value* in place of argument *index*, for the calls that begin later.

        If it fails, the arguments stay as they were.

        Parameters
        ----------
        index : int
            The place of the argument, counted from 0; a negative one counts from the end.
        value : object
            The new argument.

        Raises
        ------
        IndexError
            If so many arguments were not bound.
        RuntimeError
            If code that runs while *value* is packed calls `replace` itself.

        Examples
        --------
        >>> step = ffi.get_global_func("ffi.Array").bind(1, 2)
        >>> step.replace(-1, "new")
        >>> step()
        (1, "new")
        """


def bind(function: Handle, bound: list[Any], *, silent: bool) -> BoundCall:  # noqa: C901  # three closures, one of which is used
    """The closure behind `Function.bind`; its cells are the prepared call.

    *silent*: the function is known to return nothing, so no result is looked at.
    """
    count = len(bound)
    pointer = ffi.cast("void *", function)
    # Lists and no variables: see call._HEAD.
    packed = [*_pack(function, bound)]
    result = ffi.new("TVMFFIAny *")
    words = memoryview(ffi.buffer(result)).cast("B").cast("q")
    busy = [False]  # whether a call uses the place for the result
    replacing = RLock()
    inside = [False]  # whether this thread, which has the lock, is replacing already

    def call_silent() -> None:
        arguments, call_c, _kept = packed  # kept while C uses them, also if they are replaced
        try:
            if call_c(pointer, arguments, count, result):
                raise raised()
        except BaseException as exc:
            if untaken:
                drop_untaken()
            if isinstance(exc, SystemError):
                raise interrupted(exc) from None
            raise
        if untaken:
            drop_untaken()

    def call() -> Any:
        arguments, call_c, _kept = packed  # kept while C uses them, also if they are replaced
        # One statement without a call: no other thread comes between reading and writing.
        taken, busy[0] = busy[0], True
        if taken:
            return _call_apart(call_c, pointer, arguments, count)
        try:
            failed = call_c(pointer, arguments, count, result)
        except BaseException as exc:
            abandon(words)
            busy[0] = False
            if isinstance(exc, SystemError):
                raise interrupted(exc) from None
            raise
        try:
            if failed:
                raise failure(words)
            if untaken:
                drop_untaken()
            tag = words[0]
            if not tag:
                busy[0] = False
                return None
            owner = Handle if OBJECT_BEGIN <= tag <= LAST_INDEX else int
        except BaseException:
            abandon(words)
            busy[0] = False
            raise
        payload = owner(words[1])  # owned before the place forgets it
        words[0] = words[1] = 0
        busy[0] = False
        return unpack(tag, payload)

    def replace(index: int, value: Any) -> None:
        with replacing:
            if inside[0]:
                raise RuntimeError("an argument cannot be replaced by the value being bound")
            inside[0] = True
            try:
                changed = [*bound]
                changed[index] = value
                packed[:] = _pack(function, changed)
                bound[:] = changed
            finally:
                inside[0] = False

    made: Any = call_silent if silent else call
    made.replace = replace
    return made  # type: ignore[no-any-return]


def _call_apart(call_c: Any, pointer: Any, arguments: Any, count: int) -> Any:
    """The call, with a place of its own for the result."""
    words, _none, result = new_memory(0)
    try:
        failed = call_c(pointer, arguments, count, result)
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
    return unpack(words[0], owner(words[1]))  # in line, as in `frames.call`


def _pack(
    function: Handle, bound: list[Any]
) -> tuple[Any, Callable[[Any, Any, int, Any], int], tuple[Any, ...]]:
    """The packed arguments of a bound call, what to call *function* with, and what these need.

    The third is kept by plain references: the collector has `ffi.gc` give up what it
    keeps before the finalizers of a cycle, which may make the call.
    """
    keep = Temporaries()
    try:
        words, first, _result = pack_frame(bound, keep)
    except ExchangeError as exc:
        name_argument(exc, bound)
        raise
    for handle in (function, *keep):
        if isinstance(handle, Handle):
            untrack(handle)
    kept = (words, keep, function, *bound)  # an object is packed as its address
    if keep.streams:
        return first, partial(on_streams, keep.streams), kept
    return first, C.TVMFFIFunctionCall, kept


_FILE_NAME: Final = "<dlbridge.ffi: generated call>"

_HEAD = """\
def make(ready):
    def __call__(self, {parameters}, /, *rest):
        if rest:
            return call(self._pointer, ({names}, *rest))
        # One statement without a call: no other thread, signal handler or trace
        # function comes between reading and writing. (A list and no variable:
        # CPython before 3.13 writes a traced frame's variables back, bpo-30744.)
        frame, ready[0] = ready[0], None
        if frame is None:
            frame = new_frame()
        words, doubles, arguments, result, tensors, keep = frame
        lent = 0  # how many of `tensors`
        try:
"""
_ARGUMENT = """\
if a{i} is MISSING:
    count = {i}
else:
    kind = type(a{i})
    if kind is int:
        try:
            words[{payload}] = a{i}
            words[{tag}] = INT
        except ValueError:
            words[{tag}], words[{payload}] = pack_int(a{i}, keep)
    elif kind is ArrayTensor:
        try:
            handle{i} = a{i}._native  # a variable of its own, which keeps it for the call
        except AttributeError:  # not passed before
            handle{i} = None
        if type(handle{i}) is HostHandle:
            words[{tag}] = TENSOR
            words[{payload}] = handle{i}
        else:
            words[{tag}], words[{payload}] = pack_own(a{i}, keep)
    elif kind is float:
        words[{tag}] = FLOAT
        doubles[{payload}] = a{i}
    elif kind is str:
        words[{tag}], words[{payload}] = short_texts.get(a{i}) or pack_str(a{i}, keep)
    elif a{i} is None:
        words[{tag}] = words[{payload}] = 0
    else:
        lend, pack = ways.get(kind) or way_of(kind)
        place = lend and lend(a{i}, tensors, lent)
        if place:
            lent += 1
            words[{tag}] = TENSOR
            words[{payload}] = place
        else:
            words[{tag}], words[{payload}] = pack(a{i}, keep)
"""
_TAIL = """\
            try:
                if keep and keep.streams:
                    failed = on_streams(keep.streams, self._pointer, arguments, count, result)
                else:
                    failed = CALL(self._pointer, arguments, count, result)
            except SystemError as error:
                raise interrupted(error) from None
            if failed:
                raise failure(words)
            if untaken:
                drop_untaken()
            if lent:
                for tensor in tensors:
                    if tensor is None:
                        break
                    if tensor.words[0] != ALONE:
                        take_back(tensors)
                        break
                    tensor.lent[1] = None
            if keep:
                keep.clear()
                keep.streams = None
            tag = words[0]
            if not tag:
                ready[0] = frame
                return None
            if tag == INT:
                payload = words[1]
                words[0] = words[1] = 0
                ready[0] = frame
                return payload
            owner = Handle if OBJECT_BEGIN <= tag <= LAST_INDEX else int
        except BaseException as error:
            abandon(words)
            name_argument(error, ({names}))
            raise
        payload = owner(words[1])  # owned before the frame forgets it
        words[0] = words[1] = 0
        ready[0] = frame
        return unpack(tag, payload)
    # What CPython says of a keyword begins with this name.
    __call__.__qualname__ = "a Function takes its arguments by position: Function.__call__"
    return __call__
"""


def _indent(text: str, depth: int) -> str:
    return "".join("    " * depth + line for line in text.splitlines(keepends=True))


_ways: Final[dict[type, tuple[Lender | None, Packer]]] = {}
"""Cache: exact class -> how its instances become arguments: lent if they can be, else packed."""


def _way_of(cls: type) -> tuple[Lender | None, Packer]:
    if len(_ways) > CACHED_CLASSES:  # as in `packer_of`
        _ways.clear()
    found = _ways[cls] = lender_of(cls), packer_of(cls)
    return found


def make_fast_call() -> Callable[..., Any]:
    """`Function.__call__`, compiled from the three templates above."""
    scope: dict[str, Any] = {
        "ALONE": ALONE,
        "ArrayTensor": ArrayTensor,
        "CALL": C.TVMFFIFunctionCall,
        "FLOAT": C.kTVMFFIFloat,
        "Handle": Handle,
        "HostHandle": HostHandle,
        "INT": C.kTVMFFIInt,
        "LAST_INDEX": LAST_INDEX,
        "MISSING": object(),
        "OBJECT_BEGIN": OBJECT_BEGIN,
        "TENSOR": C.kTVMFFITensor,
        "abandon": abandon,
        "call": call,
        "drop_untaken": drop_untaken,
        "failure": failure,
        "interrupted": interrupted,
        "name_argument": name_argument,
        "new_frame": new_frame,
        "on_streams": on_streams,
        "pack_int": pack_int,
        "pack_own": pack_own,
        "pack_str": pack_str,
        "short_texts": short_texts,
        "take_back": take_back,
        "unpack": unpack,
        "untaken": untaken,
        "way_of": _way_of,
        "ways": _ways,
        "__name__": __name__,
    }
    exec(_fast_call_code(), scope)  # the text is made of constants of this module only
    return scope["make"]([new_frame()])  # type: ignore[no-any-return]


@cache
def _fast_call_code() -> CodeType:
    names = [f"a{i}" for i in range(FAST)]
    source = _HEAD.format(
        parameters=", ".join(f"{name}=MISSING" for name in names), names=", ".join(names)
    )
    for i in range(FAST):
        part = _ARGUMENT.format(i=i, tag=2 * i + 2, payload=2 * i + 3)
        source += _indent(part, i + 3)
    source += _indent(f"count = {FAST}\n", FAST + 3) + _TAIL.format(names=", ".join(names))
    # So that tracebacks, debuggers and `inspect.getsource` show its lines. (A time of None
    # tells `linecache.checkcache` that there is no file to compare with.)
    linecache.cache[_FILE_NAME] = (len(source), None, source.splitlines(keepends=True), _FILE_NAME)
    return compile(source, _FILE_NAME, "exec")
