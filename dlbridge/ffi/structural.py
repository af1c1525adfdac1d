"""Structural comparison, by the name that tvm_ffi gives the module."""

from __future__ import annotations

from .graphs.comparison import (
    StructuralKey,
    get_first_structural_mismatch,
    structural_equal,
    structural_hash,
)

__all__ = [
    "StructuralKey",
    "get_first_structural_mismatch",
    "structural_equal",
    "structural_hash",
]
