"""Where a pointer lives: asked from the runtime, never guessed from a label."""

from __future__ import annotations

from typing import NamedTuple

from dlbridge.errors import ExchangeError

from .devices import attribute
from .driver import INVALID_VALUE, check, status, version
from .library import ffi

__all__ = ["Location", "checked", "locate"]

# hipMemoryType to what it means. HIP 6 renumbered it (hip_runtime_api.h); what
# is not listed (arrays) is none of ours. HIP 5 has no type of managed memory.
_KINDS_5 = {0: "host", 1: "device", 3: "managed"}
_KINDS_6 = {0: "pageable", 1: "host", 2: "device", 3: "managed", 11: "managed"}


class Location(NamedTuple):
    """What the runtime knows of an address."""

    kind: str
    """``pageable`` (unknown to the runtime), ``host`` (pinned or registered),
    ``device`` or ``managed``."""
    device_id: int


def locate(address: int) -> Location:
    """Where *address* lives.

    Plain host memory is hipErrorInvalidValue, or hipMemoryTypeUnregistered:
    runtimes differ, whatever their version.
    """
    found = ffi.new("hipPointerAttribute_t *")
    code = status("hipPointerGetAttributes", found, address)
    if code == INVALID_VALUE:
        return Location("pageable", -1)
    check("hipPointerGetAttributes", code)
    kinds = _KINDS_5 if version() < (6, 0) else _KINDS_6
    kind = "managed" if found.isManaged else kinds.get(found.type, f"type {found.type}")
    return Location(kind, int(found.device))


def checked(address: int, device_id: int, label: str, kinds: tuple[str, ...]) -> Location:
    """The location of a foreign *address* that was exported as *label*.

    ExchangeError if it is not one of *kinds*.
    """
    found = locate(address)
    if found.kind in kinds:
        return found
    if (
        found.kind == "pageable"
        and "device" in kinds
        and attribute(device_id, "PageableMemoryAccess")
    ):
        return Location("pageable", device_id)  # HMM with XNACK: every address works
    raise ExchangeError(
        f"the tensor says that {address:#x} is {label} memory, the HIP runtime says it is "
        f"{found.kind} memory; its exporter mislabels it or has freed it"
    )
