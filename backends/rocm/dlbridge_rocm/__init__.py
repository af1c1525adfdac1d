"""ROCm devices and pinned memory for dlbridge. Importing this opens no library; use does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backends import ROCM, ROCMHost

__all__ = ["ROCM", "ROCMHost"]


if not TYPE_CHECKING:  # to a type checker it would say that there is every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(".backends", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
