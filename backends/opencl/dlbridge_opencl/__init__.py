"""OpenCL devices for dlbridge. Importing this opens no library; using a device does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.errors import BackendUnavailable

if TYPE_CHECKING:
    from .backend import OpenCL
    from .devices import use_context

__all__ = ["OpenCL", "use_context"]

_HOMES = {"OpenCL": "backend", "use_context": "devices"}


if not TYPE_CHECKING:  # to a type checker it would say that there is every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            import pyopencl  # noqa: F401 - first and alone, so that its failure is known as its own
        except ImportError as exc:
            raise BackendUnavailable(
                f"opencl: pyopencl cannot be imported ({exc}); pip install --upgrade pyopencl"
            ) from exc
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
