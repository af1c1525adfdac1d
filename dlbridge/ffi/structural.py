"""Structural comparison, walks and rewrites, by the name that tvm_ffi gives the module."""

from __future__ import annotations

from .graphs.comparison import (
    StructuralKey,
    get_first_structural_mismatch,
    structural_equal,
    structural_hash,
)
from .graphs.walks import (
    DefRegionKind,
    InplaceMode,
    StructuralMutator,
    StructuralVisitor,
    VisitInterrupt,
    WalkOrder,
    WalkResult,
    structural_map,
    structural_mutate,
    structural_visit,
    structural_walk,
)

__all__ = [
    "DefRegionKind",
    "InplaceMode",
    "StructuralKey",
    "StructuralMutator",
    "StructuralVisitor",
    "VisitInterrupt",
    "WalkOrder",
    "WalkResult",
    "get_first_structural_mismatch",
    "structural_equal",
    "structural_hash",
    "structural_map",
    "structural_mutate",
    "structural_visit",
    "structural_walk",
]
