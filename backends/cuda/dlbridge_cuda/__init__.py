"""The CUDA backends of dlbridge: device, pinned host and managed memory.

Importing this loads nothing; the classes are imported when they are first
named, and open the driver when they are called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backends import CUDA, CUDAHost, CUDAManaged

__all__ = ["CUDA", "CUDAHost", "CUDAManaged"]


if not TYPE_CHECKING:  # to a type checker it would say that there is every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(".backends", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
