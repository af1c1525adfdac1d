"""A Tensor out again, as the library that the caller names."""

from __future__ import annotations

import importlib
from typing import Any

from .tensor import Tensor

__all__ = ["as_library", "library_step"]


def as_library(tensor: Tensor, like: Any, copy: bool | None) -> Any:
    """*tensor* as an array of the library *like*, over the same memory."""
    if like == "numpy":
        return tensor.numpy()
    return importlib.import_module(like).from_dlpack(tensor)


def library_step(tensor: Tensor, like: Any, copy: bool | None) -> tuple[bool, str]:
    """Whether *like* makes a copy necessary, and why."""
    return False, f"{like} takes the memory as it is"
