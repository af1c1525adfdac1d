"""Functions from the addresses of C functions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from .._lib import C, ffi
from ..values.errors import raised, set_raised
from ..values.opaque import with_owner
from ..values.words import made, new_place
from .entries import Entry

if TYPE_CHECKING:
    from ..values.words import Handle

__all__ = ["check_symbol", "from_mlir_symbol", "from_symbol"]


def from_symbol(symbol: int, keep_alive: object) -> Handle:
    """A function object that calls the TVMFFISafeCallType at address *symbol*.

    ValueError if that is NULL.
    """
    check_symbol(symbol)
    entry = ffi.cast("TVMFFISafeCallType", symbol)
    if keep_alive is None:
        handle = made(new_place(), C.TVMFFIFunctionCreate, ffi.NULL, entry, ffi.NULL)[1]
    else:
        handle = with_owner(keep_alive, C.TVMFFIFunctionCreate, entry)
    if handle is None:
        raise raised()
    return handle


def from_mlir_symbol(symbol: int, keep_alive: object) -> Handle:
    """A function object that calls the ``void(void **)`` at address *symbol*.

    Its argument is an array of pointers to what a TVMFFISafeCallType takes, and
    to its result (MLIR's ``llvm.emit_c_interface``). ValueError if *symbol* is NULL.
    """
    check_symbol(symbol)
    return _entry.function((ffi.cast("void(*)(void **)", symbol), keep_alive))


def check_symbol(symbol: int) -> None:
    """TypeError or ValueError unless *symbol* can be the address of a C function."""
    if not isinstance(symbol, int) or isinstance(symbol, bool):
        raise TypeError(
            f"the address of a C function is an int, not {symbol!r}: int(ffi.cast('intptr_t', f)) "
            "gives it for a cffi function, ctypes.cast(f, ctypes.c_void_p).value for a ctypes one"
        )
    if not symbol:
        raise ValueError("the C function's address is NULL: its library has no such symbol")
    if not 0 < symbol <= sys.maxsize * 2 + 1:
        raise ValueError(f"{symbol:#x} is not the address of a C function: no pointer has it")


_symbols: dict[int, tuple[Any, object]] = {}


def _call_mlir(key: int, arguments: Any, count: int, result: Any, _symbols: Any = _symbols) -> int:
    try:
        passed = ffi.new("void *[]", [ffi.NULL, arguments, result])
        number, status = ffi.new("int32_t *", count), ffi.new("int *", 0)
        pointers = ffi.new("void *[]", [passed, passed + 1, number, passed + 2, status])
        _symbols[key][0](pointers)
    except BaseException as exc:  # such as Ctrl-C: it crosses C as an error
        set_raised(exc)
        return -1
    return int(status[0])


_entry: Final = Entry(_symbols, "int(intptr_t, TVMFFIAny *, int32_t, TVMFFIAny *)", _call_mlir)
