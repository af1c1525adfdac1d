"""The CUDA backends of dlbridge: device, pinned host and managed memory.

Importing this loads nothing; the classes are imported when they are first
named, and open the driver when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device import CUDA
    from .host import CUDAHost
    from .managed import CUDAManaged

__all__ = ["CUDA", "CUDAHost", "CUDAManaged"]

_MODULES = {"CUDA": "device", "CUDAHost": "host", "CUDAManaged": "managed"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
