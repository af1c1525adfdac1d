"""The inside of dlbridge: one room for each thing that happens to a tensor.

`values` and `dlpack` say what a tensor is in C, `plugins` where it may be; `tensor`
is the tensor itself. It comes in and goes out by DLPack (`libraries`, `interfaces`) and moves
(`moves`); `dlbridge.api` puts that together. Anything in here may change; what is public stands one
level up.
"""

# May import: `errors`, `kit`, `protocol`.

from __future__ import annotations

_REFUSAL = (
    "dlbridge works in the main interpreter only, and this is a subinterpreter: numpy's "
    "and cffi's callbacks from C cannot return to it; use a process instead"
)


def _refuse_subinterpreters() -> None:
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


_refuse_subinterpreters()  # before any module of this package uses cffi, which aborts in 3.12
