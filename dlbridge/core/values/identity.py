"""UUIDs and PCI addresses of devices in one form, whatever form a driver gives them."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Identity", "pci_text", "uuid_text"]

_PREFIX = re.compile(r"(?:gpu|mig)-", re.ASCII | re.IGNORECASE)
_DIGITS = re.compile(r"[0-9a-f]+", re.ASCII)
_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-f]+):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})"
    r"(?:\.(?P<function>[0-9a-f]))?",
    re.ASCII | re.IGNORECASE,
)


class Identity(NamedTuple):
    """What tells a physical device from all others; None for what is not known."""

    uuid: str | None
    pci: str | None


def uuid_text(said: object) -> str | None:
    """``"0123abcd-4567-89ef-0123-456789abcdef"`` for what a driver says; None if it is no UUID.

    Sixteen hexadecimal digits are AMD's: its driver's 16 bytes are these letters.
    """
    if not isinstance(said, str):
        return None
    digits = _PREFIX.sub("", said.strip(), count=1).replace("-", "").lower()
    if _DIGITS.fullmatch(digits) is None:
        return None
    if len(digits) == 16:
        digits = digits.encode().hex()
    if len(digits) != 32 or not digits.strip("0"):
        return None
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def pci_text(said: object) -> str | None:
    """``"0000:3b:00.0"`` for what a driver says; None if it is no PCI address."""
    found = _PCI.fullmatch(said.strip()) if isinstance(said, str) else None
    if found is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
