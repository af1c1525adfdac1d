"""Any object as a Tensor: which interface of it is asked, in which order."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from dlbridge.api import on_demand
from dlbridge.core.dlpack.structs import FLAG_IS_COPIED
from dlbridge.core.implementation_details.handlers import unless_handler
from dlbridge.core.interfaces.dlpack import device_of_producer, import_producer, refuse_class
from dlbridge.core.interfaces.native import import_native
from dlbridge.core.libraries.library import origin_of
from dlbridge.core.libraries.lookup import importer_of, library_of
from dlbridge.core.moves.transfer import new_tensor
from dlbridge.core.plugins.registry import known_backends
from dlbridge.core.public import public
from dlbridge.core.tensor.array_tensor import label_array, wrap_array
from dlbridge.core.tensor.memory import carrier_dtype
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.dtypes import ForeignByteOrder, from_numpy
from dlbridge.errors import Error, ExchangeError
from dlbridge.protocol import CONTEXT_DEVICES

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.libraries.library import Library
    from dlbridge.core.values.dtypes import DType
    from dlbridge.typing import ArrayLike, DeviceLike


def _from_producer(x: Any, copy: bool | None) -> Tensor:
    """A Tensor of an object with ``__dlpack__``; its library's short way may copy."""
    importer = importer_of(type(x))
    if importer is not None:
        tensor = importer(x)
        if copy is not False or not tensor.is_copied:
            return tensor
    strict = False if copy is False else None
    if _is_by_arrow(x):
        return on_demand.from_arrow(x, copy)
    try:
        return import_producer(x, None, strict, None)
    except unless_handler(BufferError, NotImplementedError) as exc:
        if isinstance(exc, Error):
            raise  # ours: what it exported breaks the standard
        return _in_another_way(x, copy, exc)


def _in_another_way(x: Any, copy: bool | None, exc: Exception) -> Tensor:
    """A Tensor of *x* by another interface than the ``__dlpack__`` that has failed; else *exc*.

    Only by those that say type and shape: a buffer may be the bytes alone (a plane of PyAV with
    the other byte order). A library that is described here has refused for a reason that counts.
    """
    if library_of(type(x)) is None:
        if getattr(x, "__array_interface__", None) is not None:
            return wrap_array(on_demand.from_array_interface(x, copy))
        if hasattr(type(x), "__array__"):
            return wrap_array(on_demand.from_array_method(x, copy))
    way_out = on_demand.method_of(x)
    exc.add_note(f"raised by {origin_of(x)}.__dlpack__" + (way_out and f"; {way_out}"))
    raise exc


def import_anything(
    x: Any, wanted: DType | None, copy: bool | None, device: DeviceLike | None = None
) -> Tensor:
    """A Tensor of *x* on its own device; *wanted* is the dtype of Python numbers.

    *device* is where it shall be: its backend is meant if several recognise *x*. Elements of the
    other byte order are converted where *copy* allows it.
    """
    try:
        return _by_its_interface(x, wanted, copy, device)
    except ForeignByteOrder:
        if copy is False:
            raise
        return _in_our_order(x)


def _in_our_order(x: Any) -> Tensor:
    """The elements of *x*, whose array has the other byte order, in that of this machine.

    Their memory is aligned as that of `empty`, so that devices can use it in place.
    """
    import numpy as np

    array = np.asarray(x)
    ours = array.dtype.newbyteorder("=")
    dtype = from_numpy(ours)
    converted = new_tensor(CPU, dtype, array.shape).numpy().view(carrier_dtype(dtype))
    converted.view(ours)[...] = array
    return label_array(converted, dtype, FLAG_IS_COPIED, type(x))


def is_in_our_order(x: Any) -> bool:
    """Whether *x* does not say that its elements have the other byte order."""
    return getattr(getattr(x, "dtype", None), "isnative", True) is not False


def _by_its_interface(
    x: Any, wanted: DType | None, copy: bool | None, device: DeviceLike | None
) -> Tensor:
    cls = type(x)
    if hasattr(cls, "__dlpack__") or cls.__name__ == "PyCapsule":
        return _from_producer(x, copy)
    if cls in BUILTIN:
        return _from_buffer_or_numbers(x, wanted, copy)
    refuse_class(x)
    library = library_of(cls)
    inner = x if library is None else _exposed(library, x, copy)
    if inner is not x:
        tensor = import_anything(inner, wanted, copy)
        if copy is False and library is not None and tensor.size:
            # An object that reads its array anew each time (a lazy DataArray) shares nothing.
            again = import_anything(_exposed(library, x, copy), wanted, copy)
            if again.data_ptr() != tensor.data_ptr():
                raise ExchangeError(on_demand.NOTHING_TO_SHARE.format(origin_of(x)))
        return tensor
    native = import_native(x, library, device)
    if native is not None:
        return native
    if getattr(x, "__cuda_array_interface__", None) is not None:
        return on_demand.from_cuda_array_interface(x)
    if getattr(x, "__array_interface__", None) is not None:
        return wrap_array(on_demand.from_array_interface(x, copy))
    # A column without a shape: after the interface that has one (PIL has both).
    if on_demand.is_arrow(x):
        return on_demand.from_arrow(x, copy)
    if hasattr(x, "__array__"):
        return wrap_array(on_demand.from_array_method(x, copy))
    return _from_buffer_or_numbers(x, wanted, copy)


def is_read_once(x: Any) -> bool:
    """Whether *x* may be used up by its import: a capsule, or a stream that only Arrow has."""
    cls = type(x)
    others = ("__dlpack__", "__array_interface__", "__cuda_array_interface__")
    return cls.__name__ == "PyCapsule" or (
        not any(hasattr(cls, name) for name in others) and on_demand.is_stream(x)
    )


def refuse_read_once(x: Any, question: str, then: str) -> None:
    """TypeError if the *question* would use *x* up; *then*, of its tensor t, is the way out."""
    if not is_read_once(x):
        return
    if type(x).__name__ == "PyCapsule":
        what, way = "would consume the capsule", "t = dlbridge.from_dlpack(capsule)"
    else:
        what = "may consume the stream, which has no length"
        way = "t = dlbridge.asarray(x); of a table: t = dlbridge.asarray(pyarrow.table(x)['name'])"
    raise TypeError(f"{question} {what}: import it first ({way}) and {then}")


def is_copied(x: Any, tensor: Tensor, device: DeviceLike | None = None) -> bool:
    """Whether `import_anything`, which has made *tensor* of *x*, has copied its elements.

    It is so if a second import has another address. This may read *x* again, so it is only for
    plans and traces. Copies that a DLPack producer makes are its own, and not known here.
    """
    if is_read_once(x):  # what was copied from a stream comes from numpy's array
        return type(x).__name__ != "PyCapsule" and tensor.origin != origin_of(x)
    in_another_way = tensor.origin == "numpy.ndarray" and library_of(type(x)) is None
    if hasattr(type(x), "__dlpack__") and not _is_by_arrow(x) and not in_another_way:
        return False
    if type(x) in NUMBERS:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import has given them
        try:
            again = import_anything(x, None, None, device)
        except unless_handler(Exception):
            return True
    return again.data_ptr() != tensor.data_ptr()


def _is_by_arrow(x: Any) -> bool:
    """Whether *x* exports its elements by Arrow's interface, although it has ``__dlpack__``."""
    library = library_of(type(x))
    return library is not None and library.by_arrow is not None and library.by_arrow(x)


def _exposed(library: Library, x: Any, copy: bool | None) -> Any:
    """The array that *library* has inside *x*, or *x* itself; its error if it has none."""
    if library.refuse is not None:
        library.refuse(x)
    return x if library.expose is None else library.expose(x, copy)


NUMBERS = (bool, int, float, complex, list, tuple)
"""The classes of Python itself whose elements have no memory that a tensor could share."""

BUFFERS = (bytes, bytearray)
"""Those whose memory a tensor always shares."""

BUILTIN = frozenset({*BUFFERS, memoryview, *NUMBERS})
"""The classes of Python itself whose objects become a tensor; it is on the CPU."""


def _from_buffer_or_numbers(x: Any, wanted: DType | None, copy: bool | None) -> Tensor:
    tensor = None if type(x) in NUMBERS else on_demand.from_buffer(x)
    if tensor is not None:
        return tensor
    numbers = _plain(x)
    if copy is False:
        raise ExchangeError(on_demand.NOTHING_TO_SHARE.format(origin_of(x)))
    return wrap_array(on_demand.array_of(numbers, wanted, _values_of))


def arrays_in(x: Any) -> int:
    """How many arrays the lists of *x*, of which a tensor has been made, hold; 0 for numbers."""
    count = 1
    while isinstance(x, (list, tuple)) and x:
        count, x = count * len(x), x[0]
        if getattr(x, "shape", ()):
            return count
    return 0


def _values_of(x: Any) -> np.ndarray[Any, Any]:
    """The values of an array that stands in a list, as numpy's array."""
    tensor = import_anything(x, None, None)
    if not tensor.device.is_host:
        raise ExchangeError(
            f"an array in the list is on {tensor.device}, and a list of arrays is stacked on the "
            "host: dlbridge.tree_to_device(x, device) moves each by itself"
        )
    return tensor.numpy()


def _plain(x: Any) -> Any:
    """Python scalars and nested sequences of them; TypeError for anything else."""
    if isinstance(x, NUMBERS):
        return x
    way_out = on_demand.instead_of(x)
    if way_out:
        raise TypeError(f"{origin_of(x)} is not a tensor: {way_out}")
    raise TypeError(
        f"{origin_of(x)} is not a tensor: it has neither __dlpack__, an array interface nor a "
        "buffer, no entry point of 'dlbridge.libraries' describes it, and no backend has objects "
        f"of that package ({', '.join(known_backends())})"
    )


@public
def device_of(x: ArrayLike, /) -> Device:
    """Return the device that the elements of *x* are on.

    Nothing is copied from a device, and no driver is loaded that *x* does not need.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes, except a capsule and an Arrow stream without a
        length. Lists and numbers are on the CPU.

    Returns
    -------
    Device
        The device of ``asarray(x)``.

    Raises
    ------
    TypeError
        If *x* is not accepted by `asarray`, or a capsule or a stream, which looking would
        consume. For the device that a text or a number names see `device`.
    ExchangeError
        If *x* is an array that dlbridge cannot take.

    Examples
    --------
    >>> bridge.device_of(np.zeros(3))
    dlbridge.device('cpu:0')
    """
    if isinstance(x, Tensor):
        return x.device
    cls = type(x)
    if cls in BUILTIN:
        return CPU
    refuse_read_once(x, "device_of", "take dlbridge.device_of(t)")
    refuse_class(x)
    if not hasattr(cls, "__dlpack_device__"):
        return import_anything(x, None, None).device
    try:
        found = device_of_producer(x)
    except unless_handler(Exception):
        # Says better what is wrong (a meta tensor), or where it is (torch's tensor of a vendor).
        return import_producer(x, None, None, None).device
    if found.is_host or (found.is_address and found.type not in CONTEXT_DEVICES):
        return found
    # Which of its devices it is, and which backend's, the memory says.
    return import_producer(x, None, None, None).device
