"""The family ``torch-``: which accelerators this torch can use, asked when one is named."""

from __future__ import annotations

from typing import Any

from dlbridge.errors import BackendUnavailable

from .backend import TorchDevice, TorchStreams

__all__ = ["TorchFamily"]

_OF_TORCH = ("cuda", "xpu", "mps", "mtia", "hpu", "maia")
"""The device types that torch has names for. Other vendors rename PrivateUse1."""


class TorchFamily:
    """The backends ``torch-cuda``, ``torch-xpu``, ``torch-npu``: one for each type of device."""

    def __init__(self) -> None:
        try:
            import torch
        except (ImportError, OSError, RuntimeError) as exc:
            raise BackendUnavailable(f"torch-: no torch ({exc}); pip install torch") from exc
        self._torch: Any = torch

    def names(self) -> list[str]:
        """The names of those that can be used here; torch initialises none for the answer."""
        kinds = (*_OF_TORCH, self._torch.device("privateuseone").type)
        return [f"torch-{kind}" for kind in kinds if not self._missing(kind)]

    def open(self, name: str) -> TorchDevice:
        """The backend of that name; BackendUnavailable if torch cannot use such a device here."""
        kind = name.removeprefix("torch-")
        reason = self._missing(kind) if kind else "it is the beginning of a name"
        if reason:
            here = ", ".join(self.names()) or "no accelerator"
            raise BackendUnavailable(
                f"{name}: {reason}; torch {self._torch.__version__} can use {here} here. Install "
                "the torch that the vendor of your device names, and the vendor's package for it"
            )
        module = getattr(self._torch, kind)
        has_streams = hasattr(module, "current_stream") and hasattr(module, "stream")
        return (TorchStreams if has_streams else TorchDevice)(self._torch, kind, module)

    def _missing(self, kind: str) -> str:
        """Why torch has no devices of *kind*; empty if it has some."""
        try:
            known = self._torch.device(kind).type
        except RuntimeError:
            return f"torch knows no devices of the type {kind!r}"
        module: Any = getattr(self._torch, known, None)
        if known != kind or kind == "cpu" or not hasattr(module, "device_count"):
            return f"torch has no accelerator torch.{kind} with device_count()"
        if getattr(module, "_is_in_bad_fork", bool)():
            return "torch has used it before fork(), which it does not survive; start with 'spawn'"
        if not module.is_available() or not module.device_count():
            return f"torch.{kind} finds no device"
        return ""
