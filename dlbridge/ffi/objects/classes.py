"""Classes of the library's types, made from the type table or registered by the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from dlbridge.core.public import public_in
from dlbridge.core.values.suggestions import with_article

from .._lib import C
from ..calls.frames import call_with_gil
from ..calls.functions import Function
from ..calls.registry import builtin
from ..values.errors import Error
from ..values.words import INDEX_MASK, OBJECT_BEGIN, unpack
from ..values.wrappers import Object, pack_object, remember
from .elements import Members, build_by, method
from .mappings import Dict, Map
from .sequences import Array, List
from .typeinfo import Field, Method, TypeInfo, index_of, info_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Signature

__all__ = ["class_of", "index_of_class", "object_class", "register_object"]

_Class = TypeVar("_Class", bound=type[Object])

# Names that Object itself needs: a field cannot have them. The constructor is made apart.
_RESERVED: Final = frozenset({"_adopt", "_handle", "_index", "__weakref__", "__ffi_init__"})

_classes: dict[int, type[Object]] = {
    C.kTVMFFIObject: Object,
    C.kTVMFFIError: Error,
    C.kTVMFFIFunction: Function,
    C.kTVMFFIArray: Array,
    C.kTVMFFIMap: Map,
    C.kTVMFFIList: List,
    C.kTVMFFIDict: Dict,
}
_OF_A_LAYOUT: Final[Mapping[type[Object], int]] = {
    cls: index for index, cls in _classes.items() if cls is not Object
}
"""Classes that read the memory of their objects by themselves, and the type that has it."""
_generated: set[type[Object]] = set()


def class_of(index: int) -> type[Object]:
    """The class of objects of type *index*, which must exist: registered, or made now."""
    found = _classes.get(index)
    if found is not None:
        return found
    info = info_of(index)
    _import_home(info.type_key)
    if index in _classes:
        return _classes[index]
    parent = class_of(info.ancestors[-1])
    module, _, name = info.type_key.rpartition(".")
    scope = {"__module__": module, "__doc__": _doc(info), "__slots__": ()}
    made = _equip(type(name, (parent,), scope), info)
    _generated.add(made)
    # Another thread may have been faster.
    return _classes.setdefault(index, made)


def _import_home(type_key: str) -> None:
    """Import the module that registers our class for a type of the library's own, if there is one.

    So it does not matter who imports such a module, and when.
    """
    if type_key == "ffi.Module":
        from . import modules  # noqa: F401  # registers Module
    elif type_key == "ffi.StructuralKey":
        from ..graphs import comparison  # noqa: F401  # registers StructuralKey


def index_of_class(cls: type) -> int | None:
    """The type index whose objects are of class *cls*; None if there is no such type."""
    return next((index for index, known in _classes.copy().items() if known is cls), None)


@public_in("dlbridge.ffi")
def object_class(type_key: str) -> type[Object]:
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
        _import_home(key)  # else its import would replace *cls* later
        before = _classes.get(index)
        _classes[index] = _equip(cls, info_of(index))
        # Classes made below the one before are made anew below this one.
        for below, known in _classes.copy().items():
            if before and known in _generated and issubclass(known, before):
                _classes.pop(below, None)
        return cls

    return register


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


def _doc(info: TypeInfo) -> str:
    return info.doc or f"Objects of type {info.type_key}."


def _equip(cls: type[Object], info: TypeInfo) -> type[Object]:
    """Give *cls* the members of a type that it does not define itself."""
    for above in map(info_of, info.ancestors):
        for name, member in _members(above).items():
            if not hasattr(cls, name):  # a class that was not derived from the ancestor's
                setattr(cls, name, member)
    members = _members(info)
    members["__ffi_init__"] = members["__init__"] = _constructor(info)
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
    members: dict[str, Any] = {found.name: _method(found) for found in info.methods}
    members |= {field.name: field for field in info.fields}
    return {name: member for name, member in members.items() if name not in _RESERVED}


def _method(found: Method) -> Any:
    """A method of the table as a Python function, with name, documentation and signature."""
    function = found.function

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__name__ = found.name
    call.__qualname__ = f"{found.owner}.{found.name}"
    call.__doc__ = found.doc
    call.__wrapped__ = _Signed(lambda: found.signature)  # type: ignore[attr-defined]
    return staticmethod(call) if found.static else call


class _Signed:
    """The object in which `inspect.signature` finds a function's signature, made when asked for.

    inspect takes 4 ms to import, of the 25 before a first call of a function.
    """

    def __init__(self, make: Callable[[], Signature]) -> None:
        self._make = make

    @property
    def __signature__(self) -> Signature:
        return self._make()


# --- Constructors -----------------------------------------------------------------


def _constructor(info: TypeInfo) -> Callable[..., None]:
    """``__ffi_init__``: make the C++ object, and let *self* be its wrapper."""
    written = next((found for found in info.methods if found.name == "__ffi_init__"), None)
    function = written.function if written else info.attribute("__ffi_init__")

    def typed() -> Method | None:
        # One that C++ wrote has parameters without names; the library's own takes
        # anything, and knows the fields.
        return written if written and "args" not in written.signature.parameters else None

    def signature() -> Signature:
        own = typed()
        return _with_self(own.signature) if own else _signature(info if function else None)

    def construct(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if function is None:
            raise TypeError(f"{info.type_key} has no constructor that can be called from Python")
        if kwargs and typed():
            raise TypeError(f"{info.type_key} takes positional arguments only")
        arguments = list(args)
        if kwargs:
            arguments.append(call_with_gil(builtin("ffi.GetKwargsObject")))
            for name, value in kwargs.items():
                arguments += name, value
        _become(self, function, *arguments)

    construct.__name__ = "__ffi_init__"
    construct.__qualname__ = f"{info.type_key}.__ffi_init__"
    construct.__doc__ = written.doc if written else None
    construct.__wrapped__ = _Signed(signature)  # type: ignore[attr-defined]
    return construct


def _become(self: Any, /, fconstructor: Function, *args: Any) -> None:
    """``__init_handle_by_constructor__``: let *self* wrap the object that a function makes."""
    if getattr(self, "_handle", None) is not None:
        raise TypeError(f"this {type(self).__name__} is constructed already")
    tag, payload = build_by(pack_object(fconstructor, Members())[1], args)
    index = tag & INDEX_MASK
    expected = getattr(type(self), "__tvm_ffi_type_info__", info_of(C.kTVMFFIObject)).type_index
    if index < OBJECT_BEGIN or expected not in (index, *info_of(index).ancestors):
        raise TypeError(
            f"the constructor of {type(self).__name__} returned {unpack(tag, payload)!r}"
        )
    self._adopt(payload)
    self._index = index
    remember(self, int(payload))


def _with_self(signature: Signature) -> Signature:
    from inspect import Parameter, Signature

    holder = Parameter("self", Parameter.POSITIONAL_ONLY)
    return Signature([holder, *signature.parameters.values()])


def _signature(info: TypeInfo | None) -> Signature:
    """The signature of the library's own constructor: required fields first, keywords last."""
    from inspect import Parameter, Signature

    # By name, for a type may declare a field of its ancestor's again.
    fields = {field.name: field for field in (info.all_fields() if info else ())}

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
    parameters.sort(key=lambda p: (p.kind, p.default is not Parameter.empty))
    holder = Parameter("self", Parameter.POSITIONAL_ONLY)
    return Signature([holder, *parameters])


# --- What every class gets ----------------------------------------------------------


def _repr(self: Object) -> str:
    if self._handle is None:
        return f"<moved {type(self).__name__}>"
    return unpack(*method("ffi.ReprPrint", self._index, self._handle))  # type: ignore[no-any-return]


def _copy(self: Object) -> Any:
    copier = info_of(self._index).attribute("__ffi_shallow_copy__")
    if copier is None:
        raise TypeError(
            f"{with_article(info_of(self._index).type_key)} cannot be copied: C++ has no way to"
        )
    return copier(self)


def _deepcopy(self: Object, _memo: Any = None) -> Any:
    return call_with_gil(builtin("ffi.DeepCopy"), self)


def _reduce(self: Object) -> tuple[Any, ...]:
    from ..graphs.json_text import from_json_graph_str, to_json_graph_str  # needs the classes

    return from_json_graph_str, (to_json_graph_str(self),)


_BEHAVIOUR: Final[dict[str, Any]] = {
    "__init_handle_by_constructor__": _become,
    "__repr__": _repr,
    "__copy__": _copy,
    "__deepcopy__": _deepcopy,
    "__reduce__": _reduce,
}
