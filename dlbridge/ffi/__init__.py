"""TVM-FFI from Python: compiled kernels, called with tensors of any library.

Names and behaviour are those of the tvm_ffi package where the thing is the
same. Importing this loads nothing; each name is loaded at its first use, and
the first one loads libtvm_ffi.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dlbridge import (
        Device as Device,
        DLDeviceType as DLDeviceType,
        Tensor as Tensor,
        device as device,
        dtype as dtype,
    )

    from . import (
        dataclasses as dataclasses,
        serialization as serialization,
        structural as structural,
    )
    from ._lib import library_path as library_path, version as version
    from .calls.bound import BoundCall as BoundCall
    from .calls.environment import (
        get_raw_stream as get_raw_stream,
        use_raw_stream as use_raw_stream,
        use_stream as use_stream,
        use_torch_stream as use_torch_stream,
    )
    from .calls.functions import Function as Function, convert_func as convert_func
    from .calls.registry import (
        get_global_func as get_global_func,
        get_global_func_metadata as get_global_func_metadata,
        list_global_func_names as list_global_func_names,
        register_global_func as register_global_func,
        remove_global_func as remove_global_func,
    )
    from .graphs.comparison import (
        StructuralKey as StructuralKey,
        get_first_structural_mismatch as get_first_structural_mismatch,
        structural_equal as structural_equal,
        structural_hash as structural_hash,
    )
    from .objects.classes import object_class as object_class, register_object as register_object
    from .objects.conversion import (
        ObjectConvertible as ObjectConvertible,
        convert as convert,
        init_ffi_api as init_ffi_api,
    )
    from .objects.mappings import Dict as Dict, Map as Map
    from .objects.modules import (
        Module as Module,
        ModulePropertyMask as ModulePropertyMask,
        load_module as load_module,
        register_system_lib_symbol as register_system_lib_symbol,
        system_lib as system_lib,
    )
    from .objects.sequences import Array as Array, List as List
    from .objects.shapes import Shape as Shape
    from .objects.typeinfo import get_registered_type_keys as get_registered_type_keys
    from .values.dtype_constants import (
        bfloat16 as bfloat16,
        float4_e2m1fn as float4_e2m1fn,
        float4_e2m1fnx2 as float4_e2m1fnx2,
        float6_e2m3fn as float6_e2m3fn,
        float6_e3m2fn as float6_e3m2fn,
        float8_e3m4 as float8_e3m4,
        float8_e4m3 as float8_e4m3,
        float8_e4m3b11fnuz as float8_e4m3b11fnuz,
        float8_e4m3fn as float8_e4m3fn,
        float8_e4m3fnuz as float8_e4m3fnuz,
        float8_e5m2 as float8_e5m2,
        float8_e5m2fnuz as float8_e5m2fnuz,
        float8_e8m0fnu as float8_e8m0fnu,
        float16 as float16,
        float32 as float32,
        float64 as float64,
        int8 as int8,
        int16 as int16,
        int32 as int32,
        int64 as int64,
        uint8 as uint8,
        uint16 as uint16,
        uint32 as uint32,
        uint64 as uint64,
    )
    from .values.errors import Error as Error, register_error as register_error
    from .values.imports import from_dlpack as from_dlpack
    from .values.reading import readonly as readonly
    from .values.scalars import UNCHANGED as UNCHANGED
    from .values.wrappers import Object as Object
# The one list of public names: module -> its names. `__all__`, `__dir__` and
# loading follow from it, and a test compares it with the imports above.
_NAMES: Final = {
    "dlbridge": "DLDeviceType Device Tensor device dtype",
    "._lib": "library_path version",
    ".values.scalars": "UNCHANGED",
    ".values.wrappers": "Object",
    ".values.dtype_constants": """
        bfloat16 float16 float32 float64 float4_e2m1fn float4_e2m1fnx2 float6_e2m3fn float6_e3m2fn
        float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2
        float8_e5m2fnuz float8_e8m0fnu int8 int16 int32 int64 uint8 uint16 uint32 uint64
    """,
    ".values.imports": "from_dlpack",
    ".values.reading": "readonly",
    ".values.errors": "Error register_error",
    ".calls.bound": "BoundCall",
    ".calls.environment": "get_raw_stream use_raw_stream use_stream use_torch_stream",
    ".calls.functions": "Function convert_func",
    ".calls.registry": """
        get_global_func
        get_global_func_metadata
        list_global_func_names
        register_global_func
        remove_global_func
    """,
    ".objects.sequences": "Array List",
    ".objects.shapes": "Shape",
    ".objects.mappings": "Dict Map",
    ".objects.conversion": "ObjectConvertible convert init_ffi_api",
    ".objects.typeinfo": "get_registered_type_keys",
    ".objects.classes": "object_class register_object",
    ".objects.modules": """
        Module ModulePropertyMask load_module register_system_lib_symbol system_lib
    """,
    ".graphs.comparison": """
        StructuralKey get_first_structural_mismatch structural_equal structural_hash
    """,
}
_MODULES: Final = ("dataclasses", "serialization", "structural")
_HOMES: Final = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_HOMES, *_MODULES])  # noqa: PLE0605  # a list, which ruff does not see


if not TYPE_CHECKING:  # to a type checker it would say that there is every name

    def __getattr__(name: str) -> Any:  # anybody's: the public object of that name
        if name in _MODULES:
            return import_module(f".{name}", __name__)  # which sets the attribute
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module("dlbridge.core")  # which refuses subinterpreters, with the reason
        found = globals()[name] = getattr(import_module(home, __name__), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
