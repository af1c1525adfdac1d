"""Classes of C++ types as dataclasses: operators, fields, conversion, replacement."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from .classes import register_object
from .containers import Array, Dict, List, Map
from .frames import ask
from .objects import Object
from .reflection import Field, TypeInfo

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["asdict", "astuple", "c_class", "fields", "is_dataclass", "replace"]

_Class = TypeVar("_Class", bound=type[Object])
_Record = TypeVar("_Record")

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

    Members that the class defines itself are kept.

    Parameters
    ----------
    type_key : str
        As the library registered the type.
    init : bool
        Whether objects can be constructed.
    eq : bool
        Whether ``==`` compares the fields; else two objects are equal if they are
        the same one.
    order : bool
        Whether ``<`` and the others compare the fields.
    unsafe_hash : bool
        Whether the hash is that of the fields, which may change.
    match_args : bool
        Whether ``match`` takes the fields by position.

    Returns
    -------
    callable
        A decorator, which returns the class.

    Examples
    --------
    >>> @ffi.dataclasses.c_class("ffi.reflection.AccessStep", eq=True)
    ... class AccessStep(ffi.Object): ...
    >>> [field.name for field in ffi.dataclasses.fields(AccessStep)]
    ['kind', 'key']
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
        return ask(function, self, other)

    return compare


def _hash(self: Object) -> int:
    return ask("ffi.RecursiveHash", self)  # type: ignore[no-any-return]


def _refuse(self: Object, *_args: Any, **_kwargs: Any) -> None:
    raise TypeError(f"{type(self).__name__} is not constructed directly")


def is_dataclass(obj: object) -> bool:
    """Whether *obj* is an object of a registered type, or its class.

    Parameters
    ----------
    obj : object
        Anything.

    Returns
    -------
    bool
        Whether `fields` takes it.

    Examples
    --------
    >>> ffi.dataclasses.is_dataclass(ffi.object_class("ffi.reflection.AccessStep"))
    True
    """
    return _info_of(obj) is not None


def _info_of(obj: object) -> TypeInfo | None:
    cls = obj if isinstance(obj, type) else type(obj)
    return getattr(cls, "__tvm_ffi_type_info__", None) if issubclass(cls, Object) else None


def fields(class_or_instance: object) -> tuple[Field, ...]:
    """The fields of a registered type, those of its ancestors first.

    Parameters
    ----------
    class_or_instance : object
        An object of the type, or its class.

    Returns
    -------
    tuple of Field
        Each with `name`, `annotation`, `writable` and `has_default`.

    Raises
    ------
    TypeError
        If it is neither.

    Examples
    --------
    >>> cls = ffi.object_class("ffi.reflection.AccessStep")
    >>> [field.name for field in ffi.dataclasses.fields(cls)]
    ['kind', 'key']
    """
    info = _info_of(class_or_instance)
    if info is None:
        raise TypeError(
            f"{class_or_instance!r} is not an object of a registered type, or its class"
        )
    # By name, for a type may declare a field of its ancestor's again.
    return tuple({field.name: field for field in info.all_fields()}.values())


def asdict(obj: Any) -> dict[str, Any]:
    """The fields of *obj* by name; objects and containers in them converted likewise.

    Parameters
    ----------
    obj : Object
        An object of a registered type.

    Returns
    -------
    dict
        Name of a field -> its value.

    Examples
    --------
    >>> step = ffi.get_first_structural_mismatch([1], [2])[0]._to_steps()[0]
    >>> ffi.dataclasses.asdict(step)["key"]
    0
    """
    return {name: _plain(value, asdict) for name, value in _content(obj, "asdict").items()}


def astuple(obj: Any) -> tuple[Any, ...]:
    """The fields of *obj* in order; objects and containers in them converted likewise.

    Parameters
    ----------
    obj : Object
        An object of a registered type.

    Returns
    -------
    tuple
        The values.

    Examples
    --------
    >>> ffi.dataclasses.astuple(ffi.get_first_structural_mismatch([1], [2])[0]._to_steps()[0])[-1]
    0
    """
    return tuple(_plain(value, astuple) for value in _content(obj, "astuple").values())


def _content(obj: Any, function: str) -> dict[str, Any]:
    if isinstance(obj, type):
        raise TypeError(f"{function}() takes an object, not its class")
    return {field.name: field.__get__(obj) for field in fields(obj)}


def _plain(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, (Array, List)):
        return [_plain(item, convert) for item in value]
    if isinstance(value, (Map, Dict)):
        return {_plain(k, convert): _plain(v, convert) for k, v in value.items()}
    return convert(value) if isinstance(value, Object) and is_dataclass(value) else value


def replace(obj: _Record, /, **changes: Any) -> _Record:
    """A copy of *obj* with other values in some of its fields.

    Parameters
    ----------
    obj : Object
        An object of a registered type whose objects C++ can copy.
    **changes : object
        Name of a field -> its new value. The field must be writable.

    Returns
    -------
    Object
        Of the same type.

    Raises
    ------
    TypeError
        If the type has no such field.

    Examples
    --------
    >>> _ = ffi.load_module(ffi.library_path.replace("tvm_ffi.", "tvm_ffi_testing."))
    >>> before = ffi.object_class("testing.TestCxxClassBase")(1, 2)
    >>> ffi.dataclasses.asdict(ffi.dataclasses.replace(before, v_i32=5))
    {'v_i64': 1, 'v_i32': 5}
    """
    known = _content(obj, "replace")
    for name in changes.keys() - known:
        raise TypeError(
            f"{type(obj).__name__} has no field {name!r}; it has {', '.join(sorted(known))}"
        )
    made = copy.copy(obj)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
