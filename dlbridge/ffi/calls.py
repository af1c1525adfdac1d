"""Calls: `Function.__call__` and `Function.bind`."""

from __future__ import annotations

import linecache
import re
import sys
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from dlbridge.core.dlpack.structs import DLPACK_VERSION, FLAG_READ_ONLY
from dlbridge.core.implementation_details.handlers import unless_handler
from dlbridge.core.implementation_details.python_api import memory, word_at
from dlbridge.core.tensor.array_tensor import ArrayTensor
from dlbridge.errors import ExchangeError
from dlbridge.interop.torch import LOWEST_USUAL, is_without_memory
from dlbridge.kit.resources import shared_lock

from ._lib import C, ffi
from .any import (
    HEADER,
    LAST_INDEX,
    OBJECT_BEGIN,
    Handle,
    Temporaries,
    Unowned,
    lent_numpy,
    lent_torch,
    pack_int,
    pack_str,
    packer_of,
    packers,
    short_texts,
    unpack,
    untrack,
)
from .errors import drop_untaken, interrupted, raised, untaken
from .frames import FAST, Frame, abandon, new_frame, new_memory, pack_frame, perform
from .lending import ALONE, TENSOR_WORDS, on_torchs_stream, ready_tensor
from .streams import on_streams
from .tensors import HostHandle, name_argument, pack_own

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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


# --- Function.__call__ and Function.bind --------------------------------------------

# Copied: an attribute of a cffi library costs 30 ns, a global 2.
_CALL: Final = C.TVMFFIFunctionCall
_INT: Final[int] = C.kTVMFFIInt
_FLOAT: Final[int] = C.kTVMFFIFloat
_TENSOR: Final[int] = C.kTVMFFITensor
_CPU: Final[int] = C.kDLCPU  # number 0 of them: the high half of the word
_COMPLEX: Final[int] = C.kDLComplex
_MISSING: Final = object()
# In words: the device and the DLTensor of an object; what a DLManagedTensorVersioned has, and a
# capsule, in `memory`.
_DEVICE_WORD: Final = (HEADER + ffi.offsetof("DLTensor", "device")) // 8
_OF_OBJECT: Final = slice(HEADER // 8, HEADER // 8 + TENSOR_WORDS)
_FLAGS_WORD: Final = word_at(ffi.offsetof("DLManagedTensorVersioned", "flags"))
_TENSOR_WORD: Final = word_at(ffi.offsetof("DLManagedTensorVersioned", "dl_tensor"))
_TENSOR_END: Final = _TENSOR_WORD + TENSOR_WORDS
_POINTER_WORD: Final = word_at(object.__basicsize__)
_CODE_AT: Final = HEADER + ffi.offsetof("DLTensor", "dtype")
# The byte of the data that is 0 below `LOWEST_USUAL`: to compare all of it would cost 10 ns more.
_HIGH_OF_DATA: Final = (
    HEADER + ffi.offsetof("DLTensor", "data") + LOWEST_USUAL.to_bytes(8, sys.byteorder).index(1)
)


def call(self: Any, *arguments: Any) -> Any:  # noqa: C901  # a call of a function costs 60 ns
    """Call the Function *self*.

    This is the slow form, for any number of arguments, and the text of the fast ones, which
    `generated` makes: a comment with an arrow says which of them have the lines after it.
    """
    ready: list[Frame | None] = [None]
    frame = new_frame(len(arguments))
    # <- plain
    words, doubles, first, result, tensors, keep = frame
    count = lent = 0
    try:
        for value in arguments:
            kind = type(value)
            if kind is int:
                try:
                    words[2 * count + 3] = value
                    words[2 * count + 2] = _INT
                except ValueError:
                    words[2 * count + 2], words[2 * count + 3] = pack_int(value, keep)
            elif kind is ArrayTensor:
                try:
                    handle = value._native
                except AttributeError:  # not passed before
                    handle = None
                if type(handle) is HostHandle:
                    keep.append(handle)  # <- loop: a variable of its own keeps it for the call
                    words[2 * count + 2] = _TENSOR
                    words[2 * count + 3] = handle
                else:
                    words[2 * count + 2], words[2 * count + 3] = pack_own(value, keep)
            elif kind is float:
                words[2 * count + 2] = _FLOAT
                doubles[2 * count + 3] = value
            elif kind is str:
                packed = short_texts.get(value) or pack_str(value, keep)
                words[2 * count + 2], words[2 * count + 3] = packed
            elif value is None:
                words[2 * count + 2] = words[2 * count + 3] = 0
            else:
                place = 0
                if kind in lent_torch:
                    is_neg, fill = lent_torch[kind]
                    argument, places, own, octets, at, _ = tensors[lent] or ready_tensor(
                        tensors, lent
                    )
                    argument.value = value
                    try:
                        # Complex numbers may be lazily conjugated.
                        refused = is_neg(value) or fill(*places) or octets[_CODE_AT] == _COMPLEX
                        if not octets[_HIGH_OF_DATA] and not refused:  # NULL, and an offset
                            refused = is_without_memory(value)
                        if own[_DEVICE_WORD] != _CPU and not refused:
                            on_torchs_stream(value, own[_DEVICE_WORD], keep)
                    except unless_handler(Exception):
                        refused = True
                    if refused:
                        argument.value = 0
                    else:
                        place = at
                elif kind in lent_numpy:
                    try:
                        capsule = value.__dlpack__(max_version=DLPACK_VERSION)
                    except unless_handler(Exception):
                        capsule = None
                    # As by `address_in`, whose call takes 40 ns.
                    managed = capsule and memory[(id(capsule) >> 3) + _POINTER_WORD] >> 3
                    if managed and not memory[managed + _FLAGS_WORD] & FLAG_READ_ONLY:
                        argument, _, own, _, place, _ = tensors[lent] or ready_tensor(tensors, lent)
                        own[_OF_OBJECT] = memory[managed + _TENSOR_WORD : managed + _TENSOR_END]
                        argument.value = capsule
                if place:
                    lent += 1
                    words[2 * count + 2] = _TENSOR
                    words[2 * count + 3] = place
                else:  # the packer knows what to do, or says why nothing can be done
                    packer = packers.get(kind) or packer_of(kind)
                    words[2 * count + 2], words[2 * count + 3] = packer(value, keep)
            count += 1  # <- loop
        pointer, call_c = self._pointer, _CALL
        if keep and keep.streams:
            call_c = partial(on_streams, keep.streams)
        # <- plain, bound, silent
        try:
            failed = call_c(pointer, first, count, result)
        except SystemError as error:
            raise interrupted(error) from None
        if failed:
            raise raised()
        if untaken:
            drop_untaken()
        # <- plain
        while lent:
            lent -= 1
            argument, _, own, _, _, _ = tensors[lent]
            if own[0] == ALONE:
                argument.value = 0  # not None, which ctypes does not store
            else:  # the other references are the callee's
                tensors[lent] = None
        if keep:
            keep.clear()
            keep.streams = None
        # <- plain, bound
        tag = words[0]
        if not tag:
            ready[0] = frame
            return None
        if tag == _INT:
            payload = words[1]
            words[0] = words[1] = 0
            ready[0] = frame
            return payload
        if OBJECT_BEGIN <= tag <= LAST_INDEX:
            payload = Unowned(words[1])
            # As in `owned`, whose call takes 50 ns.
            payload.__class__, words[0] = Handle, 0  # type: ignore[assignment]
        else:
            payload = words[1]
            words[0] = words[1] = 0
    # <- plain, bound, silent
    except BaseException as error:
        abandon(words)
        # <- bound
        ready[0] = frame
        # <- plain
        name_argument(error, arguments)
        # <- plain, bound, silent
        raise
    # <- plain, bound
    ready[0] = frame
    return unpack(tag, payload)


# How the fast forms begin. They share the frame that lies ready: it is claimed in one statement
# without a call, so that no other thread, signal handler or trace function comes between reading
# and writing. (A list and no variable: CPython before 3.13 writes a traced frame's variables
# back, bpo-30744.) A silent call claims nothing, as it reads no result.
_HEADS: Final = {
    "plain": """\
def make(ready):
    def step(self, PARAMETERS, /, *rest):
        if rest:
            return call(self, NAMES, *rest)
        frame, ready[0] = ready[0], None
        if frame is None:
            frame = new_frame()
""",
    "bound": """\
def make(frame, packed, slow):
    ready = [frame]
    def step():
        passed, call_c, _kept = packed  # kept while C uses them, also if they are replaced
        frame, ready[0] = ready[0], None
        if frame is None:  # a call runs
            return slow()
        words = frame[0]
        try:
""",
    "silent": """\
def make(frame, packed, _slow):
    words, _none, result = frame
    def step():
        passed, call_c, _kept = packed  # kept while C uses them, also if they are replaced
        try:
""",
}


@cache
def generated(form: str) -> Callable[..., Any] | None:
    """The maker of a fast form of `call`; None where its source is missing.

    ``"plain"`` is `Function.__call__`. Most of its time goes to packing: unrolled, a call of
    three integers takes half of what the loop does. ``"bound"`` is a call whose arguments are
    packed already, ``"silent"`` one of a function that returns nothing.
    """
    lines = _lines_for(form)
    if not lines:
        return None
    names = [f"a{i}" for i in range(FAST)]
    head = _HEADS[form].replace("PARAMETERS", ", ".join(f"{name}=_MISSING" for name in names))
    if form == "plain":
        lines = [line.replace("arguments)", "(NAMES))") for line in _unrolled(lines)]
    else:
        lines = [line.replace("pointer, first, count, result", "*passed") for line in lines]
    source = head + "".join("    " + line for line in lines) + "    return step\n"
    source = source.replace("NAMES", ", ".join(names))
    file = f"<dlbridge.ffi: {form} call>"
    # So that tracebacks, debuggers and `inspect.getsource` show its lines. (A time of None
    # tells `linecache.checkcache` that there is no file to compare with.)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    made: dict[str, Any] = {}
    exec(compile(source, file, "exec"), globals(), made)  # the text is of this module only
    return made["make"]  # type: ignore[no-any-return]


def _lines_for(form: str) -> list[str]:
    """The lines of `call` that *form* has, too."""
    found, wanted = [], False
    for line in linecache.getlines(__file__)[call.__code__.co_firstlineno :]:
        if line.strip() and not line.startswith("    "):  # the end of the function
            break
        if line.lstrip().startswith("# <- "):
            wanted = form in line
        elif wanted:
            found.append(line)
    return found


def _unrolled(lines: list[str]) -> list[str]:
    """The *lines* with the loop over the arguments written out, each turn inside the one before."""
    begin = next(at for at, line in enumerate(lines) if "for value in arguments:" in line)
    end = next(at for at, line in enumerate(lines) if "count += 1" in line)
    turn = [line for line in lines[begin + 1 : end] if "# <- loop" not in line]
    found = lines[:begin]
    for i in range(FAST):
        pad = "    " * (i + 2)
        found += [f"{pad}if a{i} is _MISSING:\n", f"{pad}    count = {i}\n", f"{pad}else:\n"]
        found += ["    " * i + _of_turn(line, i) for line in turn]
    return [*found, "    " * (FAST + 2) + f"count = {FAST}\n", *lines[end + 1 :]]


_OF_TURN: Final = re.compile(r"(?<!\.)\b(?:value|handle)\b")


def _of_turn(line: str, i: int) -> str:
    """The *line* with the names and the places of argument *i*."""
    line = _OF_TURN.sub(lambda name: f"a{i}" if name[0] == "value" else f"handle{i}", line)
    return line.replace("2 * count + 2", f"{2 * i + 2}").replace("2 * count + 3", f"{2 * i + 3}")


def fast_call() -> Callable[..., Any]:
    """`Function.__call__`."""
    make = generated("plain")
    made = call if make is None else make([new_frame()])
    # What CPython says of a keyword begins with this name.
    made.__qualname__ = "a Function takes its arguments by position: Function.__call__"
    return made


def call_keeping(function: Any, arguments: Sequence[Any], keep: Temporaries) -> Any:
    """Call the Function *function*, whose arguments *keep* looks at."""
    try:
        words, first, result = pack_frame(arguments, keep)
        call_c = partial(on_streams, keep.streams) if keep.streams else _CALL
        passed = function._pointer, first, len(arguments), result
        return unpack(*perform(words, call_c, *passed))
    except BaseException as error:
        name_argument(error, arguments)
        raise


def bind(
    function: Handle,
    bound: list[Any],
    *,
    silent: bool,
    keeping: Callable[[], Temporaries] = Temporaries,
) -> BoundCall:
    """The closure behind `Function.bind`; its cells are the prepared call.

    *silent*: the function is known to return nothing, so no result is looked at. *keeping* makes
    what looks at the arguments.
    """
    memory = new_memory(0)
    packed: Any = [*_pack(function, bound, memory[2], keeping())]
    replacing = shared_lock()
    inside = [False]  # whether this thread, which has the lock, is replacing already

    def slow() -> Any:
        (pointer, first, count, _ready), call_c, _kept = packed
        words, _none, result = new_memory(0)
        return unpack(*perform(words, call_c, pointer, first, count, result))

    make = generated("silent" if silent else "bound")
    step: Any = slow if make is None else make(memory, packed, slow)

    def replace(index: int, value: Any) -> None:
        with replacing:
            if inside[0]:
                raise RuntimeError("an argument cannot be replaced by the value being bound")
            try:
                inside[0] = True
                changed = [*bound]
                changed[index] = value
                passed = _pack(function, changed, memory[2], keeping())
                # In one line, which a trace function leaves whole; the first may need memory.
                bound[:], packed[:] = changed, passed
                inside[0] = False
            except BaseException:  # no `finally`: a trace function may raise at its first line
                inside[0] = False
                raise

    step.replace = replace
    return step  # type: ignore[no-any-return]


def _pack(
    function: Handle, bound: list[Any], result: Any, keep: Temporaries
) -> tuple[tuple[Any, Any, int, Any], Callable[..., int], tuple[Any, ...]]:
    """What a bound call passes (in a tuple: 30 ns less for each call), to what, and its owners.

    The third is kept by plain references: the collector has `ffi.gc` give up what it
    keeps before the finalizers of a cycle, which may make the call.
    """
    try:
        words, first, _result = pack_frame(bound, keep)
    except ExchangeError as exc:
        name_argument(exc, bound)
        raise
    for handle in (function, *keep):
        if isinstance(handle, Handle):
            untrack(handle)
    kept = (words, keep, function, *bound)  # an object is packed as its address
    passed = ffi.cast("void *", function), first, len(bound), result
    return passed, partial(on_streams, keep.streams) if keep.streams else _CALL, kept
