"""Host memory of other libraries and of ours: buffers, ``__array_interface__``, ``__array__``.

Source: numpy's documentation, "The array interface protocol", version 3; PEP 3118.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.handlers import unless_handler
from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.libraries.library import origin_of
from dlbridge.core.tensor.array_tensor import check_array, wrap_array
from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.tensor.tensor import Tensor


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
        raise _has_mask(x)
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


def from_array_method(x: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """The array that ``__array__`` gives; subclasses of numpy's array keep their masks."""
    import numpy as np

    try:
        array = np.asanyarray(x, copy=False if copy is False else None)
    except (ValueError, TypeError) as exc:
        if copy is not False:
            raise
        raise ExchangeError(NOTHING_TO_SHARE.format(origin_of(x))) from exc
    if isinstance(array, np.ma.MaskedArray):
        raise _has_mask(x)
    if copy is False and array.size and not np.may_share_memory(array, np.asanyarray(x)):
        # A method without the keyword copy makes one when it likes to.
        raise ExchangeError(NOTHING_TO_SHARE.format(origin_of(x)))
    return np.ndarray.view(array, np.ndarray)


def _has_mask(x: Any) -> ExchangeError:
    return ExchangeError(f"{origin_of(x)} has a mask, which DLPack cannot carry; fill it first")


# Out --------------------------------------------------------------------------


def describe_array(tensor: Tensor) -> dict[str, Any]:
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
    interface: dict[str, Any] = array.__array_interface__
    interface["strides"] = array.strides  # also of compact arrays: Pillow fails without
    return interface


def _no_type(tensor: Tensor) -> AttributeError:
    return AttributeError(
        f"{tensor.dtype} has no name in the array interface; use DLPack, or t.view('uint8')"
    )
