"""`Function.__call__`, generated: calls of up to `FAST` arguments without a loop.

Most of a call's time goes to packing. Unrolled, with the frequent classes in line,
a call of three integers takes half of what a loop over `pack` does.
"""

from __future__ import annotations

import linecache
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.tensor.array_tensor import ArrayTensor

from .._lib import C
from ..values.errors import drop_untaken, interrupted, untaken
from ..values.ready_tensors import ALONE, lender_of, take_back
from ..values.scalars import pack_int, pack_str, short_texts
from ..values.tensors import HostHandle, name_argument, pack_own
from ..values.words import CACHED_CLASSES, LAST_INDEX, OBJECT_BEGIN, Handle, packer_of, unpack
from .frames import FAST, abandon, call, failure, new_frame, on_streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from ..values.ready_tensors import Lender
    from ..values.words import Packer

__all__ = ["make_fast_call"]

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
