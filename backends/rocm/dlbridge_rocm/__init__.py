"""ROCm devices and pinned memory for dlbridge. Importing this opens no library; use does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device import ROCM
    from .host import ROCMHost

__all__ = ["ROCM", "ROCMHost"]

_HOMES = {"ROCM": "device", "ROCMHost": "host"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
