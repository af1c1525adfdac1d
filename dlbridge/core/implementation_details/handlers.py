"""Exceptions of signal handlers: recognised, and raised later where they cannot be raised.

Callbacks that C may keep for ever are safe against them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in C, without a stub
import ctypes
import sys
import threading
from functools import partial
from opcode import opmap
from typing import TYPE_CHECKING, Any, TypeVar

from dlbridge.core._cdefs import ffi

from .python_api import immortal

if TYPE_CHECKING:
    from collections.abc import Callable
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
    """Return the classes for an ``except`` clause that lets a signal handler's exception pass.

    A handler may raise any exception, anywhere: it says nothing of the code that it interrupts, and
    belongs to the user. (A KeyboardInterrupt is one.)

    Parameters
    ----------
    *kinds : exception classes
        What the clause catches.

    Returns
    -------
    tuple of exception classes
        *kinds*, or none of them if a handler has raised the exception that has just come: Python
        evaluates the clause then, and the traceback begins with the function that has it.

    Examples
    --------
    >>> from dlbridge.extending import unless_handler
    >>> try:
    ...     int("x")
    ... except unless_handler(ValueError):
    ...     print("not a number")
    not a number
    """
    exc = sys.exception()
    return () if exc is None or is_from_handler(exc.__traceback__) else kinds


def handlers_cause(exc: BaseException) -> BaseException | None:
    """Return the exception of a signal handler that another one is, or was made of.

    Who is interrupted may catch the handler's exception and raise another: zipfile makes its own
    of each OSError, and CPython before 3.12 a new one of any that leaves a codec.

    Parameters
    ----------
    exc : BaseException
        What the calling function has just caught: the first frame of its traceback is that
        function's.

    Returns
    -------
    BaseException or None
        None if no handler has anything to do with it.

    Examples
    --------
    >>> from dlbridge.extending import handlers_cause
    >>> try:
    ...     int("x")
    ... except ValueError as exc:
    ...     print(handlers_cause(exc))
    None
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
    # By `_signal`: the functions of `signal` make an enum member for each, 40 times as dear; and
    # its enums take 1.4 ms of the first call.
    handlers = {
        getattr(_signal.getsignal(number), "__code__", None) for number in range(1, _signal.NSIG)
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


def unless_deferred() -> tuple[type[BaseException], ...]:
    """Every exception, for the ``except`` clause of a `c_callback` that runs code of others.

    Those pass that are raised when C has returned (`handlers_exception`): C gets no error then.
    """
    exc = sys.exception()
    if exc is None or exc.__traceback__ is None:
        return ()
    arrived = handlers_exception(type(exc), exc, exc.__traceback__)
    return (BaseException,) if arrived is None else ()


# Callbacks --------------------------------------------------------------------------


_work: dict[Any, tuple[Callable[..., int], Callable[[dict[str, Any]], None] | None]] = {}
"""The Python function of each callback, and the function that undoes an interrupted call."""


def c_callback(
    signature: str, undo: Callable[[dict[str, Any]], None] | None = None
) -> Callable[[Callable[..., int]], Any]:
    """A decorator: the C function of *signature* that calls the Python one; -1 if that raises.

    It is never freed, because C may call it at any time, from any thread. If the
    exception comes from a signal handler, *undo* gets the local variables of each
    interrupted call, the function runs again, and the exception is raised when C
    has returned.
    """

    def decorate(function: Callable[..., int]) -> Any:
        _work[function.__code__] = function, undo
        return immortal(ffi.callback(signature, function, error=-1, onerror=_after_exception))

    return decorate


def _after_exception(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> int | None:
    """Run the interrupted callback again, then deliver the handler's exception.

    A signal that arrives while C runs is noticed at the first instruction of the
    next Python function, which is the callback: after a long kernel, always. A
    callback cannot pass the exception to C, which would report a failure without
    an error.
    """
    if traceback is None:
        return None
    arrived = handlers_exception(kind, error, traceback)
    if arrived is None:
        return None
    code, variables = traceback.tb_frame.f_code, traceback.tb_frame.f_locals
    function, undo = _work[code]
    frame: TracebackType | None = traceback
    while frame is not None and undo is not None:
        undo(frame.tb_frame.f_locals)
        frame = frame.tb_next
    arguments = [variables[name] for name in code.co_varnames[: code.co_argcount]]
    status = function(*arguments)
    _at_return = raise_when_dropped(arrived)
    return status
