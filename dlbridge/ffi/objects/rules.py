"""Which Python class becomes which value: the rules, in the order in which they are asked."""

from __future__ import annotations

import ctypes
import numbers
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType, dtype

from ..calls.callbacks import callable_rule
from ..values import scalars
from ..values.errors import error_rule
from ..values.opaque import pack_opaque
from ..values.reading import ReadOnlyArgument, pack_reading
from ..values.tensors import native_rule, tensor_rule
from ..values.words import defines, pack
from ..values.wrappers import object_rule
from .containers import container_rule
from .conversion import convertible_rule
from .elements import Checked, Packed, pack_checked, pack_packed
from .mappings import mapping_rule
from .peers import peer_rule
from .sequences import sequence_rule
from .shapes import shape_rule

if TYPE_CHECKING:
    from ..values.words import Packer, Temporaries

__all__ = ["EXACT", "RULES", "find_packer"]


def _protocol(name: str, packer: Any) -> Any:
    """A rule for classes with the method *name*: its result is packed by *packer*."""

    def rule(cls: type) -> Packer | None:
        if not defines(cls, name):
            return None

        def pack_result(value: Any, keep: Temporaries) -> tuple[int, int]:
            found = getattr(value, name)()
            keep.append(found)  # there may be no other reference
            return packer(found, keep)  # type: ignore[no-any-return]

        return pack_result

    return rule


def _number_protocol(name: str, convert: Callable[[Any, type, str], tuple[int, int]]) -> Any:
    """A rule for classes with the method *name*, whose result *convert* makes a word of."""

    def rule(cls: type) -> Packer | None:
        if not defines(cls, name):
            return None
        return lambda value, _keep: convert(getattr(value, name)(), cls, name)

    return rule


def _subclasses(base: type, packer: Packer) -> Any:
    return lambda cls: packer if issubclass(cls, base) else None


def _pack_foreign_dtype(value: Any, keep: Temporaries) -> tuple[int, int]:
    return scalars.pack_dtype(dtype(value), keep)


def _dtype_rule(cls: type) -> Packer | None:
    for module, name in (("torch", "dtype"), ("numpy", "dtype")):
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and issubclass(cls, found):
            return _pack_foreign_dtype
    return None


def _pack_text(value: str, keep: Temporaries) -> tuple[int, int]:
    # As a str proper: what the subclass says of equality must not reach a cache.
    return scalars.pack_str(str.__getitem__(value, slice(None)), keep)


def _cuda_stream(found: tuple[int, int], cls: type, name: str) -> tuple[int, int]:
    return scalars.method_pointer(found[1], cls, name)  # (protocol version, handle)


def _numpy_bool_rule(cls: type) -> Packer | None:
    numpy = sys.modules.get("numpy")
    return scalars.pack_bool if numpy is not None and issubclass(cls, numpy.bool_) else None


def _numpy_float_rule(cls: type) -> Packer | None:
    # Their __float__ is of C, and always succeeds.
    numpy = sys.modules.get("numpy")
    return scalars.pack_float if numpy is not None and issubclass(cls, numpy.floating) else None


EXACT: Final[Mapping[type, Packer]] = {
    type(None): scalars.pack_none,
    int: scalars.pack_int,
    bool: scalars.pack_bool,
    float: scalars.pack_float,
    str: scalars.pack_str,
    bytes: scalars.pack_bytes,
    bytearray: scalars.pack_bytes,
    ctypes.c_void_p: scalars.pack_opaque_pointer,
    DType: scalars.pack_dtype,
    Device: scalars.pack_device,
    scalars.Unchanged: scalars.pack_unchanged,
    Packed: pack_packed,
    Checked: pack_checked,
    ReadOnlyArgument: pack_reading,
}
"""Packers of exactly these classes; subclasses go by `RULES`."""

RULES: Final[tuple[Callable[[type], Packer | None], ...]] = (
    container_rule,  # before object_rule, which would take them as well
    object_rule,
    convertible_rule,
    peer_rule,
    _protocol("__tvm_ffi_object__", pack),
    tensor_rule,
    _number_protocol("__cuda_stream__", _cuda_stream),
    _numpy_bool_rule,
    _subclasses(numbers.Integral, scalars.pack_int),
    _subclasses(float, scalars.pack_float),
    _numpy_float_rule,
    _subclasses(numbers.Real, scalars.pack_real),
    _subclasses(str, _pack_text),
    _subclasses((bytes, bytearray), scalars.pack_bytes),  # type: ignore[arg-type]
    shape_rule,
    sequence_rule,
    mapping_rule,
    _subclasses(ctypes.c_void_p, scalars.pack_opaque_pointer),
    _number_protocol("__tvm_ffi_opaque_ptr__", scalars.method_pointer),
    _dtype_rule,
    _protocol("__tvm_ffi_int__", scalars.pack_int),
    _number_protocol("__tvm_ffi_float__", scalars.method_float),
    _protocol("__tvm_ffi_value__", pack),
    error_rule,
    callable_rule,
    native_rule,
)
"""Asked in this order for every other class; what no rule takes is carried as it is."""


def find_packer(cls: type) -> Packer:
    """The packer for instances of *cls*."""
    found = EXACT.get(cls)
    if found is not None:
        return found
    return next(filter(None, (rule(cls) for rule in RULES)), pack_opaque)
