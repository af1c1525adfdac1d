"""Classes of objects: registered ones, those made from the type table, and their constructors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from dlbridge.extending import public_in, with_article

from . import _methods
from ._lib import C
from .any import INDEX_MASK, OBJECT_BEGIN, unpack
from .containers import Array, Dict, List, Map
from .errors import Error
from .frames import ask, call_with_gil
from .functions import Function
from .objects import Object, handle_of, remember
from .reflection import Field, TypeInfo, index_of, info_of
from .serialization import from_json_graph_str, to_json_graph_str

if TYPE_CHECKING:
    from inspect import Parameter, Signature


_Class = TypeVar("_Class", bound=type[Object])

# Names that Object itself needs: a field cannot have them. The constructor is made apart.
_RESERVED: Final = {"_adopt", "_handle", "_index", "_pack", "__weakref__", "__ffi_init__"}

_classes: dict[int, type[Object]] = {
    C.kTVMFFIObject: Object,
    C.kTVMFFIError: Error,
    C.kTVMFFIFunction: Function,
    C.kTVMFFIArray: Array,
    C.kTVMFFIMap: Map,
    C.kTVMFFIList: List,
    C.kTVMFFIDict: Dict,
}
_OWN: Final = {"ffi.Module": "Module", "ffi.StructuralKey": "StructuralKey"}
"""Types whose classes are in modules above: type key -> the name in `_methods`."""
_OF_A_LAYOUT: Final[Mapping[type[Object], int]] = {
    cls: index for index, cls in _classes.items() if cls is not Object
}
"""Classes that read the memory of their objects by themselves, and the type that has it."""
_generated: set[type[Object]] = set()


def class_of(index: int) -> type[Object]:
    """The class of objects of type *index*, which must exist: registered, or made now."""
    cls = _classes.get(index)
    if cls is not None:
        return cls
    info = info_of(index)
    if info.type_key in _OWN:  # the class registers itself when its module is loaded
        return _classes.setdefault(index, getattr(_methods, _OWN[info.type_key]))
    parent = class_of(info.ancestors[-1])
    module, _, name = info.type_key.rpartition(".")
    doc = info.doc or f"Objects of type {info.type_key}."
    scope = {"__module__": module, "__doc__": doc, "__slots__": ()}
    made = _equip(type(name, (parent,), scope), info)
    _generated.add(made)
    # Another thread may have been faster.
    return _classes.setdefault(index, made)


@public_in("dlbridge.ffi")
def object_class(type_key: str) -> type[Any]:  # its fields are known to the library only
    """The class of objects of the type *type_key*, to construct and to test instances.

    Parameters
    ----------
    type_key : str
        As the library registered it.

    Returns
    -------
    type
        A subclass of `Object` with the type's fields, methods and constructor.

    Raises
    ------
    ValueError
        If no library has registered such a type.

    Examples
    --------
    >>> ffi.object_class("ffi.Module") is ffi.Module
    True
    """
    return class_of(_object_index(type_key))


def _object_index(type_key: str) -> int:
    index = index_of(type_key)
    if index < OBJECT_BEGIN:
        raise ValueError(f"{type_key!r} is a plain value's type, which has no objects")
    return index


@overload
def register_object(type_key: _Class) -> _Class: ...
@overload
def register_object(type_key: str | None = None) -> Callable[[_Class], _Class]: ...
@public_in("dlbridge.ffi")
def register_object(type_key: Any = None) -> Any:
    """Make the decorated class, a subclass of `Object`, the class of a type's objects.

    The class gets the type's fields, methods and constructor, except those
    that it defines itself; a constructor of its own calls
    ``self.__ffi_init__(...)``.

    Parameters
    ----------
    type_key : str, optional
        As the library registered the type; the class's name by default.

    Returns
    -------
    callable
        A decorator, which returns the class.

    Raises
    ------
    TypeError
        If the class is no subclass of `Object`, or one of a class, such as `Array`,
        whose objects the type's are not.
    ValueError
        If the type is not registered.

    Examples
    --------
    >>> @ffi.register_object("ffi.reflection.AccessStep")
    ... class AccessStep(ffi.Object):
    ...     def shout(self):
    ...         return repr(self).upper()
    >>> ffi.object_class("ffi.reflection.AccessStep") is AccessStep
    True
    """
    if isinstance(type_key, type):
        return register_object(type_key.__name__)(type_key)

    def register(cls: _Class) -> _Class:
        key = cls.__name__ if type_key is None else type_key
        index = _object_index(key)
        _check(cls, info_of(index))
        before = _classes.get(index)
        _classes[index] = _equip(cls, info_of(index))
        # Classes made below the one before are made anew below this one.
        for below, known in _classes.copy().items():
            if before and known in _generated and issubclass(known, before):
                _classes.pop(below, None)
        return cls

    return register


def register_own(type_key: str, cls: type[Object]) -> None:
    """Enter *cls*, which is ours, unless the user has registered a class for the type already."""
    index = _object_index(type_key)
    _classes.setdefault(index, _equip(cls, info_of(index)))


def _check(cls: Any, info: TypeInfo) -> None:
    """TypeError unless *cls* can be the class of the type's objects."""
    if not isinstance(cls, type) or not issubclass(cls, Object):
        raise TypeError(
            f"{cls!r} cannot be the class of {info.type_key}: it is no subclass of "
            "dlbridge.ffi.Object; derive it from that class"
        )
    for base, index in _OF_A_LAYOUT.items():
        if issubclass(cls, base) and index not in (info.type_index, *info.ancestors):
            raise TypeError(
                f"{cls!r} cannot be the class of {info.type_key}: it derives from {base.__name__}, "
                f"and the type does not derive from {info_of(index).type_key}; derive the class "
                "from dlbridge.ffi.Object"
            )


def _equip(cls: type[Object], info: TypeInfo) -> type[Object]:
    """Give *cls* the members of a type that it does not define itself."""
    for above in map(info_of, info.ancestors):
        for name, member in _members(above).items():
            if not hasattr(cls, name):  # a class that was not derived from the ancestor's
                setattr(cls, name, member)
    members = _members(info)
    members["__ffi_init__"] = members["__init__"] = Initializer(info)
    for name, behaviour in _BEHAVIOUR.items():
        if getattr(cls, name, None) is getattr(Object, name, None):
            members[name] = behaviour
    own = vars(cls)
    for name, member in members.items():
        if name not in own:
            setattr(cls, name, member)
    cls.__tvm_ffi_type_info__ = info  # type: ignore[attr-defined]
    return cls


def _members(info: TypeInfo) -> dict[str, Any]:
    """The fields and methods that a type adds to its ancestors'."""
    members: dict[str, Any] = {method.name: method for method in info.methods}
    members |= {field.name: field for field in info.fields}
    return {name: member for name, member in members.items() if name not in _RESERVED}


# --- Constructors -----------------------------------------------------------------


class Initializer:
    """``__ffi_init__`` of a type: makes the C++ object, and lets *self* be its wrapper."""

    __name__ = "__ffi_init__"

    def __init__(self, info: TypeInfo) -> None:
        written = next((method for method in info.methods if method.name == self.__name__), None)
        self.__qualname__ = f"{info.type_key}.{self.__name__}"
        self.__doc__ = written.__doc__ if written else None
        self._info, self._written = info, written
        self._function = written.function if written else info.attribute(self.__name__)

    def __get__(self, holder: Object | None, _owner: type | None = None) -> Any:
        return self if holder is None else MethodType(self, holder)

    def _typed(self) -> Signature | None:
        """The signature of one that C++ wrote, whose parameters have no names.

        The library's own takes anything, and knows the fields.
        """
        signature = self._written.__signature__ if self._written else None
        return signature if signature and "args" not in signature.parameters else None

    @property
    def __signature__(self) -> Signature:
        from inspect import Parameter, Signature

        typed, own = self._typed(), [Parameter("self", Parameter.POSITIONAL_ONLY)]
        if typed:
            return Signature([*own, *typed.parameters.values()])
        return Signature(own + (_parameters(self._info) if self._function else []))

    def __call__(self, holder: Any, /, *args: Any, **kwargs: Any) -> None:
        """Make the object of *holder*."""
        if self._function is None:
            key = self._info.type_key
            raise TypeError(f"{key} has no constructor that can be called from Python")
        arguments = list(args)
        if kwargs:
            if self._typed():
                raise TypeError(f"{self._info.type_key} takes positional arguments only")
            arguments += ask("ffi.GetKwargsObject"), *chain.from_iterable(kwargs.items())
        _become(holder, self._function, *arguments)


def _become(self: Any, /, fconstructor: Function, *args: Any) -> None:
    """``__init_handle_by_constructor__``: let *self* wrap the object that a function makes."""
    if getattr(self, "_handle", None) is not None:
        raise TypeError(f"this {type(self).__name__} is constructed already")
    tag, payload = call_with_gil(handle_of(fconstructor), args)
    index = tag & INDEX_MASK
    expected = getattr(type(self), "__tvm_ffi_type_info__", info_of(C.kTVMFFIObject)).type_index
    if index < OBJECT_BEGIN or expected not in (index, *info_of(index).ancestors):
        raise TypeError(
            f"the constructor of {type(self).__name__} returned {unpack(tag, payload)!r}"
        )
    self._adopt(payload)
    self._index = index
    remember(self, int(payload))


def _parameters(info: TypeInfo) -> list[Parameter]:
    """Those of the library's own constructor: required fields first, keywords last."""
    from inspect import Parameter

    # By name, for a type may declare a field of its ancestor's again.
    fields = {field.name: field for field in info.all_fields()}

    def shown(field: Field) -> Any:
        if not field.has_default:
            return Parameter.empty
        return ... if field.default_is_factory else field.default

    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY if field.keyword_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=shown(field),
            annotation=field.annotation,
        )
        for field in fields.values()
        if field.in_constructor
    ]
    return sorted(parameters, key=lambda p: (p.kind, p.default is not Parameter.empty))


# --- What every class gets ----------------------------------------------------------


def _repr(self: Object) -> str:
    if self._handle is None:
        return f"<moved {type(self).__name__}>"
    return ask("ffi.ReprPrint", self)  # type: ignore[no-any-return]


def _copy(self: Object) -> Any:
    copier = info_of(self._index).attribute("__ffi_shallow_copy__")
    if copier is None:
        raise TypeError(
            f"{with_article(info_of(self._index).type_key)} cannot be copied: C++ has no way to"
        )
    return copier(self)


def _deepcopy(self: Object, _memo: Any = None) -> Any:
    return ask("ffi.DeepCopy", self)


def _reduce(self: Object) -> tuple[Any, ...]:
    return from_json_graph_str, (to_json_graph_str(self),)


_BEHAVIOUR: Final[dict[str, Any]] = {
    "__init_handle_by_constructor__": _become,
    "__repr__": _repr,
    "__copy__": _copy,
    "__deepcopy__": _deepcopy,
    "__reduce__": _reduce,
}
