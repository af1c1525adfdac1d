"""numpy: its arrays, and those of its subclasses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge import Tensor
from dlbridge.abi import address_of
from dlbridge.errors import ExchangeError
from dlbridge.extending import (
    HOST_ONLY,
    Library,
    exchanges,
    import_array,
    native_dtypes,
    numpy_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _refuse(x: Any) -> None:
    if hasattr(type(x), "__array_ufunc__") and hasattr(x, "mask") and hasattr(x, "filled"):
        ways = "x.unmasked or x.filled(value)" if hasattr(x, "unmasked") else "x.filled() or x.data"
        raise ExchangeError(f"a masked array has no DLPack form; pass {ways}")


def _importer(_cls: type) -> Callable[[Any], Tensor]:
    native_dtypes()
    return import_array


def _itself(x: Any) -> Any:
    return x


def _look(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    return "cpu", x.dtype, x.shape, x.nbytes


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
    exchanges=(
        *exchanges("numpy.ndarray", "asarray asanyarray ascontiguousarray from_dlpack"),
        *exchanges("numpy.ndarray", "array copy stack concatenate vstack hstack", "copied"),
        *exchanges("list", "ndarray.tolist", "copied"),
    ),
    look=(_look, address_of),
)
