"""Prepared conversions: `to_device` looks here first, as planning a short move is slow.

Planning a move that does nothing takes ten times as long as the move itself, and planning
a small upload as long as the upload. So `to_device` keeps a function for each class of
array, device and ``like=``. It returns the same result as the plan, or None if the move
must be planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.numpy_arrays import address_of
from dlbridge.core.libraries.library import HOST_ONLY
from dlbridge.core.libraries.lookup import IMPORTERS, find_description, library_of
from dlbridge.core.moves.plans import why_no_host_import
from dlbridge.core.moves.transfer import allocate_with
from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.tensor.array_tensor import ArrayTensor, NumpyTensor
from dlbridge.core.tensor.carriers import NATIVE_DTYPES
from dlbridge.core.tensor.metadata import carrier_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device

if TYPE_CHECKING:
    from collections.abc import Callable

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
    importer = ITSELF if issubclass(cls, Tensor) else IMPORTERS.get(cls)
    if importer is not None:
        READY.setdefault(key, _conversion(cls, importer, target, like))


def _conversion(
    cls: type, importer: Callable[[Any], Any], target: Device, like: object
) -> Callable[[Any], Any] | None:
    if like is None and not target.is_host:
        upload = _upload(cls, importer, target)
        if upload is not None:
            return upload
    if issubclass(cls, Tensor):
        return _of_tensor(cls, target, like)
    return _of_array(cls, importer, like) if target is _CPU else None


def _of_tensor(cls: type, target: Device, like: object) -> Callable[[Any], Any] | None:
    if like is None:
        if issubclass(cls, NumpyTensor):
            return ITSELF if target is _CPU else None
        return lambda tensor: tensor if tensor.device is target else None
    if cls is not ArrayTensor or target is not _CPU:
        return None
    if like == "numpy":
        return ArrayTensor.numpy
    from_numpy = _of_numpy(like)
    return None if from_numpy is None else lambda tensor: from_numpy(tensor.numpy())


def _upload(
    cls: type, importer: Callable[[Any], Any], target: Device
) -> Callable[[Any], Any] | None:
    """For host arrays, where the backend makes memory together with its content."""
    plugin = plugin_of(target)
    limit = plugin.content_limit
    if not limit or cls is Tensor:  # that class is the one of tensors on devices
        return None
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
        if plugin_of(target) is not plugin:
            return None  # another backend was registered by that name
        return allocate_with(plugin, target, array.data.cast("B"), dtype, array.shape)[0]

    return convert


def _of_array(
    cls: type, importer: Callable[[Any], Any], like: object
) -> Callable[[Any], Any] | None:
    """To the CPU, for arrays of a library with an importer, which are there already."""
    library = library_of(cls)
    if library is None:
        return None
    if like is None and library.device_types == HOST_ONLY:
        return importer
    if like is None:
        on_host = library.on_host
        return None if on_host is None else lambda x: importer(x) if on_host(x) else None
    if library.name == "numpy":
        return _of_numpy(like)
    return library.as_numpy() if like == "numpy" and library.as_numpy is not None else None


def _of_numpy(like: object) -> Callable[[Any], Any] | None:
    """Numpy's arrays as those of the library *like*."""
    library = find_description(like) if isinstance(like, str) else None
    return None if library is None or library.of_numpy is None else library.of_numpy()
