"""Memory of one driver used by another driver of the same device, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.plugins.identity import identity_of
from dlbridge.core.plugins.lookup import plugin_of
from dlbridge.core.plugins.streams import current_use, finish
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.ordering import access
from dlbridge.protocol import (
    ExportedMemory,
)

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device

__all__ = ["export_memory", "import_from_device", "import_memory", "why_no_memory_import"]


def why_no_memory_import(operand: Operand, target: Device) -> str | None:
    """Why *target* cannot use the memory of another backend; empty if it can.

    None where one of the two backends does not do such things at all.
    """
    source = operand.device
    exporter, importer = plugin_of(source), plugin_of(target)
    if exporter.memory_export_refusal is None or importer.memory_import_refusal is None:
        return None
    here, there = identity_of(source).uuid, identity_of(target).uuid
    if here is None or here != there:
        return f"their UUIDs are not the same ({here} and {there})"
    refusal = exporter.memory_export_refusal(source.index, operand.data)
    return refusal or importer.memory_import_refusal(target.index)


def import_from_device(tensor: Tensor, operand: Operand, target: Device) -> tuple[Memory, int]:
    """The memory of *operand* under *target*, and the offset of its `data` in it.

    The work on it is done on return; *tensor* lives as long as the import.
    """
    source, viewed = operand.device, operand.memory
    assert viewed is not None  # only the CPU has such operands
    finish(plugin_of(source), source, access(viewed))
    origin = f"{source} memory of {tensor.origin}"
    return import_memory(target, export_memory(source, operand.data), origin, tensor)


def export_memory(device: Device, data: int) -> ExportedMemory:
    """What the backend of *device* exports for its memory *data*; its owner closes it."""
    plugin = plugin_of(device)
    assert plugin.export_memory is not None  # the plan has asked for the capability
    return plugin.export_memory(device.index, data)


def import_memory(
    target: Device, exported: ExportedMemory, origin: str, owner: object
) -> tuple[Memory, int]:
    """The memory that *exported* is in under *target*, and the offset of its bytes there."""
    plugin = plugin_of(target)
    memory, use = Memory(target, 0, origin, owner), current_use(target, plugin)
    memory.is_import = True
    given = target.index, exported, use.handle
    return memory, memory.take(use, "import_memory", plugin.import_memory, *given)
