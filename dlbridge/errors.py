"""The error classes. Wrong arguments raise Python's own ValueError and TypeError.

Each class is an `Error`, and also the builtin exception that the standards
name, so that ``except BufferError`` works in code that does not import dlbridge.
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
    """Base class of all errors of dlbridge and its backends.

    Examples
    --------
    >>> try:
    ...     bridge.from_dlpack(np.zeros(3, "datetime64[s]"))
    ... except bridge.Error as error:
    ...     print(type(error).__name__)
    ExchangeError
    """


class ExchangeError(Error, BufferError):
    """A tensor cannot be exported, imported, or moved as requested.

    It is a `BufferError`, as the array API standard requires (2024.12,
    ``__dlpack__``).

    Examples
    --------
    >>> try:
    ...     bridge.dtype(np.dtype("datetime64[s]"))
    ... except BufferError as error:
    ...     print(type(error).__name__)
    ExchangeError
    """


class BackendUnavailable(Error, RuntimeError):
    """A backend cannot run here: no driver, no device, or not installed.

    The message names what is missing and what to install. Other backends are
    not affected.

    Examples
    --------
    >>> try:
    ...     bridge.empty(3, device="metal:0")
    ... except bridge.BackendUnavailable:
    ...     print("no Metal here")
    no Metal here
    """


class BackendError(Error, RuntimeError):
    """An installed backend is broken.

    The message names its distribution; ``__cause__`` is the backend's own error.

    Examples
    --------
    >>> try:
    ...     bridge.register_backend("cpu", object)
    ... except bridge.BackendError as error:
    ...     print(error)
    backend 'cpu' is already provided by dlbridge (built in); choose another name
    """


class DeviceError(Error, RuntimeError):
    """A driver refused a call.

    The message names the call, the status and its meaning.

    Examples
    --------
    >>> issubclass(bridge.DeviceError, RuntimeError)
    True
    """


class DeviceMemoryError(Error, MemoryError):
    """A device does not have enough memory. The message says how many bytes were requested.

    Examples
    --------
    >>> try:
    ...     bridge.empty(2**62, "uint8")
    ... except MemoryError as error:
    ...     print(type(error).__name__)
    DeviceMemoryError
    """


class LibraryUnavailable(Error, RuntimeError):
    """The TVM-FFI library could not be loaded. The message lists every place that was tried.

    Examples
    --------
    >>> issubclass(bridge.LibraryUnavailable, RuntimeError)
    True
    """
