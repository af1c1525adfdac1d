"""Conversions between dtypes in host memory: by numpy and ml_dtypes, or by a table of all results.

To or from floats of 8 bits and fewer, ml_dtypes takes 6 to 12 ns for an element, and a look-up in a
table 1 to 2 (``docs/benchmarks/astype.md``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge import (
    DLDataTypeCode,
    DType,
    Tensor,
    asarray,
    dtype as as_dtype,
    pack_bits,
    to_device,
    unpack_bits,
)
from dlbridge.errors import ExchangeError
from dlbridge.extending import (
    CPU,
    check_dtype,
    copy_array,
    copy_elements,
    host_array,
    limits_of,
    new_tensor,
    operand_of,
    public_in,
    recorded,
)

if TYPE_CHECKING:
    from dlbridge import Operand
    from dlbridge.typing import ArrayLike, DTypeLike

Array = np.ndarray[Any, Any]
Convert = Callable[[Array, Array], None]


_CHUNK = 1 << 15
"""Elements, a multiple of 8: the temporary arrays of a chunk stay in the cache."""

_CHUNK_WITHOUT_TEMPORARIES = 1 << 22
"""Elements: between two chunks Ctrl-C works."""

_GATHERED = 1 << 19
"""Bytes that are copied together from memory with gaps."""

_TABLE = 1 << 16
"""The entries of a table for 16 bits. It pays for as many elements."""

_BOOL = DType.of(DLDataTypeCode.kDLBool, 8)
_BFLOAT16 = DType.of(DLDataTypeCode.kDLBfloat, 16)
_FLOAT16, _FLOAT32 = (DType.of(DLDataTypeCode.kDLFloat, bits) for bits in (16, 32))
_COMPLEX32, _COMPLEX64 = (DType.of(DLDataTypeCode.kDLComplex, bits) for bits in (32, 64))
_INT8, _INT16, _INT32 = (DType.of(DLDataTypeCode.kDLInt, bits) for bits in (8, 16, 32))
_INTEGERS = (DLDataTypeCode.kDLInt, DLDataTypeCode.kDLUInt)


@public_in("dlbridge")
def astype(x: ArrayLike, dtype: DTypeLike, saturate: bool = False) -> Tensor:
    r"""Return the elements of *x* in another dtype: a new compact tensor on the CPU.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes. The elements of a device are brought to the host, which
        converts them.
    dtype : DTypeLike
        The new type, one that numpy or ml_dtypes has, with as many lanes as that of
        *x*. Elements below a byte are packed, as DLPack packs them.
    saturate : bool
        Whether a value above the highest finite value of *dtype*, or below the
        lowest, becomes that value; infinities, too. NaN becomes 0 if *dtype* has no
        NaN. It changes nothing for bool.

    Returns
    -------
    Tensor
        On new memory, also if *x* has that dtype already.

    Raises
    ------
    ExchangeError
        If numpy and ml_dtypes do not have both types, or if the lanes differ. It is also a
        BufferError.
    TypeError
        If *x* is not accepted by `asarray`, or *dtype* is not a dtype.
    DeviceMemoryError
        A MemoryError, if there is no room.

    See Also
    --------
    Tensor.view : The same memory as elements of another dtype.

    Notes
    -----
    The results have the bits that ``astype`` of numpy and of ml_dtypes gives. Where
    these have no conversion (int4 to uint4, float8_e4m3 to float8_e8m0fnu), it goes
    through int8 or float32. If complex numbers become real ones, the imaginary parts
    are dropped, with numpy's ComplexWarning. Without *saturate* C does not define what
    becomes of NaN and of a float beyond the range of an integer type: processors differ.

    Examples
    --------
    >>> t = bridge.astype(np.array([1.0, 2.5, 1000.0], "float32"), "float8_e4m3fn", saturate=True)
    >>> t
    dlbridge.Tensor(float8_e4m3fn, shape=(3,), device=cpu:0, memory from dlbridge.empty)
    >>> bridge.astype(t, "float64").tolist()
    [1.0, 2.5, 448.0]
    >>> bridge.astype([7, -8, 100], "int4", saturate=True).tobytes()
    b'\x87\x07'
    """
    if not isinstance(saturate, bool):
        raise TypeError(f"saturate must be True or False, not {saturate!r}")
    tensor = x if isinstance(x, Tensor) else asarray(x)
    target = as_dtype(dtype)
    check_dtype(target)
    source = tensor.dtype
    lane, new_lane = _lanes(tensor, target)
    if _is_complex(lane) and not _is_complex(new_lane) and new_lane.name != "bool":
        text = f"astype drops the imaginary parts: {source} to {target}"
        warnings.warn(text, np.exceptions.ComplexWarning, stacklevel=2)
    if not tensor.device.is_host:
        tensor = to_device(tensor, CPU)
    out = new_tensor(CPU, target, tensor.shape)
    if tensor.size:
        copied = recorded("astype makes it", tensor, CPU, "convert", out)
        with copied, np.errstate(all="ignore"):
            _convert(operand_of(tensor), lane, operand_of(out), new_lane, saturate)
    return out


def _lanes(tensor: Tensor, target: DType) -> tuple[DType, DType]:
    """The types of one lane, if they can be converted."""
    source = tensor.dtype
    if source.lanes != target.lanes:
        raise ExchangeError(
            f"astype keeps the lanes: {source} has {source.lanes} in an element, {target} "
            f"{target.lanes}; give the type with {source.lanes}, or view the elements as single "
            "ones before: t.view(dtype)"
        )
    if source.is_subbyte and not tensor.is_padded and not tensor.is_contiguous():
        raise ExchangeError(
            f"astype reads packed {source} elements only without gaps, and these have the strides "
            f"{tensor.strides}: convert the whole tensor, and take the part of the result"
        )
    if tensor.is_padded and source.is_subbyte and source.lanes != 1:
        raise ExchangeError(
            f"how {source} lanes lie in padded elements is not clear; view('uint8') shows the bytes"
        )
    lanes = tuple(DType.of(kind.code, kind.bits) for kind in (source, target))
    for lane in lanes:
        try:
            _ = lane.numpy
        except ExchangeError as exc:
            raise ExchangeError(f"astype cannot convert {lane}: {exc}") from exc
    return lanes[0], lanes[1]


# Chunk by chunk ---------------------------------------------------------------------


def _convert(before: Operand, lane: DType, after: Operand, new_lane: DType, saturate: bool) -> None:
    """Convert all elements of *before* into *after*, which is compact."""
    if lane is new_lane and lane.bits >= 8 and not saturate:
        copy_elements(after, before)
        return
    lanes = before.dtype.lanes
    packed = lane.bits < 8 and not (before.padded and before.dtype.is_subbyte)
    count = before.size * lanes
    convert = _conversion(lane, new_lane, packed, saturate, count >= _TABLE)
    alone = convert is _cast and new_lane.bits >= 8 and before.contiguous
    most = _CHUNK_WITHOUT_TEMPORARIES if alone else _CHUNK
    chunk = max(1, most // 8 // lanes) * 8  # elements, so that chunks of sub-byte ones are bytes
    target = _lane_array(host_array(after).reshape(-1), new_lane)
    done = 0  # lanes
    for piece in _chunks(host_array(before), before, chunk):
        length = min(chunk * lanes, count - done)
        part = _lane_array(piece, lane)
        if packed and 8 % lane.bits:
            part = unpack_bits(part.data, lane, length)
        if new_lane.bits < 8:
            codes = np.empty(length, new_lane.numpy)
            convert(part, codes)
            begin = done * new_lane.bits // 8
            found = np.frombuffer(pack_bits(codes.view("u1"), new_lane), "u1")
            target[begin : begin + found.size] = found
        else:
            convert(part, target[done : done + length])
        done += length


def _lane_array(flat: Array, dtype: DType) -> Array:
    """Contiguous elements as lanes of *dtype*; as bytes if they are below a byte."""
    return flat.view("u1") if dtype.bits < 8 else flat.view("u1").view(dtype.numpy)


def _chunks(array: Array, operand: Operand, count: int) -> Iterator[Array]:
    """The elements in row-major order, *count* at a time, as contiguous arrays."""
    if operand.contiguous:
        flat = array.reshape(-1)
        packed = operand.dtype.is_subbyte and not operand.padded
        step = operand.dtype.nbytes(count) if packed else count  # packed ones come as bytes
        for start in range(0, flat.size, step):
            yield flat[start : start + step]
        return
    # With gaps: copied into one buffer, in pieces that are large, because `copy_array` is fast if
    # the rows of a transposed source are many.
    most = max(count, _GATHERED // array.itemsize // count * count)
    buffer = np.empty(min(most + count, array.size), array.dtype)
    filled = 0  # less than a chunk, before each piece
    for piece in _pieces(array, most):
        copy_array(buffer[filled : filled + piece.size].reshape(piece.shape), piece)
        filled += piece.size
        whole = filled - filled % count
        for start in range(0, whole, count):
            yield buffer[start : start + count]
        filled -= whole
        buffer[:filled] = buffer[whole : whole + filled]
    if filled:
        yield buffer[:filled]


def _pieces(array: Array, count: int) -> Iterator[Array]:
    """Parts of at most *count* elements, in row-major order."""
    axis = 0
    while math.prod(array.shape[axis + 1 :]) > count:
        axis += 1
    rows = count // math.prod(array.shape[axis + 1 :])
    for outer in np.ndindex(array.shape[:axis]):
        part = array[outer]
        for start in range(0, len(part), rows):
            yield part[start : start + rows]


# By tables --------------------------------------------------------------------------


# Each has a table of 64 KiB to 1 MiB at most.
@lru_cache(maxsize=64)
def _conversion(source: DType, target: DType, packed: bool, saturate: bool, many: bool) -> Convert:
    """The fastest conversion of *many* elements, or of fewer, as a function of one chunk of both.

    Elements below a byte come as one code in each byte, if they are not *packed* in whole
    bytes, and become codes.
    """
    to_small = _is_small_float(target)
    slow = saturate or to_small or _is_small_float(source)
    slow |= _FLOAT16 in (source, target) and target.bits <= 32
    # A byte that is neither 0 nor 1 is true for numpy; ml_dtypes takes it as a number.
    slow |= source is _BOOL and target.numpy.isbuiltin != 1
    if source.bits < 8 or (source.bits == 8 and slow):
        width = 8 // source.bits if packed and not 8 % source.bits else 1
        return partial(_look_up, _table(source, target, width, saturate))
    if source.bits == 16 and slow and many:
        return partial(_look_up, _table(source, target, 1, saturate))
    if to_small and many:
        to_float32 = None if source is _FLOAT32 else _plain(source, _FLOAT32)
        return partial(_round, to_float32, _table(_BFLOAT16, target, 1, saturate))
    return _saturated(source, target) if saturate else _plain(source, target)


def _table(source: DType, target: DType, width: int, saturate: bool) -> Array:
    """The results of all codes of *source*, for a source of *width* codes in a byte.

    If that is 1, only the low bits of a byte count.
    """
    codes = np.arange(1 << max(8, source.bits), dtype="u2" if source.bits > 8 else "u1")
    if source.bits < 8:
        shifts = np.arange(width, dtype="u1") * np.uint8(source.bits)
        codes = codes[:, None] >> shifts & np.uint8((1 << source.bits) - 1)
    if source is _BOOL:
        codes = (codes != 0).view("u1")
    results = np.empty(codes.size, target.numpy)
    convert = _saturated(source, target) if saturate else _plain(source, target)
    convert(codes.reshape(-1).view(source.numpy), results)
    # By bytes: the types that numpy takes from a table as one piece.
    raw = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[results.itemsize]
    table = results.view(raw).reshape(-1, width)
    table.flags.writeable = False
    return table


def _look_up(table: Array, before: Array, after: Array) -> None:
    """Each code's row of *table*; of the last one only what there is room for."""
    codes = before.view("u2" if len(table) > 256 else "u1")
    results, width = after.view(table.dtype), table.shape[1]
    whole, rest = divmod(results.size, width)
    # mode="wrap": no copy of the result, as checks of the places would need.
    rows = results[: whole * width].reshape(whole, width)
    np.take(table, codes[:whole], axis=0, out=rows, mode="wrap")
    if rest:
        results[whole * width :] = table[codes[whole], :rest]


def _round(to_float32: Convert | None, table: Array, before: Array, after: Array) -> None:
    """Look floats of 32 bits up in the *table* of bfloat16, which are their upper 16 bits.

    The last bit of those is set if any lower bit was ("rounding to odd"), so that a number between
    two bfloat16 stays between them. With 8 significant bits it then rounds to a float of 8 bits
    and fewer, which has 5 at most, as the float32 does.
    """
    if to_float32 is not None:
        numbers = np.empty(before.size, "f4")
        to_float32(before, numbers)
        before = numbers
    bits, low = before.view("u4"), np.uint32(0xFFFF)
    words = bits & low
    words += low  # carries into bit 16 if one of the lower bits is set
    words |= bits
    words >>= np.uint32(16)
    np.take(table[:, 0], words, out=after.view(table.dtype), mode="wrap")


# By numpy and ml_dtypes -------------------------------------------------------------


def _cast(source: Array, target: Array) -> None:
    """Convert the elements as numpy or ml_dtypes does; of complex ones maybe the real part."""
    if source.dtype.kind == "c" and target.dtype.kind in "iuf":
        source = source.real
    np.copyto(target, source, casting="unsafe")


def _plain(source: DType, target: DType) -> Convert:
    """The conversion by one call of numpy or of ml_dtypes, or by some where neither has it."""
    through = _between(source, target)
    if through is None:
        return _cast
    further = _plain(through, target)

    def convert(before: Array, after: Array) -> None:
        middle = np.empty(before.shape, through.numpy)
        _cast(before, middle)
        further(middle, after)

    return convert


@lru_cache(maxsize=2048)
def _between(source: DType, target: DType) -> DType | None:
    """The type that elements of *source* become on the way to *target*, if there is one."""
    if source is _COMPLEX32 is not target:
        return _COMPLEX64  # ml_dtypes converts others through Python objects, 1 us each
    if _is_complex(source) and not _is_complex(target) and target is not _BOOL:
        return None if _part(source) is target else _part(source)
    wide_float = source.code == DLDataTypeCode.kDLFloat and source.bits >= 32
    if wide_float and target.bits < 8 and target.code in _INTEGERS:
        return _INT32  # both steps use vector instructions
    try:  # ml_dtypes has no int4 to uint4, for example
        np.copyto(np.empty(0, target.numpy), np.empty(0, source.numpy), casting="unsafe")
    except TypeError:
        return _INT8 if source.code in _INTEGERS and target.code in _INTEGERS else _FLOAT32
    return None


def _is_complex(dtype: DType) -> bool:
    """Whether an element is two floats."""
    return dtype.code == DLDataTypeCode.kDLComplex


def _is_small_float(dtype: DType) -> bool:
    """Whether it is a float of 8 bits or fewer."""
    return dtype.bits <= 8 and dtype.code >= DLDataTypeCode.kDLFloat8_e3m4


def _part(dtype: DType) -> DType:
    """The type of the real part: of a float or an integer, the type itself."""
    return DType.of(DLDataTypeCode.kDLFloat, dtype.bits // 2) if _is_complex(dtype) else dtype


# Saturation -------------------------------------------------------------------------


def _saturated(source: DType, target: DType) -> Convert:
    """`_plain`, and then what is out of range becomes the lowest or the highest finite value.

    Infinities, too. NaN becomes 0 where *target* has no NaN.
    """
    convert = _plain(source, target)
    if target is _BOOL:
        return convert  # whether a number is 0: there is no range
    real, result = _part(source), _part(target)
    compared = _comparable(real)
    low, high = _finite_range(result)
    least, most = _bounds(compared, low, high)
    lowest, highest, zero = (np.array(value).astype(result.numpy) for value in (low, high, 0))
    has_nan = result.code not in _INTEGERS and result.bits >= 8

    def saturate(before: Array, after: Array) -> None:
        convert(before, after)
        numbers, results = before.view(real.numpy), after.view(result.numpy)
        if _is_complex(source) is not _is_complex(target):  # then the real parts count
            numbers = numbers[::2] if _is_complex(source) else numbers
            results = results[::2] if _is_complex(target) else results
        numbers = numbers.astype(compared, copy=False)
        masks = [(numbers > most, highest), (numbers < least, lowest)]
        if compared.kind == "f" and not has_nan:
            masks.append((numbers != numbers, zero))  # NaN
        for mask, value in masks:
            if mask.any():
                results[mask] = value

    return saturate


def _comparable(real: DType) -> np.dtype[Any]:
    """A type of numpy that holds all values of *real*, so that they can be compared fast."""
    if real.code in _INTEGERS or real is _BOOL:
        return real.numpy if real.bits > 8 else _INT16.numpy
    return real.numpy if real.bits > 16 else _FLOAT32.numpy


@lru_cache(maxsize=64)
def _finite_range(dtype: DType) -> tuple[float, float]:
    """The lowest and the highest finite value: of integers as int, which is exact."""
    if dtype.code == DLDataTypeCode.kDLUInt:
        return 0, (1 << dtype.bits) - 1
    if dtype.code == DLDataTypeCode.kDLInt:
        return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    info = limits_of(dtype.numpy)
    return float(info.min), float(info.max)


def _bounds(compared: np.dtype[Any], low: float, high: float) -> tuple[Any, Any]:
    """The least and the greatest number of that type in the range."""
    if compared.kind != "f":
        return math.ceil(low), math.floor(high)  # numpy compares integers of any size exactly
    kind = compared.type
    with np.errstate(over="ignore", under="ignore"):
        least, most = kind(low), kind(high)
        if float(least) < low:
            least = np.nextafter(least, kind(np.inf))
        if float(most) > high:
            most = np.nextafter(most, kind(-np.inf))
    return least, most
