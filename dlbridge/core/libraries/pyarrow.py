"""pyarrow and polars: columns of Arrow, which are immutable and may have null values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.interfaces.arrow import ARROW_TYPES
from dlbridge.core.values.suggestions import with_article
from dlbridge.errors import ExchangeError

from .library import HOST_ONLY, Library, origin_of
from .pandas import check_column, require_one_type

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor


def _refuse(x: Any) -> None:
    """Arrays with null values, and those of types that its ``__dlpack__`` refuses."""
    if not _is_array_of_pyarrow(x):
        return  # a table, a tensor, chunks: what they are asked for looks at the values
    inside = x.storage.flatten() if hasattr(x, "to_numpy_ndarray") else x
    for who, column, way_out in (
        (f"{origin_of(x)} has", x, "x.fill_null(value)"),
        (
            f"tensors in the {origin_of(x)} have",
            inside,
            "x.storage.flatten().fill_null(value), reshaped",
        ),
    ):
        if column.null_count:
            raise ExchangeError(
                f"the {who} {column.null_count} null "
                f"value{'s' if column.null_count > 1 else ''}, which DLPack cannot carry; pass "
                f"{way_out}"
            )
    if _is_arrow_only(x):
        if str(x.type) == "bool":
            raise ExchangeError(
                f"the {origin_of(x)} packs bools into bits, which DLPack has not; "
                "dlbridge.asarray(x) makes a copy of them in bytes, as x.cast('uint8') does"
            )
        raise ExchangeError(
            f"the {origin_of(x)} of {x.type} holds no plain numbers, which DLPack needs; "
            "dlbridge.asarray(x) takes lists of one length; cast others (dates and times: "
            "x.cast('int64')), or pass the array inside (x.storage, x.flatten(), "
            "x.dictionary_decode())"
        )


def _is_arrow_only(x: Any) -> bool:
    """Whether *x* is an array of pyarrow that it exports by Arrow's interface, not by DLPack."""
    return (
        _is_array_of_pyarrow(x)
        and not hasattr(x, "to_numpy_ndarray")
        and not str(x.type).startswith(_NUMBERS_OF_ARROW)
    )


def _is_array_of_pyarrow(x: Any) -> bool:
    library = sys.modules.get("pyarrow.lib")
    return library is not None and isinstance(x, library.Array)


_NUMBERS_OF_ARROW = ("int", "uint", "float", "double", "halffloat")


def _expose(x: Any, copy: bool | None) -> Any:
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
    require_one_type(x, x.schema.types)
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


def _expose_polars(x: Any, copy: bool | None) -> Any:
    """The series itself, which exports Arrow; a matrix of a DataFrame's columns."""
    if type(x).__name__ == "LazyFrame":
        raise ExchangeError(f"{with_article(origin_of(x))} has no values yet; pass x.collect()")
    if not hasattr(x, "get_columns"):
        return x
    require_one_type(x, x.dtypes)
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


def _make_polars(tensor: Tensor) -> Any:
    """``polars.Series``, by Arrow: numpy arrays are copied by polars."""
    import polars
    import pyarrow

    return polars.Series(pyarrow.array(tensor))


def _check(tensor: Tensor) -> None:
    """Raise ExchangeError for what Arrow's columns cannot hold in place."""
    check_column(tensor)
    name = tensor.dtype.name
    if name == "bool":
        raise ExchangeError(
            "Arrow packs bools into bits; give it t.view('uint8'), or make its array of a list"
        )
    if name not in ARROW_TYPES:
        raise ExchangeError(
            f"Arrow has no {name}; t.view() can call the elements something of the same size, and "
            "like='numpy' knows more types"
        )


LIBRARY = Library(
    "pyarrow",
    ("pyarrow.Array", "pyarrow.ChunkedArray"),
    refuse=_refuse,
    expose=_expose,
    by_arrow=_is_arrow_only,
    make="pyarrow:array",
    check=_check,
    immutable=True,
    keeps_readonly=True,
    compact_only=True,
    device_types=HOST_ONLY,
)

POLARS = Library(
    "polars",
    ("polars.Series", "polars.DataFrame"),
    expose=_expose_polars,
    make=_make_polars,
    check=_check,
    immutable=True,
    keeps_readonly=True,
    compact_only=True,
    device_types=HOST_ONLY,
)
