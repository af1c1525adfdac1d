"""TVM-FFI from Python: compiled kernels, called with anybody's tensors.

Names and behaviour are those of the tvm_ffi package where the thing is the
same. Importing this loads nothing; the first name that is used loads
libtvm_ffi.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ._lib import library_path, version
    from .any import UNCHANGED
    from .container import Array, List, Shape
    from .env import get_raw_stream, use_raw_stream, use_stream, use_torch_stream
    from .error import Error, register_error
    from .function import (
        BoundCall,
        Function,
        convert_func,
        get_global_func,
        get_global_func_metadata,
        list_global_func_names,
        register_global_func,
        remove_global_func,
    )
    from .mapping import Dict, Map
    from .object import Object

__all__ = [
    "UNCHANGED",
    "Array",
    "BoundCall",
    "Dict",
    "Error",
    "Function",
    "List",
    "Map",
    "Object",
    "Shape",
    "convert_func",
    "get_global_func",
    "get_global_func_metadata",
    "get_raw_stream",
    "library_path",
    "list_global_func_names",
    "register_error",
    "register_global_func",
    "remove_global_func",
    "use_raw_stream",
    "use_stream",
    "use_torch_stream",
    "version",
]

# In this order; each adds its part to the tables in `any`, `arguments` last.
_MODULES: Final = (
    "_lib",
    "any",
    "object",
    "opaque",
    "error",
    "tensor",
    "function",
    "container",
    "mapping",
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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
