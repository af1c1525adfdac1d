"""The public contract for packages that bring a file format, an interface or a library.

For a device it is `dlbridge.protocol` instead. The file formats (``dlbridge.files``, except for
``loading.py``) and the conversions (``dlbridge.casts``), pickles and shared memory
(``dlbridge.processes``) use only these names and public ones
of `dlbridge`; ``docs/extending.md`` has two small examples. `CPU` is the device of the host's
memory, `MAX_NDIM` the most dimensions that a tensor can have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED, MAX_NDIM
from dlbridge.core.implementation_details.handlers import handlers_cause, unless_handler
from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.moves import copies, plans, transfer, within_host
from dlbridge.core.moves.progress import tally as _tally
from dlbridge.core.plugins.lookup import find_device
from dlbridge.core.public import public_in
from dlbridge.core.tensor import operand as operands
from dlbridge.core.tensor.array_tensor import make_tensor
from dlbridge.core.tensor.memory import Memory, host_access
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.values import layout
from dlbridge.core.values.devices import CPU
from dlbridge.core.values.dtypes import check, limits_of
from dlbridge.core.values.text import with_article

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import numpy as np

    from dlbridge import Device, DType, Operand, Tensor
    from dlbridge.protocol import ExportedMemory
    from dlbridge.typing import DeviceLike, ProgressLike

__all__ = [
    "CPU",
    "MAX_NDIM",
    "Memory",
    "byte_reach",
    "check_device",
    "check_dtype",
    "clear",
    "copy_array",
    "copy_elements",
    "export_memory",
    "export_refusal",
    "handlers_cause",
    "host_array",
    "host_import_refusal",
    "import_memory",
    "limits_of",
    "memory_of",
    "new_exportable",
    "new_tensor",
    "operand_of",
    "packed_bytes",
    "part_of",
    "public_in",
    "tally",
    "tensor_on",
    "unless_handler",
    "wait_for_work",
    "with_article",
]

_here = public_in("dlbridge.extending")


# Tensors on memory ----------------------------------------------------------------------


@_here
def tensor_on(
    memory: Memory,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    *,
    byte_offset: int = 0,
    readonly: bool = False,
    padded: bool = False,
) -> Tensor:
    """Return a tensor on some memory, which it keeps alive.

    Parameters
    ----------
    memory : Memory
        Where the elements are.
    dtype : DType
        The type of an element.
    shape : tuple of int
        The extents, in elements; 0 or more each.
    strides : tuple of int, optional
        The distances between neighbours, in elements. None: row-major, without gaps.
    byte_offset : int
        The bytes from the start of *memory* to the first element.
    readonly : bool
        Whether nobody may write to it.
    padded : bool
        Whether elements below a byte take a byte each.

    Returns
    -------
    Tensor
        On the device of *memory*. Nothing is copied, and nothing is read.

    Raises
    ------
    ExchangeError
        If no tensor has such extents or strides. It is also a BufferError.

    Notes
    -----
    Whether the elements lie inside the memory is for the caller to check: a `Memory` does not
    know its length.

    Examples
    --------
    >>> from dlbridge.extending import Memory, tensor_on
    >>> pixels = np.arange(6, dtype="uint8")
    >>> memory = Memory(bridge.device("cpu"), pixels.ctypes.data, "an example", pixels)
    >>> tensor_on(memory, bridge.dtype("uint8"), (2, 2), (3, 1), byte_offset=1).tolist()
    [[1, 2], [4, 5]]
    """
    flags = FLAG_SUBBYTE_PADDED if padded else 0
    return make_tensor(memory, byte_offset, dtype, shape, strides, readonly=readonly, flags=flags)


@_here
def memory_of(array: np.ndarray[Any, Any], origin: str) -> Memory:
    r"""Return the memory of a numpy array, from its first element on; it keeps the array alive.

    Parameters
    ----------
    array : numpy.ndarray
        Any array, also one over the buffer of another object. It is not changed.
    origin : str
        Where the memory comes from, in words: ``repr`` and messages say it.

    Returns
    -------
    Memory
        On the CPU.

    Examples
    --------
    >>> from dlbridge.extending import memory_of, tensor_on
    >>> memory = memory_of(np.frombuffer(b"\x01\x02\x03\x04", "uint8"), "a message")
    >>> tensor_on(memory, bridge.dtype("int8"), (2, 2), readonly=True).tolist()
    [[1, 2], [3, 4]]
    """
    return Memory(CPU, address_of(array) if array.size else 0, origin, array)


@_here
def new_tensor(
    device: Device, dtype: DType, shape: tuple[int, ...], *, padded: bool = False
) -> Tensor:
    """Return a new compact tensor, whose elements are not initialised.

    As `dlbridge.empty`, for arguments that were checked before.

    Parameters
    ----------
    device : Device
        Where it is.
    dtype : DType
        The type of an element.
    shape : tuple of int
        The extents, in elements.
    padded : bool
        Whether elements below a byte take a byte each.

    Returns
    -------
    Tensor
        On new memory.

    Raises
    ------
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if there is no room.

    Examples
    --------
    >>> from dlbridge.extending import new_tensor
    >>> new_tensor(bridge.device("cpu"), bridge.dtype("int4"), (3,), padded=True).nbytes
    3
    """
    return transfer.allocate(device, dtype, shape, padded=padded)


@_here
def clear(tensor: Tensor) -> None:
    """Set the bytes of a new, compact tensor to zero; by the device itself if it can.

    Parameters
    ----------
    tensor : Tensor
        On any device. No work has been queued on its memory.

    Raises
    ------
    DeviceError
        If the driver fails.

    Examples
    --------
    >>> from dlbridge.extending import clear
    >>> new = bridge.empty(3, "int16", "ext_dev:0")
    >>> clear(new)
    >>> new.tolist()
    [0, 0, 0]
    """
    transfer.fill(tensor, b"\0")


@_here
def byte_reach(
    dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], *, padded: bool = False
) -> tuple[int, int]:
    """Return where the elements of a layout begin and end: what memory must have for `tensor_on`.

    Parameters
    ----------
    dtype : DType
        The type of an element.
    shape : tuple of int
        The extents, in elements.
    strides : tuple of int
        The distances between neighbours, in elements; as many as extents.
    padded : bool
        Whether elements below a byte take a byte each.

    Returns
    -------
    tuple of two ints
        The first byte and the end of the last one, counted from the first element. The first is
        negative where a stride is.

    Examples
    --------
    >>> from dlbridge.extending import byte_reach
    >>> byte_reach(bridge.dtype("int16"), (2, 3), (8, -1))
    (-4, 18)
    """
    bits = 8 * dtype.itemsize if padded else dtype.bits * dtype.lanes
    return layout.byte_reach(shape, strides, bits)


# What a move or a kernel needs of a tensor, read once -------------------------------------


@_here
def part_of(operand: Operand, start: int, count: int) -> Operand:
    """Return bytes of the memory of a compact operand, as an operand of uint8.

    Parameters
    ----------
    operand : Operand
        Without gaps between its elements.
    start, count : int
        The first byte, counted from the first element, and the number of bytes.

    Returns
    -------
    Operand
        Of *count* elements of uint8, on the same memory.

    Examples
    --------
    >>> from dlbridge.extending import operand_of, part_of
    >>> part_of(operand_of(bridge.zeros(4)), 4, 8).size
    8
    """
    return copies.bytes_of(operand, start, count)


@_here
def packed_bytes(operand: Operand) -> memoryview:
    r"""Return the bytes of memory that the host can read.

    Parameters
    ----------
    operand : Operand
        Of a device that `Device.is_host`.

    Returns
    -------
    memoryview of uint8
        The memory itself if it has no gaps, and a packed copy otherwise. Work of the device on it
        is finished.

    Examples
    --------
    >>> from dlbridge.extending import operand_of, packed_bytes
    >>> bytes(packed_bytes(operand_of(bridge.asarray([[1, 2], [3, 4]], dtype="uint8")[:, 0])))
    b'\x01\x03'
    """
    return copies.packed_bytes(operand)


@_here
def host_array(operand: Operand) -> np.ndarray[Any, Any]:
    """Return memory that the host can read as a numpy array of integers with the same layout.

    Parameters
    ----------
    operand : Operand
        Of a device that `Device.is_host`.

    Returns
    -------
    numpy.ndarray
        On the memory itself. Its elements have the size of those of *operand*, not always their
        type; packed elements below a byte come as bytes. Work of the device on it is finished.

    Examples
    --------
    >>> from dlbridge.extending import host_array, operand_of
    >>> host_array(operand_of(bridge.zeros((2, 3), "bfloat16"))).strides
    (6, 2)
    """
    return operands.host_array(operand)


@_here
def wait_for_work(operand: Operand) -> None:
    """Wait for the work of a device on some memory, before something else works on it.

    The host, another process and another driver know nothing of the device's queue.

    Parameters
    ----------
    operand : Operand
        On any device. For memory of the CPU there is nothing to wait for.

    Raises
    ------
    DeviceError
        If the work has failed.

    Examples
    --------
    >>> from dlbridge.extending import operand_of, wait_for_work
    >>> wait_for_work(operand_of(bridge.zeros(3, device="ext_dev:0")))
    """
    if operand.memory is not None:
        host_access(operand.memory)


# Copies -----------------------------------------------------------------------------------


@_here
def copy_elements(target: Operand, source: Operand) -> None:
    """Copy the elements of one operand to another one, on any two devices.

    Parameters
    ----------
    target, source : Operand
        Of equal shape and dtype. They may overlap.

    Raises
    ------
    DeviceError
        If a driver fails.

    Notes
    -----
    The copy is complete on return if the host is involved, and so it is between two devices. On
    one device it is queued on the current stream.

    Examples
    --------
    >>> from dlbridge.extending import copy_elements, operand_of
    >>> new = bridge.empty(2, "int16")
    >>> copy_elements(operand_of(new), operand_of(bridge.asarray([1, 2], dtype="int16")))
    >>> new.tolist()
    [1, 2]
    """
    copies.copy_elements(target, source)


@_here
def copy_array(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy the bytes of one numpy array to another one, whatever their types are.

    Transposed arrays of rows that are a power of two long take half to a third of the time of
    ``numpy.copyto`` (2-byte and 8-byte elements, 512 and 256 squared), others about as much.

    Parameters
    ----------
    target, source : numpy.ndarray
        Of equal shape and size of elements, any strides. They may overlap.

    Raises
    ------
    ValueError
        If shapes or sizes differ, or *target* is read-only.
    TypeError
        If they hold Python objects.

    Examples
    --------
    >>> from dlbridge.extending import copy_array
    >>> new = np.zeros((2, 2), "uint16")
    >>> copy_array(new, np.arange(4, dtype="int16").reshape(2, 2).T)
    >>> new.tolist()
    [[0, 2], [1, 3]]
    """
    within_host.copy_host(target, source)


@_here
def tally(progress: ProgressLike, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Return a context manager that gives what several copies report their bytes to.

    Parameters
    ----------
    progress : ProgressLike
        What the user passed as ``progress=``.
    total : int
        The bytes of all copies.

    Returns
    -------
    context manager
        It gives a function, which takes the number of bytes that were copied since the last call.

    Examples
    --------
    >>> from dlbridge.extending import tally
    >>> with tally(lambda done, total: print(done, "of", total), 3) as report:
    ...     report(1)
    ...     report(2)
    1 of 3
    3 of 3
    """
    return _tally(progress, total)


# Memory that others have, too ----------------------------------------------------------------


@_here
def host_import_refusal(device: Device, address: int, nbytes: int, *, asked: bool = True) -> str:
    """Return why a device does not use some memory of the host in place.

    Parameters
    ----------
    device : Device
        A backend here serves it.
    address, nbytes : int
        The memory.
    asked : bool
        Whether the user wants this memory, so that a drawback of the device does not count.

    Returns
    -------
    str
        The reason, for a message. Empty if it does: then ``to_device(t, device, copy=False)``
        is a tensor in place.

    Examples
    --------
    >>> from dlbridge.extending import host_import_refusal
    >>> t = bridge.zeros(3)
    >>> host_import_refusal(bridge.device("ext_dev:0"), t.data_ptr(), t.nbytes)
    'the device cannot reach host memory (set DLBRIDGE_FAKE_SHARED=1)'
    """
    return plans.why_no_host_import(address, nbytes, device, asked=asked)


@_here
def export_refusal(device: Device, *, importing: bool = False) -> str:
    """Return why a device has no memory that other processes can open, or opens none of theirs.

    Parameters
    ----------
    device : Device
        A backend here serves it.
    importing : bool
        False: whether it can be asked for `new_exportable` and `export_memory`. True: for
        `import_memory`, by a process that finds it by `Device.uuid`.

    Returns
    -------
    str
        The reason, for a message; empty if it can.

    Examples
    --------
    >>> from dlbridge.extending import export_refusal
    >>> export_refusal(bridge.device("cpu"))
    'cpu:0 has no memory of its own for other processes'
    """
    return transfer.export_refusal(device, importing=importing)


@_here
def new_exportable(device: Device, nbytes: int, origin: str, owner: object = None) -> Memory:
    """Return new memory that `export_memory` can describe, not initialised.

    Parameters
    ----------
    device : Device
        For which `export_refusal` has no reason.
    nbytes : int
        More than 0.
    origin : str
        Where the memory comes from, in words: ``repr`` and messages say it.
    owner : object
        What is kept alive as long as the memory.

    Returns
    -------
    Memory
        It is given back with the last tensor on it, here. Other processes keep what they opened.

    Raises
    ------
    DeviceMemoryError
        A MemoryError, if there is no room.

    Examples
    --------
    >>> from dlbridge.extending import export_refusal, new_exportable
    >>> def shared_bytes(device, nbytes):
    ...     refusal = export_refusal(device)
    ...     if refusal:
    ...         raise BufferError(refusal)
    ...     return new_exportable(device, nbytes, "an example")
    """
    return transfer.new_exportable(device, nbytes, origin, owner)


@_here
def export_memory(memory: Memory) -> ExportedMemory:
    """Return what another process, or another driver of the device, opens some memory by.

    Parameters
    ----------
    memory : Memory
        Of `new_exportable`.

    Returns
    -------
    ExportedMemory
        Its file descriptor is closed with its ``owner``: copy the descriptor to keep it.

    Raises
    ------
    DeviceError
        If the driver fails.

    Examples
    --------
    >>> from dlbridge.extending import export_memory
    >>> def descriptor_of(memory):
    ...     import os
    ...
    ...     exported = export_memory(memory)
    ...     return os.dup(exported.fd), exported._replace(fd=-1, owner=None)
    """
    return transfer.export_memory(memory.device, memory.data)


@_here
def import_memory(
    device: Device, exported: ExportedMemory, origin: str, owner: object = None
) -> tuple[Memory, int]:
    """Return the memory that an `export_memory` describes, of another process or of this one.

    Parameters
    ----------
    device : Device
        The device of the same `Device.uuid`, for which
        ``export_refusal(device, importing=True)`` has no reason.
    exported : ExportedMemory
        With a file descriptor of this process, which stays the caller's.
    origin : str
        Where the memory comes from, in words: ``repr`` and messages say it.
    owner : object
        What is kept alive as long as the memory.

    Returns
    -------
    tuple of Memory and int
        The memory, and the byte in it where the exported memory begins.

    Raises
    ------
    ExchangeError
        If the driver cannot open it. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import import_memory, tensor_on
    >>> def received(device, exported):
    ...     memory, start = import_memory(device, exported, "a message")
    ...     return tensor_on(memory, bridge.dtype("uint8"), (16,), byte_offset=start)
    """
    return transfer.import_memory(device, exported, origin, owner)


# Checks -----------------------------------------------------------------------------------


@_here
def check_dtype(dtype: DType) -> None:
    """Raise unless tensors of a dtype can be exchanged.

    Parameters
    ----------
    dtype : DType
        A type from outside: its code, bits and lanes can be any numbers.

    Raises
    ------
    ExchangeError
        If ``dlpack.h`` 1.3 has no such type. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import check_dtype
    >>> check_dtype(bridge.dtype("float32"))
    """
    check(dtype.code, dtype.bits, dtype.lanes)


@_here
def check_device(device: DeviceLike) -> Device:
    """Return the device that somebody has named, if a backend here serves it.

    Parameters
    ----------
    device : DeviceLike
        `dlbridge.device` says what is accepted; also a device that only another library can use.

    Returns
    -------
    Device
        Tensors can be made there.

    Raises
    ------
    TypeError
        If it is no device.
    ValueError
        If no device has such a name.
    BackendUnavailable
        If there is no backend for it, or its driver is not here.
    ExchangeError
        If the backend has no device of that number. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import check_device
    >>> check_device("cpu")
    dlbridge.device('cpu:0')
    """
    return find_device(device)
