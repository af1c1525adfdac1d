"""Backtraces as text, which C has, and as Python tracebacks."""

from __future__ import annotations

import re
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["backtrace_of", "traceback_of"]

# The frames of cffi between Python and C, which are left out.
_PASSAGE: Final = frozenset({"cdata_call", "cffistatic_ffi_call"})
_LAST_LINE: Final = (1 << 31) - 1
"""The largest line number of a traceback: CPython keeps it in a C int."""
_FRAME: Final = r'\s*File "(.+?)", line (\d+), in (.+)'


def traceback_of(backtrace: str) -> TracebackType | None:
    """The lines of *backtrace* (most recent first) as a traceback."""
    traceback = None
    for line in backtrace.splitlines():
        match = re.match(_FRAME, line)
        if match and match[3] not in _PASSAGE:
            file, number, function = match.groups()
            frame = _frame(file, function)
            line_number = int(number) if len(number) < 10 else _LAST_LINE
            traceback = TracebackType(traceback, frame, -1, line_number)
    return traceback


def _place() -> Iterator[None]:
    yield


@lru_cache(maxsize=1024)
def _code(file: str, function: str) -> CodeType:
    return _place.__code__.replace(co_filename=file, co_name=function)


def _frame(file: str, function: str) -> FrameType:
    """A frame that says it is *function* in *file*, and refers to nothing.

    The frame of a generator that never ran has no caller, so that it keeps
    no local variables alive.
    """
    generator: Any = FunctionType(_code(file, function), {"__name__": file})()
    return generator.gi_frame  # type: ignore[no-any-return]


def backtrace_of(traceback: TracebackType | None) -> str:
    """The frames of *traceback* as lines, most recent first."""
    lines = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        lines.append(
            f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}\n'
        )
        traceback = traceback.tb_next
    return "".join(reversed(lines))
