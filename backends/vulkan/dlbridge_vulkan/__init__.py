"""Vulkan devices for dlbridge. Importing this opens no library; using a device does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import Vulkan
    from .compute import Kernel
    from .native import VulkanArray

__all__ = ["Kernel", "Vulkan", "VulkanArray"]

_HOMES = {"Kernel": "compute", "Vulkan": "backend", "VulkanArray": "native"}


if not TYPE_CHECKING:  # to a type checker it would say that there is every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
