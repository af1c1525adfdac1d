"""New memory on any device, also together with its content."""

from __future__ import annotations

from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.cpu import MIN_ALIGNMENT
from dlbridge.core.plugins.failures import fail
from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.tensor.array_tensor import make_tensor
from dlbridge.core.tensor.memory import AllocatedMemory, Memory
from dlbridge.core.tensor.operand import operand_of_new
from dlbridge.protocol import SupportsAllocateFromHost

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device
    from dlbridge.core.values.dtypes import DType
    from dlbridge.protocol import Backend

__all__ = [
    "allocate",
    "allocate_from_host",
    "allocate_from_host_limit",
    "allocate_like",
    "check_alignment",
]

MAX_ALIGNMENT = 1 << 30
"""The largest alignment accepted, in bytes: the largest huge page (1 GiB)."""


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


def allocate_like(operand: Operand, where: Device, alignment: int = 1) -> tuple[Tensor, Operand]:
    """A new compact tensor on *where* for the elements of *operand*, and its operand."""
    flags = operand.flags & FLAG_SUBBYTE_PADDED
    plugin = backend_of(where)
    use = current_use(where, plugin)
    memory = AllocatedMemory(plugin, where, use, "dlbridge.empty")
    memory.allocate(operand.nbytes, max(alignment, MIN_ALIGNMENT))
    tensor = make_tensor(memory, 0, operand.dtype, operand.shape, flags=flags)
    return tensor, operand_of_new(tensor, memory, operand)


def check_alignment(given: Any) -> int:
    """*given* as a power of two, in bytes."""
    try:
        alignment = index(given)
    except TypeError:
        alignment = None
    if isinstance(given, bool) or alignment is None:
        raise TypeError(
            f"alignment {given!r} is not a number of bytes; give a power of two, such as 4096"
        )
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(
            f"alignment {alignment} is not a power of two from 1 to {MAX_ALIGNMENT} bytes"
        )
    return alignment


def allocate_from_host_limit(plugin: Backend, where: Device) -> int:
    """Up to how many bytes `allocate_from_host` is faster than two steps; 0 if it never is."""
    if not supports(plugin, SupportsAllocateFromHost):
        return 0
    try:
        return plugin.allocate_from_host_limit(where.index)
    except Exception as exc:
        fail(exc, where.name, "allocate_from_host_limit")


def allocate_from_host(
    plugin: Any,
    where: Device,
    flat: memoryview,
    dtype: DType,
    shape: tuple[int, ...],
    flags: int = 0,
) -> tuple[Tensor, AllocatedMemory] | None:
    """A new compact tensor on *where* that is made with the bytes *flat*, and its memory.

    None if *plugin*, its backend, could not do that now. `allocate_from_host_limit` has found
    that it is a SupportsAllocateFromHost.
    """
    use = current_use(where, plugin)
    memory = AllocatedMemory(plugin, where, use, "dlbridge.empty")
    if not memory.allocate_from_host(plugin, flat, MIN_ALIGNMENT):
        return None
    use.used = True
    return make_tensor(memory, 0, dtype, shape, flags=flags & FLAG_SUBBYTE_PADDED), memory
