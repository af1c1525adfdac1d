"""The library under test: how one makes an array in it, and how it takes a producer."""

from __future__ import annotations

import importlib
from functools import cached_property
from itertools import product
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


class Fail(BaseException):
    """The library does not do what the line says. An Exception is one of the library."""


class NotOffered(BaseException):
    """The library does not have what the line is about."""


class Traits(NamedTuple):
    """What the structs of the library's arrays say of the device and of the elements."""

    device: tuple[int, int] = (1, 0)
    dtype: tuple[int, int, int] = (2, 32, 1)


_MAKE = {
    "numpy": "numpy.array",
    "torch": "torch.tensor",
    "jax": "jax.numpy.asarray",
    "dlbridge": "dlbridge.asarray",
    "tvm_ffi": "tvm_ffi.from_dlpack",
    "tensorflow": "tensorflow.constant",
    "paddle": "paddle.to_tensor",
    "mlx": "mlx.core.array",
    "warp": "warp.array",
    "onnxruntime": "onnxruntime.OrtValue.ortvalue_from_numpy",
    "max": "max.driver.Buffer.from_numpy",
    "pyarrow": "pyarrow.array",
    "array_api_strict": "array_api_strict.asarray",
}
_TAKE = {
    "jax": "jax.dlpack.from_dlpack",
    "mlx": "mlx.core.from_dlpack",
    "tensorflow": "tensorflow.experimental.dlpack.from_dlpack",
    "onnxruntime": "onnxruntime.OrtValue.from_dlpack",
    "max": "max.driver.Buffer.from_dlpack",
}
_TAKES_CAPSULES = {"tensorflow", "onnxruntime"}
"""Libraries whose function takes a capsule, and asks no producer for anything."""

_IMMUTABLE = {"jax", "tensorflow", "pyarrow"}
_COPIES = {"jax", "tvm_ffi"}
_SHARES = {"pyarrow", "tvm_ffi"}


_FLOATS = ("float32", "float64", "float16")
_INTEGERS = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
_DTYPES = (*_FLOATS, *_INTEGERS, "bool", "complex64", "complex128")
_SHAPES = ((4,), (2, 2), (2, 2, 1), (1, 2, 2, 1), ())
"""What a library is asked to make: the first that it makes says where its arrays are."""


def _begins_at(made: Any) -> int | None:
    """The address of the first element; None if the array does not tell it."""
    from .producer import capsule_of, integer, managed_in

    try:
        tensor = managed_in(capsule_of(made)).dl_tensor
    except (Exception, Fail):  # what is exported is another case's
        return None
    return integer(tensor.data) + int(tensor.byte_offset)


class Subject:
    """A library, as ``LIBRARY``, ``LIBRARY@DEVICE`` or ``MODULE:FUNCTION``.

    ``numpy`` is made by the tables above, another module by its ``asarray`` or
    ``array`` (with the keyword ``device``, if one is named), and producers are taken
    by its ``from_dlpack``. With a function, the function makes the array of a numpy
    array; ``from_dlpack`` and, if it is there, ``to_numpy`` are those of its module,
    or of the package that has the module.
    """

    def __init__(self, name: str) -> None:
        self.spec = name
        name, _, self.device = name.partition("@")
        self.name, _, self._function = name.partition(":")
        try:
            module = importlib.import_module(self.name)
        except ModuleNotFoundError as exc:
            if exc.name and not self.name.startswith(exc.name):
                raise  # the module is there, and what it imports is not
            raise ImportError(f"there is no module {self.name!r} here; install it") from exc
        if self._function and not callable(getattr(module, self._function, None)):
            raise ImportError(f"{self.name} has no function {self._function!r}")
        if self.name == "warp":
            resolve_name("warp.init")()
        self.immutable = self.name in _IMMUTABLE or getattr(module, "immutable", False) is True
        self.takes_capsules = self.name in _TAKES_CAPSULES

    @property
    def _maker(self) -> Callable[..., Any]:
        names = [f"{self.name}.{self._function}"] if self._function else [
            *filter(None, [_MAKE.get(self.name)]), f"{self.name}.asarray", f"{self.name}.array"
        ]  # fmt: skip
        for path in names:
            try:
                function: Callable[..., Any] = resolve_name(path)
            except (AttributeError, ImportError):
                continue
            return function
        raise NotOffered(f"{self.name} has neither asarray nor array")

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        """An array of the library with the values of *array*, which it may share."""
        maker = self._maker
        device = self.device or ("cpu" if self.name == "warp" else "")
        try:
            if self.name in _COPIES:
                array = array.copy(order="K") if array.ndim else array.copy()
            made = maker(array, device=device) if device else maker(array)
        except Exception as exc:
            raise NotOffered(f"{type(exc).__name__}: {exc}") from exc
        if not hasattr(made, "__dlpack__"):
            raise NotOffered(f"{type(made).__name__} has no __dlpack__")
        return made

    def check_usable(self) -> str:
        """NotOffered if no case could run: nothing makes an array, and nothing takes a producer.

        A library that only takes producers is named without a function and a device.
        """
        import numpy as np

        why = ""
        for shape, dtype in product(_SHAPES, _DTYPES):
            try:
                self.make(np.ones(shape, dtype))
            except NotOffered as exc:
                why = why or str(exc)
            else:
                return "it makes arrays"
        if not self._function and not self.device:
            try:
                self._of_module("from_dlpack", _TAKE.get(self.name))
            except AttributeError:
                raise NotOffered(f"{why}, and no from_dlpack") from None
            return "it takes arrays"
        raise NotOffered(f"{self.spec} makes no array here: {why}")

    def allocate(self, array: np.ndarray[Any, Any]) -> Any:
        """`make`, in memory that the library has allocated itself."""
        if self.spec == "dlbridge":  # asarray shares numpy's memory
            return resolve_name("dlbridge.asarray")(array, copy=True)
        made = self.make(array)
        if self.name != "numpy" and hasattr(made, "copy"):
            try:
                copied = made.copy()
            except Exception:  # with arguments, or no copy of that kind
                copied = None
            if hasattr(copied, "__dlpack__"):
                return copied
        if self.name in _SHARES or _begins_at(made) == array.ctypes.data:
            raise NotOffered("it allocates nothing for such arrays: they share numpy's memory")
        return made

    @cached_property
    def traits(self) -> Traits:
        """The device and the elements of what `make` makes: a host's and floats, if it fails."""
        import numpy as np

        from .producer import capsule_of, device_of, dtype_of, managed_in

        for shape, dtype in product(_SHAPES, _DTYPES):
            try:
                managed = managed_in(capsule_of(self.make(np.ones(shape, dtype))))
            except (Exception, NotOffered):
                continue
            if dtype in _FLOATS:  # the producers' values are floats
                return Traits(device_of(managed), dtype_of(managed))
            return Traits(device_of(managed))
        return Traits()

    def take(self, producer: Any, **keywords: Any) -> Any:
        """The library's array of *producer*."""
        try:
            function = self._of_module("from_dlpack", _TAKE.get(self.name))
        except AttributeError as exc:
            raise NotOffered(f"{self.name} has no from_dlpack") from exc
        if not self.takes_capsules:
            return function(producer, **keywords)
        if keywords:
            raise NotOffered(f"{self.name} takes a capsule and no keywords")
        return function(producer.__dlpack__() if hasattr(producer, "__dlpack__") else producer)

    def _of_module(self, name: str, known: str | None = None) -> Any:
        try:
            return resolve_name(known or f"{self.name}.{name}")
        except AttributeError:
            return getattr(importlib.import_module(self.name.partition(".")[0]), name)

    def needs_producers(self) -> None:
        """NotOffered for a library that takes capsules only."""
        if self.takes_capsules:
            raise NotOffered(f"{self.name} takes a capsule, and asks no producer")

    def values(self, array: Any) -> Any:
        """The elements of the library's *array*, by a copy of its own where it has one."""
        import numpy as np

        from .producer import elements, managed_in

        if self._function:
            try:
                return np.array(self._of_module("to_numpy")(array))
            except AttributeError:
                pass
        for name in ("numpy", "tolist"):
            if hasattr(array, name):
                try:
                    return np.array(getattr(array, name)())
                except Exception:  # of a device, or of elements that numpy does not have
                    continue
        if hasattr(type(array), "__array__") and self.traits.device[0] == 1:
            return np.array(array)
        if self.traits.device[0] == 1 and self.traits.dtype[0] != 4:
            return np.from_dlpack(array).copy()
        return elements(managed_in(array.__dlpack__(max_version=(1, 0), dl_device=(1, 0))))
