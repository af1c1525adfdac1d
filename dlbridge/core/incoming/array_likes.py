"""Whatever else holds numbers, as a Tensor: native objects, array interfaces, buffers, lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlbridge.core.outgoing.producer import OPERATIONS
from dlbridge.core.plugins.lookup import supports
from dlbridge.core.plugins.registry import backend, backends, generation
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.tensor import Tensor, make_tensor, wrap_array
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray, SupportsNative

from .lists import array_of
from .producers import from_dlpack, origin_of, refuse_class

if TYPE_CHECKING:
    import numpy as np

__all__ = ["INTERFACES", "asarray", "native_tensor"]


def asarray(
    x: Any, /, *, device: Any = None, dtype: Any = None, copy: bool | None = None
) -> Tensor:
    """A Tensor of whatever *x* is, without a copy where its memory can be shared.

    Takes what `from_dlpack` takes, the objects of a backend's ecosystem
    (pyopencl arrays, Vulkan buffers), ``__cuda_array_interface__``,
    ``__array_interface__``, buffers (bytes, memoryview, array, mmap), Arrow
    arrays, Python scalars and nested lists. *dtype* is what lists become:
    ValueError where that would change a value by more than rounding a float.
    Memory that has another type is refused. *copy* as in `to_device`; False
    refuses what has no memory to share, a list, with BufferError.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    tensor = _as_tensor(x, wanted, copy)
    if wanted is not None and tensor.dtype is not wanted:
        raise ExchangeError(
            f"{origin_of(x)} holds {tensor.dtype}, and dlbridge converts no elements: convert it "
            f"in its own library first, or read its memory as {wanted}: asarray(x).view(dtype)"
        )
    if device is None and (copy is None or copy is False):
        return tensor
    moved: Tensor = OPERATIONS["to_device"](
        tensor, tensor.device if device is None else device, copy=copy
    )
    return moved


def _as_tensor(x: Any, wanted: DType | None, copy: bool | None) -> Tensor:
    if hasattr(type(x), "__dlpack__") or type(x).__name__ == "PyCapsule":
        return from_dlpack(x, copy=False if copy is False else None)
    refuse_class(x)
    native = _from_native(x)
    if native is not None:
        return native
    for attribute, importer in INTERFACES.items():
        if getattr(x, attribute, None) is not None:
            return importer(x)
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

INTERFACES: dict[str, Callable[[Any], Tensor]] = {}
"""Importers by attribute, for interfaces that later modules bring."""


def _plain(x: Any) -> Any:
    """Python scalars and nested sequences of them; TypeError for anything else."""
    if isinstance(x, (bool, int, float, complex, list, tuple)):
        return x
    raise TypeError(
        f"{origin_of(x)} is no tensor: it has neither __dlpack__, an array interface nor a buffer, "
        f"and no installed backend knows it ({', '.join(backends())})"
    )


def _from_native(x: Any) -> Tensor | None:
    """*x* as the tensor that one of the backends sees in it."""
    if type(x).__module__ == "builtins" or type(x).__module__.startswith("numpy"):
        return None
    for name, plugin in _native_backends():
        array = plugin.from_native(x)
        if array is not None:
            return native_tensor(Device.of(plugin.device_type, array.device_id, name), array, x)
    return None


def _native_backends() -> list[tuple[str, Any]]:
    """The usable backends that know native objects.

    Looked up again only when another backend is in use: to ask for those that
    cannot run here takes 10 ms.
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
    """The Tensor that a backend's description of *x* means."""
    dtype = as_dtype(array.dtype)
    strides = array.strides and tuple(step // dtype.itemsize for step in array.strides)
    memory = Memory(device, array.data, origin_of(x), array.owner)
    return make_tensor(memory, array.offset, dtype, array.shape, strides, readonly=array.readonly)
