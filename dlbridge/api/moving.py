"""The main functions of dlbridge: tensors in, moved, copied and explained."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from dlbridge.api import on_demand
from dlbridge.api.anything import BUFFERS, NUMBERS, import_anything, refuse_read_once
from dlbridge.api.routes import ITSELF, ROUTES, Move, at_its_place, check_progress, find_route
from dlbridge.core.dlpack.exports import check_copy
from dlbridge.core.interfaces.dlpack import import_producer
from dlbridge.core.libraries.library import origin_of
from dlbridge.core.libraries.lookup import IMPORTERS, importer_of
from dlbridge.core.moves.copies import copy_elements
from dlbridge.core.moves.plans import record_run, recorded
from dlbridge.core.moves.progress import reporter
from dlbridge.core.moves.transfer import move
from dlbridge.core.plugins.lookup import check_device
from dlbridge.core.public import public
from dlbridge.core.tensor.metadata import describe
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.traces import INSIDE, TRACES, is_recording
from dlbridge.core.values.dtypes import ForeignByteOrder, dtype as as_dtype
from dlbridge.core.values.layout import shares_places
from dlbridge.core.values.text import with_article
from dlbridge.errors import Error, ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import cupy
    import jax
    import numpy as np
    import pyopencl.array
    import torch
    import tvm_ffi
    from typing_extensions import Unpack

    from dlbridge.core.moves.plans import Plan
    from dlbridge.typing import (
        ArrayClassModule,
        ArrayLike,
        ArrayModule,
        DeviceLike,
        DTypeLike,
        FromDLPackOptions,
        ProgressLike,
        StreamLike,
        SupportsDLPack,
        TensorClassModule,
        ToDeviceOptions,
        VulkanTensor,
        WebGPUTensor,
    )

    _Array = TypeVar("_Array", bound=SupportsDLPack)
    _Made = TypeVar("_Made")


# In ---------------------------------------------------------------------------


@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    like: Literal["dlbridge"] | None = ...,
    **options: Unpack[FromDLPackOptions],
) -> Tensor: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: Literal["numpy"], **options: Unpack[FromDLPackOptions]
) -> np.ndarray[Any, Any]: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: Literal["torch"], **options: Unpack[FromDLPackOptions]
) -> torch.Tensor: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: Literal["jax"], **options: Unpack[FromDLPackOptions]
) -> jax.Array: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: Literal["tvm_ffi"], **options: Unpack[FromDLPackOptions]
) -> tvm_ffi.Tensor: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: Literal["cupy"], **options: Unpack[FromDLPackOptions]
) -> cupy.ndarray: ...
@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    like: Literal["opencl", "pyopencl"],
    **options: Unpack[FromDLPackOptions],
) -> pyopencl.array.Array: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: Literal["vulkan"], **options: Unpack[FromDLPackOptions]
) -> VulkanTensor: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: Literal["webgpu"], **options: Unpack[FromDLPackOptions]
) -> WebGPUTensor: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: type[_Array] | _Array, **options: Unpack[FromDLPackOptions]
) -> _Array: ...
@overload
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    like: TensorClassModule[_Made] | ArrayClassModule[_Made] | ArrayModule[_Made],
    **options: Unpack[FromDLPackOptions],
) -> _Made: ...
@overload
def from_dlpack(
    x: SupportsDLPack, /, *, like: str | ModuleType, **options: Unpack[FromDLPackOptions]
) -> Any: ...  # an array of a library that is known by name only
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
        The device of the result. The producer moves the tensor if it can;
        otherwise the device's backend does. None: the tensor stays where it is.
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
        If *x* is not a producer (`asarray` takes more), or another argument is not
        what it must be.
    ValueError
        If no device has such a name, or the device has no such stream.
    ExchangeError
        The tensor cannot be given with this *device* or *copy*. It is also a
        BufferError. A producer's own errors pass through.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if the device does not have enough memory.
    ModuleNotFoundError
        If the library *like* is not installed.

    Notes
    -----
    Source: array API 2025.12, ``from_dlpack``; dlpack.h 1.3.

    Examples
    --------
    >>> a = np.arange(3)
    >>> t = bridge.from_dlpack(a)
    >>> t.data_ptr() == a.ctypes.data
    True
    """
    if device is None and copy is None and stream is None:
        importer: Callable[[Any], Tensor] | None
        try:
            importer = IMPORTERS[type(x)]
        except KeyError:
            importer = importer_of(type(x))
        if importer is not None:
            return importer(x) if like is None else on_demand.as_library(importer(x), like, copy)
    if copy is not None:
        check_copy(copy)
    target = None if device is None else check_device(device)
    tensor = import_producer(x, target, copy, stream)
    if copy is True or (target is not None and tensor.device is not target):
        tensor = move(tensor, target or tensor.device, copy)
    return tensor if like is None else on_demand.as_library(tensor, like, copy)


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

    Elements of the other byte order (``">f4"`` on most machines) are converted, in new memory.

    Parameters
    ----------
    x : ArrayLike
        The same as for `from_dlpack`; the objects of a backend's ecosystem (pyopencl
        arrays, Vulkan buffers); ``__cuda_array_interface__``;
        ``__array_interface__``; buffers (bytes, memoryview, array, mmap); Arrow
        arrays; Python numbers and nested lists.
    device : DeviceLike, optional
        The device of the result. None: the tensor stays where it is.
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
        If *x* is not such an object, or another argument has the wrong type.
    ValueError
        If *dtype* would change a number by more than rounding a float, the lists do
        not form a rectangle, or no device has such a name.
    ExchangeError
        The tensor cannot be given with this *device*, *dtype* or *copy*. It is also
        a BufferError.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if the device does not have enough memory.

    Examples
    --------
    >>> print(bridge.asarray([[1, 2], [3, 4]], dtype="uint8"))
    [[1 2]
     [3 4]]
    uint8 (2, 2) on cpu:0
    """
    if device is None and dtype is None and copy is None:
        importer = IMPORTERS.get(type(x))
        if importer is not None:
            try:
                return importer(x)
            except ForeignByteOrder:
                pass  # it is converted below
    # What is wrong is said before a capsule is used up.
    check_copy(copy)
    wanted = None if dtype is None else as_dtype(dtype)
    target = None if device is None else check_device(device)
    start = time.perf_counter()
    tensor = import_anything(x, wanted, copy, device)
    if wanted is not None and tensor.dtype is not wanted:
        raise ExchangeError(
            f"{origin_of(x)} holds {tensor.dtype}, and asarray converts no elements: "
            f"dlbridge.astype(x, {wanted.name!r}) does, in new memory; "
            f"dlbridge.asarray(x).view({wanted.name!r}) reads the memory as {wanted}"
            + on_demand.used_up(x)
        )
    if target is None and (copy is None or copy is False):
        if copy is None and type(x) not in BUFFERS and is_recording():
            read = Move(x, tensor, tensor.device, None).plan()
            if read.nbytes:
                record_run(read, None, tensor, time.perf_counter() - start)
        return tensor
    moved: Tensor = Move(x, tensor, target or tensor.device, copy).run()
    return moved


# Moved ------------------------------------------------------------------------


@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    like: Literal["dlbridge"] | None = ...,
    **options: Unpack[ToDeviceOptions],
) -> Tensor: ...
@overload
def to_device(
    x: ArrayLike, device: DeviceLike, like: Literal["numpy"], **options: Unpack[ToDeviceOptions]
) -> np.ndarray[Any, Any]: ...
@overload
def to_device(
    x: ArrayLike, device: DeviceLike, like: Literal["torch"], **options: Unpack[ToDeviceOptions]
) -> torch.Tensor: ...
@overload
def to_device(
    x: ArrayLike, device: DeviceLike, like: Literal["jax"], **options: Unpack[ToDeviceOptions]
) -> jax.Array: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    like: Literal["tvm_ffi"],
    **options: Unpack[ToDeviceOptions],
) -> tvm_ffi.Tensor: ...
@overload
def to_device(
    x: ArrayLike, device: DeviceLike, like: Literal["cupy"], **options: Unpack[ToDeviceOptions]
) -> cupy.ndarray: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    like: Literal["opencl", "pyopencl"],
    **options: Unpack[ToDeviceOptions],
) -> pyopencl.array.Array: ...
@overload
def to_device(
    x: ArrayLike, device: DeviceLike, like: Literal["vulkan"], **options: Unpack[ToDeviceOptions]
) -> VulkanTensor: ...
@overload
def to_device(
    x: ArrayLike, device: DeviceLike, like: Literal["webgpu"], **options: Unpack[ToDeviceOptions]
) -> WebGPUTensor: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    like: type[_Array] | _Array,
    **options: Unpack[ToDeviceOptions],
) -> _Array: ...
@overload
def to_device(
    x: ArrayLike,
    device: DeviceLike,
    like: TensorClassModule[_Made] | ArrayClassModule[_Made] | ArrayModule[_Made],
    **options: Unpack[ToDeviceOptions],
) -> _Made: ...
@overload
def to_device(
    x: ArrayLike, device: DeviceLike, like: str | ModuleType, **options: Unpack[ToDeviceOptions]
) -> Any: ...  # an array of a library that is known by name only
@public
def to_device(
    x: Any,
    device: DeviceLike,
    like: Any = None,
    *,
    copy: bool | None = None,
    stream: StreamLike | None = None,
    progress: ProgressLike = None,
) -> Any:
    """Return any library's tensor on *device*: as a Tensor, or as an array of the library *like*.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes.
    device : DeviceLike
        ``"opencl:0"``, ``"cpu"``, ...; `dlbridge.device` says what is accepted.
    like : str, module, array or array type, optional
        ``"numpy"``, ``"torch"``, ``"jax"``, ``"tvm_ffi"``, ``"cupy"``, the name
        of any module with ``from_dlpack``, such a module, or one of its arrays
        or array types; the name of the device's own backend (``"opencl"``) for
        an object of its ecosystem. None: a `Tensor`.
    copy : bool, optional
        None shares memory where that is possible, True never shares, False
        never copies.
    stream : StreamLike, optional
        The stream of *device* that a copy is queued on; the current one if None.
    progress : bool or callable, optional
        Called with ``(done, total)`` bytes after each 64 MiB; True shows a bar on a
        terminal and in a notebook for 256 MiB and more. Ctrl-C ends a long copy between
        such pieces; without this, after 256 MiB.

    Returns
    -------
    Tensor
        Or an array of *like*.

    Raises
    ------
    ExchangeError
        If *copy* is False and a step would copy (the message names the step), if
        the device does not exist, or if the library *like* cannot have the tensor.
        It is also a BufferError.
    TypeError
        If *x* is not accepted by `asarray`, or another argument has the wrong type.
    ValueError
        If no device has such a name, or the device has no such stream.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if the device does not have enough memory.
    ModuleNotFoundError
        If the library *like* is not installed.

    See Also
    --------
    explain : The steps of a move, and their reasons.

    Examples
    --------
    >>> bridge.to_device(np.ones(2, "float32"), "cpu", like="numpy")
    array([1., 1.], dtype=float32)
    """
    try:
        route = ROUTES[type(x), device, like]
    except (KeyError, TypeError) as miss:  # TypeError: an array, as like=, has no hash
        route = find_route(x, device, like, miss)
    if stream is None and progress is None and not TRACES:
        try:
            if copy is None and (at_once := route.at_once) is not None:
                if at_once is ITSELF:
                    return x
                result = at_once(x)
                if result is not None:
                    return result
            if route.is_plain and copy is not False:
                # `x` stays what it was: `dlbridge.watch` asks for its plan at the end.
                moved = move(x if route.importer is None else route.importer(x), route.target, copy)
                conversion = route.conversion
                if conversion is None:
                    return moved
                result = conversion.at_once(moved)
                if result is not None:
                    return result
                x, copy = moved, None  # it was made
        except ForeignByteOrder:
            pass  # it is converted below
    tensor = at_its_place(x, route.importer, copy, device)
    return Move(x, tensor, route.target, copy, route.conversion).run(stream, progress)


def way_to_host(tensor: Tensor) -> str:
    """How the host can read *tensor*, for messages: what the plan says of it."""
    try:
        nbytes = plan(tensor, "cpu").nbytes
    except Error as exc:
        return f"nor can it be brought there: {exc}"
    how = f"copies its {nbytes} bytes" if nbytes else "gives its memory to the host without a copy"
    return f"dlbridge.to_device(t, 'cpu') {how}"


@public
def plan(x: ArrayLike, device: DeviceLike, like: Any = None, *, copy: bool | None = None) -> Plan:
    """Return the plan of `to_device` with the same arguments; nothing is moved.

    Parameters
    ----------
    x, device, like, copy
        As in `to_device`.

    Returns
    -------
    Plan
        The steps, the bytes that each copies, and why.

    Raises
    ------
    ExchangeError
        If *copy* is False and a step would copy, if the device does not exist, or
        if the library *like* cannot have the tensor. It is also a BufferError.
    TypeError
        If *x* is a capsule, or an Arrow stream without a length, which planning would
        consume; if it is not accepted by `asarray`; if another argument has the wrong type.
    ValueError
        If no device has such a name.
    BackendUnavailable
        If no backend here serves *device*.
    ModuleNotFoundError
        If the library *like* is not installed.

    Examples
    --------
    >>> bridge.plan(np.zeros(8), "cpu", copy=True).nbytes
    64
    """
    refuse_read_once(x, "planning", "plan t")
    try:
        route = ROUTES[type(x), device, like]
    except (KeyError, TypeError) as miss:
        route = find_route(x, device, like, miss)
    tensor = at_its_place(x, route.importer, copy, device)
    return Move(x, tensor, route.target, copy, route.conversion).plan()


@public
def explain(x: ArrayLike, device: DeviceLike, like: Any = None, *, copy: bool | None = None) -> str:
    """Return the steps that would bring *x* to *device*, the bytes copied, and why, as text.

    Parameters
    ----------
    x, device, like, copy
        As in `to_device`.

    Returns
    -------
    str
        One line for the move, and one for each step.

    Raises
    ------
    ExchangeError, TypeError, ValueError, BackendUnavailable, ModuleNotFoundError
        As for `plan`.

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

    Elements below a byte are packed or unpacked where the two are stored differently.

    Parameters
    ----------
    dst, src : ArrayLike
        Any library's arrays on any devices. They may overlap. Numbers and lists, as *src*,
        become what *dst* has, as in `asarray`.
    progress : bool or callable, optional
        As in `to_device`.

    Raises
    ------
    ValueError
        If shapes or dtypes differ.
    TypeError
        If *dst* or *src* is not accepted by `asarray`.
    ExchangeError
        If *dst* is read-only, has no memory of its own (a list), or has elements
        that share memory: of a broadcast view, of windows that overlap. (Strides of
        many dimensions for which that cannot be decided in milliseconds are not
        refused.) It is also a BufferError.

    Notes
    -----
    A packed *dst* may end within a byte whose other bits are of elements beside it. They
    keep their values, but threads must not write such neighbours at the same time.

    Examples
    --------
    >>> a = np.zeros(3)
    >>> bridge.copy_(a, np.arange(3.0))
    >>> a
    array([0., 1., 2.])
    """
    target = dst if isinstance(dst, Tensor) else _in_place(dst)
    into = operand_of(target)
    if not isinstance(src, Tensor):  # numbers have no dtype of their own
        src = asarray(src, dtype=into.dtype if type(src) in NUMBERS else None)
    given = operand_of(src)
    if into.shape != given.shape or into.dtype is not given.dtype:
        ways = []
        if into.dtype is not given.dtype:
            ways.append(f"convert it: dlbridge.astype(source, '{into.dtype}')")
        if into.shape != given.shape:
            if not given.shape:
                ways.append("give one value for each element: dlbridge.full_like(t, value)")
            elif into.size == given.size:
                ways.append(f"reshape it: source.reshape({into.shape})")
                if sorted(into.shape) == sorted(given.shape):
                    ways[-1] += ", in the order of its elements, or source.transpose(axis, ...)"
            elif _is_broadcast(given.shape, into.shape):
                ways.append("repeat it: numpy.broadcast_to(source, t.shape)")
            else:
                ways.append("copy between parts of the same shape: t[:n], source[:n]")
        raise ValueError(
            f"cannot copy {given.dtype} {given.shape} into {into.dtype} {into.shape}: "
            f"shapes and dtypes must be equal; {', and '.join(ways)}"
        )
    if into.readonly:
        raise ExchangeError(
            f"{describe(target)} is read-only and cannot be copied into; copy into memory "
            "of its own: t = dlbridge.empty_like(x), then dlbridge.copy_(t, source); the target "
            "comes first: dlbridge.copy_(target, source)"
        )
    if not into.contiguous and shares_places(into.shape, into.strides):
        raise ExchangeError(
            f"{describe(target)} has strides {into.strides}: several elements share one place "
            "in memory (a broadcast view, or windows that overlap), and only the last value "
            "written there would remain; copy into the tensor that it is a view of"
        )
    if progress is None and not is_recording():  # without the block 4 KiB take 1 us less
        copy_elements(into, given)
        return
    check_progress(progress)
    why = "copy_ writes into memory that is there"
    told = _outside(progress) if callable(progress) else progress
    with recorded(why, src, target.device), reporter(told, into.nbytes) as report:
        copy_elements(into, given, report)


def _is_broadcast(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an array of *shape* is repeated to the shape *to*, by numpy's rules."""
    import numpy as np

    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _outside(progress: Callable[[int, int], object]) -> Callable[[int, int], None]:
    """*progress*, which is the user's, and no part of the copy that is recorded whole."""

    def tell(done: int, total: int) -> None:
        was, INSIDE.copy = INSIDE.copy, False
        try:
            progress(done, total)
        finally:
            INSIDE.copy = was

    return tell


def _in_place(dst: ArrayLike) -> Tensor:
    """The memory of *dst* itself, for `copy_`."""
    cause = None
    try:
        return asarray(dst, copy=False)
    except ExchangeError as exc:
        import numpy as np

        if isinstance(dst, np.ndarray) and dst.dtype.kind in "biufc":
            raise ExchangeError(
                f"copy_ cannot copy into {with_article(type(dst).__name__)} of {dst.dtype.str!r} "
                f"with byte strides {dst.strides}, which DLPack does not have; numpy can: "
                "x[...] = dlbridge.to_device(source, 'cpu', like='numpy')"
            ) from exc
        cause = exc.__cause__
    if type(dst) not in NUMBERS:
        with suppress(ValueError):  # of its own method: that is the cause
            asarray(dst)  # raises where copy=False was not the reason
    raise ExchangeError(
        f"{with_article(type(dst).__name__)} has no memory to copy into; pass an array, such "
        "as numpy.array(x), and read the elements there"
    ) from cause
