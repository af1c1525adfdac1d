"""New tensors: empty, zeros, ones, full, and those like another array."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from dlbridge import _methods as methods
from dlbridge.core.dlpack.structs import MAX_NDIM
from dlbridge.core.moves.fills import fill
from dlbridge.core.plugins.cpu import MIN_ALIGNMENT
from dlbridge.core.plugins.lookup import FOUND, check_device
from dlbridge.core.public import public
from dlbridge.core.tensor.array_tensor import tensor_on
from dlbridge.core.tensor.memory import new_memory
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.dtypes import DType, check_dtype, dtype as as_dtype, is_name
from dlbridge.core.values.subbyte import pack_bits
from dlbridge.core.values.text import with_article
from dlbridge.errors import Error

from .lists import array_of
from .moving import asarray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlbridge.typing import ArrayLike, DeviceLike, DTypeLike

MAX_ALIGNMENT = 1 << 30
"""The largest alignment accepted, in bytes: the largest huge page (1 GiB)."""

NAMED_TYPES: dict[str, DType] = {}
"""Cache: the types of tensors by the texts that have named them."""


@public
def empty(
    shape: int | Sequence[int],
    dtype: DTypeLike = "float32",
    device: DeviceLike = "cpu",
    *,
    alignment: int = MIN_ALIGNMENT,
    shared: bool = False,
) -> Tensor:
    """Return a new compact tensor whose elements are not initialised.

    Parameters
    ----------
    shape : int or sequence of int
        The extents, in elements.
    dtype : DTypeLike
        The type of an element; `dlbridge.dtype` says what is accepted.
    device : DeviceLike
        The device of the memory; `dlbridge.device` says what is accepted.
    alignment : int
        In bytes, a power of two. At least 256 is given, as ``dlpack.h`` asks;
        4096 makes host memory that Vulkan can use in place.
    shared : bool
        Whether other processes can have the memory without a copy, as that of
        `share`. Host memory begins on a page. The bytes are zero.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    TypeError
        If an argument is not of its kind: *shape* not of integers, for example.
    ValueError
        If an extent is negative or has more than 63 bits, if there are more than
        64 of them, if *alignment* is not a power of two up to 1 GiB,
        or if no device has such a name. If *alignment* is more than a page for
        shared memory.
    ExchangeError
        If the device does not exist, DLPack has no such *dtype*, or the device cannot
        work in shared memory. It is also a BufferError.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if the device does not have enough memory.

    Examples
    --------
    >>> bridge.empty((2, 3), "float16").nbytes
    12
    """
    extents = (shape,) if type(shape) is int and 0 <= shape < 1 << 63 else extents_of(shape)
    # Without a call where a text is known: these lines were half of the time of small memory.
    known = type(dtype) is str and dtype in NAMED_TYPES
    kind = NAMED_TYPES[dtype] if known else dtype_of(dtype)  # type: ignore[index]  # a str
    where = FOUND[device] if type(device) is str and device in FOUND else check_device(device)
    if type(alignment) is not int or alignment != MIN_ALIGNMENT:
        alignment = max(check_alignment(alignment), MIN_ALIGNMENT)
    if not shared:
        memory = new_memory(where, kind.nbytes(prod(extents)), alignment=alignment)
        return tensor_on(memory, kind, extents)
    return methods.empty_shared(where, kind, extents, alignment)


def extents_of(shape: int | Sequence[int]) -> tuple[int, ...]:
    """The extents that *shape* names; TypeError or ValueError if it names none."""
    if type(shape) is tuple and len(shape) <= MAX_NDIM:
        for extent in shape:  # at once for what most programs pass: 0.13 us of 0.44
            if type(extent) is not int or not 0 <= extent < 1 << 63:
                break
        else:
            return shape
    several: Any = shape if type(shape) is tuple or isinstance(shape, Iterable) else (shape,)
    try:
        extents = tuple(map(index, several))
    except TypeError as exc:
        given: Any = shape
        named = isinstance(given, str) and is_name(given)
        hint = f"; {shape!r} is a dtype, and the shape comes before it" if named else ""
        raise TypeError(f"shape {shape!r} is not an integer, or integers: {exc}{hint}") from exc
    if len(extents) > MAX_NDIM or (extents and (min(extents) < 0 or max(extents) >= 1 << 63)):
        raise ValueError(
            f"shape {extents}: extents are 0 or more and int64, at most {MAX_NDIM} of them"
        )
    return extents


@public
def zeros(
    shape: int | Sequence[int],
    dtype: DTypeLike = "float32",
    device: DeviceLike = "cpu",
    *,
    alignment: int = MIN_ALIGNMENT,
    shared: bool = False,
) -> Tensor:
    """Return a new compact tensor of zeros.

    Parameters
    ----------
    shape, dtype, device, alignment, shared
        As in `empty`.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    TypeError, ValueError, ExchangeError, BackendUnavailable, DeviceMemoryError
        As for `empty`.
    DeviceError
        If the device cannot fill the memory.

    Examples
    --------
    >>> bridge.zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """
    tensor = empty(shape, dtype, device, alignment=alignment, shared=shared)
    fill(tensor, b"\0")
    return tensor


@public
def ones(
    shape: int | Sequence[int],
    dtype: DTypeLike = "float32",
    device: DeviceLike = "cpu",
    *,
    alignment: int = MIN_ALIGNMENT,
    shared: bool = False,
) -> Tensor:
    """Return a new compact tensor of ones.

    Parameters
    ----------
    shape, dtype, device, alignment, shared
        As in `empty`.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    TypeError, ValueError, ExchangeError, BackendUnavailable, DeviceMemoryError, DeviceError
        As for `zeros`.

    Examples
    --------
    >>> bridge.ones((2, 2), "int8").tolist()
    [[1, 1], [1, 1]]
    """
    # None is no dtype here.
    return full(shape, 1, dtype_of(dtype), device, alignment=alignment, shared=shared)


@public
def full(
    shape: int | Sequence[int],
    fill_value: complex,
    dtype: DTypeLike | None = None,
    device: DeviceLike = "cpu",
    *,
    alignment: int = MIN_ALIGNMENT,
    shared: bool = False,
) -> Tensor:
    """Return a new compact tensor, each element of which is *fill_value*.

    Parameters
    ----------
    shape, device, alignment, shared
        As in `empty`.
    fill_value : bool, int, float or complex
        The number. Each lane of a vector type gets it.
    dtype : DTypeLike, optional
        The type of an element. None: bool, int64, float32 or complex64, by the type
        of *fill_value* (uint64 for an integer from 2**63 on), or the type of a scalar
        of numpy.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    TypeError
        If *fill_value* is not a number, or as for `empty`.
    ValueError
        If *dtype* would change *fill_value* by more than rounding a float, or as for
        `empty`.
    ExchangeError, BackendUnavailable, DeviceMemoryError, DeviceError
        As for `zeros`.

    Examples
    --------
    >>> bridge.full(3, 7, "uint8").tolist()
    [7, 7, 7]
    >>> bridge.full((), 0.5).dtype
    dlbridge.dtype('float32')
    """
    kind = dtype_of(_usual_dtype(fill_value) if dtype is None else dtype)
    # Before the memory: a number that the type does not have allocates nothing.
    pattern = pattern_of(fill_value, kind)
    tensor = empty(shape, kind, device, alignment=alignment, shared=shared)
    fill(tensor, pattern)
    return tensor


def dtype_of(dtype: DTypeLike) -> DType:
    """The DType of *dtype*, if a tensor can have it."""
    try:
        kind = as_dtype(dtype)
    except TypeError as exc:
        raise _explained(dtype, exc) from exc
    check_dtype(kind)
    if type(dtype) is str and len(NAMED_TYPES) < 512:
        NAMED_TYPES[dtype] = kind
    return kind


def _explained(dtype: object, error: TypeError) -> TypeError:
    """The *error* for what is no dtype; for an extent or a device it says so."""
    if isinstance(dtype, SupportsIndex):
        return TypeError(
            f"{dtype!r} is not a dtype: a shape of several extents is one tuple, as in "
            "zeros((2, 3)), and the dtype comes after it"
        )
    if isinstance(dtype, tuple | list):
        return TypeError(
            f"{dtype!r} is not a dtype: the shape comes first, as in "
            "zeros((2, 2), 'float32', 'cpu'); a dtype by (code, bits, lanes) is three integers"
        )
    if _is_device(dtype):
        return TypeError(
            f"{dtype!r} is a device, not a dtype: pass device={dtype!r}, since the argument "
            "after the shape is the dtype"
        )
    return TypeError(str(error))


def _is_device(dtype: Any) -> bool:
    try:
        check_device(dtype)
    except (TypeError, ValueError):
        return False
    except Error:  # a device that is not here is one, too
        pass
    return True


def _usual_dtype(value: Any) -> DTypeLike:
    """The type for *value*, where the caller names none."""
    dtype: DTypeLike | None = getattr(value, "dtype", None)  # a scalar of numpy
    if dtype is not None:
        return dtype
    for kind, name in _USUAL:
        if isinstance(value, kind):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                return asarray(value).dtype  # uint64, or an error with the way out
            return name
    raise TypeError(
        f"fill_value is {with_article(type(value).__name__)}, not a number; "
        + (
            "the shape comes first: full((2, 2), 3)"
            if isinstance(value, tuple)
            else "give a bool, int, float or complex, or name the dtype"
        )
    )


_USUAL = ((bool, "bool"), (int, "int64"), (float, "float32"), (complex, "complex64"))


@public
def empty_like(
    x: ArrayLike,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    alignment: int = MIN_ALIGNMENT,
) -> Tensor:
    """Return a new compact tensor of the shape of *x*, whose elements are not initialised.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes.
    dtype : DTypeLike, optional
        The type of an element; that of *x* if None. Elements below a byte are packed,
        also where those of *x* take a byte each.
    device : DeviceLike, optional
        The device of the memory; that of *x* if None.
    alignment : int
        As in `empty`.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    TypeError, ValueError, ExchangeError, BackendUnavailable, DeviceMemoryError
        As for `asarray` and `empty`.

    Examples
    --------
    >>> t = bridge.empty_like(np.zeros((2, 3), "int16"))
    >>> t.shape, t.dtype, t.device
    ((2, 3), dlbridge.dtype('int16'), dlbridge.device('cpu:0'))
    """
    return empty(*_of_model(x, dtype, device), alignment=alignment)


def _of_model(
    x: ArrayLike, dtype: DTypeLike | None, device: DeviceLike | None
) -> tuple[tuple[int, ...], DTypeLike, DeviceLike]:
    """The shape of *x*, with its dtype and its device where they are None."""
    model = x if isinstance(x, Tensor) else asarray(x)
    kind = model.dtype if dtype is None else dtype
    return model.shape, kind, model.device if device is None else device


@public
def zeros_like(
    x: ArrayLike,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    alignment: int = MIN_ALIGNMENT,
) -> Tensor:
    """Return a new compact tensor of zeros, of the shape of *x*.

    Parameters
    ----------
    x, dtype, device, alignment
        As in `empty_like`.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    TypeError, ValueError, ExchangeError, BackendUnavailable, DeviceMemoryError, DeviceError
        As for `empty_like` and `zeros`.

    Examples
    --------
    >>> bridge.zeros_like([1, 2]).tolist()
    [0, 0]
    """
    return zeros(*_of_model(x, dtype, device), alignment=alignment)


@public
def ones_like(
    x: ArrayLike,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    alignment: int = MIN_ALIGNMENT,
) -> Tensor:
    """Return a new compact tensor of ones, of the shape of *x*.

    Parameters
    ----------
    x, dtype, device, alignment
        As in `empty_like`.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    TypeError, ValueError, ExchangeError, BackendUnavailable, DeviceMemoryError, DeviceError
        As for `empty_like` and `zeros`.

    Examples
    --------
    >>> bridge.ones_like([1.5, 2.5]).tolist()
    [1.0, 1.0]
    """
    return full_like(x, 1, dtype=dtype, device=device, alignment=alignment)


@public
def full_like(
    x: ArrayLike,
    /,
    fill_value: complex,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    alignment: int = MIN_ALIGNMENT,
) -> Tensor:
    """Return a new compact tensor of the shape of *x*, each element of which is *fill_value*.

    Parameters
    ----------
    x, dtype, device, alignment
        As in `empty_like`.
    fill_value : bool, int, float or complex
        As in `full`.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    TypeError, ValueError, ExchangeError, BackendUnavailable, DeviceMemoryError, DeviceError
        As for `empty_like` and `full`.

    Examples
    --------
    >>> bridge.full_like([1, 2], 9).tolist()
    [9, 9]
    """
    shape, kind, where = _of_model(x, dtype, device)
    return full(shape, fill_value, kind, where, alignment=alignment)


def check_alignment(value: Any) -> int:
    """*value* as a power of two, in bytes."""
    try:
        alignment = index(value)
    except TypeError:
        alignment = None
    if isinstance(value, bool) or alignment is None:
        raise TypeError(
            f"alignment {value!r} is not a number of bytes; give a power of two, such as 4096"
        )
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(
            f"alignment {alignment} is not a power of two from 1 to {MAX_ALIGNMENT} bytes"
        )
    return alignment


def pattern_of(value: Any, dtype: DType) -> bytes:
    """The bytes of one element of *dtype* whose lanes are *value*; of 8 elements below a byte."""
    import numpy as np

    lane = DType.of(dtype.code, dtype.bits, 1)
    number = value if isinstance(value, (bool, int, float, complex)) else _scalar(value)
    raw = array_of(number, lane, _unused).reshape(1).view("u1")
    if dtype.is_subbyte:
        return pack_bits(np.repeat(raw, 8 * dtype.lanes), dtype)
    if dtype.bits < 8:  # int4x2, for example: packed, and whole bytes
        return pack_bits(np.repeat(raw, dtype.lanes), dtype)
    return raw.tobytes() * dtype.lanes


def _scalar(value: Any) -> Any:
    """The Python number of a scalar of numpy, for example."""
    number = value
    if hasattr(value, "item") and not getattr(value, "shape", ()):
        number = value.item()
    if not isinstance(number, (bool, int, float, complex)):
        raise TypeError(
            f"fill_value is {with_article(type(value).__name__)}, not a number; give a bool, int, "
            "float or complex"
        )
    return number


def _unused(_array: Any) -> Any:
    raise AssertionError("a number has no arrays in it")
