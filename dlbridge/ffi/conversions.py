"""Which Python class becomes which value, and which value becomes what: the tables.

`any` asks them, by way of `_methods`, when it meets a class or a type for the first time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from dlbridge.extending import public_in

from . import containers, errors, functions, objects, tensors
from ._lib import C
from .any import (
    OBJECT_PROTOCOL,
    TEXTS_AND_NUMBERS,
    VALUES,
    Constructor,
    Rule,
    by_method,
    defining,
    pack,
    subclasses,
    subclasses_of,
)
from .classes import class_of
from .containers import Shape
from .functions import get_global_func, register_global_func
from .objects import Object


@public_in("dlbridge.ffi")
class ObjectConvertible:
    """Base of classes whose instances are passed as something else: what `asobject` returns.

    Examples
    --------
    >>> class Pair(ffi.ObjectConvertible):
    ...     def asobject(self):
    ...         return [1, 2]
    >>> ffi.convert(Pair())
    (1, 2)
    """

    def asobject(self) -> Any:  # anybody's: what the subclass stands for
        """The value to pass instead of this one; a subclass must define it.

        Returns
        -------
        object
            Any value that can be an argument.

        Examples
        --------
        >>> class Name(ffi.ObjectConvertible):
        ...     def asobject(self):
        ...         return "name"
        >>> ffi.convert([Name()])
        ("name",)
        """
        raise NotImplementedError


CONSTRUCTORS: Final[Mapping[int, Constructor]] = {
    **TEXTS_AND_NUMBERS,
    # Every type that has no nearer ancestor here.
    C.kTVMFFIObject: lambda handle, index: objects.wrap(handle, index, class_of(index)),
    C.kTVMFFIShape: containers.shape_of,
    C.kTVMFFITensor: tensors.tensor_of,
    C.kTVMFFIOpaquePyObject: objects.opaque_value,
}
"""Objects: type index -> function of ``(handle, index)``, which takes one reference over."""

RULES: Final[tuple[Rule, ...]] = (
    lambda cls: cls._pack if issubclass(cls, (Object, objects.Argument)) else None,
    *(
        subclasses_of("tvm_ffi", name, containers.pack_peer_container)
        for name in ("Array", "List", "Map", "Dict")
    ),
    subclasses(ObjectConvertible, by_method("asobject", pack)),
    defining("__chandle__", objects.pack_peer),  # of tvm_ffi: what they are to C
    OBJECT_PROTOCOL,
    tensors.tensor_rule,
    subclasses(Shape, containers.pack_shape),
    subclasses_of("tvm_ffi", "Shape", containers.pack_shape),
    subclasses((list, tuple), containers.pack_sequence),
    subclasses(dict, containers.pack_mapping),
    *VALUES,
    subclasses(BaseException, errors.pack_exception),
    defining("__call__", functions.pack_callable),
    tensors.native_rule,
    lambda _cls: tensors.pack_other,  # carried as it is
)
"""Asked in this order for each class; the last takes all."""


# --- To the tvm_ffi package ---------------------------------------------------------

_HAND_OVER: Final = "dlbridge.ffi.hand_over"

_handed: dict[int, Object] = {}
_keys = count()


def hand_over(value: Object) -> Any:
    """The tvm_ffi package's wrapper of this object; that package asks for it."""
    if get_global_func(_HAND_OVER, allow_missing=True) is None:
        register_global_func(_HAND_OVER, _handed.pop, override=True)
    key = next(_keys)  # of its own for each: threads may hand over one object at a time
    _handed[key] = value
    try:
        return sys.modules["tvm_ffi"].get_global_func(_HAND_OVER)(key)
    finally:
        _handed.pop(key, None)
