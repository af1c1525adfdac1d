"""pandas: the values of its series, indexes and frames, all of one type and none missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.errors import ExchangeError

from .library import HOST_ONLY, Library, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dlbridge.core.tensor.tensor import Tensor


def _expose(x: Any, copy: bool | None) -> Any:
    """The values of a pandas object, all of one type and none of them missing."""
    if not hasattr(x, "to_numpy") or not (hasattr(x, "dtype") or hasattr(x, "dtypes")):
        return x  # no array: a group, a single time
    dtypes = list(x.dtypes) if getattr(x, "ndim", 1) == 2 else [x.dtype]
    require_one_type(x, dtypes)
    dtype = dtypes[0] if dtypes else None
    if dtype is None or not hasattr(dtype, "na_value"):
        return _values(x, copy)  # numpy's own dtype: NaN is a value of it
    missing = x.isna()
    if bool(missing.to_numpy().any() if hasattr(missing, "to_numpy") else missing.any()):
        raise ExchangeError(
            f"the {origin_of(x)} of {dtype} has missing values, which DLPack cannot carry; pass "
            "x.fillna(value)"
        )
    plain = getattr(dtype, "numpy_dtype", None)
    if plain is None or plain.kind == "O":
        raise ExchangeError(
            f"pandas keeps {dtype} in no plain memory; pandas.factorize(x)[0] gives each value a "
            "number"
        )
    import numpy as np

    values = x.to_numpy(dtype=plain)
    # A series gives what it calls read-only to `np.asarray` alone.
    again = np.asarray(x) if values.ndim == 1 else x.to_numpy(dtype=plain)
    if np.may_share_memory(values, again):
        if not again.flags.writeable:
            values = values[...]
            values.flags.writeable = False
    elif copy is False and values.size:
        raise ExchangeError(
            f"the values of {dtype} come out of pandas by a copy, and copy=False forbids it; "
            "pass copy=None"
        )
    return values


def _values(x: Any, copy: bool | None) -> Any:
    import numpy as np

    values = x.to_numpy()
    if copy is False and not np.shares_memory(values, x.to_numpy()):
        raise ExchangeError(
            f"the columns of the {origin_of(x)} are apart, and copy=False forbids a copy; pass "
            "copy=None, or one column"
        )
    return values


def require_one_type(x: Any, dtypes: Iterable[Any]) -> None:
    """Raise ExchangeError where columns differ in type: a common one may change values."""
    different = sorted({str(dtype) for dtype in dtypes})
    if len(different) > 1:
        convert = "x.astype('float64')" if hasattr(x, "astype") else "cast"
        raise ExchangeError(
            f"the columns of the {origin_of(x)} have several types ({', '.join(different)}), and "
            f"a common one may change values; pass one column (x['name']), or convert them first "
            f"({convert})"
        )


def check_column(tensor: Tensor) -> None:
    """Raise ExchangeError for what a column of a table cannot hold."""
    if tensor.ndim != 1:
        raise ExchangeError(
            f"a column has one dimension, and the tensor has shape {tensor.shape}; give one "
            "column of it (t[:, 0]), or t.reshape(-1)"
        )


def _make(array: Any) -> Any:
    import pandas

    return pandas.Series(array, copy=False)


LIBRARY = Library(
    "pandas",
    ("pandas.Series", "pandas.DataFrame", "pandas.Index", "pandas.ExtensionArray"),
    expose=_expose,
    make=_make,
    takes="numpy",
    check=check_column,
    keeps_readonly=True,
    takes_negative_strides=True,
    device_types=HOST_ONLY,
)
