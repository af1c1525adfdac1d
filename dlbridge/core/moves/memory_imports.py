"""Memory of one driver used by another driver of the same device, without a copy."""

from __future__ import annotations

import os
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dlbridge.core.plugins.failures import fail
from dlbridge.core.plugins.identity import identity_of
from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.tensor.memory import ImportedMemory
from dlbridge.core.tensor.ordering import access
from dlbridge.protocol import (
    ExportedMemory,
    SupportsMemoryExport,
    SupportsMemoryImport,
    SupportsStreams,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device

__all__ = ["Exports", "fd_of", "import_from_device", "why_no_memory_import"]

fd_of = attrgetter("fd")
"""The descriptor of an `ExportedMemory`; in C, as what follows must be."""


class Exports(list[ExportedMemory]):
    """What a backend has exported: this closes the descriptors.

    `list.extend` takes them from the backend in C, so that no signal comes between.
    """

    __slots__ = ()

    def take(self, plugin: SupportsMemoryExport, device: Device, data: int) -> ExportedMemory:
        """What the backend of *device* exports for its memory *data*."""
        try:
            self.extend(map(plugin.export_memory, [device.index], [data]))
        except Exception as exc:
            fail(exc, device.name, "export_memory")
        return self[-1]

    # The defaults outlive the module: its names are cleared when the process ends.
    def close(
        self,
        close: Callable[[int], None] = os.close,
        fd_of: Callable[[ExportedMemory], int] = fd_of,
        run: Any = deque,
    ) -> None:
        """Close them, once: each leaves the list in the call that closes it."""
        run(map(close, map(fd_of, map(self.pop, [-1] * len(self)))), maxlen=0)

    def __del__(self) -> None:  # where a signal handler has cut `close` off
        self.close()


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
    exported = Exports()
    try:
        taken = exported.take(exporter, source, operand.data)
        return memory, memory.import_memory(importer, taken)
    finally:
        exported.close()
