"""Bound calls: the arguments packed once, to be called as often as you like."""

from __future__ import annotations

from typing import Any, Protocol

from ._lib import C, ffi
from .any import Handle, Temporaries, unpack
from .call import new_frame, on_streams, pack_frame
from .error import interrupted, raised

__all__ = ["BoundCall", "bind"]


class BoundCall(Protocol):
    """What `Function.bind` returns: a plain Python function, the fastest to call."""

    def __call__(self) -> Any:
        """Call with the bound arguments."""

    def replace(self, index: int, value: Any) -> None:
        """Bind *value* in place of argument *index*, for the calls that begin later."""


def bind(function: Handle, bound: list[Any], *, silent: bool) -> BoundCall:
    """The closure behind `Function.bind`; its cells are the prepared call.

    *silent*: the function is known to return nothing, so no result is looked at.
    """
    call_c, count = C.TVMFFIFunctionCall, len(bound)
    pointer = ffi.gc(ffi.cast("void *", function), lambda _pointer, _function=function: None)
    arguments, streams = _pack(bound)
    words, _none, result, _kinds = new_frame(0)
    busy = False  # whether a call uses the place for the result

    def call() -> Any:
        nonlocal busy
        # One statement without a call: nobody comes between reading and writing.
        taken, busy = busy, True
        if taken:
            return elsewhere()
        if streams:
            busy = False
            return elsewhere()
        try:
            if call_c(pointer, arguments, count, result):
                busy = False
                raise raised()
        except SystemError as exc:
            busy = False
            raise interrupted(exc) from None
        if silent:
            busy = False
            return None
        tag = words[0]
        if not tag:
            busy = False
            return None
        payload = words[1]
        words[0] = words[1] = 0
        busy = False
        return unpack(tag, payload)

    def elsewhere() -> Any:
        words, _none, result, _kinds = new_frame(0)
        try:
            failed = on_streams(streams or (), pointer, arguments, count, result)
        except SystemError as exc:
            raise interrupted(exc) from None
        if failed:
            raise raised()
        return unpack(words[0], words[1])

    def replace(index: int, value: Any) -> None:
        nonlocal arguments, streams
        changed = [*bound]
        changed[index] = value
        arguments, streams = _pack(changed)
        bound[:] = changed

    call.replace = replace  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _pack(bound: list[Any]) -> tuple[Any, Any]:
    """The packed arguments of a bound call, and the streams to set for them.

    What the arguments point to lives as long as they.
    """
    keep = Temporaries()
    words, first, _result, _kinds = pack_frame(bound, keep)
    keep.extend(bound)  # an object is packed as its address
    # A call in another thread may still use the old arguments while they are
    # replaced: C's own pointer must keep everything alive.
    return ffi.gc(first, lambda _first, _words=words, _keep=keep: None), keep.streams
