"""The copy between two operands of one shape and type, in any memory.

Every copy of dlbridge is made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.tensor.operand import host_array

from .between_devices import on_device
from .host_and_device import from_host, to_host
from .within_host import copy_host

if TYPE_CHECKING:
    from dlbridge.core.tensor.operand import Operand

    from .within_host import Progress

__all__ = ["copy_elements"]


def copy_elements(target: Operand, source: Operand, progress: Progress | None = None) -> None:
    """Copy the elements of *source* to *target*, complete on return if the host is involved.

    Shape and dtype are equal. On one device the copy is ordered on its current
    stream; between two devices of one backend it is complete on return.
    """
    if not source.size:
        return
    if not source.device.is_host:
        (to_host if target.device.is_host else on_device)(target, source, progress)
    elif not target.device.is_host:
        from_host(target, source, progress)
    else:
        copy_host(host_array(target), host_array(source), progress)
