"""Memory filled with a number: by the device where it can, otherwise in blocks from the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.moves.copies import copy_elements, part_of, span_of
from dlbridge.core.moves.plans import recorded
from dlbridge.core.moves.transfer import new_tensor
from dlbridge.core.plugins.registry import plugin_of
from dlbridge.core.public import for_guests
from dlbridge.core.tensor.operand import host_array, operand_of
from dlbridge.core.traces import is_recording
from dlbridge.core.values.devices import CPU

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor

BLOCK = 4 << 20
"""Bytes of host memory from which a device is filled, again and again."""


@for_guests
def fill(tensor: Tensor, pattern: bytes = b"\0") -> None:
    r"""Set the elements of a new, compact tensor, by the device itself if it can.

    Parameters
    ----------
    tensor : Tensor
        On any device. No work has been queued on its memory.
    pattern : bytes
        One byte, or the bytes of one element; of 8 elements that take less than a byte each.
        Zero if it is left out.

    Raises
    ------
    DeviceError
        If the driver fails.

    Examples
    --------
    >>> from dlbridge.extending import fill
    >>> new = bridge.empty(3, "int16", "ext_dev:0")
    >>> fill(new, b"\1\0")
    >>> new.tolist()
    [1, 1, 1]
    """
    if is_recording():
        with recorded("each element is set to a number", tensor, kind="fill"):
            _fill(operand_of(tensor), pattern)
    else:
        _fill(operand_of(tensor), pattern)


def _fill(operand: Operand, pattern: bytes) -> None:
    if not operand.nbytes:
        return
    if len(set(pattern)) == 1 and _filled_by_device(operand, pattern[0]):
        return
    if operand.device is CPU:
        _write(operand, pattern)
        return
    # A multiple of 8 elements: those below a byte are cut between whole bytes only.
    count = max(BLOCK * 8 // (operand.dtype.bits * operand.dtype.lanes) & ~7, 8)
    block = operand_of(new_tensor(CPU, operand.dtype, (min(count, operand.size),)))
    _write(block, pattern)
    for start in range(0, operand.nbytes, block.nbytes):
        length = min(block.nbytes, operand.nbytes - start)
        copy_elements(part_of(operand, start, length), part_of(block, 0, length))


def _filled_by_device(operand: Operand, value: int) -> bool:
    """Whether the device has set each byte to *value*."""
    where = operand.device
    plugin = plugin_of(where)
    if plugin.fill is None:
        return False
    use = None if operand.memory is None else operand.memory.last_use
    if use is not None:  # the stream that it was allocated for
        use.used = True
    span = span_of((where.index, operand.data, operand.byte_offset, operand.nbytes))
    plugin.fill(span, value, 0 if use is None else use.handle)
    return True


def _write(operand: Operand, pattern: bytes) -> None:
    """Write *pattern* into new memory of the CPU."""
    import numpy as np

    array = host_array(operand)
    if operand.dtype.is_subbyte:
        array[...] = np.resize(np.frombuffer(pattern, "u1"), array.shape)
    elif len(pattern) == 1:
        array.reshape(-1).view("u1")[...] = pattern[0]
    else:
        array[...] = np.frombuffer(pattern, array.dtype)[0]
