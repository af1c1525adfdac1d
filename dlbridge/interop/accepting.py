"""accepts: a function that is written for one library takes the tensors of all of them."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from copy import copy
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge import (
    Device,
    Tensor,
    backend,
    backends,
    device_of,
    dtype as as_dtype,
    to_device,
)
from dlbridge.errors import Error, ExchangeError
from dlbridge.extending import (
    CPU,
    Library,
    check_device,
    find_library,
    import_native,
    is_array_of,
    is_known_library,
    is_native_library,
    library_of,
    public_in,
    with_article,
)

if TYPE_CHECKING:
    from dlbridge.typing import AcceptsDecorator, DeviceLike


@public_in("dlbridge")
def accepts(like: str | ModuleType | type, *, device: DeviceLike | None = None) -> AcceptsDecorator:
    """Return a decorator: a function for one library then takes any library's tensors.

    Each positional or keyword argument that is a tensor becomes an array of *like*,
    without a copy where it can. Arrays in the result become arrays of the library, and
    on the device, of the first tensor among the arguments; so do those in tuples, lists
    and dictionaries, also of their subclasses. A scalar of numpy (``x.mean()``) becomes an
    array without dimensions. Everything else is passed on as it is: objects of other
    classes that hold arrays, and lists of tensors among the arguments.

    Parameters
    ----------
    like : str, module or array type
        The library that the function is written for, as in `to_device`; or the name of
        a backend (``"opencl"``) for a function of the objects of its ecosystem.
    device : DeviceLike, optional
        The device that the function works on. None: that of the first tensor, if *like*
        has arrays there, otherwise the CPU, or the first device of the backend.

    Returns
    -------
    callable
        The decorator. The decorated function has the same signature; for type checkers
        its first arguments by position, up to three, may also be arrays of other libraries than
        its annotations name.

    Raises
    ------
    TypeError
        If *like* is no name, module or type; if what is decorated is not a function that
        returns its results.

    Notes
    -----
    The function itself raises what `to_device` raises. The library is looked for when the
    function gets its first tensor, so it need not be installed before.

    What the function writes into an argument reaches the caller only where the memory
    was shared. A function that changes its arguments should return them. Memory that is
    read-only is copied for a library whose arrays cannot say so, such as torch and pyopencl.

    Examples
    --------
    >>> @bridge.accepts("numpy")
    ... def normalized(x, axis=0):
    ...     return (x - x.mean(axis)) / x.std(axis)
    >>> normalized(bridge.asarray([1.0, 3.0]))
    dlbridge.Tensor([-1., 1.], float64, shape=(2,), device=cpu:0, memory from numpy.ndarray)
    >>> normalized(np.array([1.0, 3.0]))
    array([-1.,  1.])
    """
    if not isinstance(like, (str, ModuleType, type)):
        raise TypeError(
            f"accepts() was given {with_article(type(like).__name__)}; name the library that the "
            'function is written for: @dlbridge.accepts("numpy")'
        )

    def decorate(function: Any) -> Any:
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"accepts() decorates functions, not {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} yields its results, which accepts() does not follow; "
                "write a function that returns them"
            )
        return _decorated(function, like, device)

    return decorate


def _decorated(function: Any, like: str | ModuleType | type, device: DeviceLike | None) -> Any:
    title = getattr(function, "__qualname__", None) or repr(function)
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(*arguments: Any, **keywords: Any) -> Any:
            call = _Call(title, like, device)
            arguments, keywords = call.enter(arguments, keywords)
            return call.leave(await function(*arguments, **keywords))

        return call_async

    @wraps(function)
    def call_function(*arguments: Any, **keywords: Any) -> Any:
        call = _Call(title, like, device)
        arguments, keywords = call.enter(arguments, keywords)
        return call.leave(function(*arguments, **keywords))

    return call_function


class _Origin(NamedTuple):
    """Where a result goes: the library and the device of the first tensor argument."""

    like: Any
    device: Device


class _Call:
    """One call: how its arguments go in, and its results come back."""

    def __init__(
        self, title: str, like: str | ModuleType | type, device: DeviceLike | None
    ) -> None:
        self._title = title
        self._like = like
        self._wanted = device
        self._origin: _Origin | None = None
        self._own: Library | str = ""
        self._device = CPU

    def enter(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the function."""
        return (
            tuple([self._argument(f"{i}", x) for i, x in enumerate(arguments, 1)]),
            {name: self._argument(f"{name!r}", x) for name, x in keywords.items()},
        )

    def _argument(self, which: str, x: Any) -> Any:
        try:
            origin = _origin_of(x)
            if origin is None:
                return x
            if self._origin is None:
                self._own = _meant(self._like)
                self._device = self._where(origin.device)
                self._origin = origin
            own, library = self._own, library_of(type(x))
            if isinstance(own, str):
                is_own = own in (origin.like, library and library.backend)
            else:
                is_own = library not in own.special and is_array_of(own, type(x))
            if is_own and origin.device is self._device:
                return x
            if isinstance(own, str):
                return _native(to_device(x, self._device))
            return to_device(x, self._device, like=self._like)
        except Error as exc:
            raise type(exc)(f"argument {which} of {self._title}: {exc}") from exc

    def _where(self, first: Device) -> Device:
        """The device that the function works on; the first tensor is on *first*."""
        own = self._own
        wanted = None if self._wanted is None else check_device(self._wanted)
        if isinstance(own, str):
            return wanted or (first if first.name == own else check_device(f"{own}:0"))
        types = own.device_types
        if wanted is not None:
            if types is not None and wanted.type not in types and not wanted.is_host:
                raise ExchangeError(
                    f"accepts({own.name!r}, device={str(wanted)!r}): {own.name} has no arrays "
                    "there; leave device= out, and tensors from there are brought to a device that "
                    "it has, and the result back"
                )
            return wanted
        if own.name == "dlbridge" or (types is not None and first.type in types):
            return first
        if types is None or CPU.type in types:
            return CPU
        return check_device(Device.of(min(types)))

    def leave(self, result: Any) -> Any:
        """The *result* of the function, for its caller."""
        if self._origin is None:
            return result
        try:
            return self._returned(result, self._origin)
        except Error as exc:
            raise type(exc)(f"the result of {self._title}: {exc}") from exc

    def _returned(self, result: Any, origin: _Origin) -> Any:
        kind = type(result)
        if kind is tuple:
            return tuple([self._returned(part, origin) for part in result])
        if isinstance(result, tuple) and hasattr(kind, "_make"):
            return kind._make([self._returned(part, origin) for part in result])
        if isinstance(result, (list, dict)):  # subclasses, too: copies keep what else they hold
            returned = copy(result)
            for key in result if isinstance(result, dict) else range(len(result)):
                returned[key] = self._returned(result[key], origin)
            return returned
        now = _origin_of(result)
        if now is None:
            return _array_of_scalar(result, origin)
        return result if now == origin else to_device(result, origin.device, like=origin.like)


def _native(tensor: Tensor) -> object:
    """The ecosystem's object for *tensor*; of a copy where it cannot say that it is read-only."""
    try:
        return tensor.to_native()
    except ExchangeError:
        if not tensor.readonly:
            raise
    return to_device(tensor, tensor.device, copy=True).to_native()


def _array_of_scalar(result: Any, origin: _Origin) -> Any:
    """A scalar of numpy as an array of the caller's library; everything else as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is None or origin.like == "numpy" or not isinstance(result, numpy.generic):
        return result
    array = numpy.asarray(result)
    try:
        as_dtype(array.dtype)
        return to_device(array, origin.device, like=origin.like)
    except (ExchangeError, TypeError):  # dates and texts; a library without such arrays
        return result


def _meant(like: str | ModuleType | type) -> Library | str:
    """The library that *like* names, or the name of a backend."""
    if isinstance(like, str) and not is_known_library(like) and like in backends():
        backend(like)  # so that `to_device` knows it
        return like
    library = find_library(like)[0]
    if is_native_library(library):
        backend(library.backend)
        return library.backend
    return library


def _origin_of(x: Any) -> _Origin | None:
    """The library and the device of *x*; None if it is not a tensor."""
    cls = type(x)
    if cls in _PLAIN or isinstance(x, type):
        return None
    if isinstance(x, Tensor):
        return _Origin("dlbridge", x.device)
    library = library_of(cls)
    if library is not None and is_array_of(library, cls):
        return _Origin(library.name, device_of(x))
    if hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__"):
        # A class that is not its own library's array: as a Tensor it keeps its device.
        known = hasattr(cls, "__from_tensor__") or (
            library is None
            and hasattr(sys.modules.get(cls.__module__.partition(".")[0]), "from_dlpack")
        )
        return _Origin(cls if known else "dlbridge", device_of(x))
    with suppress(Error):  # its backend cannot take it: an image, for example
        tensor = import_native(x, library)
        if tensor is not None:
            return _Origin(tensor.device.name, tensor.device)
    if getattr(cls, "__cuda_array_interface__", None) is not None:
        return _Origin("dlbridge", device_of(x))
    return None


_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, slice}
)
