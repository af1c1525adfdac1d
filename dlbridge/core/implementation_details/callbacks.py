"""Callbacks that C may keep for ever, safe against exceptions of signal handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.core._cdefs import ffi

from .handlers import handlers_exception, raise_when_dropped
from .python_api import immortal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class _Work(NamedTuple):
    """The Python function of a callback, and the function that undoes an interrupted call."""

    function: Callable[..., int]
    undo: Callable[[dict[str, Any]], None] | None


_work: dict[Any, _Work] = {}


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
        _work[function.__code__] = _Work(function, undo)
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
    work = _work[code]
    frame: TracebackType | None = traceback
    while frame is not None and work.undo is not None:
        work.undo(frame.tb_frame.f_locals)
        frame = frame.tb_next
    arguments = [variables[name] for name in code.co_varnames[: code.co_argcount]]
    status = work.function(*arguments)
    _at_return = raise_when_dropped(arrived)
    return status
