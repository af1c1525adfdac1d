"""`from_fd` and `Tensor.to_fd`: tensors on memory that a file descriptor names."""

from __future__ import annotations

import os
import stat
import struct
import sys
from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any

import dlbridge as bridge
from dlbridge.errors import Error, ExchangeError
from dlbridge.extending import (
    CPU,
    byte_reach,
    check_device,
    check_dtype,
    export_refusal,
    import_memory,
    operand_of,
    public_in,
    tensor_on,
    wait_for_work,
)
from dlbridge.kit.resources import Descriptor, Owner, Resources
from dlbridge.protocol import ExportedMemory

from .blocks import MappedFile, SharedFile, stay_mapped
from .shared_tensors import Layout, find, on_device, on_host, why_not_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from dlbridge import Device, DType, Tensor
    from dlbridge.typing import DeviceLike, DTypeLike

    Kind = Literal["memory", "dma-buf", "opaque"]

KINDS = ("memory", "dma-buf", "opaque")

_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; Python has no name for it before 3.14


@public_in("dlbridge")
def from_fd(
    fd: int | Any,
    shape: int | Sequence[int],
    dtype: DTypeLike,
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
    device: DeviceLike | None = None,
    kind: Kind | None = None,
    nbytes: int | None = None,
    copy: bool | None = None,
) -> Tensor:
    """Return a Tensor on memory that a file descriptor names: of a camera or another process.

    Parameters
    ----------
    fd : int or object with ``fileno()``
        The descriptor. It is duplicated, and stays yours: close it whenever you like.
    shape : int or sequence of int
        The extents, in elements.
    dtype : DTypeLike
        The type of an element; `dlbridge.dtype` says what is accepted.
    offset : int
        The bytes from the beginning of the memory to the first element.
    strides : sequence of int, optional
        The distance between neighbours along each dimension, in elements as in DLPack,
        not in bytes. None: row-major without gaps.
    device : DeviceLike, optional
        The device that works on the memory, in place where it can. None: the CPU, or for
        ``"opaque"`` no default.
    kind : {"memory", "dma-buf", "opaque"}, optional
        ``"memory"``: a memfd, POSIX shared memory, or another file. ``"dma-buf"``: a buffer of a
        driver (V4L2, DRM, libcamera). ``"opaque"``: memory that the driver of *device* has
        exported (``VK_KHR_external_memory_fd``). None: what the system says of *fd*, one of the
        first two.
    nbytes : int, optional
        For ``"opaque"``: the length of the whole memory that the exporter has allocated. Nobody
        can ask for it.
    copy : bool, optional
        As in `to_device`: False refuses a device that cannot use the memory in place.

    Returns
    -------
    Tensor
        On that memory. It is read-only if the descriptor is, or a seal forbids to write.

    Raises
    ------
    TypeError
        If *fd* or another argument is not of its kind.
    ValueError
        If *fd* is not open, or no device or no *kind* has such a name.
    ExchangeError
        If *fd* names no memory, if elements lie outside of it, or if *device* cannot use it with
        this *copy*. It is also a BufferError.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if the memory cannot be mapped.

    Notes
    -----
    Whoever else has the memory can change it at any time: the processes must agree on who works
    when. A file that is made shorter under a mapping ends each process that reads there. Only a
    memfd with ``F_SEAL_SHRINK`` cannot be.

    The host's access to a dma-buf (``DMA_BUF_IOCTL_SYNC``) begins with this call and ends with the
    last use of the tensor: make a new one for each frame.

    See Also
    --------
    Tensor.to_fd : The other way.

    Examples
    --------
    >>> import os
    >>> fd = os.memfd_create("frame")
    >>> os.truncate(fd, 640 * 480)
    >>> frame = bridge.from_fd(fd, (480, 640), "uint8")
    >>> os.close(fd)
    >>> frame.numpy()[:] = 7
    """
    if os.name != "posix":
        raise ExchangeError(
            "memory has no file descriptors on this system: pass its mapping (mmap.mmap) to "
            "dlbridge.asarray"
        )
    number = _number(fd)
    layout = _layout(shape, dtype, offset, strides)
    if kind not in (None, *KINDS):
        raise ValueError(f"kind {kind!r} is none of {', '.join(map(repr, KINDS))}")
    target = CPU if device is None else check_device(device)
    if kind == "opaque":
        return _opaque(number, layout, target, nbytes, copy)
    file = SharedFile(0, os.urandom(16))
    _duplicate(file.descriptor, number)
    is_dma_buf = kind == "dma-buf" or (kind is None and _is_dma_buf(file.fileno()))
    file.nbytes, writable = _checked(file, is_dma_buf)
    _check_inside(layout, file.nbytes)
    layout = layout._replace(readonly=not writable)
    mapping = DMABuf(file, writable) if is_dma_buf else file.mapping(writable)
    return _placed(mapping, layout, target, copy)


def _placed(mapping: MappedFile, layout: Layout, target: Device, copy: bool | None) -> Tensor:
    """The tensor on *target*: in place, or moved there as any host memory is."""
    here = on_host(mapping, layout)
    in_place = copy is not True and 0 not in layout.shape and target is not CPU
    if in_place and not why_not_in(mapping, target, asked=copy is False):
        try:
            return on_device(mapping, layout, target)
        except Error:
            if copy is False:
                raise
    return bridge.to_device(here, target, copy=copy)


# What is checked --------------------------------------------------------------------------


def _number(fd: Any) -> int:
    if isinstance(fd, bool) or not (hasattr(fd, "fileno") or hasattr(type(fd), "__index__")):
        raise TypeError(
            f"fd is {type(fd).__name__} {fd!r}, no file descriptor: pass its number, or an open "
            "file"
        )
    return index(fd.fileno() if hasattr(fd, "fileno") else fd)


def _layout(shape: Any, dtype: Any, offset: Any, strides: Any) -> Layout:
    kind: DType = bridge.dtype(dtype)
    check_dtype(kind)
    try:
        extents = (index(shape),) if hasattr(type(shape), "__index__") else tuple(map(index, shape))
    except TypeError as exc:
        raise TypeError(f"shape is {shape!r}: give an integer, or integers, for it") from exc
    if min(extents, default=0) < 0:
        raise ValueError(f"shape {extents} has a negative extent")
    steps = None if strides is None else tuple(map(index, strides))
    if steps is not None and len(steps) != len(extents):
        raise ValueError(f"{len(steps)} strides for {len(extents)} dimensions")
    return Layout(index(offset), kind, extents, steps)


def _check_inside(layout: Layout, nbytes: int) -> None:
    """ExchangeError unless all elements are in memory of *nbytes* bytes, and at their alignment."""
    offset, dtype, shape, strides = layout[:4]
    if 0 in shape:
        return
    first, end = byte_reach(dtype, shape, strides)
    if offset + first < 0 or offset + end > nbytes:
        raise ExchangeError(
            f"{dtype} {shape} with strides {strides} at byte {offset} needs the bytes "
            f"{offset + first} to {offset + end} of memory that has {nbytes}; pass the shape, the "
            "offset and the strides that its owner has given"
        )
    whole = dtype.bits // 8 or 1
    alignment = min(whole & -whole, 8)
    if offset % alignment:
        raise ExchangeError(
            f"offset {offset} is not a multiple of {alignment}, which elements of {dtype} need; "
            "read the bytes (dtype='uint8') and copy them"
        )


def _duplicate(into: Descriptor, number: int) -> None:
    try:
        into.extend(map(os.dup, [number]))
    except (OSError, OverflowError) as exc:
        raise ValueError(f"fd {number} cannot be duplicated: {exc}; is it open?") from exc


def _is_dma_buf(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("/dmabuf:")  # noqa: PTH115 - no path
    except OSError:
        return False


def _checked(file: SharedFile, is_dma_buf: bool) -> tuple[int, bool]:
    """The bytes of the file, and whether they may be written."""
    import fcntl

    fd = file.fileno()
    status = os.fstat(fd)
    if not is_dma_buf and not stat.S_ISREG(status.st_mode):
        raise ExchangeError(
            "the descriptor names no memory: it is neither a memfd, shared memory, a file nor a "
            "dma-buf (a pipe, a socket or a device is read, and not mapped)"
        )
    access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    if access == os.O_WRONLY:
        raise ExchangeError(
            "the descriptor is open for writing only, and memory is mapped to be read, too; open "
            "it with O_RDWR or O_RDONLY"
        )
    writable = access == os.O_RDWR
    if is_dma_buf:
        file.is_foreign = True
        return status.st_size or os.lseek(fd, 0, os.SEEK_END), writable
    with suppress(AttributeError, OSError):  # not on this system; not of this file
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        file.is_foreign = seals != fcntl.F_SEAL_SEAL and not seals & fcntl.F_SEAL_SHRINK
        writable = writable and not seals & (fcntl.F_SEAL_WRITE | _SEAL_FUTURE_WRITE)
    if not status.st_size:
        raise ExchangeError(
            "the memory of the descriptor has 0 bytes: its owner makes it as long as it shall be "
            "(os.ftruncate) before it is passed on"
        )
    return status.st_size, writable


# dma-bufs ---------------------------------------------------------------------------------

# linux/dma-buf.h: DMA_BUF_IOCTL_SYNC is _IOW('b', 0, struct dma_buf_sync), of one 64-bit number.
SYNC = 0x4008_6200
SYNC_READ, SYNC_WRITE, SYNC_END = 1, 2, 4


class _Access:
    """The host's access to a dma-buf; *flags* are those of its end once it has begun."""

    __slots__ = ("file", "flags")

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        self.flags = 0

    def begin(self, flags: int) -> None:
        self.flags = SYNC_END | flags  # an end too many does no harm, a missing one does
        try:
            _sync(self.file, flags)
        except OSError as exc:
            self.flags = 0
            raise ExchangeError(
                f"the descriptor is no dma-buf that the host may access: DMA_BUF_IOCTL_SYNC: {exc};"
                " other memory is of the kind 'memory'"
            ) from exc


def _sync(file: SharedFile, flags: int) -> None:
    import fcntl

    while True:
        try:
            fcntl.ioctl(file.fileno(), SYNC, struct.pack("=Q", flags))
        except (BlockingIOError, InterruptedError):  # to be called again, as the header says
            continue
        return


def _end(access: _Access) -> bool:
    if access.flags:
        with suppress(OSError):  # its device is gone
            _sync(access.file, access.flags)
        access.flags = 0
    return True


_accesses: Resources[_Access] = Resources(_end)


class DMABuf(MappedFile):
    """A dma-buf in the memory of this process, from the begin to the end of the host's access."""

    __slots__ = ("access",)

    def __init__(self, file: SharedFile, writable: bool) -> None:
        super().__init__(file, writable)
        stay_mapped(self)
        self.access = Owner(_accesses, _Access(file))
        self.access.resource.begin(SYNC_READ | (SYNC_WRITE if writable else 0))


# Memory of a device -----------------------------------------------------------------------


def _opaque(
    number: int, layout: Layout, target: Device, nbytes: int | None, copy: bool | None
) -> Tensor:
    """The tensor on memory that the driver of *target*, or another one of the device, exported."""
    refusal = export_refusal(target, importing=True) if target is not CPU else (
        "an opaque descriptor is opened by a device: name it, as in device='vulkan:0'"
    )  # fmt: skip
    if refusal:
        raise ExchangeError(f"memory of kind 'opaque' on {target}: {refusal}")
    if nbytes is None:
        raise ExchangeError(
            "nobody says how long memory of kind 'opaque' is: pass nbytes=, the length that its "
            "exporter has allocated"
        )
    if not hasattr(type(nbytes), "__index__"):
        raise TypeError(f"nbytes is {nbytes!r}, and a number of bytes is an integer")
    nbytes = index(nbytes)
    if not 0 < nbytes < 1 << 63:
        raise ExchangeError(f"nbytes is {nbytes}, and no memory has that length")
    _check_inside(layout, nbytes)
    own = Descriptor()
    _duplicate(own, number)
    exported = ExportedMemory(own[0], nbytes, 0)
    memory, start = import_memory(target, exported, "a file descriptor", own)
    offset, dtype, shape, strides = layout[:4]
    there = tensor_on(memory, dtype, shape, strides, byte_offset=start + offset)
    return bridge.to_device(there, target, copy=True) if copy else there


# Out --------------------------------------------------------------------------------------


def to_fd(tensor: Tensor) -> tuple[int, dict[str, Any]]:
    """What `Tensor.to_fd` returns."""
    operand = operand_of(tensor)
    mapped = find(operand, foreign=True)
    if mapped is None or operand.padded:
        what = f"its memory is {tensor.origin}"
        if mapped or not operand.size:
            what = "its elements are padded" if mapped else "it has no elements"
        raise ExchangeError(
            f"the tensor on {tensor.device} is in no memory that a file descriptor names ({what}); "
            "dlbridge.share(t, 'cpu') copies it into such memory, and dlbridge.empty(shape, dtype, "
            "shared=True) makes new one"
        )
    mapping, layout = mapped
    wait_for_work(operand)
    words: dict[str, Any] = {
        "shape": list(layout.shape),
        "dtype": layout.dtype.name,
        "offset": layout.offset,
    }
    if not operand.contiguous:
        words["strides"] = list(operand.strides)
    given = Descriptor()
    if layout.readonly and sys.platform == "linux":  # a duplicate could be written as ours
        path = f"/proc/self/fd/{mapping.file.fileno()}"
        given.extend(map(os.open, [path], [os.O_RDONLY | os.O_CLOEXEC]))
    else:
        _duplicate(given, mapping.file.fileno())
    result = given[0], words
    del given[:]  # the descriptor is the caller's now
    return result
