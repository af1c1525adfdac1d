"""The error classes. Wrong arguments raise Python's own ValueError and TypeError.

Each class is an `Error`, and also the builtin exception that the standards
name, so that ``except BufferError`` works in code that does not import dlbridge.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "DeviceError",
    "DeviceLost",
    "DeviceMemoryError",
    "DeviceNotFound",
    "Error",
    "ExchangeError",
    "FileError",
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

    It is a `BufferError`, as the array API standard requires (2025.12,
    ``__dlpack__``).

    Examples
    --------
    >>> try:
    ...     bridge.dtype(np.dtype("datetime64[s]"))
    ... except BufferError as error:
    ...     print(type(error).__name__)
    ExchangeError
    """


class DeviceNotFound(ExchangeError, LookupError):
    """A backend has no device of that number or name. The message says what it has.

    Examples
    --------
    >>> try:
    ...     bridge.empty(3, device="cpu:9")
    ... except bridge.DeviceNotFound as error:
    ...     print(str(error).partition(": ")[0])
    there is no cpu:9
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


class DeviceLost(DeviceError):
    """A device crashed, was reset or was removed; its memory is gone.

    Tensors on it cannot be used any more, and dropping them is safe. The message
    says whether the device can be used again, and from when on.

    Examples
    --------
    >>> issubclass(bridge.DeviceLost, bridge.DeviceError)
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


class FileError(Error, ValueError):
    """A file is not what its format says, or holds what dlbridge does not load.

    The message names the file, the tensor, the rule and the way out. A file that
    is missing or cannot be opened raises Python's own OSError.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as empty:
    ...     try:
    ...         bridge.load(empty.name)
    ...     except bridge.FileError as error:
    ...         print(type(error).__name__)
    FileError
    """


class LibraryUnavailable(Error, RuntimeError):
    """The TVM-FFI library could not be loaded. The message lists every place that was tried.

    Examples
    --------
    >>> issubclass(bridge.LibraryUnavailable, RuntimeError)
    True
    """
