"""Objects that have one way in only, in the place of other libraries' arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class ByMethod:
    """``__array__`` gives *array*; of a function that makes one, a new one each time."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if not callable(self.array):
            return self.array
        if copy is False:
            raise ValueError("only by a copy")
        return self.array()


class RefusesFalse(ByMethod):
    """As shapely's coordinates: ``__array__`` gives its own memory, and refuses ``copy=False``."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("only by a copy")
        return self.array


class Unasked(ByMethod):
    """As a quantity of pint: its method does not know the keyword *copy*."""

    def __array__(self, dtype: Any = None) -> Any:
        return self.array() if callable(self.array) else self.array


class ByInterface:
    """``__array_interface__`` of *array*, with *more* in it."""

    def __init__(self, array: np.ndarray[Any, Any], **more: object) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, **more}


class NoDLPack:
    """Its ``__dlpack__`` raises *error*, which may be a library's that has no such capsule for it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_asked: object) -> Any:
        raise self.error


class NoDLPackButMethod(NoDLPack, ByMethod):
    """The same, with an array by ``__array__``."""

    def __init__(self, error: BaseException, array: Any) -> None:
        self.error, self.array = error, array


class NoDLPackButInterface(NoDLPack, ByInterface):
    """The same, with an array by ``__array_interface__``."""

    def __init__(self, error: BaseException, array: np.ndarray[Any, Any]) -> None:
        ByInterface.__init__(self, array)
        self.error = error


class Lazy:
    """As a DataArray: ``data`` is an array. A lazy one without a cache reads it anew each time."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    @property
    def data(self) -> Any:
        return self.read()


Lazy.__module__ = "xarray.core.dataarray"


class OneCapsule:
    """The producer of one capsule."""

    def __init__(self, capsule: object, device: tuple[int, int] = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_keywords: object) -> object:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device
