"""Functions from the addresses of C functions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ._lib import C, address, ffi, immortal
from .any import Handle
from .error import set_raised
from .opaque import kept_pointer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["from_mlir_symbol", "from_symbol"]


def from_symbol(symbol: int, keep_alive: object) -> Handle:
    """A function object that calls the TVMFFISafeCallType at address *symbol*.

    ValueError if that is NULL.
    """
    _check(symbol)
    owner, deleter = kept_pointer(keep_alive)
    return _create(owner, ffi.cast("TVMFFISafeCallType", symbol), deleter)


def from_mlir_symbol(symbol: int, keep_alive: object) -> Handle:
    """A function object that calls the ``void(void **)`` at address *symbol*.

    Its argument is an array of pointers to what a TVMFFISafeCallType takes, and
    to its result (MLIR's ``llvm.emit_c_interface``). ValueError if *symbol* is NULL.
    """
    _check(symbol)
    key = next(_keys)
    _symbols[key] = (ffi.cast("void(*)(void **)", symbol), keep_alive)
    try:
        return _create(ffi.cast("void *", key), _MLIR_CALL, _MLIR_DELETER)
    except BaseException:
        del _symbols[key]
        raise


def _check(symbol: int) -> None:
    if not symbol:
        raise ValueError("the C function's address is NULL: its library has no such symbol")


def _create(owner: Any, safe_call: Any, deleter: Any) -> Handle:
    out = ffi.new("void **")
    if C.TVMFFIFunctionCreate(owner, safe_call, deleter, out):
        raise MemoryError("libtvm_ffi could not allocate a function")
    return Handle(address(out[0]))


_symbols: dict[int, tuple[Any, object]] = {}
_keys = itertools.count(1)


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


def _forgetter(symbols: dict[int, Any]) -> Callable[[int], None]:
    def forget(key: int) -> None:
        del symbols[key]

    return forget


_call_closure = immortal(
    ffi.callback("int(intptr_t, TVMFFIAny *, int32_t, TVMFFIAny *)", immortal(_call_mlir), error=-1)
)
_MLIR_CALL = immortal(ffi.cast("TVMFFISafeCallType", _call_closure))
_forget_closure = immortal(ffi.callback("void(intptr_t)", immortal(_forgetter(_symbols))))
_MLIR_DELETER = immortal(ffi.cast("void(*)(void *)", _forget_closure))
