"""Which Python value becomes of a value of C: tables by TVM-FFI type index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .._lib import C
from ..calls.functions import Function
from ..values.errors import Error
from ..values.opaque import opaque_value
from ..values.scalars import (
    big_int,
    heap_bytes,
    heap_str,
    view_bool,
    view_byte_array,
    view_device,
    view_dtype,
    view_float,
    view_int,
    view_none,
    view_opaque_pointer,
    view_raw_str,
    view_rvalue,
    view_small_bytes,
    view_small_str,
    view_unchanged,
)
from ..values.tensors import lent_tensor, tensor_of
from ..values.wrappers import wrap
from .classes import class_of
from .mappings import Dict, Map
from .sequences import Array, List
from .shapes import shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..values.words import Constructor, View
    from ..values.wrappers import Object

__all__ = ["CONSTRUCTORS", "VIEWS"]


def _wrapper(cls: type[Object]) -> Constructor:
    return lambda handle, index: wrap(handle, index, cls)


VIEWS: Final[Mapping[int, View]] = {
    C.kTVMFFINone: view_none,
    C.kTVMFFIInt: view_int,
    C.kTVMFFIBool: view_bool,
    C.kTVMFFIFloat: view_float,
    C.kTVMFFIOpaquePtr: view_opaque_pointer,
    C.kTVMFFIDataType: view_dtype,
    C.kTVMFFIDevice: view_device,
    C.kTVMFFIDLTensorPtr: lent_tensor,
    C.kTVMFFIRawStr: view_raw_str,
    C.kTVMFFIByteArrayPtr: view_byte_array,
    C.kTVMFFIObjectRValueRef: view_rvalue,
    C.kTVMFFISmallStr: view_small_str,
    C.kTVMFFISmallBytes: view_small_bytes,
    C.kTVMFFIUnchanged: view_unchanged,
}
"""Plain values, which C may own still: type index -> value of ``(tag, payload)``."""

CONSTRUCTORS: Final[Mapping[int, Constructor]] = {
    # Every type that has no nearer ancestor here.
    C.kTVMFFIObject: lambda handle, index: wrap(handle, index, class_of(index)),
    C.kTVMFFIStr: heap_str,
    C.kTVMFFIBytes: heap_bytes,
    C.kTVMFFIError: _wrapper(Error),
    C.kTVMFFIFunction: _wrapper(Function),
    C.kTVMFFIShape: shape_of,
    C.kTVMFFITensor: tensor_of,
    C.kTVMFFIArray: _wrapper(Array),
    C.kTVMFFIMap: _wrapper(Map),
    C.kTVMFFIOpaquePyObject: opaque_value,
    C.kTVMFFIList: _wrapper(List),
    C.kTVMFFIDict: _wrapper(Dict),
    C.kTVMFFIBigInt: big_int,
}
"""Objects: type index -> function of ``(handle, index)``, which takes one reference over."""
