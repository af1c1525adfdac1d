"""Objects of a device's own ecosystem, a pyopencl array for example: in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.libraries.library import origin_of
from dlbridge.core.libraries.lookup import library_of
from dlbridge.core.plugins.lookup import check_device
from dlbridge.core.plugins.registry import LOADED, packages_of, plugin_named, plugin_of
from dlbridge.core.plugins.streams import chosen_stream
from dlbridge.core.public import for_guests
from dlbridge.core.tensor.array_tensor import tensor_on
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.core.values.layout import strides_in_elements
from dlbridge.errors import Error, ExchangeError
from dlbridge.protocol import NativeArray

if TYPE_CHECKING:
    from dlbridge.core.libraries.library import Library
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.typing import DeviceLike


@for_guests
def is_of_backend(kind: type) -> bool:
    """Return whether a class belongs to the package of a backend, or to the library it serves.

    Parameters
    ----------
    kind : type
        Any class. Nothing is loaded to find this out.

    Returns
    -------
    bool
        Whether `import_native` may take its objects.

    Examples
    --------
    >>> from dlbridge.extending import is_of_backend
    >>> is_of_backend(float)
    False
    """
    library = library_of(kind)
    return bool((library is not None and library.backend) or packages_of(kind))


@for_guests
def import_native(
    x: Any, library: Library | None, device: DeviceLike | None = None
) -> Tensor | None:
    """Return a tensor on the memory of a native object of a backend, a pyopencl array for example.

    Parameters
    ----------
    x : object
        Anything.
    library : Library or None
        What `library_of` says of its class.
    device : DeviceLike, optional
        Where it shall be: that backend is meant if several know the object.

    Returns
    -------
    Tensor or None
        None if no backend knows it. Asked are the backend that its library or its package names,
        and those that are loaded already: no other driver is loaded for an object that may be no
        backend's. One that cannot run here is passed over, but not the one that is known to be
        meant.

    Raises
    ------
    ExchangeError
        If it is no plain memory, or several backends know it. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import import_native
    >>> print(import_native(object(), None))
    None
    """
    if type(x).__module__ == "builtins" or type(x).__module__.startswith("numpy"):
        return None
    known = "" if library is None else library.backend
    found: dict[str, tuple[int, NativeArray]] = {}
    broken: list[Error] = []
    own = [known] if known else packages_of(type(x))
    asked = None if device is None else check_device(device).name
    for name in [*own, *sorted(LOADED.copy().keys() - set(own))]:
        try:
            plugin = plugin_named(name)
        except Error:  # a broken backend knows no objects
            if name != known:
                continue
            raise
        try:
            array = plugin.from_native(x) if plugin.from_native is not None else None
        except Error as exc:
            if name in (*own, asked):
                raise
            broken.append(exc)
            continue
        if array is not None:
            found[name] = plugin.device_type, array
    if not found:
        if broken:  # nobody else knows the object
            raise broken[0]
        return None
    if len(found) > 1 and asked not in found:
        raise ExchangeError(
            f"{origin_of(x)} is an object of several backends, {' and '.join(found)}; say which "
            f"is meant by its name: dlbridge.asarray(x, device='{next(iter(found))}:0')"
        )
    name = asked if asked in found else next(iter(found))
    device_type, array = found[name]
    return native_tensor(Device.of(device_type, array.device_id, name), array, x)


def native_tensor(device: Device, array: NativeArray, x: Any) -> Tensor:
    """The Tensor of a backend's description of *x*."""
    dtype = as_dtype(array.dtype)
    strides = array.strides
    if strides:
        strides = strides_in_elements(array.shape, strides, dtype.itemsize)
        if strides is None:
            raise ExchangeError(
                f"{origin_of(x)}: byte strides {array.strides} are not multiples of the item size "
                f"{dtype.itemsize}, which DLPack counts in; make a compact copy of it before"
            )
    memory = Memory(device, array.data, origin_of(x), array.owner)
    # Packed elements have no strides in bytes.
    padded = dtype.is_subbyte and strides is not None
    return tensor_on(
        memory,
        dtype,
        array.shape,
        strides,
        byte_offset=array.offset,
        readonly=array.readonly,
        padded=padded,
    )


# Out --------------------------------------------------------------------------


def check_whole_elements(tensor: Tensor) -> None:
    """ExchangeError for packed elements: who counts a native object's bytes would leave them."""
    dtype = tensor.dtype
    if dtype.is_subbyte and not tensor.is_padded:
        raise ExchangeError(
            f"{dtype} elements are packed: {tensor.size} of them are {tensor.nbytes} bytes, and "
            "work on an object of that shape would go beyond; t.view('uint8') has the bytes, and "
            "dlbridge.astype(t, 'float32') the numbers"
        )


def to_native(tensor: Tensor) -> object:
    """See `Tensor.to_native`."""
    operand = operand_of(tensor)
    device = operand.device
    if device is CPU:
        return tensor.numpy()
    plugin = plugin_of(device)
    if plugin.to_native is None:
        raise ExchangeError(f"the backend of {device} has no native objects; use DLPack")
    check_whole_elements(tensor)
    if operand.size:
        operand.access()  # the work that its user queues comes after our last work on it
    size = operand.dtype.itemsize
    array = NativeArray(
        device_id=device.index,
        data=operand.data,
        offset=operand.byte_offset,
        dtype=operand.dtype.name,
        shape=operand.shape,
        strides=tuple([step * size for step in operand.strides]),
        readonly=operand.readonly,
        owner=tensor,
        stream=chosen_stream(device),
    )
    return plugin.to_native(array)
