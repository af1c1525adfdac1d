"""New memory on any device, also together with its content."""

from __future__ import annotations

from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.cpu import MIN_ALIGNMENT
from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.tensor.array_tensor import make_tensor
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.operand import operand_of_new

if TYPE_CHECKING:
    from dlbridge.core.plugins.records import Plugin
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device
    from dlbridge.core.values.dtypes import DType

__all__ = [
    "allocate",
    "allocate_like",
    "allocate_with",
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
    memory = Memory(where, 0, "dlbridge.empty")
    plugin = plugin_of(where)
    if nbytes:
        use = current_use(where, plugin)
        given = where.index, nbytes, alignment, use.handle
        memory.take(use, "allocate", plugin.allocate, *given)
    return make_tensor(memory, 0, dtype, shape, flags=FLAG_SUBBYTE_PADDED if padded else 0)


def allocate_like(operand: Operand, where: Device, alignment: int = 1) -> tuple[Tensor, Operand]:
    """A new compact tensor on *where* for the elements of *operand*, and its operand."""
    flags = operand.flags & FLAG_SUBBYTE_PADDED
    plugin = plugin_of(where)
    use = current_use(where, plugin)
    memory = Memory(where, 0, "dlbridge.empty")
    given = where.index, operand.nbytes, max(alignment, MIN_ALIGNMENT), use.handle
    memory.take(use, "allocate", plugin.allocate, *given)
    tensor = make_tensor(memory, 0, operand.dtype, operand.shape, flags=flags)
    return tensor, operand_of_new(tensor, memory, operand)


def allocate_with(
    plugin: Plugin,
    where: Device,
    content: memoryview,
    dtype: DType,
    shape: tuple[int, ...],
    flags: int = 0,
) -> tuple[Tensor, Memory]:
    """A new compact tensor on *where* made with the bytes *content*, and its memory.

    `content_limit` of *plugin*, its backend, allows so many.
    """
    use = current_use(where, plugin)
    memory = Memory(where, 0, "dlbridge.empty")
    given = where.index, content.nbytes, MIN_ALIGNMENT, use.handle, content
    memory.take(use, "allocate", plugin.allocate, *given)
    use.used = True
    return make_tensor(memory, 0, dtype, shape, flags=flags & FLAG_SUBBYTE_PADDED), memory


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
