"""TVM-FFI from Python: compiled kernels, called with anybody's tensors.

Names and behaviour are those of the tvm_ffi package where the thing is the
same. Importing this loads nothing; the first name that is used loads
libtvm_ffi.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dlbridge.core.api import from_dlpack
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device, DLDeviceType, device
    from dlbridge.core.values.dtypes import dtype

    from . import dataclasses, serialization, structural
    from ._lib import library_path, version
    from .bound import BoundCall
    from .conversion import ObjectConvertible, convert, init_ffi_api
    from .env import get_raw_stream, use_raw_stream, use_stream, use_torch_stream
    from .error import Error, register_error
    from .function import (
        Function,
        convert_func,
        get_global_func,
        get_global_func_metadata,
        list_global_func_names,
        register_global_func,
        remove_global_func,
    )
    from .mapping import Dict, Map
    from .module import (
        Module,
        ModulePropertyMask,
        load_module,
        register_system_lib_symbol,
        system_lib,
    )
    from .object import Object
    from .plain import UNCHANGED
    from .reflection import object_class, register_object
    from .sequence import Array, List
    from .shape import Shape
    from .structural import (
        DefRegionKind,
        InplaceMode,
        StructuralKey,
        StructuralMutator,
        StructuralVisitor,
        VisitInterrupt,
        WalkOrder,
        WalkResult,
        get_first_structural_mismatch,
        structural_equal,
        structural_hash,
        structural_map,
        structural_mutate,
        structural_visit,
        structural_walk,
    )
    from .typeinfo import get_registered_type_keys

__all__ = [
    "UNCHANGED",
    "Array",
    "BoundCall",
    "DLDeviceType",
    "DefRegionKind",
    "Device",
    "Dict",
    "Error",
    "Function",
    "InplaceMode",
    "List",
    "Map",
    "Module",
    "ModulePropertyMask",
    "Object",
    "ObjectConvertible",
    "Shape",
    "StructuralKey",
    "StructuralMutator",
    "StructuralVisitor",
    "Tensor",
    "VisitInterrupt",
    "WalkOrder",
    "WalkResult",
    "convert",
    "convert_func",
    "dataclasses",
    "device",
    "dtype",
    "from_dlpack",
    "get_first_structural_mismatch",
    "get_global_func",
    "get_global_func_metadata",
    "get_raw_stream",
    "get_registered_type_keys",
    "init_ffi_api",
    "library_path",
    "list_global_func_names",
    "load_module",
    "object_class",
    "register_error",
    "register_global_func",
    "register_object",
    "register_system_lib_symbol",
    "remove_global_func",
    "serialization",
    "structural",
    "structural_equal",
    "structural_hash",
    "structural_map",
    "structural_mutate",
    "structural_visit",
    "structural_walk",
    "system_lib",
    "use_raw_stream",
    "use_stream",
    "use_torch_stream",
    "version",
]

# The same things as in dlbridge, where tvm_ffi's users look for them.
_SHARED: Final = ("DLDeviceType", "Device", "Tensor", "device", "dtype", "from_dlpack")

# In this order; each adds its part to the tables in `any`, `arguments` last.
_MODULES: Final = (
    "_lib",
    "any",
    "plain",
    "object",
    "opaque",
    "error",
    "tensor",
    "bound",
    "function",
    "container",
    "sequence",
    "shape",
    "mapping",
    "typeinfo",
    "graph",
    "serialization",
    "reflection",
    "dataclasses",
    "structural",
    "module",
    "conversion",
    "env",
    "arguments",
)


def _load() -> None:
    for module in _MODULES:
        loaded = import_module(f"{__name__}.{module}")
        for name in loaded.__all__:
            if name in __all__:
                globals()[name] = getattr(loaded, name)


def __getattr__(name: str) -> Any:
    if name in _SHARED:
        return getattr(import_module("dlbridge"), name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
