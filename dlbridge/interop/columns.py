"""pandas, polars and pyarrow: columns, whose values may be missing, and tables of them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dlbridge.abi import address_of
from dlbridge.errors import ExchangeError
from dlbridge.extending import (
    HOST_ONLY,
    Library,
    exchanges,
    native_dtypes,
    origin_of,
    with_article,
)
from dlbridge.interop.arrow import ARROW_TYPES, pyarrow_class

from .descriptions import by_numpy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dlbridge import Device, Tensor


# What all of them have in common ---------------------------------------------------


_NUMBERS = ("int", "uint", "float", "bool", "double", "half")
"""How the names of types of numbers begin, in lower case."""


def _require_one_type(x: Any, dtypes: Iterable[Any]) -> None:
    """Raise ExchangeError where columns differ in type: a common one may change values."""
    different = sorted({str(dtype) for dtype in dtypes})
    if len(different) > 1:
        numbers = all(dtype.lower().startswith(_NUMBERS) for dtype in different)
        what = "convert them first" if numbers else "those that hold numbers"
        convert = "cast" if numbers else "select"
        if hasattr(x, "astype"):
            convert = "x.astype('float64')" if numbers else "x.select_dtypes('number')"
        elif hasattr(x, "get_columns"):
            way = "cast(polars.Float64)" if numbers else "select(polars.selectors.numeric())"
            convert = f"x.{way}"
        raise ExchangeError(
            f"the columns of the {origin_of(x)} have several types ({', '.join(different)}), and "
            f"a common one may change values; pass one column (x['name']), or {what} ({convert})"
        )


def _check_column(tensor: Tensor, _device: Device) -> None:
    """Raise ExchangeError for what a column of a table cannot hold."""
    if tensor.ndim != 1:
        raise ExchangeError(
            f"a column has one dimension, and the tensor has shape {tensor.shape}; give one "
            "column of it (t[:, 0]), or t.reshape(-1)"
        )


def _apart(x: Any) -> ExchangeError:
    return ExchangeError(
        f"the columns of the {origin_of(x)} are apart, and copy=False forbids a copy; pass "
        "copy=None, or one column"
    )


# pandas -----------------------------------------------------------------------------


def _expose_pandas(x: Any, copy: bool | None) -> Any:
    """The values of a pandas object, all of one type and none of them missing."""
    if not hasattr(x, "to_numpy") or not (hasattr(x, "dtype") or hasattr(x, "dtypes")):
        return x  # no array: a group, a single time
    dtypes = list(x.dtypes) if getattr(x, "ndim", 1) == 2 else [x.dtype]
    _require_one_type(x, dtypes)
    dtype = dtypes[0] if dtypes else None
    if (kind := getattr(dtype, "kind", "")) in ("M", "m"):
        raise ExchangeError(
            f"the {origin_of(x)} of {dtype} holds {'dates' if kind == 'M' else 'time spans'}; "
            f"pass {_number_of_time(dtype)}, and keep the unit beside it"
        )
    if dtype is None or not hasattr(dtype, "na_value"):
        return _values_of_pandas(x, copy)  # numpy's own dtype: NaN is a value of it
    missing = x.isna()
    if bool(missing.to_numpy().any() if hasattr(missing, "to_numpy") else missing.any()):
        raise ExchangeError(
            f"the {origin_of(x)} of {dtype} has missing values, which DLPack cannot carry; pass "
            "x.fillna(value)"
        )
    plain = getattr(dtype, "numpy_dtype", None)
    if plain is None or plain.kind == "O":
        way = _instead_of_objects(x, str(dtype))
        raise ExchangeError(f"pandas keeps {dtype} in no plain memory; {way}")
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


def _instead_of_objects(x: Any, name: str) -> str:
    """What to do with *x*, whose dtype of that *name* has no plain memory."""
    if name.startswith("decimal"):
        return "x.astype('float64') makes floats of them"
    if name.startswith("Sparse"):
        return "pass numpy.asarray(x), which has all values"
    if name == "geometry":
        shapes = "x" if hasattr(x, "get_coordinates") else "geopandas.GeoSeries(x)"
        return f"pass {shapes}.get_coordinates()"
    if getattr(x, "ndim", 1) == 2:
        return "x.apply(lambda column: pandas.factorize(column)[0]) gives each value a number"
    return "pandas.factorize(x)[0] gives each value a number"


def _number_of_time(dtype: Any) -> str:
    """The numbers of dates or time spans, in the words of pandas, whose `view` has gone."""
    if str(dtype).startswith(("date32", "date64")):
        return "x.astype('timestamp[s][pyarrow]').astype('int64')"
    return "x.astype('int64')"


def _values_of_pandas(x: Any, copy: bool | None) -> Any:
    import numpy as np

    values = x.to_numpy()
    if copy is False and not np.shares_memory(values, x.to_numpy()):
        raise _apart(x)
    return values


def _look_pandas(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    dtypes = {x.dtype} if x.ndim == 1 else set(x.dtypes)
    if len(dtypes) != 1:
        return "cpu", "", x.shape, 0
    (dtype,) = dtypes
    _require_numpy(dtype)
    return "cpu", dtype, x.shape, x.size * dtype.itemsize


def _address_pandas(x: Any) -> int:
    import numpy as np

    if x.ndim == 1:
        _require_numpy(x.dtype)
    else:
        x = x.iloc[:1]  # the columns may be apart: to_numpy() would copy all of them
    values = x.to_numpy()
    return address_of(values) if np.may_share_memory(values, x.to_numpy()) else 0


def _require_numpy(dtype: Any) -> None:
    if hasattr(dtype, "na_value"):
        raise ExchangeError(f"{dtype} is a type of pandas")


def _make_pandas(array: Any) -> Any:
    import pandas

    return pandas.Series(array, copy=False)


PANDAS = by_numpy(
    "pandas",
    "pandas.Series",
    "pandas.DataFrame",
    "pandas.Index",
    "pandas.ExtensionArray",
    expose=_expose_pandas,
    make=_make_pandas,
    check=_check_column,
    exchanges=(
        *exchanges("pandas.Series", "Series"),
        *exchanges("pandas.DataFrame", "DataFrame"),
        *exchanges("numpy.ndarray", "Series.to_numpy DataFrame.to_numpy Index.to_numpy"),
        *exchanges("list", "Series.tolist Series.to_list Index.tolist", "copied"),
    ),
    look=(_look_pandas, _address_pandas),
)


# pyarrow and polars, whose columns are Arrow's: immutable -----------------------------


def _refuse_pyarrow(x: Any) -> None:
    """Arrays with null values, and those of types that its ``__dlpack__`` refuses."""
    if not isinstance(x, pyarrow_class("Array")):
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
        isinstance(x, pyarrow_class("Array"))
        and not hasattr(x, "to_numpy_ndarray")
        and not str(x.type).startswith(_NUMBERS_OF_ARROW)
    )


_NUMBERS_OF_ARROW = ("int", "uint", "float", "double", "halffloat")


def _expose_pyarrow(x: Any, copy: bool | None) -> Any:
    """The array itself; of a table or record batch a matrix of its columns, which is a copy.

    Of chunks of tensors, one array: Arrow's interface does not say their shape.
    """
    if isinstance(x, pyarrow_class("ChunkedArray")):
        if not isinstance(x.type, pyarrow_class("FixedShapeTensorType")):
            return x
        if copy is False and x.num_chunks > 1:
            raise ExchangeError(
                f"the {origin_of(x)} has {x.num_chunks} chunks, which come out by a copy, and "
                "copy=False forbids it; pass copy=None"
            )
        return x.chunk(0) if x.num_chunks == 1 else x.combine_chunks()
    if not isinstance(x, (pyarrow_class("Table"), pyarrow_class("RecordBatch"))):
        return x
    _require_one_type(x, x.schema.types)
    nulls = sum(column.null_count for column in x.columns)
    if nulls:
        raise ExchangeError(
            f"the {origin_of(x)} has {nulls} null values, which DLPack cannot carry; fill them in "
            "each column (fill_null)"
        )
    if copy is False:
        raise _apart(x)
    if not x.columns:
        raise ExchangeError(f"the {origin_of(x)} has no columns, so no type; pass one that has")
    import numpy as np

    matrix = np.stack([column.to_numpy(zero_copy_only=False) for column in x.columns], axis=1)
    if matrix.dtype.kind == "O":
        raise ExchangeError(
            f"the columns of the {origin_of(x)} are of {x.schema.types[0]}, and only plain numbers "
            "make a matrix; pass one column (x['name'])"
        )
    return matrix


@lru_cache(maxsize=1)
def _plain_pyarrow() -> dict[int, str]:
    """Types of plain elements: pyarrow's number -> the name of one of numbers."""
    import pyarrow

    times = ("DATE32", "DATE64", "TIME32", "TIME64", "TIMESTAMP", "DURATION")
    names = {getattr(pyarrow.lib, f"Type_{name}"): "" for name in times}
    return {**names, **{pyarrow.type_for_alias(name).id: name for name in ARROW_TYPES}}


def _look_pyarrow(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    kind, count = x.type, len(x)
    name = _plain_pyarrow()[kind.id]
    if not x.is_cpu:
        raise ExchangeError("the array is not in the host's memory")
    return "cpu", name or kind, (count,), count * (kind.bit_width // 8)


def _address_pyarrow(x: Any) -> int:
    if isinstance(x, pyarrow_class("ChunkedArray")):
        if x.num_chunks != 1:
            return 0
        x = x.chunk(0)
    kind, data = x.type, x.buffers()[1]
    if kind.id not in _plain_pyarrow() or not data.is_cpu:
        raise ExchangeError(f"{kind} has no plain memory of the host")
    address: int = data.address + x.offset * (kind.bit_width // 8)
    return address


def _expose_polars(x: Any, copy: bool | None) -> Any:
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
    for name, dtype in x.schema.items():
        if str(dtype).startswith("Decimal"):
            way = "x.cast(polars.Float64)"
        elif dtype.is_temporal() or str(dtype).startswith(("Categorical", "Enum")):
            way = f"x[{name!r}].to_physical()"
        elif str(dtype) == "String":
            way = f"x[{name!r}].cast(polars.Categorical).to_physical()"
        else:
            continue
        raise ExchangeError(
            f"the columns of the {origin_of(x)} of {dtype} hold no plain numbers; pass {way}"
        )
    try:
        return x.to_numpy(allow_copy=copy is not False)
    except RuntimeError as exc:
        raise _apart(x) from exc


def _view_polars(x: Any) -> Any:
    try:
        return x.to_numpy(allow_copy=False)
    except RuntimeError:
        return None  # it would be a copy: of several chunks, or with null values


def _look_polars(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    array = _view_polars(x)
    if array is not None and array.dtype in native_dtypes():
        return "cpu", array.dtype, array.shape, array.nbytes
    return "cpu", getattr(x, "dtype", ""), x.shape, x.estimated_size()


def _address_polars(x: Any) -> int:
    array = _view_polars(x)
    return 0 if array is None else address_of(array)


def _make_polars(tensor: Tensor) -> Any:
    """``polars.Series``, by Arrow: numpy arrays are copied by polars."""
    import polars
    import pyarrow

    return polars.Series(pyarrow.array(tensor))


def _check_arrow(tensor: Tensor, device: Device) -> None:
    """Raise ExchangeError for what Arrow's columns cannot hold in place."""
    _check_column(tensor, device)
    name = tensor.dtype.name
    if name == "bool":
        raise ExchangeError(
            "Arrow packs bools into bits; give it t.view('uint8'), or make its array of a list"
        )
    if name not in ARROW_TYPES:
        raise ExchangeError(
            f"Arrow has no {name}; t.view('uint8') has the same bytes, and like='numpy' knows more "
            "types"
        )


PYARROW = Library(
    "pyarrow",
    ("pyarrow.Array", "pyarrow.ChunkedArray"),
    refuse=_refuse_pyarrow,
    expose=_expose_pyarrow,
    by_arrow=_is_arrow_only,
    make="pyarrow:array",
    check=_check_arrow,
    immutable=True,
    keeps_readonly=True,
    compact_only=True,
    device_types=HOST_ONLY,
    exchanges=(
        *exchanges("pyarrow.Array", "array chunked_array"),
        *exchanges("pyarrow.Tensor", "Tensor.from_numpy", "shared"),
        *exchanges("pyarrow.Table", "Table.from_pandas"),
        *exchanges("numpy.ndarray", "Array.to_numpy ChunkedArray.to_numpy Tensor.to_numpy"),
        *exchanges("pandas.Series", "Array.to_pandas ChunkedArray.to_pandas"),
        *exchanges("pandas.DataFrame", "Table.to_pandas"),
        *exchanges("list", "Array.to_pylist Array.tolist ChunkedArray.to_pylist", "copied"),
    ),
    look=(_look_pyarrow, _address_pyarrow),
)

POLARS = PYARROW._replace(
    name="polars",
    arrays=("polars.Series", "polars.DataFrame"),
    refuse=None,
    expose=_expose_polars,
    by_arrow=None,
    make=_make_polars,
    exchanges=(
        *exchanges("polars.Series", "Series from_arrow from_numpy from_pandas"),
        *exchanges("polars.DataFrame", "DataFrame"),
        *exchanges("numpy.ndarray", "Series.to_numpy DataFrame.to_numpy"),
        *exchanges("torch.Tensor", "Series.to_torch DataFrame.to_torch"),
        *exchanges("pyarrow.Array", "Series.to_arrow"),
        *exchanges("pyarrow.Table", "DataFrame.to_arrow"),
        *exchanges("pandas.Series", "Series.to_pandas"),
        *exchanges("pandas.DataFrame", "DataFrame.to_pandas"),
        *exchanges("list", "Series.to_list", "copied"),
    ),
    look=(_look_polars, _address_polars),
)
