"""Which Python class becomes which value: the rules, in the order in which they are asked."""

from __future__ import annotations

import ctypes
import numbers
import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.values.dtypes import dtype

from . import plain
from .any import defines, pack, rules
from .callback import callable_rule
from .error import error_rule
from .mapping import mapping_rule
from .opaque import pack_opaque
from .peer import peer_rule
from .sequence import sequence_rule
from .shape import shape_rule
from .tensor import tensor_rule

if TYPE_CHECKING:
    from .any import Packer, Temporaries

__all__: list[str] = []


def _protocol(name: str, packer: Any) -> Any:
    """A rule for classes with the method *name*: its result is packed by *packer*."""

    def rule(cls: type) -> Packer | None:
        if not defines(cls, name):
            return None

        def pack_result(value: Any, keep: Temporaries) -> tuple[int, int]:
            found = getattr(value, name)()
            keep.append(found)  # perhaps nobody else holds it
            return packer(found, keep)  # type: ignore[no-any-return]

        return pack_result

    return rule


def _subclasses(base: type, packer: Packer) -> Any:
    return lambda cls: packer if issubclass(cls, base) else None


def _pack_foreign_dtype(value: Any, keep: Temporaries) -> tuple[int, int]:
    return plain.pack_dtype(dtype(value), keep)


def _dtype_rule(cls: type) -> Packer | None:
    for module, name in (("torch", "dtype"), ("numpy", "dtype")):
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and issubclass(cls, found):
            return _pack_foreign_dtype
    return None


def _pack_cuda_stream(value: tuple[int, int], keep: Temporaries) -> tuple[int, int]:
    return plain.pack_opaque_pointer(value[1], keep)  # (protocol version, handle)


def _numpy_bool_rule(cls: type) -> Packer | None:
    numpy = sys.modules.get("numpy")
    return plain.pack_bool if numpy is not None and issubclass(cls, numpy.bool_) else None


rules += [
    peer_rule,
    _protocol("__tvm_ffi_object__", pack),
    tensor_rule,
    _protocol("__cuda_stream__", _pack_cuda_stream),
    _numpy_bool_rule,
    _subclasses(numbers.Integral, plain.pack_int),
    _subclasses(numbers.Real, plain.pack_float),
    _subclasses(str, plain.pack_str),
    _subclasses((bytes, bytearray), plain.pack_bytes),  # type: ignore[arg-type]
    shape_rule,
    sequence_rule,
    mapping_rule,
    _subclasses(ctypes.c_void_p, plain.pack_opaque_pointer),
    _protocol("__tvm_ffi_opaque_ptr__", plain.pack_opaque_pointer),
    _dtype_rule,
    _protocol("__tvm_ffi_int__", plain.pack_int),
    _protocol("__tvm_ffi_float__", plain.pack_float),
    _protocol("__tvm_ffi_value__", pack),
    error_rule,
    callable_rule,
    lambda _cls: pack_opaque,
]
