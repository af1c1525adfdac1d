"""numpy: its arrays, and those of its subclasses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.libraries.library import HOST_ONLY, Library
from dlbridge.core.tensor.array_tensor import new_array_tensor, wrap_array
from dlbridge.core.tensor.memory import NATIVE_DTYPES, native_dtypes
from dlbridge.core.tensor.metadata import numpy_type
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable


def _refuse(x: Any) -> None:
    if hasattr(type(x), "__array_ufunc__") and hasattr(x, "mask") and hasattr(x, "filled"):
        ways = "x.unmasked or x.filled(value)" if hasattr(x, "unmasked") else "x.filled() or x.data"
        raise ExchangeError(f"a masked array has no DLPack form; pass {ways}")


def _importer(_cls: type) -> Callable[[Any], Tensor]:
    native_dtypes()
    return _from_numpy


def _from_numpy(x: Any) -> Tensor:
    array = x[...]  # our own view: x's metadata may change, and x stays alive
    flags = array.flags
    # Most arrays are `carray`. Not `farray`: numpy sets that for strided arrays, too.
    plain = flags.carray or (flags.forc and flags.behaved)
    if plain and array.dtype in NATIVE_DTYPES and array.size:
        tensor = new_array_tensor()
        tensor._array = array
        tensor.__tensor_export__ = array.__dlpack__
        return tensor
    return wrap_array(array)


def _itself(x: Any) -> Any:
    return x


LIBRARY = Library(
    "numpy",
    ("numpy.ndarray",),
    refuse=_refuse,
    importer=_importer,
    of_numpy=lambda: _itself,
    make=Tensor.numpy,  # of ml_dtypes where numpy lacks the type
    check=lambda tensor, _device: numpy_type(tensor),
    keeps_readonly=True,
    takes_negative_strides=True,
    takes_padding=True,
    keeps_types=True,
    device_types=HOST_ONLY,
)
