"""Operand: what a copy or a kernel needs of a tensor, read once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.implementation_details.python_api import MEMBERS_AT, address_of, addresses
from dlbridge.core.public import for_guests, public
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.layout import byte_reach
from dlbridge.errors import ExchangeError

from .array_tensor import ArrayTensor, NumpyTensor
from .memory import NATIVE_DTYPES, access, counts_elements, host_access
from .tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import numpy as np

    from dlbridge.core.values.dtypes import DType

    from .memory import Memory


@public
class Operand:
    """A tensor's memory, as a copy or a kernel needs it. Made by `Tensor.operand`.

    Attributes
    ----------
    device : Device
        The device of the memory.
    data : int
        The address of the memory, or its handle where the device has handles
        (OpenCL: a ``cl_mem``; Vulkan: see the backend's documents). The first
        element is `byte_offset` bytes after it, on every device.
    byte_offset : int
        The bytes from `data` to the first element.
    dtype : DType
        The type of one element.
    shape : tuple of int
        The extents, in elements.
    size, nbytes : int
        The number of elements; their bytes.
    contiguous : bool
        Whether the elements lie row-major without gaps.
    readonly : bool
        Whether work on it must not write.
    padded : bool
        Whether sub-byte elements take a byte each.
    stream : int
        The native handle of the stream to queue work on; 0 for the default
        stream and on devices without streams.

    Notes
    -----
    An operand keeps the memory alive as long as the operand exists. It must
    exist until the work that uses it has been queued; the memory itself is
    given back in the order of the stream. Work on another stream than `stream`
    must be finished, or ordered before `stream`, when the operand is dropped.

    Examples
    --------
    >>> t = bridge.asarray([[1, 2], [3, 4]], dtype="int16")
    >>> o = t[1].operand()
    >>> o.shape, o.strides, o.nbytes
    ((2,), (1,), 4)
    >>> o.data + o.byte_offset == t.data_ptr() + 4
    True
    """

    __slots__ = (
        "byte_offset",
        "carrier",
        "contiguous",
        "data",
        "device",
        "dtype",
        "flags",
        "is_new",
        "memory",
        "nbytes",
        "readonly",
        "shape",
        "stream",
    )

    byte_offset: int
    carrier: np.ndarray[Any, Any]
    """For dlbridge only: on devices that the host cannot read it lies at no real address."""
    contiguous: bool
    data: int
    device: Device
    dtype: DType
    flags: int
    memory: Memory | None
    """None for memory of the CPU that a numpy array keeps: no work of a device touches it."""
    nbytes: int
    readonly: bool
    shape: tuple[int, ...]
    stream: int
    is_new: bool
    """Whether the memory was allocated just now, for work on `stream`: `access` is not needed."""

    def __init__(self) -> None:
        raise TypeError("an Operand is not made by calling its class; use tensor.operand()")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Operand can be neither pickled nor copied: its address and its stream are those"
            " of this process, and it keeps the memory; send the tensor, and call operand() of it"
        )

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance between neighbours along each dimension, in elements."""
        itemsize = self.carrier.itemsize
        return tuple([step // itemsize for step in self.carrier.strides])

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.carrier.size

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def padded(self) -> bool:
        """Whether sub-byte elements take a byte each."""
        return bool(self.flags & FLAG_SUBBYTE_PADDED)

    def access(self) -> int:
        """Return the stream for work on the memory now, ordered after the last work on it.

        Returns
        -------
        int
            The native handle, which is also `stream` from now on; 0 for the
            default stream and on devices without streams.

        Examples
        --------
        >>> bridge.zeros(3).operand().access()
        0
        """
        if self.memory is None:
            return 0
        self.stream = stream = access(self.memory)
        return stream

    def span(self) -> tuple[int, int]:
        """Return the part of the memory that the elements occupy, gaps included.

        Returns
        -------
        tuple of two ints
            The offset from the first element, which is negative where a stride
            is, and the length; both in bytes.

        Examples
        --------
        >>> bridge.zeros(4, "float32")[::2].operand().span()
        (0, 12)
        """
        if self.contiguous:
            return 0, self.nbytes
        low, end = byte_reach(self.dtype, self.shape, self.strides, padded=self.padded)
        return low, end - low

    def __repr__(self) -> str:
        return (
            f"dlbridge.Operand({self.dtype}, shape={self.shape}, device={self.device}, "
            f"data={self.data:#x}, byte_offset={self.byte_offset}, stream={self.stream:#x})"
        )


_new = Operand.__new__


@for_guests
def operand_of(tensor: Tensor) -> Operand:
    """Return what a move or a kernel needs of a tensor, without an order of work.

    `Tensor.operand` makes the order, too: it takes the current stream and has it wait for the last
    work on the memory. Here that is left to those to whom the operand is handed on.

    Parameters
    ----------
    tensor : Tensor
        Any tensor.

    Returns
    -------
    Operand
        Its device, address, extents, strides and type; its stream is 0.

    Examples
    --------
    >>> from dlbridge.extending import operand_of
    >>> operand_of(bridge.zeros((2, 3))).nbytes
    24
    """
    operand = _new(Operand)
    array = operand.carrier = tensor._array
    operand.shape = array.shape
    flags = array.flags
    operand.contiguous = flags.c_contiguous
    operand.readonly = not flags.writeable
    operand.stream = 0
    operand.is_new = False
    is_native = type(tensor) is ArrayTensor  # read here: its property costs a call
    dtype = operand.dtype = NATIVE_DTYPES[array.dtype] if is_native else tensor._dtype
    operand.flags = 0 if is_native else tensor._flags
    if is_native or (type(tensor) is not Tensor and isinstance(tensor, NumpyTensor)):
        operand.device = CPU
        operand.data = addresses[(id(array) >> 3) + MEMBERS_AT]  # `address_of`
        operand.byte_offset = 0
        operand.memory = None
        operand.nbytes = array.nbytes
        base = array.base
        while MEMORY_CHECKS and type(base) is type(array):  # views of views
            base = base.base
        if type(base) in MEMORY_CHECKS:
            MEMORY_CHECKS[type(base)](operand, base)
        return operand
    memory = operand.memory = tensor._memory
    operand.device = memory.device
    operand.data = memory.data
    operand.byte_offset = tensor._byte_offset
    if dtype.bits * dtype.lanes == 8 * array.itemsize:  # the carrier has elements of that size
        operand.nbytes = array.nbytes
    else:
        operand.nbytes = tensor.nbytes
    return operand


MEMORY_CHECKS: dict[type, Callable[[Operand, Any], object]] = {}
"""Class of what owns the memory of an array of numpy -> `Library.check_memory`."""


def turned(operand: Operand, axes: Sequence[int], back: Collection[int]) -> Operand:
    """The same elements, with the dimensions in the order *axes*, and those of *back* backwards."""
    found = _new(Operand)
    for name in Operand.__slots__:
        setattr(found, name, getattr(operand, name))
    before = operand.carrier
    steps = [slice(None, None, -1 if axis in back else 1) for axis in axes]
    array = found.carrier = before.transpose(axes)[tuple(steps)]
    found.shape, found.contiguous = array.shape, array.flags.c_contiguous
    start = (address_of(array) - address_of(before)) // before.itemsize
    found.byte_offset += start * operand.dtype.itemsize
    return found


def require_compact(operand: Operand) -> None:
    """ExchangeError for packed sub-byte elements with gaps."""
    if not operand.contiguous:
        raise ExchangeError(
            f"packed {operand.dtype} elements with strides {operand.strides}: only compact tensors "
            "of packed sub-byte types can be copied"
        )


@for_guests
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
    if operand.memory is None:
        return operand.carrier
    import numpy as np

    host_access(operand.memory)
    dtype = operand.dtype
    if not counts_elements(dtype) or operand.padded:
        return operand.carrier
    interface: dict[str, Any] = {
        "version": 3,
        "data": (operand.data + operand.byte_offset, operand.readonly),
    }
    if dtype.is_subbyte:
        require_compact(operand)
        interface.update(shape=(operand.nbytes,), typestr="|u1")
    else:
        steps = tuple([step * dtype.itemsize for step in operand.strides])
        raw = f"|V{dtype.itemsize}"
        # numpy 2.1.0 crashes on raw elements without a descr.
        interface.update(shape=operand.shape, typestr=raw, strides=steps, descr=[("", raw)])
    holder: Any = SimpleNamespace(__array_interface__=interface, operand=operand)  # it is kept
    return np.asarray(holder)


@for_guests
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
