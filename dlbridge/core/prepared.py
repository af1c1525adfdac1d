"""Prepared conversions: `to_device` looks here first, as planning a short move is slow.

Planning a move that does nothing takes ten times as long as the move itself, and planning
a small upload as long as the upload. So `to_device` keeps a function for each class of
array, device and ``like=``. It returns the same result as the plan, or None if the move
must be planned.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.implementation_details.numpy_arrays import address_of
from dlbridge.core.incoming.importers import IMPORTERS, numpy_types_of_torch
from dlbridge.core.moves.allocate import allocate_from_host, allocate_from_host_limit
from dlbridge.core.moves.plans import why_no_host_import
from dlbridge.core.plugins.lookup import backend_of
from dlbridge.core.tensor.array_tensor import ArrayTensor, NumpyTensor
from dlbridge.core.tensor.carriers import NATIVE_DTYPES
from dlbridge.core.tensor.metadata import carrier_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ITSELF", "READY", "prepare"]

_CPU = Device.of(1, 0)


def ITSELF(x: Any) -> Any:
    """The conversion that changes nothing; `to_device` need not call it."""
    return x


READY: dict[tuple[type, object, object], Callable[[Any], Any] | None] = {}
"""(class, device, like) -> the conversion; None if there is none.

The device is a text or a `Device`, and like is a text or None: objects of other
types may be equal to these and mean something else.
"""


def prepare(cls: type, device: object, target: Device, like: object) -> None:
    """Enter the conversion of a move to *target* that has just been planned and made."""
    if type(device) not in (str, Device) or type(like) not in (str, type(None)):
        return
    key = cls, device, like
    if cls in IMPORTERS or issubclass(cls, Tensor):
        READY.setdefault(key, _conversion(cls, target, like))


def _conversion(cls: type, target: Device, like: object) -> Callable[[Any], Any] | None:
    if like is None and not target.is_host:
        upload = _upload(cls, target)
        if upload is not None:
            return upload
    if issubclass(cls, Tensor):
        return _of_tensor(cls, target, like)
    found = _OF_ARRAYS.get((cls.__module__, cls.__name__, like))
    return found() if found is not None and target is _CPU else None


def _of_tensor(cls: type, target: Device, like: object) -> Callable[[Any], Any] | None:
    if like is None:
        if issubclass(cls, NumpyTensor):
            return ITSELF if target is _CPU else None
        return lambda tensor: tensor if tensor.device is target else None
    if cls is not ArrayTensor or target is not _CPU:
        return None
    if like == "numpy":
        return ArrayTensor.numpy
    if like == "torch":
        from_numpy = _numpy_to_torch()
        return lambda tensor: from_numpy(tensor.numpy())
    return None


def _upload(cls: type, target: Device) -> Callable[[Any], Any] | None:
    """For host arrays, where the backend makes memory together with its content."""
    plugin = backend_of(target)
    limit = allocate_from_host_limit(plugin, target)
    if not limit or cls is Tensor:  # that class is the one of tensors on devices
        return None
    importer = ITSELF if issubclass(cls, Tensor) else IMPORTERS[cls]
    is_numpy = (cls.__module__, cls.__name__) == ("numpy", "ndarray")

    def convert(x: Any) -> Any:
        if is_numpy:
            array, dtype = x, NATIVE_DTYPES.get(x.dtype)
        else:
            tensor = importer(x)
            if type(tensor) is Tensor:
                return None  # on a device, or empty
            array, dtype = carrier_of(tensor), tensor.dtype
        if dtype is None or not 0 < array.nbytes <= limit or not array.flags.c_contiguous:
            return None
        if not why_no_host_import(address_of(array), array.nbytes, target):
            return None  # it is used in place
        if backend_of(target) is not plugin:
            return None  # another backend was registered by that name
        made = allocate_from_host(plugin, target, array.data.cast("B"), dtype, array.shape)
        return None if made is None else made[0]

    return convert


def _numpy_to_tensor() -> Callable[[Any], Any]:
    import numpy as np

    return IMPORTERS[np.ndarray]


def _torch_to_tensor() -> Callable[[Any], Any]:
    importer = IMPORTERS[sys.modules["torch"].Tensor]
    return lambda x: importer(x) if x.is_cpu else None


def _numpy_to_torch() -> Callable[[Any], Any]:
    from_numpy = sys.modules["torch"].from_numpy

    def convert(x: Any) -> Any:
        if not x.flags.writeable:
            return None  # torch would write
        try:
            return from_numpy(x)
        except (TypeError, ValueError) as exc:  # a type or strides that torch does not have
            if is_from_handler(exc.__traceback__):
                raise
            return None

    return convert


def _torch_to_numpy() -> Callable[[Any], Any]:
    torch = sys.modules["torch"]
    known, to_numpy = numpy_types_of_torch(torch), torch.Tensor.numpy

    def convert(x: Any) -> Any:
        try:
            return to_numpy(x) if x.dtype in known else None
        except (RuntimeError, TypeError) as exc:  # a gradient, a lazy sign, another device
            if is_from_handler(exc.__traceback__):
                raise
            return None

    return convert


_OF_ARRAYS: dict[tuple[str, str, object], Callable[[], Callable[[Any], Any]]] = {
    ("numpy", "ndarray", None): _numpy_to_tensor,
    ("numpy", "ndarray", "torch"): _numpy_to_torch,
    ("torch", "Tensor", None): _torch_to_tensor,
    ("torch", "Tensor", "numpy"): _torch_to_numpy,
}
"""Module and name of a class, and like -> the function that makes the conversion to the CPU."""
