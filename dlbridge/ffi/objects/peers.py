"""Objects to and from the tvm_ffi package, where one process uses both bindings.

Both load one library, so an object is the same for both; only the wrappers
differ. tvm_ffi's are taken by their handle. Ours it asks for one of its own
(``__tvm_ffi_object__``), and it gets that by calling a function of ours.
"""

from __future__ import annotations

import sys
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from ..calls.registry import get_global_func, register_global_func
from ..values.words import Temporaries, defines, native_type_index

if TYPE_CHECKING:
    from ..values.words import Packer
    from ..values.wrappers import Object

__all__ = ["hand_over", "pack_peer", "peer_rule"]

_HAND_OVER: Final = "dlbridge.ffi.hand_over"

_handed: dict[int, Object] = {}
_keys = count()


def pack_peer(value: Any, _keep: Temporaries) -> tuple[int, int]:
    """An object of the tvm_ffi package; ValueError if it was moved away."""
    handle = value.__chandle__()
    if not handle:
        raise ValueError(f"the {type(value).__name__} was moved into a call and is empty now")
    return native_type_index(handle), handle


def peer_rule(cls: type) -> Packer | None:
    """tvm_ffi's own objects are what they are to C."""
    return pack_peer if defines(cls, "__chandle__") else None


def hand_over(value: Object) -> Any:
    """tvm_ffi's wrapper of the object *value*."""
    if get_global_func(_HAND_OVER, allow_missing=True) is None:
        register_global_func(_HAND_OVER, _handed.pop, override=True)
    key = next(_keys)  # of its own for each: threads may hand over one object at a time
    _handed[key] = value
    try:
        return sys.modules["tvm_ffi"].get_global_func(_HAND_OVER)(key)
    finally:
        _handed.pop(key, None)
