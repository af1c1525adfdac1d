"""Classes of C++ types as dataclasses, by the name that tvm_ffi gives the module."""

from __future__ import annotations

from .objects.records import asdict, astuple, c_class, fields, is_dataclass, replace

__all__ = ["asdict", "astuple", "c_class", "fields", "is_dataclass", "replace"]
