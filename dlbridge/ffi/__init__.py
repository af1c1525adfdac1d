"""TVM-FFI from Python: compiled kernels, called with tensors of any library.

Names and behaviour are those of the tvm_ffi package where the thing is the
same. Importing this loads nothing; each name is loaded at its first use, and
the first one loads libtvm_ffi.
"""

# A guest: it uses public names only. May import: `abi`, `api`, `errors`, `extending`, `interop`,
# `kit`, `protocol`.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dlbridge import (
        Device as Device,
        DLDeviceType as DLDeviceType,
        DType,
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
    from .any import UNCHANGED as UNCHANGED, convert as convert
    from .calls import BoundCall as BoundCall
    from .classes import (
        object_class as object_class,
        register_object as register_object,
    )
    from .containers import Array as Array, Dict as Dict, List as List, Map as Map, Shape as Shape
    from .conversions import ObjectConvertible as ObjectConvertible
    from .errors import Error as Error, register_error as register_error
    from .functions import (
        Function as Function,
        convert_func as convert_func,
        get_global_func as get_global_func,
        get_global_func_metadata as get_global_func_metadata,
        list_global_func_names as list_global_func_names,
        register_global_func as register_global_func,
        remove_global_func as remove_global_func,
    )
    from .modules import (
        Module as Module,
        ModulePropertyMask as ModulePropertyMask,
        init_ffi_api as init_ffi_api,
        load_module as load_module,
        register_system_lib_symbol as register_system_lib_symbol,
        system_lib as system_lib,
    )
    from .objects import Object as Object
    from .reflection import get_registered_type_keys as get_registered_type_keys
    from .streams import (
        get_raw_stream as get_raw_stream,
        use_raw_stream as use_raw_stream,
        use_stream as use_stream,
        use_torch_stream as use_torch_stream,
    )
    from .structural import (
        StructuralKey as StructuralKey,
        get_first_structural_mismatch as get_first_structural_mismatch,
        structural_equal as structural_equal,
        structural_hash as structural_hash,
    )
    from .tensors import from_dlpack as from_dlpack, readonly as readonly

    def _dtypes() -> tuple[DType, ...]: ...

    bfloat16, float16, float32, float64 = _dtypes()
    float4_e2m1fn, float4_e2m1fnx2, float6_e2m3fn, float6_e3m2fn = _dtypes()
    float8_e3m4, float8_e4m3, float8_e4m3b11fnuz, float8_e4m3fn, float8_e4m3fnuz = _dtypes()
    float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu = _dtypes()
    int8, int16, int32, int64, uint8, uint16, uint32, uint64 = _dtypes()

# The one list of public names: module -> its names. `__all__`, `__dir__`, loading and the
# `__module__` of what is public follow from it; a test compares it with the imports above.
_NAMES: Final = {
    "dlbridge": "DLDeviceType Device Tensor device dtype",
    "._lib": "library_path version",
    ".any": "UNCHANGED convert",
    ".objects": "Object",
    ".errors": "Error register_error",
    ".tensors": "from_dlpack readonly",
    ".streams": "get_raw_stream use_raw_stream use_stream use_torch_stream",
    ".calls": "BoundCall",
    ".functions": """
        Function convert_func get_global_func get_global_func_metadata
        list_global_func_names register_global_func remove_global_func
    """,
    ".containers": "Array Dict List Map Shape",
    ".modules": """
        Module ModulePropertyMask init_ffi_api load_module register_system_lib_symbol
        system_lib
    """,
    ".reflection": "get_registered_type_keys",
    ".classes": "object_class register_object",
    ".conversions": "ObjectConvertible",
    ".structural": """
        StructuralKey get_first_structural_mismatch structural_equal structural_hash
    """,
    # Dtypes by name, where tvm_ffi has them.
    "": """
        bfloat16 float16 float32 float64 float4_e2m1fn float4_e2m1fnx2 float6_e2m3fn
        float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn
        float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int8 int16 int32 int64
        uint8 uint16 uint32 uint64
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
            if name in ("_methods", "containers"):  # our own imports ask first: no hint is made
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            hint = import_module("dlbridge.extending").did_you_mean(name, __all__)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        if not home:
            value = import_module("dlbridge").dtype(name)
        else:
            value = getattr(import_module(home, __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
