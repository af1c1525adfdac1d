"""New memory on any device."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.lookup import backend_of
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.tensor.memory import AllocatedMemory, Memory
from dlbridge.core.tensor.operand import operand_of_new
from dlbridge.core.tensor.tensor import make_tensor

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device
    from dlbridge.core.values.dtypes import DType

__all__ = ["MIN_ALIGNMENT", "allocate", "allocate_like"]

MIN_ALIGNMENT = 256
"""Bytes; ``dlpack.h`` 1.3 asks for that (DLTensor, data)."""


def allocate(
    where: Device,
    dtype: DType,
    shape: tuple[int, ...],
    *,
    alignment: int = MIN_ALIGNMENT,
    padded: bool = False,
) -> Tensor:
    """A new compact tensor whose elements are not initialised; *alignment* in bytes."""
    nbytes = dtype.nbytes(prod(shape), padded=padded)
    plugin = backend_of(where)
    memory: Memory
    if not nbytes:
        memory = Memory(where, 0, "dlbridge.empty")
    else:
        memory = AllocatedMemory(plugin, where, current_use(where, plugin), "dlbridge.empty")
        memory.allocate(nbytes, alignment)
    return make_tensor(memory, 0, dtype, shape, flags=FLAG_SUBBYTE_PADDED if padded else 0)


def allocate_like(operand: Operand, where: Device) -> tuple[Tensor, Operand]:
    """A new compact tensor on *where* for the elements of *operand*, and its operand."""
    flags = operand.flags & FLAG_SUBBYTE_PADDED
    plugin = backend_of(where)
    use = current_use(where, plugin)
    memory = AllocatedMemory(plugin, where, use, "dlbridge.empty")
    memory.allocate(operand.nbytes, MIN_ALIGNMENT)
    tensor = make_tensor(memory, 0, operand.dtype, operand.shape, flags=flags)
    return tensor, operand_of_new(tensor, memory, operand)
