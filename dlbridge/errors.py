"""The error classes. Wrong arguments are Python's own ValueError and TypeError.

Each class is an `Error` and the builtin that the standards ask for, so that
``except BufferError`` works for people who never heard of dlbridge.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "DeviceError",
    "DeviceMemoryError",
    "Error",
    "ExchangeError",
    "LibraryUnavailable",
]


class Error(Exception):
    """Base of all errors of dlbridge and its backends."""


class ExchangeError(Error, BufferError):
    """A tensor cannot be exported, imported, or moved as asked.

    `BufferError` is what the array API standard prescribes for this
    (2024.12, ``__dlpack__``).
    """


class BackendUnavailable(Error, RuntimeError):
    """A backend cannot run here: no driver, no device, not installed.

    Normal on most machines. The message says what is missing and what to
    install; nothing else is affected.
    """


class BackendError(Error, RuntimeError):
    """An installed backend is broken: names its distribution, chains the cause."""


class DeviceError(Error, RuntimeError):
    """A driver refused a call: names the call, the status and its meaning."""


class DeviceMemoryError(Error, MemoryError):
    """A device has no room for an allocation: says how much was asked for."""


class LibraryUnavailable(Error, RuntimeError):
    """The TVM-FFI library could not be loaded: lists every place that was tried."""
