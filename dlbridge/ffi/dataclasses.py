"""Classes of C++ types as dataclasses, by the name that tvm_ffi gives the module."""

from __future__ import annotations

from .objects.comparing import c_class

__all__ = ["c_class"]
