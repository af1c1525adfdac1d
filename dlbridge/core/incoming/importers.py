"""Importers of single libraries: one function for each array type that needs no protocol.

Each returns the same Tensor as `import_producer`, in a fraction of its time, and
calls `import_producer` for arrays that it does not know.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import is_plain_host
from dlbridge.core.dlpack.structs import DLPACK_VERSION
from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.tensor.array_tensor import (
    label_array,
    label_plain,
    new_array_tensor,
    wrap_array,
    wrap_plain,
)
from dlbridge.core.tensor.carriers import NATIVE_DTYPES, carrier_dtype, native_dtypes
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.core.values.layout import MAX_NBYTES

from .producers import import_from_host, import_producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["IMPORTERS", "find_importer", "numpy_types_of_torch"]

IMPORTERS: dict[type, Callable[[Any], Tensor]] = {}
"""Cache of `find_importer`."""


def find_importer(cls: type) -> Callable[[Any], Tensor] | None:
    """The importer for exactly *cls*, cached, if it has one."""
    module = cls.__module__.partition(".")[0]
    make = _MAKERS.get((module, cls.__name__))
    if make is None or getattr(sys.modules.get(cls.__module__), cls.__name__, None) is not cls:
        return None
    native_dtypes()
    IMPORTERS[cls] = found = make(cls)
    return found


def _numpy_importer(_cls: type) -> Callable[[Any], Tensor]:
    return _from_numpy


def _from_numpy(x: Any) -> Tensor:
    array = x[...]  # our own view: x's metadata may change, and x stays alive
    flags = array.flags
    # Most arrays are `carray`. Not `farray`: numpy sets that for strided arrays, too.
    plain = flags.carray or (flags.forc and flags.behaved)
    if plain and array.dtype in NATIVE_DTYPES and array.size:
        tensor = new_array_tensor()
        tensor._array = array
        tensor.numpy_export = array.__dlpack__
        return tensor
    return wrap_array(array)


def _torch_importer(cls: type) -> Callable[[Any], Tensor]:
    torch = sys.modules["torch"]
    known = numpy_types_of_torch(torch)
    labels = {
        getattr(torch, name): (getattr(torch, carrier_dtype(as_dtype(name)).name), as_dtype(name))
        for name in _NOT_IN_NUMPY
        if hasattr(torch, name)
    }
    # Functions of C: looked up on the instance they would cost 40 ns each.
    members: Any = cls
    to_numpy, view, is_neg = members.numpy, members.view, members.is_neg

    def from_torch(x: Any) -> Tensor:
        # torch's own C conversion refuses what would be wrong (grad, conj, neg,
        # other devices) in a third of the time of __dlpack__. Its TypeError for a
        # type that numpy does not have costs 10 us, so that is looked up first.
        dtype = x.dtype
        try:
            if dtype in known:
                array = to_numpy(x)
                if not array.size:
                    return wrap_array(array)
                # torch has no negative strides: `wrap_array` would do the same.
                tensor = new_array_tensor()
                tensor._array = array
                tensor.numpy_export = array.__dlpack__
                return tensor
            if dtype in labels and not x.requires_grad and not is_neg(x):
                # A view as integers of the same size; it would hide a gradient.
                carrier, label = labels[dtype]
                array = to_numpy(view(x, carrier))
                return label_plain(array, label) if array.size else label_array(array, label, 0)
        except (RuntimeError, TypeError, ValueError) as exc:  # ValueError: extents that overflow
            if is_from_handler(exc.__traceback__):
                raise
        return import_producer(x, None, None, None)

    return from_torch


def numpy_types_of_torch(torch: Any) -> set[Any]:
    """The dtypes of torch that numpy has too."""
    names = {dtype.name for dtype in native_dtypes().values()}
    return {getattr(torch, name) for name in names if hasattr(torch, name)}


_NOT_IN_NUMPY = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
"""Types of torch, one element in each item, that numpy does not have."""


def _jax_importer(cls: type) -> Callable[[Any], Tensor]:
    def from_jax(x: Any) -> Tensor:
        # The buffer protocol gives the CPU's memory in place or refuses; `np.asarray(x)`
        # would copy memory of other devices. It knows numpy's own types only.
        if x.dtype not in NATIVE_DTYPES:
            return import_from_host(x)
        try:
            view = memoryview(x)
        except (BufferError, RuntimeError, ValueError) as exc:
            if is_from_handler(exc.__traceback__):
                raise
            return import_producer(x, None, None, None)
        array = asarray(view)
        if not array.size:
            return wrap_array(array, cls)
        return wrap_plain(array, cls, readonly=True)

    import numpy as np

    asarray = np.asarray
    return from_jax


def _tvm_ffi_importer(cls: type) -> Callable[[Any], Tensor]:
    def from_tvm_ffi(x: Any) -> Tensor:
        array: Any = None
        try:
            # tvm_ffi keeps what a stranger's struct says. numpy reads a shape that is NULL, and
            # looks neither at device_id and byte_offset nor at products that overflow; where
            # data is NULL, it allocates.
            if is_plain_host(x.__dlpack__(max_version=DLPACK_VERSION)):
                array = from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as exc:
            if is_from_handler(exc.__traceback__):
                raise
        if array is None:  # inside `except` it would take 1 us more
            return import_from_host(x)
        flags = array.flags
        if (
            flags.carray
            and not flags.owndata
            and 0 < array.nbytes < MAX_NBYTES
            and array.dtype in NATIVE_DTYPES
        ):
            return wrap_plain(array, cls)
        return import_producer(x, None, None, None)

    import numpy as np

    from_dlpack = np.from_dlpack
    sample = sys.modules["tvm_ffi"].from_dlpack(np.zeros(1))
    versioned = "versioned" in repr(sample.__dlpack__(max_version=DLPACK_VERSION))
    return from_tvm_ffi if versioned else import_from_host


_MAKERS = {
    ("numpy", "ndarray"): _numpy_importer,
    ("torch", "Tensor"): _torch_importer,
    ("jaxlib", "ArrayImpl"): _jax_importer,
    ("tvm_ffi", "Tensor"): _tvm_ffi_importer,
}
"""Top-level module and name of a type -> the function that makes its importer."""
