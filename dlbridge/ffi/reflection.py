"""The type table: types of the library, with their fields and methods.

The table answers an unknown index by ending the process, so every index here
comes from a live object, from another type's ancestors, or from
TVMFFITypeKeyToIndex.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MethodType
from typing import TYPE_CHECKING, Any

from dlbridge.abi import undisguised
from dlbridge.extending import public_in, unless_handler, with_article

from ._lib import C, address, ffi, one_thread, py
from .any import ByteArray, Handle, Members, pack, text_of, unpack, view
from .errors import raised
from .frames import ask, call_with_gil, new_memory, perform
from .functions import Function, annotation_of, parse, signature_of
from .objects import Object, handle_of

if TYPE_CHECKING:
    from inspect import Signature


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
        self._get: Callable[[int, int], int] = one_thread(_Access(address(info.getter)))
        self._setter_is_object = bool(flags & C.kTVMFFIFieldFlagBitSetterIsFunctionObj)
        setter = address(info.setter)
        self._setter: Any = setter if self._setter_is_object else one_thread(_Access(setter))
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
            # At the field's offset another type has something else.
            info = info_of(index)
            if self not in info.all_fields():
                raise TypeError(
                    f"{with_article(info.type_key)} has no field {self.name!r} of {self.owner}"
                )
            self._holders.add(index)
        return handle

    def __get__(self, holder: Object | None, _owner: type | None = None) -> Any:
        if holder is None:
            return self
        words, _none, result = new_memory(0)
        location = self._object(holder) + self._offset
        return unpack(*perform(words, self._get, location, address(result)))

    def __set__(self, holder: Object, value: Any) -> None:
        if not self.writable:
            raise AttributeError(f"field {self.name!r} of {self.owner} is read-only")
        try:
            self._set(self._object(holder), value)
        except unless_handler(TypeError) as exc:
            raise TypeError(f"field {self.name!r} of {self.owner}: {exc}") from exc

    def _set(self, handle: Handle, value: Any) -> None:
        location = handle + self._offset
        if self._setter_is_object:
            arguments = (ctypes.c_void_p(location), value)
            call_with_gil(self._setter, arguments)
            return
        keep = Members()
        words = ffi.new("int64_t[2]", pack(value, keep))
        try:
            failed = self._setter(location, address(words))
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
        offset = self.type_index - column.begin_index
        return _any(column.data + offset) if 0 <= offset < column.size else None

    def all_fields(self) -> list[Field]:
        """The fields of the oldest ancestor first, the own ones last."""
        inherited = [field for index in self.ancestors for field in info_of(index).fields]
        return inherited + self.fields


_infos: dict[int, TypeInfo] = {}


def info_of(index: int) -> TypeInfo:
    """The type with this *index*, which must exist."""
    info = _infos.get(index)
    if info is None:  # another thread may be faster: there is one for each index
        info = _infos.setdefault(index, TypeInfo(index))
    return info


def index_of(type_key: str) -> int:
    """The type index of *type_key*; ValueError if no library has registered it."""
    out = ffi.new("int32_t *")
    if py.TVMFFITypeKeyToIndex(ByteArray(type_key), address(out)):
        raise ValueError(
            f"there is no type {type_key!r}; get_registered_type_keys() lists them, and a "
            "library that registers types must be loaded first"
        ) from raised()
    return out[0]  # type: ignore[no-any-return]


@public_in("dlbridge.ffi")
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
