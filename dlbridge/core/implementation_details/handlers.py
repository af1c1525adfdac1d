"""Exceptions of signal handlers: recognised, and raised later where they cannot be raised."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in C, without a stub
import ctypes
import signal
import sys
import threading
from functools import partial
from opcode import opmap
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import FrameType, TracebackType

Failure = TypeVar("Failure", bound=BaseException)


def is_from_handler(traceback: TracebackType | None) -> bool:
    """Whether the exception passed through the Python function that handles some signal.

    The first frame of *traceback* is that of our function which has caught the exception.

    A signal arrives while any code runs, and its handler may raise any exception:
    it says nothing about the code that it has interrupted.
    """
    deeper = None if traceback is None else traceback.tb_next
    if deeper is None:
        return False  # it was raised by the frame that caught it, or by C: the frequent case
    return _has_handler(_frames(deeper))


def unless_handler(*kinds: type[Failure]) -> tuple[type[Failure], ...]:
    """*kinds*, for an ``except`` clause, which so lets the exception of a signal handler pass.

    Python evaluates the clause when an exception has come. The first frame of its traceback is
    then that of the function with the clause.
    """
    exc = sys.exception()
    return () if exc is None or is_from_handler(exc.__traceback__) else kinds


def handlers_cause(exc: BaseException) -> BaseException | None:
    """The exception of a signal handler that *exc* is, or was made of; None if there is none.

    The first frame of its traceback is that of our function which has caught *exc*.

    Who is interrupted may catch the handler's exception and raise another: zipfile makes its own
    of each OSError, and CPython before 3.12 a new one of any that leaves a codec.
    """
    if is_from_handler(exc.__traceback__):
        return exc
    chain, outer = [exc], _frames(exc.__traceback__)
    while True:
        inner = exc.__cause__
        if inner is None:
            inner = exc.__context__
            within = inner is not None and _frames(inner.__traceback__)[:1]
            # Others were handled already when our function was called.
            if not within or within[0] not in outer:
                return None
        if inner is None or any(inner is each for each in chain):
            return None
        frames = _frames(inner.__traceback__)
        if _has_handler(frames):  # C may have caught it, and then the handler's may be the first
            return inner
        chain.append(inner)
        outer += frames
        exc = inner


def _frames(traceback: TracebackType | None) -> list[FrameType]:
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


def _has_handler(frames: list[FrameType]) -> bool:
    # By `_signal`: the functions of `signal` make an enum member for each, 40 times as dear.
    handlers = {
        getattr(_signal.getsignal(number), "__code__", None) for number in range(1, signal.NSIG)
    }
    return any(frame.f_code in handlers for frame in frames)


RESUME = opmap["RESUME"]
"""The instruction at which a function notices a signal that came before the call.

A traceback whose ``co_code[:tb_lasti:2]`` does not have it is that of a function none of whose own
code has run. Write it out, without a call, where a further signal must not come.
"""


def handlers_exception(
    kind: type[BaseException], error: BaseException, traceback: TracebackType
) -> BaseException | None:
    """The exception of a signal handler that ended a callback, or None if it was another."""
    # One that was deferred already may meet the next callback of the same call.
    deferred: BaseException | None = getattr(kind, "deferred_error", None)
    if deferred is not None:
        return deferred
    if kind is not KeyboardInterrupt and not is_from_handler(traceback):
        return None
    # By its traceback it is recognised again when it is raised later.
    return error.with_traceback(traceback)


def raise_when_dropped(error: BaseException) -> object:
    """An object; when it is dropped, the next Python instruction of this thread raises *error*.

    Its destructor is C alone: a Python function would itself meet the exception.
    """

    def same(_cls: type, *_arguments: object) -> BaseException:
        return error

    # CPython takes a class here, and raises the instance that calling it gives.
    members = {"__new__": same, "deferred_error": error}
    deferred = type(type(error).__name__, (type(error),), members)
    thread, class_ = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(deferred)
    raise_later = partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, thread, class_)
    dropped: object = type("_Dropped", (), {"__del__": staticmethod(raise_later)})()
    return dropped
