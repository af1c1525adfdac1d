"""Bound calls: the arguments packed once, to be called as often as you like."""

from __future__ import annotations

from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

from dlbridge.core.public import public_in
from dlbridge.errors import ExchangeError

from .._lib import C, ffi
from ..values.errors import drop_untaken, interrupted, raised, untaken
from ..values.tensors import name_argument
from ..values.words import LAST_INDEX, OBJECT_BEGIN, Handle, Temporaries, unpack, untrack
from .frames import abandon, failure, new_memory, on_streams, owner_of_result, pack_frame

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BoundCall", "bind"]


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
