"""What modules of the FFI look up in modules above them: one table.

Values, objects and calls need each other: a list is packed by calling a function, which is an
object, and what the call returns may be any value. So the lower ones look names up here, as
`dlbridge._methods` does for Tensor and Device; imports run one way, and each module is loaded when
one of its names is first asked for.
"""

# ruff: noqa: PLC0414 - for type checkers a re-export says `as`
from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge._lazy import looked_up

if TYPE_CHECKING:
    from .conversions import (
        CONSTRUCTORS as CONSTRUCTORS,
        RULES as RULES,
        hand_over as hand_over,
    )
    from .modules import Module as Module
    from .structural import StructuralKey as StructuralKey
    from .tensors import borrowed_tensor as borrowed_tensor

# The table. (The imports above are for type checkers; a test compares.)
_NAMES = {
    "conversions": "CONSTRUCTORS RULES hand_over",
    "modules": "Module",
    "structural": "StructuralKey",
    "tensors": "borrowed_tensor",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # to a type checker it would say that there is every name
    __getattr__ = looked_up(globals(), _MODULES)
