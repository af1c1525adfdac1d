"""An exception that leaves a backend and is not dlbridge's becomes one that names the backend."""

from __future__ import annotations

from ctypes import ArgumentError
from typing import NoReturn

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.errors import BackendError, DeviceMemoryError, Error

from .registry import owner

__all__ = ["fail"]


def fail(exc: Exception, name: str, member: str, *allowed: type[Exception]) -> NoReturn:
    """Raise *exc*, which left *member* of the backend *name*, as an error of dlbridge.

    dlbridge's own errors, those *allowed* by the contract, and those of signal
    handlers, which only came meanwhile, are raised as they are. Call it in
    ``except Exception``: where nothing fails, that costs nothing.
    """
    try:
        if isinstance(exc, (Error, *allowed)) or is_from_handler(exc.__traceback__):
            raise exc
        text = f"backend {name!r} failed in {member}: {type(exc).__name__}: {exc}"
        # ctypes tells the exception of an argument by the name of its class only.
        in_ctypes = isinstance(exc, ArgumentError) and "MemoryError" in str(exc)
        if in_ctypes or isinstance(exc, MemoryError):
            raise DeviceMemoryError(text) from exc
        raise BackendError(f"{text}; report it to {owner(name) or 'its authors'}") from exc
    finally:
        # The traceback of *exc* holds this frame: a cycle would keep the tensor's memory.
        del exc
