"""The library under test: how one makes an array in it, and how it takes a producer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

__all__ = ["Fail", "NotOffered", "Subject"]


class Fail(Exception):
    """The library does not do what the line says."""


class NotOffered(Exception):
    """The library does not have what the line is about."""


def _attribute(path: str) -> Any:
    """The object at a dotted path whose first parts are modules."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ImportError(f"there is no module {parts[0]!r} here; install it")


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
    "pyarrow": "pyarrow.array",
    "array_api_strict": "array_api_strict.asarray",
}
_TAKE = {
    "jax": "jax.dlpack.from_dlpack",
    "mlx": "mlx.core.from_dlpack",
    "tensorflow": "tensorflow.experimental.dlpack.from_dlpack",
    "onnxruntime": "onnxruntime.OrtValue.from_dlpack",
}
_TAKES_CAPSULES = {"tensorflow", "onnxruntime"}
"""Libraries whose function takes a capsule, and asks no producer for anything."""

_IMMUTABLE = {"jax", "tensorflow", "pyarrow"}
_COPIES = {"jax", "tvm_ffi"}


class Subject:
    """A library, by the name of its module.

    Without an entry in the tables above, its arrays are made by ``asarray`` or
    ``array`` of the module, and taken by its ``from_dlpack``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        _attribute(name)  # ImportError now
        if name == "warp":
            _attribute("warp.init")()
        self.immutable = name in _IMMUTABLE
        self.takes_capsules = name in _TAKES_CAPSULES

    @property
    def _maker(self) -> Callable[..., Any]:
        for path in (_MAKE.get(self.name), f"{self.name}.asarray", f"{self.name}.array"):
            if path:
                try:
                    found: Callable[..., Any] = _attribute(path)
                except (AttributeError, ImportError):
                    continue
                return found
        raise NotOffered(f"{self.name} has neither asarray nor array")

    def make(self, array: np.ndarray[Any, Any]) -> Any:
        """An array of the library with the values of *array*, which it may share."""
        maker = self._maker
        try:
            if self.name in _COPIES:
                array = array.copy(order="K") if array.ndim else array.copy()
            made = maker(array, device="cpu") if self.name == "warp" else maker(array)
        except Exception as exc:
            raise NotOffered(f"no such array here: {type(exc).__name__}: {exc}") from exc
        if not hasattr(made, "__dlpack__"):
            raise NotOffered(f"{type(made).__name__} has no __dlpack__")
        return made

    def allocate(self, array: np.ndarray[Any, Any]) -> Any:
        """`make`, in memory that the library has allocated itself."""
        if self.name == "dlbridge":  # asarray shares numpy's memory
            return _attribute("dlbridge.asarray")(array, copy=True)
        return self.make(array)

    def take(self, producer: Any, **keywords: Any) -> Any:
        """The library's array of *producer*."""
        try:
            function = _attribute(_TAKE.get(self.name, f"{self.name}.from_dlpack"))
        except AttributeError as exc:
            raise NotOffered(f"{self.name} has no from_dlpack") from exc
        if not self.takes_capsules:
            return function(producer, **keywords)
        if keywords:
            raise NotOffered(f"{self.name} takes a capsule and no keywords")
        return function(producer.__dlpack__() if hasattr(producer, "__dlpack__") else producer)

    def needs_producers(self) -> None:
        """NotOffered for a library that takes capsules only."""
        if self.takes_capsules:
            raise NotOffered(f"{self.name} takes a capsule, and asks no producer")

    def values(self, array: Any) -> Any:
        """The elements of the library's *array*, by a copy of its own where it has one."""
        import numpy as np

        for name in ("numpy", "tolist"):
            if hasattr(array, name):
                return np.array(getattr(array, name)())
        if hasattr(type(array), "__array__"):
            return np.array(array)
        return np.from_dlpack(array).copy()
