"""Classes of C++ types with comparison, order and hash by their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ..calls.frames import call_with_gil
from ..calls.registry import builtin
from ..values.wrappers import Object
from .classes import register_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from .typeinfo import TypeInfo

__all__ = ["c_class"]

_Class = TypeVar("_Class", bound=type[Object])

_ORDER = {
    "__lt__": "ffi.RecursiveLt",
    "__le__": "ffi.RecursiveLe",
    "__gt__": "ffi.RecursiveGt",
    "__ge__": "ffi.RecursiveGe",
}


def c_class(
    type_key: str,
    *,
    init: bool = True,
    eq: bool = False,
    order: bool = False,
    unsafe_hash: bool = False,
    match_args: bool = True,
) -> Callable[[_Class], _Class]:
    """`register_object`, with operators that compare and hash the fields, recursively.

    What the class defines itself stays. Without *eq* two objects are equal if
    they are the same one; without *init* they cannot be constructed.
    """

    def register(cls: _Class) -> _Class:
        own = dict(vars(cls))
        registered: _Class = register_object(type_key)(cls)
        info: TypeInfo = registered.__tvm_ffi_type_info__  # type: ignore[attr-defined]
        members: dict[str, Any] = {}
        if not init:
            members["__init__"] = _refuse
        if eq:
            members["__eq__"] = _comparison("ffi.RecursiveEq")
            # As in Python's dataclasses: what can be compared and changed has no hash.
            members["__hash__"] = None
        if order:
            members |= {name: _comparison(function) for name, function in _ORDER.items()}
        if unsafe_hash:
            members["__hash__"] = _hash
        if match_args:
            members["__match_args__"] = tuple(
                field.name
                for field in info.all_fields()
                if field.in_constructor and not field.keyword_only
            )
        for name, member in members.items():
            if name not in own:
                setattr(registered, name, member)
        return registered

    return register


def _comparison(function: str) -> Callable[[Object, object], Any]:
    def compare(self: Object, other: object) -> Any:
        if not (isinstance(other, type(self)) or isinstance(self, type(other))):
            return NotImplemented
        return call_with_gil(builtin(function), self, other)

    return compare


def _hash(self: Object) -> int:
    return call_with_gil(builtin("ffi.RecursiveHash"), self)  # type: ignore[no-any-return]


def _refuse(self: Object, *_args: Any, **_kwargs: Any) -> None:
    raise TypeError(f"{type(self).__name__} is not constructed directly")
