"""Other objects as a Tensor: native objects, array interfaces, buffers, numbers and lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.plugins.lookup import supports
from dlbridge.core.plugins.registry import backend, backends, generation
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.tensor import Tensor, make_tensor, wrap_array
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray, SupportsNative

from .cuda_array_interface import from_cuda_array_interface
from .lists import array_of
from .producers import (
    IMPORTERS,
    find_importer,
    import_producer,
    origin_of,
    refuse_class,
)

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.values.dtypes import DType

__all__ = ["import_anything", "native_tensor"]


def import_anything(x: Any, wanted: DType | None, copy: bool | None) -> Tensor:
    """A Tensor of *x* on its own device; *wanted* is the dtype of Python numbers."""
    if hasattr(type(x), "__dlpack__") or type(x).__name__ == "PyCapsule":
        importer = None if copy is False else IMPORTERS.get(type(x)) or find_importer(type(x))
        if importer is not None:
            return importer(x)
        return import_producer(x, None, False if copy is False else None, None)
    refuse_class(x)
    native = _from_native(x)
    if native is not None:
        return native
    if getattr(x, "__cuda_array_interface__", None) is not None:
        return from_cuda_array_interface(x)
    import numpy as np

    interface = getattr(x, "__array_interface__", None)
    if isinstance(interface, dict) and interface.get("mask") is not None:
        raise ExchangeError(f"{origin_of(x)} has a mask, which DLPack cannot carry; fill it first")
    if interface is not None or hasattr(x, "__array__"):
        return wrap_array(_share_or_copy(x, copy)[...])
    try:
        view = memoryview(x)
    except TypeError:
        numbers = _plain(x)
        if copy is False:
            raise ExchangeError(_NOTHING_TO_SHARE.format(origin_of(x))) from None
        return wrap_array(array_of(numbers, wanted))
    return wrap_array(np.asarray(view))


def _share_or_copy(x: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    import numpy as np

    try:
        return np.asarray(x, copy=False if copy is False else None)
    except ValueError as exc:
        if copy is not False:
            raise
        raise ExchangeError(_NOTHING_TO_SHARE.format(origin_of(x))) from exc


_NOTHING_TO_SHARE = "{} has no memory to share and copy=False forbids a copy; pass copy=None"


def _plain(x: Any) -> Any:
    """Python scalars and nested sequences of them; TypeError for anything else."""
    if isinstance(x, (bool, int, float, complex, list, tuple)):
        return x
    raise TypeError(
        f"{origin_of(x)} is not a tensor: it has neither __dlpack__, an array interface nor a "
        f"buffer, and no installed backend knows it ({', '.join(backends())})"
    )


def _from_native(x: Any) -> Tensor | None:
    """*x* as a Tensor, if a backend recognises it as a native object."""
    if type(x).__module__ == "builtins" or type(x).__module__.startswith("numpy"):
        return None
    for name, plugin in _native_backends():
        array = plugin.from_native(x)
        if array is not None:
            return native_tensor(Device.of(plugin.device_type, array.device_id, name), array, x)
    return None


def _native_backends() -> list[tuple[str, Any]]:
    """The usable backends that have native objects.

    Cached until another backend is loaded: to try the backends that cannot run
    here takes 10 ms.
    """
    global _natives
    if _natives[0] != generation():
        found = []
        for name in backends():
            try:
                plugin = backend(name)
            except Exception:  # a broken backend knows no objects
                continue
            if supports(plugin, SupportsNative):
                found.append((name, plugin))
        _natives = generation(), found
    return _natives[1]


_natives: tuple[tuple[int, ...], list[tuple[str, Any]]] = ((-1,), [])


def native_tensor(device: Device, array: NativeArray, x: Any) -> Tensor:
    """The Tensor of a backend's description of *x*."""
    dtype = as_dtype(array.dtype)
    strides = array.strides and tuple(step // dtype.itemsize for step in array.strides)
    memory = Memory(device, array.data, origin_of(x), array.owner)
    return make_tensor(memory, array.offset, dtype, array.shape, strides, readonly=array.readonly)
