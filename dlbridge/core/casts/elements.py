"""`dlbridge.astype`: the elements of a tensor in another dtype, chunk by chunk."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from dlbridge.core.api import asarray
from dlbridge.core.moves.allocate import allocate
from dlbridge.core.moves.copies import copy_elements
from dlbridge.core.moves.within_host import copy_host
from dlbridge.core.public import public
from dlbridge.core.tensor.operand import host_array, operand_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType, check, dtype as as_dtype
from dlbridge.errors import ExchangeError

from .converters import converter, is_direct
from .routes import cast, is_complex, require

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.tensor.operand import Operand
    from dlbridge.typing import ArrayLike, DTypeLike

    Array = np.ndarray[Any, Any]

__all__ = ["astype"]

_CPU = Device.of(1, 0)

_CHUNK = 1 << 15
"""Elements, a multiple of 8: the temporary arrays of a chunk, 0.5 MiB, stay in the cache."""

_GATHERED = 1 << 19
"""Bytes that are copied together from memory with gaps."""

_CHUNK_WITHOUT_TEMPORARIES = 1 << 22
"""Elements: between two chunks Ctrl-C works."""


@public
def astype(x: ArrayLike, dtype: DTypeLike, saturate: bool = False) -> Tensor:
    r"""Return the elements of *x* in another dtype: a new compact tensor on the CPU.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes, in memory that the host can read.
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
        If *x* is on a device that the host does not read, if numpy and ml_dtypes do
        not have both types, or if the lanes differ. It is also a BufferError.
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
    import numpy as np

    if not isinstance(saturate, bool):
        raise TypeError(f"saturate must be True or False, not {saturate!r}")
    tensor = x if isinstance(x, Tensor) else asarray(x)
    target = as_dtype(dtype)
    check(target.code, target.bits, target.lanes)
    source = tensor.dtype
    _require_host(tensor, target)
    lane, new_lane = _lanes(tensor, target)
    if is_complex(lane) and not is_complex(new_lane) and new_lane.name != "bool":
        _warn(source, target)
    out = allocate(_CPU, target, tensor.shape)
    if tensor.size:
        with np.errstate(all="ignore"):
            _convert(operand_of(tensor), lane, operand_of(out), new_lane, saturate)
    return out


def _require_host(tensor: Tensor, target: DType) -> None:
    if not tensor.device.is_host:
        raise ExchangeError(
            f"astype converts in memory that the host can read, and the tensor is on "
            f"{tensor.device}: copy it there, astype(to_device(t, 'cpu'), {target.name!r}), "
            "or convert it on the device, with a library that has kernels for it"
        )


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
        require(lane)
    return lanes[0], lanes[1]


def _warn(source: DType, target: DType) -> None:
    import numpy as np

    text = f"astype drops the imaginary parts: {source} to {target}"
    warnings.warn(text, np.exceptions.ComplexWarning, stacklevel=3)


def _convert(before: Operand, lane: DType, after: Operand, new_lane: DType, saturate: bool) -> None:
    """Convert all elements of *before* into *after*, which is compact."""
    if lane is new_lane and lane.bits >= 8 and not saturate:
        copy_elements(after, before)
        return
    source = host_array(before)
    target = _lane_array(host_array(after).reshape(-1), new_lane)
    lanes = before.dtype.lanes
    if before.contiguous and not saturate and is_direct(lane, new_lane):
        flat = _lane_array(source.reshape(-1), lane)
        for start in range(0, flat.size, _CHUNK_WITHOUT_TEMPORARIES):
            part = slice(start, start + _CHUNK_WITHOUT_TEMPORARIES)
            cast(flat[part], target[part])
        return
    chunk = max(1, _CHUNK // 8 // lanes) * 8  # elements, so that chunks of sub-byte ones are bytes
    length = min(chunk, before.size) * lanes
    convert = converter(
        lane,
        new_lane,
        padded=before.padded and before.dtype.is_subbyte,
        saturate=saturate,
        count=before.size * lanes,
        length=length,
    )
    done = 0  # lanes
    for piece in _chunks(source, before, chunk):
        count = min(length, before.size * lanes - done)
        place = slice(_place(done, new_lane), _place(done + count, new_lane))
        convert(_lane_array(piece, lane), target[place], count)
        done += count


def _place(lanes: int, dtype: DType) -> int:
    """Where the lane of that number begins in an array of `_lane_array`, packed."""
    return -(-lanes * dtype.bits // 8) if dtype.bits < 8 else lanes


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
    yield from _gathered(array, count)


def _gathered(array: Array, count: int) -> Iterator[Array]:
    """`_chunks` of an array with gaps: copied into one buffer, piece by piece.

    The pieces are larger than the chunks, because `copy_host` is fast if the rows of a
    transposed source are many.
    """
    import numpy as np

    most = max(count, _GATHERED // array.itemsize // count * count)
    buffer = np.empty(min(most + count, array.size), array.dtype)
    filled = 0  # less than a chunk, before each piece
    for piece in _pieces(array, most):
        copy_host(buffer[filled : filled + piece.size].reshape(piece.shape), piece)
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
    import numpy as np

    axis = 0
    while prod(array.shape[axis + 1 :]) > count:
        axis += 1
    rows = count // prod(array.shape[axis + 1 :])
    for outer in np.ndindex(array.shape[:axis]):
        part = array[outer]
        for start in range(0, len(part), rows):
            yield part[start : start + rows]
