"""Other objects as a Tensor: native objects, array interfaces, Arrow, buffers, numbers, lists."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.implementation_details.numpy_arrays import address_of
from dlbridge.core.libraries.hidden_state import is_arrow_only
from dlbridge.core.libraries.library import origin_of
from dlbridge.core.libraries.lookup import library_of
from dlbridge.core.plugins.failures import fail
from dlbridge.core.plugins.lookup import find_device, supports
from dlbridge.core.plugins.registry import LOADED, backend, known_backends, packages_of
from dlbridge.core.tensor.array_tensor import check_array, make_tensor, wrap_array
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device, type_names
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.core.values.layout import are_whole_steps
from dlbridge.errors import Error, ExchangeError
from dlbridge.protocol import NativeArray, SupportsNative

from .arrow import from_arrow, is_arrow
from .cuda_array_interface import from_cuda_array_interface
from .importers import IMPORTERS, find_importer
from .lists import array_of
from .producers import import_producer, refuse_class

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.libraries.library import Library
    from dlbridge.core.values.dtypes import DType
    from dlbridge.typing import DeviceLike

__all__ = [
    "BUILTIN",
    "import_anything",
    "import_native",
    "is_copied",
    "is_of_backend",
    "native_tensor",
]


def import_anything(
    x: Any, wanted: DType | None, copy: bool | None, device: DeviceLike | None = None
) -> Tensor:
    """A Tensor of *x* on its own device; *wanted* is the dtype of Python numbers.

    *device* is where it shall be: its backend is meant if several recognise *x*.
    """
    cls = type(x)
    if hasattr(cls, "__dlpack__") or cls.__name__ == "PyCapsule":
        importer = None if copy is False else IMPORTERS.get(cls) or find_importer(cls)
        if importer is not None:
            return importer(x)
        strict = False if copy is False else None
        return from_arrow(x, copy) if is_arrow_only(x) else import_producer(x, None, strict, None)
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
                raise ExchangeError(_NOTHING_TO_SHARE.format(origin_of(x)))
        return tensor
    native = import_native(x, library, device)
    if native is not None:
        return native
    if getattr(x, "__cuda_array_interface__", None) is not None:
        return from_cuda_array_interface(x)
    if getattr(x, "__array_interface__", None) is not None:
        return wrap_array(_by_interface(x, copy))
    if is_arrow(x):  # a column without a shape: after the interface that has one (PIL has both)
        return from_arrow(x, copy)
    if hasattr(x, "__array__"):
        return wrap_array(_by_method(x, copy))
    return _from_buffer_or_numbers(x, wanted, copy)


def is_copied(x: Any, device: DeviceLike | None = None) -> bool:
    """Whether `import_anything`, which has taken *x*, has copied its elements.

    That is so where copy=False is refused. To ask may read *x* once more, so it is for plans
    and traces. Copies that a DLPack producer makes are its own, and not known here.
    """
    if type(x).__name__ == "PyCapsule":
        return False
    if hasattr(type(x), "__dlpack__") and not is_arrow_only(x):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import has given them
        try:
            import_anything(x, None, False, device)
        except Exception as exc:
            if is_from_handler(exc.__traceback__):
                raise
            return True
    return False


def _exposed(library: Library, x: Any, copy: bool | None) -> Any:
    """The array that *library* has inside *x*, or *x* itself; its error if it has none."""
    if library.refuse is not None:
        library.refuse(x)
    return x if library.expose is None else library.expose(x, copy)


BUILTIN = frozenset({bytes, bytearray, memoryview, bool, int, float, complex, list, tuple})
"""The classes of Python itself whose objects become a tensor; it is on the CPU."""


def _from_buffer_or_numbers(x: Any, wanted: DType | None, copy: bool | None) -> Tensor:
    try:
        view = memoryview(x)
    except TypeError:
        numbers = _plain(x)
        if copy is False:
            raise ExchangeError(_NOTHING_TO_SHARE.format(origin_of(x))) from None
        return wrap_array(array_of(numbers, wanted, _values_of))
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


def _values_of(x: Any) -> np.ndarray[Any, Any]:
    """The values of an array that stands in a list, as numpy's array."""
    return import_anything(x, None, None).numpy()


_NOTHING_TO_SHARE = "{} has no memory to share and copy=False forbids a copy; pass copy=None"


def _by_interface(x: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """The array that ``__array_interface__`` describes."""
    import numpy as np

    interface = x.__array_interface__
    if isinstance(interface, dict) and interface.get("mask") is not None:
        raise _has_mask(x)
    if copy is False and isinstance(interface, dict):
        # An exporter that makes its bytes anew each time (PIL) shares nothing.
        again = x.__array_interface__
        first, second = interface.get("data"), again.get("data")
        if not (isinstance(first, tuple) and first == second) and first is not second:
            raise ExchangeError(_NOTHING_TO_SHARE.format(origin_of(x)))
    try:
        array = np.asarray(x)[...]
    except (TypeError, ValueError, OverflowError) as exc:
        if is_from_handler(exc.__traceback__):
            raise
        said = interface if isinstance(interface, dict) else {}
        fields = ", ".join(f"{key} {said[key]}" for key in _FIELDS if key in said)
        raise ExchangeError(
            f"{origin_of(x)} has an __array_interface__ that numpy cannot read ({fields}): {exc}; "
            "correct it in that class"
        ) from exc
    check_array(array, f"the __array_interface__ of {origin_of(x)}")
    if isinstance(interface, dict) and not isinstance(interface.get("data"), tuple):
        _check_length(x, interface, array)
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
    begin = first - (address_of(array) - low)
    end = begin + high - low
    if array.size and not 0 <= begin <= end <= nbytes:
        raise ExchangeError(
            f"{origin_of(x)} says in its __array_interface__ that the elements are at bytes "
            f"{begin} to {end} of its buffer, which has {nbytes} bytes; correct it in that class"
        )


def _by_method(x: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """The array that ``__array__`` gives; subclasses of numpy's array keep their masks."""
    import numpy as np

    try:
        array = np.asanyarray(x, copy=False if copy is False else None)
    except (ValueError, TypeError) as exc:
        if copy is not False:
            raise
        raise ExchangeError(_NOTHING_TO_SHARE.format(origin_of(x))) from exc
    if isinstance(array, np.ma.MaskedArray):
        raise _has_mask(x)
    if copy is False and array.size and not np.may_share_memory(array, np.asanyarray(x)):
        # A method without the keyword copy makes one when it likes to.
        raise ExchangeError(_NOTHING_TO_SHARE.format(origin_of(x)))
    return np.ndarray.view(array, np.ndarray)


def _has_mask(x: Any) -> ExchangeError:
    return ExchangeError(f"{origin_of(x)} has a mask, which DLPack cannot carry; fill it first")


def _plain(x: Any) -> Any:
    """Python scalars and nested sequences of them; TypeError for anything else."""
    if isinstance(x, (bool, int, float, complex, list, tuple)):
        return x
    way_out = _instead_of(x)
    if way_out:
        raise TypeError(f"{origin_of(x)} is not a tensor: {way_out}")
    raise TypeError(
        f"{origin_of(x)} is not a tensor: it has neither __dlpack__, an array interface nor a "
        f"buffer, and no backend has objects of that package ({', '.join(known_backends())})"
    )


def _instead_of(x: Any) -> str:
    """What to write where *x* is a usual mistake; empty if it is none."""
    if x is None:
        return (
            "None was given; perhaps the function that should have made the array returns nothing"
        )
    if isinstance(x, Device) or (isinstance(x, str) and _names_device(x)):
        return f"{str(x)!r} is a device, and a device comes second: to_device(x, {str(x)!r})"
    if isinstance(x, (str, os.PathLike)):
        name = os.fspath(x)
        if str(name).lower().endswith((".npy", ".npz", ".safetensors", ".gguf")):
            return f"for a file, write dlbridge.load({str(name)!r})"
        return "" if isinstance(x, str) else "dlbridge.load(path) reads a file"
    if isinstance(x, Mapping):
        return "pass each of its arrays, as in [to_device(a, device) for a in x.values()]"
    if isinstance(x, Set):
        return "a set has no order; pass sorted(x)"
    if isinstance(x, (range, Iterator)) and not hasattr(x, "read"):
        return "pass its numbers as a list: list(x)"
    if hasattr(x, "read"):
        return "an open file is not read here; dlbridge.load(path) takes its name"
    return ""


def _names_device(text: str) -> bool:
    name, _, _ = text.partition(":")
    return name in {*known_backends(), *type_names()}


def is_of_backend(cls: type) -> bool:
    """Whether *cls* belongs to the package of a backend, or to the library that one serves.

    Nothing is loaded to find this out.
    """
    library = library_of(cls)
    return bool((library is not None and library.backend) or packages_of(cls))


def import_native(
    x: Any, library: Library | None, device: DeviceLike | None = None
) -> Tensor | None:
    """*x*, of *library*, as a Tensor, if it is a native object of a backend.

    Asked are the backend that its library or its package names, and those that are
    loaded already: no other driver is loaded for an object that may be no backend's.
    One that cannot run here is passed over, but not the one that is *known* to be meant.
    """
    if type(x).__module__ == "builtins" or type(x).__module__.startswith("numpy"):
        return None
    known = "" if library is None else library.backend
    found: dict[str, tuple[int, NativeArray]] = {}
    broken: list[tuple[str, Exception]] = []
    own = [known] if known else packages_of(type(x))
    asked = None if device is None else find_device(device).name
    for name in [*own, *sorted(LOADED.copy().keys() - set(own))]:
        try:
            plugin: Any = backend(name)
        except Error:  # a broken backend knows no objects
            if name != known:
                continue
            raise
        try:
            array = plugin.from_native(x) if supports(plugin, SupportsNative) else None
        except Exception as exc:
            if name in (*own, asked) or is_from_handler(exc.__traceback__):
                fail(exc, name, "from_native")
            broken.append((name, exc))
            continue
        if array is not None:
            found[name] = plugin.device_type, array
    if not found:
        for name, error in broken:  # nobody else knows the object
            fail(error, name, "from_native")
        return None
    if len(found) > 1 and asked not in found:
        raise ExchangeError(
            f"{origin_of(x)} is an object of several backends, {' and '.join(found)}; say which "
            f"is meant by its name: asarray(x, device='{next(iter(found))}:0')"
        )
    name = asked if asked in found else next(iter(found))
    device_type, array = found[name]
    return native_tensor(Device.of(device_type, array.device_id, name), array, x)


def native_tensor(device: Device, array: NativeArray, x: Any) -> Tensor:
    """The Tensor of a backend's description of *x*."""
    dtype = as_dtype(array.dtype)
    strides = array.strides
    if strides:
        if not are_whole_steps(array.shape, strides, dtype.itemsize):
            raise ExchangeError(
                f"{origin_of(x)}: byte strides {strides} are not multiples of the item size "
                f"{dtype.itemsize}, which DLPack counts in; make a compact copy of it before"
            )
        strides = tuple(step // dtype.itemsize for step in strides)
    memory = Memory(device, array.data, origin_of(x), array.owner)
    # Packed elements have no strides in bytes.
    flags = FLAG_SUBBYTE_PADDED if dtype.is_subbyte and strides is not None else 0
    shape, readonly = array.shape, array.readonly
    return make_tensor(memory, array.offset, dtype, shape, strides, readonly=readonly, flags=flags)
