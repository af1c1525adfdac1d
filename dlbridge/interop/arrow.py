"""Arrow's PyCapsule interface, in and out: a column of numbers, or of lists of one length.

Source: "The Arrow C data interface", "The Arrow C stream interface" and "The
Arrow PyCapsule Interface" (arrow.apache.org/docs/format). In: only the producer's
callbacks are called, with the GIL held, and nothing that a struct says is believed
before it is checked. Out: the structs are pyarrow's, because what Arrow calls when it
drops an array may run late, even after Python has ended, and has to be C.
"""

from __future__ import annotations

import ctypes
import sys
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge import dtype as as_dtype
from dlbridge.abi import capsule_pointer
from dlbridge.errors import ExchangeError
from dlbridge.extending import (
    CPU,
    MAX_NBYTES,
    MAX_NDIM,
    Memory,
    operand_of,
    origin_of,
    tensor_on,
    why_impossible,
    wrap_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dlbridge import Tensor


_FORMATS = {
    "c": "int8",
    "C": "uint8",
    "s": "int16",
    "S": "uint16",
    "i": "int32",
    "I": "uint32",
    "l": "int64",
    "L": "uint64",
    "e": "float16",
    "f": "float32",
    "g": "float64",
}
_BOOLS = "b"

ARROW_TYPES = frozenset(_FORMATS.values())
"""What a column of plain numbers may hold."""


# PYFUNCTYPE keeps the GIL: a producer's callback may be Python.
_RELEASE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_GET = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LAST_ERROR = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Schema(ctypes.Structure):
    _fields_ = (
        *_fields(ctypes.c_char_p, "format name"),
        *_fields(ctypes.c_void_p, "metadata"),
        *_fields(ctypes.c_int64, "flags n_children"),
        *_fields(ctypes.c_void_p, "children dictionary release private_data"),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        *_fields(ctypes.c_int64, "length null_count offset n_buffers n_children"),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        *_fields(ctypes.c_void_p, "children dictionary release private_data"),
    )


class _Stream(ctypes.Structure):
    _fields_ = _fields(ctypes.c_void_p, "get_schema get_next get_last_error release private_data")


class _Owned(ctypes.Structure):
    """A struct that is ours: the producer's function releases it once, when it is dropped."""

    release: int | None

    # As default values they are there when the module has gone, at the end of Python.
    def __del__(self, _function: Any = _RELEASE, _address: Any = ctypes.addressof) -> None:
        if self.release:
            _function(self.release)(_address(self))


class _OwnSchema(_Schema, _Owned):
    pass


class _OwnArray(_Array, _Owned):
    pass


class _OwnStream(_Stream, _Owned):
    pass


def is_arrow(x: Any) -> bool:
    """Whether *x* exports an Arrow array, or a stream of them."""
    cls = type(x)
    return any(getattr(cls, name, None) for name in ("__arrow_c_array__", "__arrow_c_stream__"))


def _is_array(x: Any) -> bool:
    """Whether *x* is exported as one array, and not as a stream of them."""
    return bool(getattr(type(x), "__arrow_c_array__", None))


def is_stream(x: Any) -> bool:
    """Whether *x* may give its elements once only: a stream of Arrow without a length.

    Arrow has no other sign: nanoarrow's streams and pyarrow's readers have no ``__len__``, and
    chunked arrays, series and tables, which can be exported again, have one.
    """
    return is_arrow(x) and not _is_array(x) and not hasattr(type(x), "__len__")


def pyarrow_class(name: str) -> Any:
    """The class *name* of pyarrow; where nobody has imported that, the empty tuple: no class."""
    return getattr(sys.modules.get("pyarrow.lib"), name, ())


def from_arrow(x: Any, copy: bool | None) -> Tensor:
    """The Tensor of the column *x*: read-only, as Arrow's arrays are immutable.

    Lists of one length become further dimensions. Several chunks, and bools, which Arrow packs
    in bits, need a copy. ExchangeError for null values, for types that DLPack does not have and
    for structs that break Arrow's rules. Types are looked at before a stream gives a chunk.
    """
    schema, chunks = _array_of(x) if _is_array(x) else _stream_of(x)
    layout, widths = _layout_of(x, schema)
    runs = [_check_chunk(x, chunk, layout, widths) for chunk in chunks]
    if layout != _BOOLS and len(runs) == 1:
        return _tensor_over(runs[0], layout, origin_of(x))
    if copy is False:
        what = "packed bools" if layout == _BOOLS else f"{len(runs)} chunks"
        raise ExchangeError(
            f"the {origin_of(x)} has {what}, which come out by a copy, and copy=False forbids it; "
            f"pass copy=None{used_up(x)}"
        )
    return _join(runs, layout, widths, origin_of(x))


class _Run(NamedTuple):
    """The elements of a chunk, checked: those of *shape* from the *first* on in the buffer *data*.

    *chunk* keeps them alive.
    """

    data: int
    first: int
    shape: tuple[int, ...]
    chunk: _OwnArray


def _layout_of(x: Any, schema: _Schema) -> tuple[str, tuple[int, ...]]:
    """The format of the numbers, and the lengths of the lists around them."""
    widths: list[int] = []
    layout = _format(x, schema)
    while (width := layout.removeprefix("+w:")) != layout:
        digits = width.isdecimal() and width.isascii() and len(width) < 20
        if not digits or len(widths) >= MAX_NDIM - 1:
            raise _broken(x, f"its format is {layout[:40]!r} at depth {len(widths)}")
        if schema.metadata:
            raise ExchangeError(
                f"the Arrow lists of the {origin_of(x)} have metadata, which may give them another "
                "shape; pass their storage (x.storage), reshaped"
            )
        widths.append(int(width))
        schema = _child(x, schema, _Schema)
        layout = _format(x, schema)
    if layout == "+s" and not (_is_of_pyarrow(x) or origin_of(x).startswith("polars.")):
        raise ExchangeError(
            f"the {origin_of(x)} has columns, which may differ in type; pass one of "
            f"them: pyarrow.table(x)['name']{used_up(x)}"
        )
    if (layout not in _FORMATS and layout != _BOOLS) or schema.dictionary:
        kind = getattr(x, "type", None) or getattr(x, "dtype", None) or repr(layout)
        raise ExchangeError(
            f"the Arrow type {kind} of the {origin_of(x)} is not a plain number, which DLPack "
            f"needs; {_way_out(x, layout, schema)}{used_up(x)}"
        )
    if prod(filter(None, widths)) >= MAX_NBYTES // 8:
        raise _broken(x, f"no memory can have one of its lists, of {widths} elements")
    return layout, tuple(widths)


def _way_out(x: Any, layout: str, schema: _Schema) -> str:
    """What to pass instead of *x*, of elements of *layout*, in the words of polars or pyarrow."""
    if origin_of(x).startswith("polars."):
        if schema.dictionary or str(x.dtype).startswith(("Categorical", "Enum")):
            return "pass x.to_physical()"
        ways, array = _WAYS_OUT_OF_POLARS, "x"
    else:
        ways, array = _WAYS_OUT, _one_array(x)
        if schema.metadata and (hasattr(x, "storage") or hasattr(x, "combine_chunks")):
            array = f"{array}.storage"  # an extension type
        if schema.dictionary:
            return (
                f"pass {array}.indices, or decode a dictionary of numbers: "
                f"{array}.dictionary_decode()"
            )
    for starts, way in ways.items():
        if layout.startswith(starts):
            return f"pass {way.replace('X', array)}"
    return "cast it to numbers"


def _is_of_pyarrow(x: Any) -> bool:
    return isinstance(x, (pyarrow_class("Array"), pyarrow_class("ChunkedArray")))


def _column(x: Any) -> str:
    """*x*, a column of any library, as pyarrow's."""
    if _is_of_pyarrow(x):
        return "x"
    return "pyarrow.array(x)" if _is_array(x) else "pyarrow.chunked_array(x)"


def _one_array(x: Any) -> str:
    """*x* as one array of pyarrow, without chunks."""
    return _column(x) if _is_array(x) else f"{_column(x)}.combine_chunks()"


def used_up(x: Any) -> str:
    """What to add to a way out of a stream, which may have given what it has."""
    return " (of x anew, if it is a stream that is read once only)" if is_stream(x) else ""


_WAYS_OUT_OF_POLARS: dict[tuple[str, ...], str] = {
    ("t",): "X.to_physical()",
    ("d:",): "X.cast(polars.Float64)",
    ("+s",): "X.struct.field('name')",
    ("+l", "+L", "+vl", "+vL"): "X.explode()",
    ("n",): "X.cast(polars.Float64).fill_null(value)",
    ("u", "U", "vu"): "X.cast(polars.Categorical).to_physical()",
    ("z", "Z", "vz"): "X.rank('dense')",
    ("w:",): "X.to_list()",  # Python's objects
}

_WAYS_OUT: dict[tuple[str, ...], str] = {
    ("tdD", "tts", "ttm"): "X.cast('int32')",  # pyarrow casts to the same size only
    ("tin",): "numpy.array(X.to_pylist())",
    ("t",): "X.cast('int64')",
    ("d:",): "X.cast('float64')",
    ("+s",): "X.field('name')",
    ("+m",): "X.keys or X.items",
    ("+l", "+L", "+vl", "+vL"): "X.flatten()",
    ("+u",): "X.field(0), the first type of its elements",
    ("+r",): "pyarrow.compute.run_end_decode(X)",
    ("n",): "X.cast('float64').fill_null(value)",
    ("u", "U", "z", "Z", "w:", "v"): "X.dictionary_encode().indices",
}
"""The beginnings of a format -> the way out of X (Arrow's C data interface: dates and times,
decimals, structs, maps, lists, unions, runs, nulls, texts and bytes)."""


def _format(x: Any, schema: _Schema) -> str:
    if schema.format is None:
        raise _broken(x, "its format is NULL")
    return str(schema.format.decode(errors="replace"))


def _check_chunk(x: Any, chunk: _OwnArray, layout: str, widths: tuple[int, ...]) -> _Run:
    """What *chunk* says, if it is possible, and none of its values is null."""
    start, count = 0, chunk.length
    node: _Array = chunk
    for depth, width in enumerate((*widths, None)):
        _check_node(x, node, is_list=width is not None)
        if start + count > node.length:
            raise _broken(x, f"its lists have {node.length} elements and use {start + count}")
        start += node.offset
        _refuse_nulls(x, node, start, count, depth, len(widths))
        if width is not None:
            node = _child(x, node, _Array)
            start, count = start * width, count * width
    data = node.buffers[1] or 0
    bits = 1 if layout == _BOOLS else 8 * as_dtype(_FORMATS[layout]).itemsize
    if count and not data:
        raise _broken(x, f"it has {count} values and its data is NULL")
    end = (count * bits + 7) // 8
    why = why_impossible(data, start * bits // 8, 0, end) if count else ""
    if why:
        raise _broken(x, f"it has {why}")
    return _Run(data, start, (chunk.length, *widths), chunk)


def _check_node(x: Any, node: _Array, *, is_list: bool) -> None:
    """Raise ExchangeError if the numbers in *node* break the rules of its layout."""
    buffers, children = (1, 1) if is_list else (2, 0)
    if node.length < 0 or node.offset < 0:
        raise _broken(x, f"its length is {node.length} and its offset {node.offset}")
    if node.length + node.offset >= MAX_NBYTES:
        raise _broken(x, f"offset {node.offset} and length {node.length} reach beyond all memory")
    if not -1 <= node.null_count <= node.length:
        raise _broken(x, f"its null_count is {node.null_count} and its length {node.length}")
    if node.n_buffers != buffers or node.n_children != children or node.dictionary:
        raise _broken(
            x,
            f"its schema needs n_buffers {buffers} and n_children {children} without a dictionary, "
            f"and the array has {node.n_buffers} and {node.n_children}"
            + (" and a dictionary" if node.dictionary else ""),
        )
    if not node.buffers:
        raise _broken(x, "its buffers are NULL")
    if node.null_count > 0 and not node.buffers[0]:
        raise _broken(x, f"its null_count is {node.null_count} and its validity bitmap NULL")


def _child(x: Any, parent: Any, cls: type[Any]) -> Any:
    """The one child, of *cls*, of a list."""
    child = None
    if parent.n_children == 1 and parent.children:
        child = ctypes.c_void_p.from_address(parent.children).value
    if not child:
        raise _broken(
            x, f"it has lists with n_children {parent.n_children}, or a child that is NULL"
        )
    found = cls.from_address(child)
    if not found.release:
        raise _broken(x, "a child of its lists is released")
    return found


def _broken(x: Any, why: str) -> ExchangeError:
    return ExchangeError(f"the Arrow array of the {origin_of(x)}: {why}; its producer is broken")


def _tensor_over(run: _Run, layout: str, origin: str) -> Tensor:
    """The Tensor on the values of *run*, whose chunk it keeps alive."""
    dtype = as_dtype(_FORMATS[layout])
    memory = Memory(CPU, run.data, origin, run.chunk)
    offset = run.first * dtype.itemsize
    return tensor_on(memory, dtype, run.shape, byte_offset=offset, readonly=True)


def _join(runs: list[_Run], layout: str, widths: tuple[int, ...], origin: str) -> Tensor:
    """A Tensor on a copy of all values."""
    import numpy as np

    if layout == _BOOLS:
        parts = [_bits(run.data, run.first, prod(run.shape)).reshape(run.shape) for run in runs]
        kind = "bool"
    else:
        parts = [_tensor_over(run, layout, origin).numpy() for run in runs]
        kind = _FORMATS[layout]
    return wrap_array(np.concatenate(parts) if parts else np.zeros((0, *widths), kind))


def _bits(address: int, first: int, count: int) -> Any:
    """*count* bools of a bitmap, from the *first* on."""
    import numpy as np

    if not count:
        return np.zeros(0, bool)
    skipped, within = divmod(first, 8)
    held: Any = (ctypes.c_uint8 * ((within + count + 7) // 8)).from_address(address + skipped)
    packed: Any = np.frombuffer(held, "u1")
    bits = np.unpackbits(packed, bitorder="little")
    return bits[within : within + count].view(bool)


def _refuse_nulls(x: Any, node: _Array, start: int, count: int, depth: int, lists: int) -> None:
    """Raise ExchangeError if one of the values is null. The producer may not have counted them."""
    bitmap = node.buffers[0]
    if node.null_count == 0 or not bitmap or not count:
        return
    why = why_impossible(bitmap, start // 8, 0, (start % 8 + count + 7) // 8)
    if why:
        raise _broken(x, f"its validity bitmap has {why}")
    missing = count - int(_bits(bitmap, start, count).sum())
    if missing:
        raise ExchangeError(
            f"the {origin_of(x)} has {missing} null value{'s' if missing > 1 else ''}, which "
            f"DLPack cannot carry; pass {_without_nulls(x, depth, lists)}{used_up(x)}"
        )


def _without_nulls(x: Any, depth: int, lists: int) -> str:
    """What to pass instead of *x*, which has null values at this *depth* of *lists*."""
    in_polars = origin_of(x).startswith("polars.")
    column = "x" if in_polars else _column(x)
    if not lists:
        return f"{column}.fill_null(value)"  # numbers; of lists no library fills what is in them
    if depth == 0:
        return "x.drop_nulls()" if in_polars else f"{column}.drop_null()"
    if in_polars:
        return f"x{'.explode()' * lists}.fill_null(value), reshaped"
    return f"{_one_array(x)}{'.flatten()' * lists}.fill_null(value), reshaped"


def _array_of(x: Any) -> tuple[_OwnSchema, Iterator[_OwnArray]]:
    pair = x.__arrow_c_array__()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise _broken(x, f"__arrow_c_array__ returned {type(pair).__name__}, not two capsules")
    schema, array = pair
    return (
        _take(_OwnSchema(), schema, b"arrow_schema"),
        iter([_take(_OwnArray(), array, b"arrow_array")]),
    )


def _stream_of(x: Any) -> tuple[_OwnSchema, Iterator[_OwnArray]]:
    """The schema, and the chunks, each of which is asked for when it is wanted."""
    stream = _take(_OwnStream(), x.__arrow_c_stream__(), b"arrow_array_stream")
    schema = _OwnSchema()
    _call(x, stream, stream.get_schema, schema)
    if not schema.release:
        raise _broken(x, "its stream gives a schema that is released")
    return schema, _chunks_of(x, stream)


def _chunks_of(x: Any, stream: _OwnStream) -> Iterator[_OwnArray]:
    while True:
        chunk = _OwnArray()
        _call(x, stream, stream.get_next, chunk)
        if not chunk.release:
            return
        yield chunk


def _call(x: Any, stream: _OwnStream, function: int | None, out: _Owned) -> None:
    if not function:
        raise _broken(x, "its stream has no get_schema or no get_next")
    at = ctypes.addressof(stream)
    if _GET(function)(at, ctypes.addressof(out)) != 0:
        out.release = None  # nothing was given
        text = _LAST_ERROR(stream.get_last_error)(at) if stream.get_last_error else None
        why = text.decode(errors="replace") if text else "it gives no reason"
        raise ExchangeError(f"the Arrow stream of the {origin_of(x)} failed: {why}")


def _take(own: Any, capsule: object, name: bytes) -> Any:
    """*own* with the struct of *capsule*, which has nothing to release any more."""
    address = capsule_pointer(capsule, name)
    if not address:
        raise ExchangeError(
            f"an Arrow capsule named {name.decode()!r} was expected, not {capsule!r}; the producer "
            "is broken"
        )
    fields: Any = type(own).mro()[1]  # without a destructor
    theirs = fields.from_address(address)
    release = theirs.release
    if not release:
        raise ExchangeError(f"the Arrow capsule {name.decode()!r} is used already; ask for another")
    # A Ctrl-C between these steps leaks the struct; it is never released twice.
    theirs.release = None
    ctypes.memmove(ctypes.addressof(own), address, ctypes.sizeof(own))
    own.release = release
    return own


# Out --------------------------------------------------------------------------


def arrow_exporter(tensor: Tensor) -> Callable[..., tuple[object, object]]:
    """The method ``__arrow_c_array__`` of *tensor*.

    AttributeError for what Arrow cannot hold in place, so that
    ``hasattr(tensor, "__arrow_c_array__")`` is right for consumers.
    """
    if tensor.ndim != 1 or not tensor.device.is_host:
        raise _not_arrow(f"{tensor.ndim} dimensions on {tensor.device}", "one on the CPU")
    if tensor.dtype.name not in ARROW_TYPES:
        raise _not_arrow(str(tensor.dtype), "numbers of 8 to 64 bits; Arrow packs bools")
    if not tensor.is_contiguous():
        compact = "compact memory: dlbridge.to_device(t, t.device, copy=True)"
        raise _not_arrow(f"strides {tensor.strides}", compact)
    try:
        import pyarrow
    except ImportError as exc:
        raise _not_arrow("a tensor without pyarrow", "pip install pyarrow") from exc

    def export(requested_schema: object = None) -> tuple[object, object]:
        operand_of(tensor)  # raises if it was lent and has expired
        # The memory belongs to numpy's array, which the Arrow buffer keeps alive.
        array = tensor.numpy()
        column = pyarrow.Array.from_buffers(
            pyarrow.from_numpy_dtype(array.dtype), array.size, [None, pyarrow.py_buffer(array)]
        )
        exported: tuple[object, object] = column.__arrow_c_array__(requested_schema)
        return exported

    return export


def _not_arrow(given: str, wanted: Any) -> AttributeError:
    return AttributeError(f"{given} cannot be exported to Arrow, which takes {wanted}")
