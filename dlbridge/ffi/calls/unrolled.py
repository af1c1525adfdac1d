"""`Function.__call__`, generated: calls of up to `FAST` arguments without a loop.

Most of a call's time goes to packing. Unrolled, with integers stored in line, a
call of three integers takes half of what a loop over `pack` does.
"""

from __future__ import annotations

import linecache
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from .._lib import C
from ..values.errors import drop_untaken, interrupted, untaken
from ..values.scalars import pack_int
from ..values.words import LAST_INDEX, OBJECT_BEGIN, Handle, Temporaries, unpack
from .frames import FAST, abandon, call, failure, new_frame, on_streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from ..values.words import Packer

__all__ = ["make_fast_call"]

_FILE_NAME: Final = "<dlbridge.ffi: generated call>"

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
            except BaseException:
                abandon(words)
                raise
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
            except BaseException:
                abandon(words)
                raise
        if failed:
            raise failure(words)
        if untaken:
            drop_untaken()
        tag = words[0]
        if not tag:
            ready[0] = frame
            return None
        payload = words[1]
        if tag == INT:
            words[0] = words[1] = 0
            ready[0] = frame
            return payload
        if OBJECT_BEGIN <= tag <= LAST_INDEX:
            payload = Handle(payload)  # owned before the frame forgets it
        words[0] = words[1] = 0
        ready[0] = frame
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
        "abandon": abandon,
        "interrupted": interrupted,
        "Handle": Handle,
        "LAST_INDEX": LAST_INDEX,
        "OBJECT_BEGIN": OBJECT_BEGIN,
        "new_frame": new_frame,
        "on_streams": on_streams,
        "pack_int": pack_int,
        "packer_of": packer_of,
        "packers": packers,
        "unpack": unpack,
        "untaken": untaken,
        "__name__": __name__,
    }
    exec(_fast_call_code(), scope)  # the text is made of constants of this module only
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
    # So that tracebacks, debuggers and `inspect.getsource` show its lines. (A time of None
    # tells `linecache.checkcache` that there is no file to compare with.)
    linecache.cache[_FILE_NAME] = (len(source), None, source.splitlines(keepends=True), _FILE_NAME)
    return compile(source, _FILE_NAME, "exec")
