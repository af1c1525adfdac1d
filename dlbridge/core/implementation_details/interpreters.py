"""The refusal of subinterpreters. It uses no cffi, which aborts in some of CPython 3.12."""

from __future__ import annotations

_REFUSAL = (
    "dlbridge works in the main interpreter only, and this is a subinterpreter: numpy's "
    "and cffi's callbacks from C cannot return to it; use a process instead"
)


def refuse_subinterpreters() -> None:
    """Raise ImportError unless this is the main interpreter.

    In a subinterpreter numpy's deleter deadlocks, and a callback on a foreign
    thread runs in the wrong interpreter (measured; CPython 3.11). In CPython 3.12 cffi
    aborts in one that comes after an isolated one.
    """
    try:
        import ctypes
    except ImportError as exc:
        if "subinterpreter" not in str(exc):
            raise
        raise ImportError(_REFUSAL) from exc  # CPython 3.12 does not load it in an isolated one
    current, main = (
        ctypes.PYFUNCTYPE(ctypes.c_void_p)((name, ctypes.pythonapi))()
        for name in ("PyInterpreterState_Get", "PyInterpreterState_Main")
    )
    if current != main:
        raise ImportError(_REFUSAL)
