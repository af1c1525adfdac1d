"""Python callables as TVM-FFI functions: one C entry point for all of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from ._lib import C, address, ffi, immortal, py
from .any import OBJECT_BEGIN, Handle, Temporaries, defines, pack, view
from .error import set_raised

if TYPE_CHECKING:
    from collections.abc import Callable

    from .any import Packer

__all__ = ["callable_rule", "make_function", "pack_callable"]

_LOW: Final = 0xFFFFFFFF
_INT: Final[int] = C.kTVMFFIInt
_BORROWED: Final = frozenset({C.kTVMFFIRawStr, C.kTVMFFIByteArrayPtr, C.kTVMFFIObjectRValueRef})

# One libffi closure for every function would be memory that is never given
# back; `self` is a key of this table instead.
_callables: dict[int, Callable[..., Any]] = {}
_keys = itertools.count(1)


def _enter(key: int, arguments: Any, count: int, result: Any, _callables: Any = _callables) -> int:
    """Run the callable *key*: a TVMFFISafeCallType, its arguments as pairs of int64."""
    try:
        if count == 1:  # the most frequent: 0.3 us less than by a list
            tag = arguments[0]
            argument = arguments[1] if tag == _INT else view(tag, arguments[1])
            value = _callables[key](argument)
        elif count:
            words = ffi.unpack(arguments, 2 * count)
            pairs = zip(words[::2], words[1::2], strict=True)
            value = _callables[key](
                *[payload if tag == _INT else view(tag, payload) for tag, payload in pairs]
            )
        else:
            value = _callables[key]()
        if value is None:
            result[0] = _NOTHING
        else:
            _give(value, result)
    except BaseException as exc:  # KeyboardInterrupt too crosses C, as an error
        set_raised(exc)
        return -1
    return 0


_NOTHING: Final = ffi.new("TVMFFIAny *")[0]


def _give(value: Any, result: Any) -> None:
    """Write *value* to *result* so that the caller owns it."""
    keep = Temporaries()
    tag, payload = pack(value, keep)
    index = tag & _LOW
    words = ffi.cast("int64_t *", result)
    if index in _BORROWED:
        given = ffi.new("int64_t[2]", (tag, payload))
        if C.TVMFFIAnyViewToOwnedAny(ffi.cast("TVMFFIAny *", given), result):
            raise MemoryError("libtvm_ffi could not allocate the result")
        return
    if index >= OBJECT_BEGIN:
        py.TVMFFIObjectIncRef(payload)
    words[0] = tag
    words[1] = payload


def _escaped(_class: type, exception: BaseException, _traceback: Any) -> None:
    """An exception that came before or after `_enter` could catch it (a signal's)."""
    set_raised(exception)


def _forgetter(callables: dict[int, Any]) -> Callable[[int], None]:
    def forget(key: int) -> None:
        # No call: an exception may be pending in whoever drops the function.
        del callables[key]

    return forget


_closure = immortal(
    ffi.callback(
        "int(intptr_t, int64_t *, int32_t, TVMFFIAny *)",
        immortal(_enter),
        error=-1,
        onerror=immortal(_escaped),
    )
)
_SAFE_CALL = immortal(ffi.cast("TVMFFISafeCallType", _closure))
_forget = immortal(ffi.callback("void(intptr_t)", immortal(_forgetter(_callables))))
_DELETER = immortal(ffi.cast("void(*)(void *)", _forget))


def make_function(function: Callable[..., Any]) -> Handle:
    """A new function object that calls *function*, and keeps it alive."""
    key = next(_keys)
    _callables[key] = function
    out = ffi.new("void **")
    if C.TVMFFIFunctionCreate(ffi.cast("void *", key), _SAFE_CALL, _DELETER, out):
        del _callables[key]
        raise MemoryError("libtvm_ffi could not allocate a function")
    return Handle(address(out[0]))


def pack_callable(value: Callable[..., Any], keep: Temporaries) -> tuple[int, int]:
    """A Python callable as a new function object."""
    handle = make_function(value)
    keep.append(handle)
    return C.kTVMFFIFunction, handle


def callable_rule(cls: type) -> Packer | None:
    """Classes whose instances can be called."""
    return pack_callable if defines(cls, "__call__") else None
