"""Memory of one driver used by another driver of the same device, without a copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dlbridge.core.plugins.failures import fail
from dlbridge.core.plugins.identity import identity_of
from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.tensor.memory import ImportedMemory
from dlbridge.core.tensor.ordering import access
from dlbridge.protocol import SupportsMemoryExport, SupportsMemoryImport, SupportsStreams

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device
    from dlbridge.protocol import ExportedMemory

__all__ = ["import_from_device", "why_no_memory_import"]


def why_no_memory_import(operand: Operand, target: Device) -> str | None:
    """Why *target* cannot use the memory of another backend; empty if it can.

    None where one of the two backends does not do such things at all.
    """
    source = operand.device
    exporter: Any = backend_of(source)  # asked twice below, which a type checker cannot follow
    importer: Any = backend_of(target)
    if not (supports(exporter, SupportsMemoryExport) and supports(importer, SupportsMemoryImport)):
        return None
    here, there = identity_of(source).uuid, identity_of(target).uuid
    if here is None or here != there:
        return f"their UUIDs are not the same ({here} and {there})"
    try:
        refusal: str = exporter.memory_export_refusal(source.index, operand.data)
    except Exception as exc:
        fail(exc, source.name, "memory_export_refusal")
    if refusal:
        return refusal
    try:
        refusal = importer.memory_import_refusal(target.index)
    except Exception as exc:
        fail(exc, target.name, "memory_import_refusal")
    return refusal


def import_from_device(
    tensor: Tensor, operand: Operand, target: Device
) -> tuple[ImportedMemory, int]:
    """The memory of *operand* under *target*, and the offset of its `data` in it.

    The work on it is done on return; *tensor* lives as long as the import.
    """
    exporter: Any = backend_of(operand.device)  # the plan has asked for both capabilities
    importer: Any = backend_of(target)
    source, viewed = operand.device, operand.memory
    assert viewed is not None  # only the CPU has such operands
    stream = access(viewed)
    if supports(exporter, SupportsStreams):
        try:
            exporter.synchronize(source.index, stream)
        except Exception as exc:
            fail(exc, source.name, "synchronize")
    origin = f"{source} memory of {tensor.origin}"
    memory = ImportedMemory(importer, target, current_use(target), origin, tensor)
    exported: list[ExportedMemory] = []  # list.extend takes it in C: no signal comes between
    try:
        try:
            exported.extend(map(exporter.export_memory, [source.index], [operand.data]))
        except Exception as exc:
            fail(exc, source.name, "export_memory")
        return memory, memory.import_memory(importer, exported[0])
    finally:
        while exported:
            os.close(exported.pop().fd)
