"""Which class a value has: the type table, classes made from it, and the rules for all values.

The table answers an unknown index by ending the process, so every index here
comes from a live object, from another type's ancestors, or from
TVMFFITypeKeyToIndex.

This is the last module of the room: it fills the tables of the first, `any`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import chain, count
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from dlbridge.core.implementation_details.handlers import unless_handler
from dlbridge.core.implementation_details.python_api import undisguised
from dlbridge.core.public import public_in
from dlbridge.core.values.text import with_article

from . import _HOMES, any as values, containers, errors, functions, objects, tensors
from ._lib import C, address, ffi, py
from .any import (
    INDEX_MASK,
    OBJECT_BEGIN,
    ByteArray,
    Handle,
    Members,
    pack,
    subclasses,
    subclasses_of,
    text_of,
    unpack,
    view,
)
from .containers import Array, Dict, List, Map, Shape
from .errors import Error, raised
from .frames import ask, call_with_gil, new_memory, perform
from .functions import Function, annotation_of, parse, signature_of
from .modules import Module
from .objects import MAX_DEPTH, Object, bounded, checked, handle_of, remember

if TYPE_CHECKING:
    from inspect import Parameter, Signature


_Access = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def _any(pointer: Any) -> Any:
    """The value of the TVMFFIAny at a cffi *pointer*, which C goes on owning."""
    return view(*ffi.unpack(ffi.cast("int64_t *", pointer), 2))


class Field:
    """A field of an object: ``a.x`` reads it, ``a.x = 1`` sets it where C++ lets.

    The GIL is held meanwhile, so that no other thread frees what is being read.
    """

    def __init__(self, owner: str, index: int, info: Any) -> None:
        flags = info.flags
        self.owner: str = owner
        self.name: str = text_of(info.name)
        self._metadata = text_of(info.metadata)
        self.writable: bool = bool(flags & C.kTVMFFIFieldFlagBitMaskWritable)
        self.has_default: bool = bool(flags & C.kTVMFFIFieldFlagBitMaskHasDefault)
        self.keyword_only: bool = bool(flags & C.kTVMFFIFieldFlagBitMaskKwOnly)
        self.in_constructor: bool = not flags & C.kTVMFFIFieldFlagBitMaskInitOff
        self._doc = text_of(info.doc)
        self.default_is_factory: bool = bool(flags & C.kTVMFFIFieldFlagBitMaskDefaultFromFactory)
        self._default = ffi.addressof(info, "default_value_or_factory")
        self.static_type_index: int = info.field_static_type_index
        self._offset: int = info.offset
        self._get: Callable[[int, int], int] = _Access(address(info.getter))
        self._setter_is_object = bool(flags & C.kTVMFFIFieldFlagBitSetterIsFunctionObj)
        setter = address(info.setter)
        self._setter: Any = setter if self._setter_is_object else _Access(setter)
        self._holders = {index}  # types that were seen to have the field

    @property
    def __doc__(self) -> str:  # type: ignore[override]  # of each field, in place of the class's
        return self._doc or f"{self.name}: {self.annotation}"

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What C++ says of the field; read when asked for, as JSON takes 2 ms to import."""
        return parse(self._metadata)

    @cached_property
    def annotation(self) -> str:
        """The type of its values, as Python writes it."""
        schema = self.metadata.get("type_schema")
        return annotation_of(parse(schema)) if schema else "Any"

    @property
    def default(self) -> Any:
        """The default; a new one each time if C++ has a factory for it."""
        if not self.has_default:
            raise AttributeError(f"field {self.name!r} of {self.owner} has no default")
        value = _any(self._default)
        return value() if self.default_is_factory else value

    def _object(self, holder: Object) -> Handle:
        handle, index = handle_of(holder), holder._index
        if index not in self._holders:
            # At the field's place another type has something else.
            found = info_of(index)
            if self not in found.all_fields():
                raise TypeError(
                    f"{with_article(found.type_key)} has no field {self.name!r} of {self.owner}"
                )
            self._holders.add(index)
        return handle

    def __get__(self, holder: Object | None, _owner: type | None = None) -> Any:
        if holder is None:
            return self
        words, _none, result = new_memory(0)
        place = self._object(holder) + self._offset
        return unpack(*perform(words, self._get, place, address(result)))

    def __set__(self, holder: Object, value: Any) -> None:
        if not self.writable:
            raise AttributeError(f"field {self.name!r} of {self.owner} is read-only")
        try:
            self._set(self._object(holder), value)
        except unless_handler(TypeError) as exc:
            raise TypeError(f"field {self.name!r} of {self.owner}: {exc}") from exc

    def _set(self, handle: Handle, value: Any) -> None:
        place = handle + self._offset
        if self._setter_is_object:
            arguments = (ctypes.c_void_p(place), value)
            call_with_gil(self._setter, arguments)
            return
        keep = Members()
        words = ffi.new("int64_t[2]", pack(value, keep))
        try:
            failed = self._setter(place, address(words))
        except ctypes.ArgumentError as exc:
            raise undisguised(exc) from None
        if failed:
            raise raised()

    def __delete__(self, _holder: Object) -> None:
        raise AttributeError(f"field {self.name!r} of {self.owner} cannot be deleted")

    def __repr__(self) -> str:
        return f"<field {self.name!r} of {self.owner}: {self.annotation}>"


class Method:
    """A method of a type: the member of its class; called with the object first, unless `static`.

    Its signature is made when it is asked for: inspect takes 4 ms to import, of the 25 before a
    first call of a function.
    """

    def __init__(self, owner: str, info: Any) -> None:
        self.name = self.__name__ = text_of(info.name)
        self.__qualname__ = f"{owner}.{self.name}"
        self.__doc__ = text_of(info.doc) or None
        self.static: bool = bool(info.flags & C.kTVMFFIFieldFlagBitMaskIsStaticMethod)
        self.function: Function = _any(ffi.addressof(info, "method"))
        self._metadata = text_of(info.metadata)

    def __get__(self, holder: Object | None, _owner: type | None = None) -> Any:
        return self if holder is None or self.static else MethodType(self, holder)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function of the library."""
        return self.function(*arguments)

    @property
    def __signature__(self) -> Signature:
        return signature_of(parse(self._metadata))


class TypeInfo:
    """A type of the library: its key, index, own fields and own methods."""

    def __init__(self, index: int) -> None:
        info = ffi.cast("TVMFFITypeInfo *", py.TVMFFIGetTypeInfo(index))
        self.type_index: int = index
        self.type_key: str = text_of(info.type_key)
        key = self.type_key
        self.doc: str = text_of(info.metadata.doc) if info.metadata else ""
        self.ancestors: list[int] = [
            info.type_ancestors[i].type_index for i in range(info.type_depth)
        ]
        """Indices of the types above, from kTVMFFIObject down."""
        self.fields: list[Field] = [
            Field(key, index, info.fields[i]) for i in range(info.num_fields)
        ]
        self.methods: list[Method] = [Method(key, info.methods[i]) for i in range(info.num_methods)]

    def attribute(self, name: str) -> Any:
        """The value of the type attribute *name*, which is not inherited; None if unset."""
        column = ffi.cast("TVMFFITypeAttrColumn *", py.TVMFFIGetTypeAttrColumn(ByteArray(name)))
        if not column:
            return None
        place = self.type_index - column.begin_index
        return _any(column.data + place) if 0 <= place < column.size else None

    def all_fields(self) -> list[Field]:
        """The fields of the oldest ancestor first, the own ones last."""
        inherited = [field for index in self.ancestors for field in info_of(index).fields]
        return inherited + self.fields


_infos: dict[int, TypeInfo] = {}


def info_of(index: int) -> TypeInfo:
    """The type with this *index*, which must exist."""
    found = _infos.get(index)
    if found is None:  # another thread may be faster: there is one for each index
        found = _infos.setdefault(index, TypeInfo(index))
    return found


def index_of(type_key: str) -> int:
    """The type index of *type_key*; ValueError if no library has registered it."""
    out = ffi.new("int32_t *")
    if py.TVMFFITypeKeyToIndex(ByteArray(type_key), address(out)):
        raise ValueError(
            f"there is no type {type_key!r}; get_registered_type_keys() lists them, and a "
            "library that registers types must be loaded first"
        ) from raised()
    return out[0]  # type: ignore[no-any-return]


def get_registered_type_keys() -> list[str]:
    """The keys of all types that are registered.

    Returns
    -------
    list of str
        Sorted.

    Examples
    --------
    >>> "ffi.Module" in ffi.get_registered_type_keys()
    True
    """
    return sorted(ask("ffi.GetRegisteredTypeKeys"))


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
    parent = class_of(info.ancestors[-1])
    module, _, name = info.type_key.rpartition(".")
    doc = info.doc or f"Objects of type {info.type_key}."
    scope = {"__module__": module, "__doc__": doc, "__slots__": ()}
    made = _equip(type(name, (parent,), scope), info)
    _generated.add(made)
    # Another thread may have been faster.
    return _classes.setdefault(index, made)


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
    members: dict[str, Any] = {found.name: found for found in info.methods}
    members |= {field.name: field for field in info.fields}
    return {name: member for name, member in members.items() if name not in _RESERVED}


# --- Constructors -----------------------------------------------------------------


class Initializer:
    """``__ffi_init__`` of a type: makes the C++ object, and lets *self* be its wrapper."""

    __name__ = "__ffi_init__"

    def __init__(self, info: TypeInfo) -> None:
        written = next((found for found in info.methods if found.name == self.__name__), None)
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


_CONTAINERS: Final = frozenset(
    {C.kTVMFFIArray, C.kTVMFFIList, C.kTVMFFIMap, C.kTVMFFIDict},
)
# Fields of these types are written where they are, not as nodes of their own.
_IN_PLACE: Final = frozenset(
    {C.kTVMFFINone, C.kTVMFFIInt, C.kTVMFFIBool, C.kTVMFFIFloat, C.kTVMFFIDataType}
)


@public_in("dlbridge.ffi.serialization")
def to_json_graph_str(obj: Any, metadata: dict[str, Any] | None = None) -> str:
    """*obj* and all objects in it as JSON; what is shared stays shared.

    Parameters
    ----------
    obj : object
        Any value whose parts have a text, as functions have not.
    metadata : dict, optional
        Written beside the graph.

    Returns
    -------
    str
        For `from_json_graph_str`.

    Raises
    ------
    ValueError
        If *obj* contains itself, or something that has no text.

    Examples
    --------
    >>> text = ffi.serialization.to_json_graph_str([1, "two"])
    >>> ffi.serialization.from_json_graph_str(text)
    (1, "two")
    """
    return ask("ffi.ToJSONGraphString", checked(obj), metadata)  # type: ignore[no-any-return]


@public_in("dlbridge.ffi.serialization")
def from_json_graph_str(json_str: str) -> Any:  # anybody's: what the text describes
    """The value that `to_json_graph_str` made text of.

    Parameters
    ----------
    json_str : str
        The text.

    Returns
    -------
    object
        A new value.

    Raises
    ------
    ValueError
        If the text is not such a graph.

    Examples
    --------
    >>> ffi.serialization.from_json_graph_str(ffi.serialization.to_json_graph_str({"a": 1}))
    {"a": 1}
    """
    import json

    _check_graph(json.loads(json_str))
    return ask("ffi.FromJSONGraphString", json_str)


def _check_graph(graph: Any) -> None:
    """Refuse a graph in which the library would descend without end.

    In one that it wrote a node refers to nodes before it only.
    """
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    depths: list[int] = []
    for place, node in enumerate(nodes if isinstance(nodes, list) else ()):
        inner = [other for other in _references(node) if isinstance(other, int)]
        if any(other >= place for other in inner):
            raise ValueError(f"node {place} of the JSON graph refers to itself or a later one")
        depths.append(1 + max((depths[other] for other in inner if other >= 0), default=0))
        if depths[place] > MAX_DEPTH:
            raise RecursionError(f"the JSON graph is nested more than {MAX_DEPTH} levels deep")


def _references(node: Any) -> Iterable[Any]:
    """The places of the nodes to which *node* refers."""
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        return ()  # the library says what is wrong with it
    index, data = index_of(node["type"]), node.get("data")
    if index in _CONTAINERS:
        return data if isinstance(data, list) else ()
    if index < OBJECT_BEGIN or not isinstance(data, dict):
        return ()
    return [
        data[field.name]
        for field in info_of(index).all_fields()
        if field.name in data and field.static_type_index not in _IN_PLACE
    ]


_HAND_OVER: Final = "dlbridge.ffi.hand_over"

_handed: dict[int, Object] = {}
_keys = count()


def _hand_over(value: Object) -> Any:
    """The tvm_ffi package's wrapper of this object; that package asks for it."""
    if functions.get_global_func(_HAND_OVER, allow_missing=True) is None:
        functions.register_global_func(_HAND_OVER, _handed.pop, override=True)
    key = next(_keys)  # of its own for each: threads may hand over one object at a time
    _handed[key] = value
    try:
        return sys.modules["tvm_ffi"].get_global_func(_HAND_OVER)(key)
    finally:
        _handed.pop(key, None)


Object.__tvm_ffi_object__ = _hand_over  # type: ignore[attr-defined]  # by a function of the registry


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


values.CONSTRUCTORS.update(
    {
        **values.TEXTS_AND_NUMBERS,
        # Every type that has no nearer ancestor here.
        C.kTVMFFIObject: lambda handle, index: objects.wrap(handle, index, class_of(index)),
        C.kTVMFFIShape: containers.shape_of,
        C.kTVMFFITensor: tensors.tensor_of,
        C.kTVMFFIOpaquePyObject: objects.opaque_value,
    }
)
values.views[C.kTVMFFIDLTensorPtr] = tensors.lent_tensor


values.RULES.extend(
    (
        lambda cls: cls._pack if issubclass(cls, (Object, objects.Argument)) else None,
        *(
            subclasses_of("tvm_ffi", name, containers.pack_peer_container)
            for name in ("Array", "List", "Map", "Dict")
        ),
        subclasses(ObjectConvertible, values.by_method("asobject", pack)),
        values.defining("__chandle__", objects.pack_peer),  # of tvm_ffi: what they are to C
        values.OBJECT_PROTOCOL,
        tensors.tensor_rule,
        subclasses(Shape, containers.pack_shape),
        subclasses_of("tvm_ffi", "Shape", containers.pack_shape),
        subclasses((list, tuple), containers.pack_sequence),
        subclasses(dict, containers.pack_mapping),
        *values.VALUES,
        subclasses(BaseException, errors.pack_exception),
        values.defining("__call__", functions.pack_callable),
        tensors.native_rule,
        lambda _cls: tensors.pack_other,  # carried as it is
    )
)


class StructuralKey(Object):
    """A value as a key, equal to keys with a structurally equal value.

    Parameters
    ----------
    key : object
        Any value.

    Examples
    --------
    >>> table = {ffi.StructuralKey([1, 2]): "found"}
    >>> table[ffi.StructuralKey([1, 2])]
    'found'
    """

    __slots__ = ()

    def __init__(self, key: Any) -> None:
        make = functions.get_global_func("ffi.StructuralKey")
        self.__init_handle_by_constructor__(make, checked(key))

    def __hash__(self) -> int:
        return self.hash_i64  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StructuralKey):
            return NotImplemented
        # Looked at again: a List in a key may have changed since the key was made.
        keys = bounded(self), bounded(other)
        return ask("ffi.StructuralKeyEqual", *keys)  # type: ignore[no-any-return]


for _key, _class in (("ffi.Module", Module), ("ffi.StructuralKey", StructuralKey)):
    if _key in get_registered_type_keys():  # older libraries do without some
        register_object(_key)(_class)

# By this name users and pickles find what is public.
for _name, _home in _HOMES.items():
    _module = sys.modules.get(f"dlbridge.ffi{_home}") if _home.startswith(".") else None
    _thing: Any = getattr(_module, _name, None)
    if callable(_thing):
        _thing.__module__ = "dlbridge.ffi"
