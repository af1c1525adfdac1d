"""Python callables as TVM-FFI functions: one C entry point for all of them."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.tensor.expired import expire_lent
from dlbridge.errors import ExchangeError

from .._lib import C, ffi, py
from ..values.errors import raised, set_raised, untaken
from ..values.words import (
    INDEX_MASK,
    OBJECT_BEGIN,
    Handle,
    Temporaries,
    defines,
    pack,
    release,
    view,
)
from .entries import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..values.words import Packer

__all__ = ["callable_rule", "make_function", "pack_callable"]

_INT: Final[int] = C.kTVMFFIInt
_LENT: Final[int] = C.kTVMFFIDLTensorPtr
_BORROWED: Final = frozenset({C.kTVMFFIRawStr, C.kTVMFFIByteArrayPtr, C.kTVMFFIObjectRValueRef})

_callables: dict[int, Callable[..., Any]] = {}


def _enter(key: int, arguments: Any, count: int, result: Any, _callables: Any = _callables) -> int:
    """Run the callable *key*: a TVMFFISafeCallType, its arguments as pairs of int64."""
    lent: list[Any] | None = None
    # An error that waits in this thread is that of a callee further out, and not ours to drop.
    set_aside = get_ident() in untaken if untaken else False
    if set_aside:
        untaken.discard(get_ident())
    try:
        if count == 1:  # the most frequent: 0.3 us less than by a list
            tag = arguments[0]
            argument = arguments[1] if tag == _INT else view(tag, arguments[1])
            if tag == _LENT:
                lent = [argument]
            value = _callables[key](argument)
        elif count:
            words = ffi.unpack(arguments, 2 * count)
            tags, payloads = words[::2], words[1::2]
            given = [
                payload if tag == _INT else view(tag, payload)
                for tag, payload in zip(tags, payloads, strict=True)
            ]
            if _LENT in tags:
                lent = [tensor for tensor, tag in zip(given, tags, strict=True) if tag == _LENT]
            value = _callables[key](*given)
        else:
            value = _callables[key]()
        if value is None:
            result[0] = _NOTHING
        else:
            _give(value, result)
        if lent is not None:
            _check_not_kept(lent, ffi.cast("int64_t *", result))
    except BaseException as exc:  # KeyboardInterrupt too crosses C, as an error
        set_raised(exc)
        return -1
    finally:
        if lent is not None:  # their memory is the caller's, who may free it now
            for tensor in lent:
                expire_lent(tensor)
        if set_aside:
            untaken.add(get_ident())
    return 0


def _check_not_kept(lent: list[Any], result: Any) -> None:
    """ExchangeError if the callback returns a lent tensor, or an object has one now."""
    for tensor in lent:
        handle = getattr(tensor, "_native", None)
        # If no other code has the tensor as an object, ours is the only reference.
        if handle is not None and handle.is_lent():
            tag, payload, result[0], result[1] = result[0], result[1], 0, 0
            release(tag, payload)
            raise ExchangeError(
                "the callback returns or keeps in an object a tensor that was only lent to it "
                "(DLTensor *), whose memory may be gone when it has returned: copy it "
                "(to_device(t, 'cpu', copy=True))"
            )


_NOTHING: Final = ffi.new("TVMFFIAny *")[0]


def _give(value: Any, result: Any) -> None:
    """Write *value* to *result* so that the caller owns it."""
    keep = Temporaries()
    tag, payload = pack(value, keep)
    index = tag & INDEX_MASK
    words = ffi.cast("int64_t *", result)
    if index in _BORROWED:
        given = ffi.new("int64_t[2]", (tag, payload))
        if C.TVMFFIAnyViewToOwnedAny(ffi.cast("TVMFFIAny *", given), result):
            raise raised()
        return
    if index >= OBJECT_BEGIN:
        try:
            py.TVMFFIObjectIncRef(payload)
        except BaseException:  # a Ctrl-C that came meanwhile; the call itself cannot fail
            Handle(payload)
            raise
    words[0] = tag
    words[1] = payload


_entry: Final = Entry(_callables, "int(intptr_t, int64_t *, int32_t, TVMFFIAny *)", _enter)


def make_function(function: Callable[..., Any]) -> Handle:
    """A new function object that calls *function*, and keeps it alive."""
    return _entry.function(function)


def pack_callable(value: Callable[..., Any], keep: Temporaries) -> tuple[int, int]:
    """A Python callable as a new function object."""
    handle = make_function(value)
    keep.append(handle)
    return C.kTVMFFIFunction, handle


def callable_rule(cls: type) -> Packer | None:
    """Classes whose instances can be called."""
    return pack_callable if defines(cls, "__call__") else None
