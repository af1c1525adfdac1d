"""Where a pointer lives: asked from the driver, never guessed from a label."""

from __future__ import annotations

from typing import Any, NamedTuple

from dlbridge.errors import ExchangeError

from .contexts import attribute, current, primary
from .driver import call, cu

__all__ = ["Location", "checked", "locate", "pageable"]

_ATTRIBUTES = [
    cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED,
    cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT,
]
_HOST, _DEVICE = 1, 2  # CUmemorytype; 0 is memory that the driver has never seen


class Location(NamedTuple):
    """What the driver knows of an address."""

    kind: str
    """``pageable`` (unknown to the driver), ``host`` (pinned or registered),
    ``device`` or ``managed``."""
    device_id: int
    context: Any
    """The CUcontext that it was allocated in; 0 for pool and mapped memory."""


def locate(address: int) -> Location:
    """Where *address* lives. 1.5 us: one call for four attributes."""
    with current(primary(0)):
        memory, ordinal, managed, context = call(
            "cuPointerGetAttributes", len(_ATTRIBUTES), _ATTRIBUTES, address
        )
    kinds = {0: "pageable", _HOST: "host", _DEVICE: "device"}
    kind = "managed" if managed else kinds.get(int(memory), "pageable")
    return Location(kind, int(ordinal), int(context))


def pageable(address: int, device_id: int) -> bool:
    """Whether copies to and from *address* must be staged.

    Not if it is pinned, registered or CUDA memory, nor on a device that reads
    the host's page tables (Grace Hopper), where staging is a pure loss.
    """
    if attribute(device_id, "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES"):
        return False
    return locate(address).kind == "pageable"


def checked(address: int, device_id: int, label: str, kinds: tuple[str, ...]) -> Location:
    """The location of a foreign *address* that was exported as *label*.

    ExchangeError if it is not one of *kinds*, or if a context of the exporter's
    own holds it, which our primary contexts cannot reach.
    """
    found = locate(address)
    if (
        found.kind == "pageable"
        and "device" in kinds
        and attribute(device_id, "PAGEABLE_MEMORY_ACCESS")
    ):
        return found._replace(device_id=device_id)  # HMM, ATS: every address works
    if found.kind not in kinds:
        raise ExchangeError(
            f"the tensor says that {address:#x} is {label} memory, the CUDA driver says it is "
            f"{found.kind} memory; its exporter mislabels it or has freed it"
        )
    if found.kind == "device" and found.context not in (0, int(primary(found.device_id))):
        raise ExchangeError(
            f"{address:#x} belongs to a CUDA context of its exporter's own, not to the primary "
            f"context of device {found.device_id}; copy it through the host, or make the "
            "exporter use the primary context"
        )
    return found
