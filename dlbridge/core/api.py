"""The main functions of dlbridge: tensors in, moved, made and explained."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from dlbridge.core.dlpack.requests import check_copy
from dlbridge.core.dlpack.structs import MAX_NDIM
from dlbridge.core.incoming import array_likes, producers
from dlbridge.core.moves.allocate import MIN_ALIGNMENT, allocate
from dlbridge.core.moves.copies import copy_elements
from dlbridge.core.moves.plans import plan_move
from dlbridge.core.moves.progress import reporter
from dlbridge.core.moves.transfer import move, run
from dlbridge.core.outgoing.like import as_library, library_step
from dlbridge.core.plugins.lookup import backend_of, find_device, supports
from dlbridge.core.plugins.streams import use_stream
from dlbridge.core.public import public
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.dtypes import check, dtype as as_dtype
from dlbridge.errors import ExchangeError
from dlbridge.protocol import SupportsFill

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import jax
    import numpy as np
    import torch

    from dlbridge.core.moves.plans import Plan
    from dlbridge.typing import (
        ArrayLike,
        DeviceLike,
        DTypeLike,
        ProgressLike,
        StreamLike,
        SupportsDLPack,
    )

    _Array = TypeVar("_Array", bound=SupportsDLPack)

__all__ = ["asarray", "copy_", "empty", "explain", "from_dlpack", "plan", "to_device", "zeros"]

MAX_ALIGNMENT = 1 << 30
"""Bytes: a huge page of the largest kind; a request for more is a mistake."""


# In ---------------------------------------------------------------------------


@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    device: DeviceLike | None = ...,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: Literal["dlbridge"] | None = ...,
) -> Tensor: ...
@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    device: DeviceLike | None = ...,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: Literal["numpy"],
) -> np.ndarray[Any, Any]: ...
@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    device: DeviceLike | None = ...,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: Literal["torch"],
) -> torch.Tensor: ...
@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    device: DeviceLike | None = ...,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: Literal["jax"],
) -> jax.Array: ...
@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    device: DeviceLike | None = ...,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: type[_Array] | _Array,
) -> _Array: ...
@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    device: DeviceLike | None = ...,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: str | ModuleType,
) -> Any: ...  # the array type of a library that is known by name only
@public
def from_dlpack(
    x: Any,
    /,
    *,
    device: DeviceLike | None = None,
    copy: bool | None = None,
    stream: StreamLike | None = None,
    like: Any = None,
) -> Any:
    """Return a Tensor on the memory of a DLPack producer.

    Parameters
    ----------
    x : SupportsDLPack
        Any object with ``__dlpack__`` and ``__dlpack_device__``, or a capsule.
    device : DeviceLike, optional
        Where the tensor shall be: the producer moves it there where it can, and
        the device's backend otherwise. None: where it is.
    copy : bool, optional
        True always copies, False never; None copies only to reach *device*.
    stream : StreamLike, optional
        The stream that you will use the tensor on, by the rules of its device;
        the current one if None.
    like : str, module, array or array type, optional
        The library whose array is wanted instead of a Tensor, as in `to_device`.

    Returns
    -------
    Tensor
        On the same memory, which it keeps alive; or an array of *like*.

    Raises
    ------
    TypeError
        If *x* is not a producer (`asarray` takes more).
    ExchangeError
        A BufferError, for a tensor that cannot be had that way. A producer's
        own errors pass through.

    Notes
    -----
    Source: array API 2024.12, ``from_dlpack``; dlpack.h 1.3.

    Examples
    --------
    >>> a = np.arange(3)
    >>> t = bridge.from_dlpack(a)
    >>> t.data_ptr() == a.ctypes.data
    True
    """
    if device is None and copy is None and stream is None and like is None:
        importer = producers.IMPORTERS.get(type(x)) or producers.find_importer(type(x))
        if importer is not None:
            return importer(x)
    check_copy(copy)
    target = None if device is None else find_device(device)
    tensor = producers.import_producer(x, target, copy, stream)
    if copy is True or (target is not None and tensor.device is not target):
        tensor = move(tensor, target or tensor.device, copy)
    return tensor if like is None else as_library(tensor, like, copy)


@public
def asarray(
    x: ArrayLike,
    /,
    *,
    device: DeviceLike | None = None,
    dtype: DTypeLike | None = None,
    copy: bool | None = None,
) -> Tensor:
    """Return a Tensor of any array, buffer or list, without a copy if its memory can be shared.

    Parameters
    ----------
    x : ArrayLike
        The same as for `from_dlpack`; the objects of a backend's ecosystem (pyopencl
        arrays, Vulkan buffers); ``__cuda_array_interface__``;
        ``__array_interface__``; buffers (bytes, memoryview, array, mmap); Arrow
        arrays; Python numbers and nested lists.
    device : DeviceLike, optional
        Where the tensor shall be. None: where it is.
    dtype : DTypeLike, optional
        The type that numbers and lists become. Memory that has another type is
        refused.
    copy : bool, optional
        As in `to_device`; False refuses a list, which has no memory to share.

    Returns
    -------
    Tensor
        On the memory of *x*, or on a copy of it.

    Raises
    ------
    TypeError
        If *x* is not such an object.
    ValueError
        Where *dtype* would change a number by more than rounding a float.
    ExchangeError
        A BufferError, where the tensor cannot be had that way.

    Examples
    --------
    >>> bridge.asarray([[1, 2], [3, 4]], dtype="uint8")
    dlbridge.Tensor(uint8, shape=(2, 2), device=cpu:0, memory from numpy.ndarray)
    """
    wanted = None if dtype is None else as_dtype(dtype)
    tensor = array_likes.import_anything(x, wanted, copy)
    if wanted is not None and tensor.dtype is not wanted:
        raise ExchangeError(
            f"{producers.origin_of(x)} holds {tensor.dtype}, and dlbridge converts no elements: "
            f"convert it in its own library first, or read its memory as {wanted}: "
            "asarray(x).view(dtype)"
        )
    if device is None and (copy is None or copy is False):
        return tensor
    return move(tensor, tensor.device if device is None else find_device(device), copy)


# Moved ------------------------------------------------------------------------


@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    *,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: Literal["dlbridge"] | None = ...,
    progress: ProgressLike = ...,
) -> Tensor: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    *,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: Literal["numpy"],
    progress: ProgressLike = ...,
) -> np.ndarray[Any, Any]: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    *,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: Literal["torch"],
    progress: ProgressLike = ...,
) -> torch.Tensor: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    *,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: Literal["jax"],
    progress: ProgressLike = ...,
) -> jax.Array: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    *,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: type[_Array] | _Array,
    progress: ProgressLike = ...,
) -> _Array: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    *,
    copy: bool | None = ...,
    stream: StreamLike | None = ...,
    like: str | ModuleType,
    progress: ProgressLike = ...,
) -> Any: ...  # the array type of a library that is known by name only
@public
def to_device(
    x: Any,
    device: DeviceLike,
    *,
    copy: bool | None = None,
    stream: StreamLike | None = None,
    like: Any = None,
    progress: ProgressLike = None,
) -> Any:
    """Return any library's tensor on *device*: as a Tensor, or as an array of the library *like*.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes.
    device : DeviceLike
        ``"opencl:0"``, ``"cpu"``, ...; `dlbridge.device` says what is taken.
    copy : bool, optional
        None shares memory where that is possible, True never shares, False
        never copies.
    stream : StreamLike, optional
        The stream of *device* that a copy is queued on; the current one if None.
    like : str, module, array or array type, optional
        ``"numpy"``, ``"torch"``, ``"jax"``, ``"tvm_ffi"``, ``"cupy"``, the name
        of any module with ``from_dlpack``, such a module, or one of its arrays
        or array types. None: a `Tensor`.
    progress : bool or callable, optional
        Called with ``(done, total)`` bytes after each 64 MiB; True shows a bar
        for 256 MiB and more.

    Returns
    -------
    Tensor
        Or an array of *like*.

    Raises
    ------
    ExchangeError
        A BufferError: where *copy* is False and a step would copy, naming the
        step; where the library cannot have the tensor.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if the device has no room.

    See Also
    --------
    explain : The steps of a move, and their reasons.

    Examples
    --------
    >>> bridge.to_device(np.ones(2, "float32"), "cpu", like="numpy")
    array([1., 1.], dtype=float32)
    """
    tensor = _at_its_place(x, copy)
    target = find_device(device)
    operand = operand_of(tensor)
    steps = plan_move(operand, target, copy, tensor.origin)
    if stream is None and progress is None:
        moved = run(steps, tensor, operand)
    else:
        on = nullcontext() if stream is None else use_stream(target, stream)
        with on, reporter(progress, steps.nbytes) as report:
            moved = run(steps, tensor, operand, report)
    return moved if like is None else as_library(moved, like, copy)


def _at_its_place(x: Any, copy: bool | None) -> Tensor:
    """A Tensor of *x* where it is: the plan makes the copy that is wanted."""
    if isinstance(x, Tensor):
        return x
    importer = producers.IMPORTERS.get(type(x))
    if importer is not None and copy is None:
        return importer(x)
    return asarray(x, copy=False if copy is False else None)


@public
def plan(x: ArrayLike, device: DeviceLike, *, copy: bool | None = None, like: Any = None) -> Plan:
    """Return the plan of `to_device` with the same arguments; nothing is moved.

    Parameters
    ----------
    x, device, copy, like
        As in `to_device`.

    Returns
    -------
    Plan
        The steps, the bytes that each copies, and why.

    Examples
    --------
    >>> bridge.plan(np.zeros(8), "cpu", copy=True).nbytes
    64
    """
    if type(x).__name__ == "PyCapsule":
        raise TypeError(
            "a plan for a capsule would use it up; t = dlbridge.from_dlpack(capsule), then plan "
            "or explain t"
        )
    tensor = _at_its_place(x, copy)
    steps = plan_move(operand_of(tensor), find_device(device), copy, tensor.origin)
    if like is not None:
        fresh = steps.copies > 0
        copies, reason = library_step(tensor, like, copy, device=steps.target, fresh=fresh)
        nbytes = tensor.nbytes if copies else 0
        steps.add("as library", steps.target, steps.target, nbytes, reason)
    return steps


@public
def explain(x: ArrayLike, device: DeviceLike, *, copy: bool | None = None, like: Any = None) -> str:
    """Return the steps that would bring *x* to *device*, the bytes copied, and why, as text.

    Parameters
    ----------
    x, device, copy, like
        As in `to_device`.

    Returns
    -------
    str
        One line for the move, and one for each step.

    Examples
    --------
    >>> print(bridge.explain(np.zeros(8), "cpu", copy=True))
    float64 (8,) from numpy.ndarray: cpu:0 -> cpu:0, 64 bytes copied
      1. copy: cpu:0 -> cpu:0, 64 bytes copied: copy=True was asked for
    """
    return str(plan(x, device, copy=copy, like=like))


@public
def copy_(dst: ArrayLike, src: ArrayLike, *, progress: ProgressLike = None) -> None:
    """Copy the elements of *src* into the memory of *dst*: same shape, same dtype.

    Parameters
    ----------
    dst, src : ArrayLike
        Any library's arrays on any devices. They may overlap.
    progress : bool or callable, optional
        As in `to_device`; no trace records the copy.

    Raises
    ------
    ValueError
        If shapes or dtypes differ.
    ExchangeError
        A BufferError, if *dst* is read-only, or has elements that share memory.

    Examples
    --------
    >>> a = np.zeros(3)
    >>> bridge.copy_(a, np.arange(3.0))
    >>> a
    array([0., 1., 2.])
    """
    target = dst if isinstance(dst, Tensor) else asarray(dst, copy=False)
    source = src if isinstance(src, Tensor) else asarray(src)
    into, given = operand_of(target), operand_of(source)
    if into.shape != given.shape or into.dtype is not given.dtype:
        raise ValueError(
            f"cannot copy {given.dtype} {given.shape} into {into.dtype} {into.shape}: "
            "shapes and dtypes must be equal; make a view (reshape, view) or convert before"
        )
    if into.readonly:
        raise ExchangeError(f"{target!r} is read-only and cannot be copied into")
    if not into.contiguous and any(
        extent > 1 and not step for extent, step in zip(into.shape, into.strides, strict=True)
    ):
        raise ExchangeError(
            f"{target!r} has strides {into.strides}: elements share memory (a broadcast view), "
            "so a copy into it would keep the last of each only; copy into the tensor that it is "
            "a view of"
        )
    if progress is None:  # without the block a copy of 4 KiB takes 1 us less
        copy_elements(into, given)
        return
    with reporter(progress, into.nbytes) as report:
        copy_elements(into, given, report)


# Made -------------------------------------------------------------------------


@public
def empty(
    shape: int | Sequence[int],
    dtype: DTypeLike = "float32",
    device: DeviceLike = "cpu",
    *,
    alignment: int = MIN_ALIGNMENT,
) -> Tensor:
    """Return a new compact tensor whose elements are not initialised.

    Parameters
    ----------
    shape : int or sequence of int
        The extents, in elements.
    dtype : DTypeLike
        The type of an element; `dlbridge.dtype` says what is taken.
    device : DeviceLike
        The device of the memory; `dlbridge.device` says what is taken.
    alignment : int
        In bytes, a power of two. At least 256 is given, as ``dlpack.h`` asks;
        4096 makes host memory that Vulkan can use in place.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    DeviceMemoryError
        A MemoryError, if the device has no room.

    Examples
    --------
    >>> bridge.empty((2, 3), "float16").nbytes
    12
    """
    extents = tuple(map(index, shape)) if isinstance(shape, Iterable) else (index(shape),)
    kind = as_dtype(dtype)
    check(kind.code, kind.bits, kind.lanes)
    where = find_device(device)
    if not all(0 <= extent < 1 << 63 for extent in extents) or len(extents) > MAX_NDIM:
        raise ValueError(
            f"shape {extents}: extents are 0 or more and int64, at most {MAX_NDIM} of them"
        )
    return allocate(where, kind, extents, alignment=max(_check_alignment(alignment), MIN_ALIGNMENT))


def _check_alignment(given: Any) -> int:
    """*given* as a power of two, in bytes."""
    try:
        alignment = index(given)
    except TypeError:
        alignment = None
    if isinstance(given, bool) or alignment is None:
        raise TypeError(
            f"alignment {given!r} is not a number of bytes; give a power of two, as 4096"
        )
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(
            f"alignment {alignment} is not a power of two from 1 to {MAX_ALIGNMENT} bytes"
        )
    return alignment


@public
def zeros(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", device: DeviceLike = "cpu"
) -> Tensor:
    """Return a new compact tensor of zeros.

    Parameters
    ----------
    shape, dtype, device
        As in `empty`.

    Returns
    -------
    Tensor
        On new memory.

    Examples
    --------
    >>> bridge.zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """
    tensor = empty(shape, dtype, device)
    operand = operand_of(tensor)
    where = operand.device
    if not operand.size:
        return tensor
    plugin = backend_of(where)
    if supports(plugin, SupportsFill):
        stream = operand.access()
        plugin.fill(where.index, operand.data, operand.byte_offset, operand.nbytes, 0, stream)
    else:
        copy_elements(operand, operand_of(zeros(shape, dtype, "cpu")))
    return tensor
