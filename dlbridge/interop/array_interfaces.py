"""Buffers, ``__array_interface__``, ``__array__`` and ``__cuda_array_interface__``, in and out.

Source: PEP 3118; numpy's documentation, "The array interface protocol", version 3; Numba's
documentation, "CUDA Array Interface (Version 3)". numba, DALI, RAPIDS, mpi4py and others
have the latter that have no DLPack, or not yet.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge import Device, DLDeviceType, DType, Operand, Tensor, dtype as as_dtype
from dlbridge.errors import BackendUnavailable, Error, ExchangeError
from dlbridge.extending import (
    Memory,
    byte_reach,
    check_array,
    operand_of,
    order_after,
    origin_of,
    plugin_of,
    public_in,
    ready_stream,
    strides_in_elements,
    tensor_on,
    unless_handler,
    why_impossible,
    wrap_array,
)
from dlbridge.kit.limits import switch

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.typing import DTypeLike, SupportsCUDAArrayInterface


def from_buffer(x: Any) -> Tensor | None:
    """The Tensor on the buffer of *x*; None if it has none."""
    try:
        view = memoryview(x)
    except TypeError:
        return None
    import numpy as np

    try:
        array = np.asarray(view)
        check_array(array, f"the buffer of {origin_of(x)}")
        return wrap_array(array)
    except (NotImplementedError, ValueError) as exc:
        way_out = "; pass x.contents" if hasattr(x, "contents") else ""
        raise TypeError(
            f"the buffer of {origin_of(x)} has the format {view.format!r}: no numbers{way_out}"
        ) from exc


NOTHING_TO_SHARE = "{} has no memory to share and copy=False forbids a copy; pass copy=None"


def from_array_interface(x: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """The array that ``__array_interface__`` describes."""
    import numpy as np

    interface = x.__array_interface__
    if isinstance(interface, dict) and interface.get("mask") is not None:
        raise _has_mask(x, "numpy.asarray(x), which has the values under the mask, too")
    if copy is False and isinstance(interface, dict):
        # An exporter that makes its bytes anew each time (PIL) shares nothing.
        again = x.__array_interface__
        first, second = interface.get("data"), again.get("data")
        if not (isinstance(first, tuple) and first == second) and first is not second:
            raise ExchangeError(NOTHING_TO_SHARE.format(origin_of(x)))
    try:
        array = np.asarray(x)[...]
    except unless_handler(TypeError, ValueError, OverflowError) as exc:
        said = interface if isinstance(interface, dict) else {}
        fields = ", ".join(f"{key} {said[key]}" for key in _FIELDS if key in said)
        raise ExchangeError(
            f"{origin_of(x)} has an __array_interface__ that numpy cannot read ({fields}): {exc}; "
            "correct it in that class"
        ) from exc
    check_array(array, f"the __array_interface__ of {origin_of(x)}")
    data = interface.get("data") if isinstance(interface, dict) else ()
    if not isinstance(data, tuple):
        _check_length(x, interface, array)
    elif array.size and data and data[0] < 0:  # numpy takes the lower 64 bits of it
        raise ExchangeError(
            f"{origin_of(x)} has an __array_interface__ with the address {data[0]}, and no address "
            "is negative; correct it in that class"
        )
    return array


_FIELDS = ("shape", "typestr", "strides", "data", "offset")


def _check_length(x: Any, interface: dict[str, Any], array: np.ndarray[Any, Any]) -> None:
    """Raise ExchangeError if *array* is not inside the buffer of *interface*: numpy does not look.

    An address says nothing about its length.
    """
    import numpy as np

    data = interface.get("data")
    try:
        nbytes = memoryview(x if data is None else data).nbytes
    except TypeError:
        return  # numpy has found an array in another way
    low, high = np.lib.array_utils.byte_bounds(array)
    first = interface.get("offset", 0)
    begin = first - (array.ctypes.data - low)
    end = begin + high - low
    if array.size and not 0 <= begin <= end <= nbytes:
        raise ExchangeError(
            f"{origin_of(x)} says in its __array_interface__ that the elements are at bytes "
            f"{begin} to {end} of its buffer, which has {nbytes} bytes; correct it in that class"
        )


def from_array_method(x: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """The array that ``__array__`` gives; subclasses of numpy's array keep their masks."""
    import numpy as np

    try:
        array = np.asanyarray(x) if copy is not False else _asked_for_no_copy(x)
    except unless_handler(TypeError) as exc:
        empty = getattr(x, "shape", ()) is None  # a dataset of h5py
        why = "it has no shape and no elements (its shape is None)" if empty else exc
        raise TypeError(f"the __array__ of {origin_of(x)} gives no array: {why}") from exc
    except unless_handler(RuntimeError, ValueError, OSError) as exc:  # h5py's, of a closed file
        exc.add_note(
            f"raised by the __array__ of {origin_of(x)}; if it reads a file, the file must be open"
        )
        raise
    if isinstance(array, np.ma.MaskedArray):
        raise _has_mask(x, "numpy.asanyarray(x).filled(value)")
    if copy is False and array.size and not np.may_share_memory(array, _asked_for_no_copy(x)):
        raise ExchangeError(NOTHING_TO_SHARE.format(origin_of(x)))
    return np.ndarray.view(array, np.ndarray)


def _asked_for_no_copy(x: Any) -> np.ndarray[Any, Any]:
    """The array that ``__array__`` gives where no copy is wanted; it may be one all the same.

    Methods that know the keyword make copies with it, and methods that refuse it give their own
    memory (shapely, pint). What is shared, only the addresses of two such arrays tell.
    """
    import numpy as np

    try:
        return np.asanyarray(x, copy=False)
    except unless_handler(ValueError, TypeError):
        pass
    try:
        return np.asanyarray(x)
    except unless_handler(ValueError, TypeError) as exc:
        raise ExchangeError(NOTHING_TO_SHARE.format(origin_of(x))) from exc


def _has_mask(x: Any, way_out: str) -> ExchangeError:
    return ExchangeError(f"{origin_of(x)} has a mask, which DLPack cannot carry; pass {way_out}")


def array_interface(tensor: Tensor) -> dict[str, Any]:
    """The dictionary for *tensor*, new at each call; it does not keep the memory alive.

    AttributeError for other memory and types, so that ``hasattr`` is right for
    consumers: numpy then asks ``__array__``, which has the types of ml_dtypes. So
    also for the tensor of a host view: consumers keep the tensor, which lets its
    memory go when the block ends, and an array of ``__array__`` keeps the memory.
    """
    if getattr(tensor, "expires", False):
        raise AttributeError("the tensor of a host view has no __array_interface__; use h.numpy()")
    if not tensor.device.is_host:
        raise AttributeError(
            f"a tensor on {tensor.device} has no __array_interface__: the host does not read it; "
            "dlbridge.to_device(t, 'cpu') copies it"
        )
    if tensor.dtype.is_subbyte or tensor.dtype.lanes != 1:
        raise _no_type(tensor)
    array = tensor.numpy()
    if array.dtype.isbuiltin != 1:
        raise _no_type(tensor)
    interface: dict[str, Any] = array.__array_interface__  # strides: None if they are the usual
    return interface if _HAS_BUFFER else _ForPillow(interface, array.strides)


_HAS_BUFFER = sys.version_info >= (3, 12)
"""Whether a Tensor has the buffer protocol here (PEP 688)."""


class _ForPillow(dict[str, Any]):
    """An interface whose ``get`` has strides where the memory is compact, too.

    Pillow asks with it, and takes bytes in place of a buffer only where there are some.
    """

    def __init__(self, interface: dict[str, Any], strides: tuple[int, ...]) -> None:
        super().__init__(interface)
        self.strides = strides

    def get(self, key: str, default: Any = None) -> Any:
        return self.strides if key == "strides" else super().get(key, default)


def _no_type(tensor: Tensor) -> AttributeError:
    return AttributeError(
        f"{tensor.dtype} has no name in the array interface; use DLPack, or t.view('uint8')"
    )


# The CUDA Array Interface -----------------------------------------------------------


VERSION = 3
LEGACY_STREAM = 1

SYNC = "DLBRIDGE_CUDA_ARRAY_INTERFACE_SYNC"
"""Environment variable: 0 lets imports ignore the producer's stream."""

EXPORT_STREAM = "DLBRIDGE_CUDA_ARRAY_INTERFACE_EXPORT_STREAM"
"""Environment variable: 0 makes exports say that no stream needs to be waited for."""

_REQUIRED = ("shape", "typestr", "data", "version")


class Interface(NamedTuple):
    """The fields of an interface dictionary, checked."""

    data: int
    """Address of the first element; 0 if there is none."""
    readonly: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements; None for C order."""
    dtype: DType
    stream: int | None
    """The stream to wait for; None if nothing needs to be waited for."""


@public_in("dlbridge")
def from_cuda_array_interface(
    x: SupportsCUDAArrayInterface | dict[str, Any],
    /,
    *,
    owner: object = None,
    sync: bool = True,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Return a Tensor on the memory of an object with ``__cuda_array_interface__``.

    Parameters
    ----------
    x : SupportsCUDAArrayInterface or dict
        The object, or its interface dictionary.
    owner : object, optional
        Kept alive as long as the memory is used; *x* if None.
    sync : bool
        Whether our current stream waits for the producer's;
        ``DLBRIDGE_CUDA_ARRAY_INTERFACE_SYNC=0`` switches it off too.
    dtype : DTypeLike, optional
        The type of elements that the interface can only call raw bytes
        (bfloat16, float8); their size must be equal.

    Returns
    -------
    Tensor
        On CUDA memory, or on host or managed memory that CUDA knows.

    Raises
    ------
    TypeError
        If *x* has no interface.
    ExchangeError
        A BufferError, for an interface that cannot be used.

    Notes
    -----
    Source: CUDA Array Interface, version 3 (the documents of Numba).

    Examples
    --------
    >>> def share(array):  # of numba, cupy or another library
    ...     return bridge.from_cuda_array_interface(array)
    """
    interface = x if isinstance(x, dict) else getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"{type(x).__qualname__} has no __cuda_array_interface__")
    said = parse(interface, dtype)
    device = _locate(said.data, type(x).__module__)
    memory = Memory(device, said.data, origin_of(x), x if owner is None else owner)
    tensor = tensor_on(memory, said.dtype, said.shape, said.strides, readonly=said.readonly)
    if sync and said.stream is not None and said.data and switch(SYNC, default=True):
        order_after(memory, said.stream)
    return tensor


def _locate(data: int, module: str) -> Device:
    """The device of *data*, as the driver knows it; the first one for no memory at all."""
    if not data:
        return Device.of(DLDeviceType.kDLCUDA, 0)
    refusal: object = "no backend could be asked"
    for kind in (DLDeviceType.kDLCUDAManaged, DLDeviceType.kDLCUDAHost, DLDeviceType.kDLCUDA):
        device = Device.of(kind, 0)
        plugin = plugin_of(device)
        if plugin.import_data is not None:
            try:
                index, _ = plugin.import_data(0, data, module)
            except Error as exc:
                refusal = exc
            else:
                return Device.of(kind, index)
    raise ExchangeError(f"{data:#x} is not memory that CUDA knows: {refusal}")


# The dictionary, in -------------------------------------------------------------


def parse(interface: object, dtype: Any = None) -> Interface:
    """Check an interface dictionary of any version and read it.

    *dtype* is the meaning of raw (``V``) elements.
    """
    if not isinstance(interface, dict):
        raise TypeError(
            f"__cuda_array_interface__ must be a dict, not {type(interface).__qualname__}"
        )
    missing = [key for key in _REQUIRED if key not in interface]
    if missing:
        raise ExchangeError(f"__cuda_array_interface__ lacks {', '.join(missing)}")
    if interface.get("mask") is not None:
        raise ExchangeError("masked CUDA arrays have no tensor form; pass the data without mask")
    shape = _shape(interface["shape"])
    kind = _dtype(interface, dtype)
    data, readonly = _data(interface["data"], empty=0 in shape)
    strides = _strides(interface.get("strides"), shape, kind.itemsize)
    why = why_impossible(data, 0, *byte_reach(kind, shape, strides))
    if why:
        raise ExchangeError(f"__cuda_array_interface__: {why}")
    return Interface(data, readonly, shape, strides, kind, _stream(interface))


def _shape(shape: object) -> tuple[int, ...]:
    extents = _ints("shape", shape)
    if any(extent < 0 for extent in extents):
        raise ExchangeError(f"__cuda_array_interface__: shape {shape!r} has a negative extent")
    return extents


def _ints(key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"__cuda_array_interface__: {key} must be a tuple of ints, not {value!r}")
    return tuple(_int(key, part) for part in value)


def _int(key: str, value: object) -> int:
    """*value* as an int; numpy's integers are accepted, a bool is refused."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"__cuda_array_interface__: {key} holds {value!r}, which is not an int")
    return operator.index(value)  # type: ignore[arg-type]  # it has __index__, as was asked


def _dtype(interface: dict[str, Any], wanted: Any) -> DType:
    import numpy as np

    typestr = interface["typestr"]
    if not isinstance(typestr, str):
        raise TypeError(f"__cuda_array_interface__: typestr must be a str, not {typestr!r}")
    try:
        theirs = np.dtype(typestr)
    except TypeError as exc:
        raise ExchangeError(f"__cuda_array_interface__: typestr {typestr!r} is not a type") from exc
    if theirs.kind != "V":
        return as_dtype(theirs)
    if wanted is None:
        raise ExchangeError(
            f"__cuda_array_interface__: typestr {typestr!r} says only how large an element is; "
            "pass dtype='bfloat16', or whatever it is"
        )
    kind = as_dtype(wanted)
    if kind.itemsize != theirs.itemsize or kind.is_subbyte:
        raise ExchangeError(f"dtype {kind} is not what {typestr!r} can mean: the sizes differ")
    return kind


def _data(data: object, empty: bool) -> tuple[int, bool]:
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise TypeError(
            f"__cuda_array_interface__: data must be a tuple (address, readonly), not {data!r}"
        )
    address, readonly = data
    if empty:
        return 0, bool(readonly)  # the address of an empty array may be None or invalid
    address = _int("data", address)
    if not 0 < address < 1 << 64:
        raise ExchangeError(f"__cuda_array_interface__: address {address} for a tensor of elements")
    return address, bool(readonly)


def _strides(strides: object, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...] | None:
    if strides is None:
        return None
    steps = _ints("strides", strides)
    if len(steps) != len(shape):
        raise ExchangeError(
            f"__cuda_array_interface__: {len(steps)} strides for {len(shape)} dimensions"
        )
    if 0 in shape:
        return None
    found = strides_in_elements(shape, steps, itemsize)
    if found is None:
        raise ExchangeError(
            f"__cuda_array_interface__: byte strides {strides!r} are not multiples of the item "
            f"size {itemsize}, which DLPack counts in"
        )
    return found


def _stream(interface: dict[str, Any]) -> int | None:
    """The stream to wait for. Before version 3 producers could not name it: the default one."""
    if _int("version", interface["version"]) < VERSION:
        return LEGACY_STREAM
    stream = interface.get("stream")
    if stream is None:
        return None
    stream = _int("stream", stream)
    if stream < 1:
        raise ExchangeError(
            f"__cuda_array_interface__: stream {stream} is forbidden (1 is the legacy default, 2 "
            "the per-thread default)"
        )
    if stream >= 1 << 64:  # a driver would be given a part of it
        raise ExchangeError(
            f"__cuda_array_interface__: stream {stream:#x} is none: a handle has 64 bits"
        )
    return stream


# The dictionary, out ------------------------------------------------------------

_CUDA = (DLDeviceType.kDLCUDA, DLDeviceType.kDLCUDAManaged, DLDeviceType.kDLCUDAHost)
_TYPESTRS = {"bfloat16": "<V2"}  # as torch and ml_dtypes write it; all float8 are |V1


def cuda_array_interface(tensor: Tensor) -> dict[str, Any]:
    """The dictionary for a *tensor* that CUDA can reach, new at each call.

    AttributeError for other tensors and for types without a typestr, so that
    ``hasattr(tensor, "__cuda_array_interface__")`` is right for consumers.
    """
    device = tensor.device
    if device.type not in _CUDA:
        raise AttributeError(
            f"a tensor on {device} has no __cuda_array_interface__: CUDA cannot reach it"
        )
    typestr = _typestr(tensor.dtype)
    operand = operand_of(tensor)
    steps = tuple([step * tensor.itemsize for step in operand.strides])
    interface: dict[str, Any] = {
        "shape": operand.shape,
        "typestr": typestr,
        "data": (tensor.data_ptr(), operand.readonly),
        "strides": None if operand.contiguous else steps,
        "stream": _exported_stream(operand),
        "version": VERSION,
    }
    if "V" in typestr:
        interface["descr"] = [("", typestr)]
    return interface


def _typestr(dtype: DType) -> str:
    if dtype.lanes == 1 and not dtype.is_subbyte:
        if dtype.name in _TYPESTRS:
            return _TYPESTRS[dtype.name]
        if dtype.name.startswith("float8"):
            return "|V1"
        try:
            found = dtype.numpy
        except ExchangeError:
            pass
        else:
            return str(found.str)
    raise AttributeError(
        f"{dtype} has no typestr in the CUDA Array Interface; use DLPack, or view it as uint8"
    )


def _exported_stream(operand: Operand) -> int | None:
    """The stream for a consumer's work, which counts as ours on our current stream; never 0."""
    memory = operand.memory
    assert memory is not None  # only the CPU has such operands
    if operand.device.type == DLDeviceType.kDLCUDAHost or not switch(EXPORT_STREAM, default=True):
        return None  # work on pinned memory is done when our calls return
    try:
        return ready_stream(memory) or LEGACY_STREAM
    except BackendUnavailable:  # no work of ours is on it; it came ready on the default stream
        return LEGACY_STREAM
