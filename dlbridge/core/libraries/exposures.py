"""Arrays that hold another array: the object that dlbridge takes in their place.

Each function gets an array and *copy*, and returns an object that shares its
memory where that is possible; it raises ExchangeError for values that would change.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.values.suggestions import with_article
from dlbridge.errors import ExchangeError

from .library import origin_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["expose_openvino", "expose_pandas", "expose_polars", "expose_pyarrow", "expose_xarray"]


def expose_xarray(x: Any, _copy: bool | None) -> Any:
    """The array inside a DataArray or Variable, whichever library it belongs to."""
    inner = getattr(x, "data", None)
    if inner is None or not hasattr(inner, "shape"):
        raise ExchangeError(
            f"{with_article(origin_of(x))} holds several arrays; pass one of them (x['name'])"
        )
    return inner


def expose_openvino(x: Any, _copy: bool | None) -> Any:
    """Numpy's view of an openvino Tensor: it keeps the tensor alive."""
    if not hasattr(x, "element_type"):
        return x
    name = x.element_type.get_type_name()
    if x.element_type.bitwidth < 8 or name == "string":
        raise ExchangeError(
            f"an openvino tensor of {name} elements has no form in DLPack; pass x.data, openvino's "
            "own view of its bytes"
        )
    array = x.data
    if name in _OPENVINO_SMALL:
        # openvino gives these to numpy under the name of another type of their size.
        import ml_dtypes

        array = array.view(getattr(ml_dtypes, _OPENVINO_SMALL[name]))
    return array


_OPENVINO_SMALL = {
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e8m0": "float8_e8m0fnu",
}


def expose_pandas(x: Any, copy: bool | None) -> Any:
    """The values of a pandas object, all of one type and none of them missing."""
    if not hasattr(x, "to_numpy") or not (hasattr(x, "dtype") or hasattr(x, "dtypes")):
        return x  # no array: a group, a single time
    dtypes = list(x.dtypes) if getattr(x, "ndim", 1) == 2 else [x.dtype]
    _require_one_type(x, dtypes)
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
            f"pandas keeps {dtype} in no plain memory; convert it to numbers (x.astype)"
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


def expose_polars(x: Any, copy: bool | None) -> Any:
    """The series itself, which exports Arrow; a matrix of a DataFrame's columns."""
    if type(x).__name__ == "LazyFrame":
        raise ExchangeError(f"{with_article(origin_of(x))} has no values yet; pass x.collect()")
    if not hasattr(x, "get_columns"):
        return x
    _require_one_type(x, x.dtypes)
    if any(column.null_count() for column in x.get_columns()):
        raise ExchangeError(
            f"the {origin_of(x)} has null values, which DLPack cannot carry; pass "
            "x.fill_null(value)"
        )
    try:
        return x.to_numpy(allow_copy=copy is not False)
    except RuntimeError as exc:
        raise ExchangeError(
            f"the columns of the {origin_of(x)} are apart, and copy=False forbids a copy; pass "
            "copy=None, or one column"
        ) from exc


def expose_pyarrow(x: Any, copy: bool | None) -> Any:
    """The array itself; of a table or record batch a matrix of its columns, which is a copy.

    Of chunks of tensors, one array: Arrow's interface does not say their shape.
    """
    library = sys.modules.get("pyarrow.lib")
    if library is not None and isinstance(x, library.ChunkedArray):
        if not isinstance(x.type, library.FixedShapeTensorType):
            return x
        if copy is False and x.num_chunks > 1:
            raise ExchangeError(
                f"the {origin_of(x)} has {x.num_chunks} chunks, which come out by a copy, and "
                "copy=False forbids it; pass copy=None"
            )
        return x.chunk(0) if x.num_chunks == 1 else x.combine_chunks()
    if library is None or not isinstance(x, (library.Table, library.RecordBatch)):
        return x
    _require_one_type(x, x.schema.types)
    nulls = sum(column.null_count for column in x.columns)
    if nulls:
        raise ExchangeError(
            f"the {origin_of(x)} has {nulls} null values, which DLPack cannot carry; fill them in "
            "each column (fill_null)"
        )
    if copy is False:
        raise ExchangeError(
            f"the columns of the {origin_of(x)} are apart, and copy=False forbids a copy; pass "
            "copy=None, or one column"
        )
    if not x.columns:
        raise ExchangeError(f"the {origin_of(x)} has no columns, so no type; pass one that has")
    import numpy as np

    return np.stack([column.to_numpy(zero_copy_only=False) for column in x.columns], axis=1)


def _require_one_type(x: Any, dtypes: Iterable[Any]) -> None:
    """Raise ExchangeError where columns differ in type: a common one may change values."""
    different = sorted({str(dtype) for dtype in dtypes})
    if len(different) > 1:
        raise ExchangeError(
            f"the columns of the {origin_of(x)} have several types ({', '.join(different)}), and "
            "a common one may change values; pass one column, or convert them first "
            "(astype, cast)"
        )
