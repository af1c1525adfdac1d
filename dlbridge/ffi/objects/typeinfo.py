"""The library's type table: types, their fields and methods.

The table answers an unknown index by ending the process, so every index here
comes from a live object, from another type's ancestors, or from
TVMFFITypeKeyToIndex.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.public import public_in
from dlbridge.core.values.suggestions import with_article

from .._lib import C, address, ffi, py
from ..calls.frames import call_with_gil
from ..calls.registry import builtin
from ..calls.schemas import annotation_of, parse, signature_of
from ..values.errors import raised
from ..values.words import (
    LAST_INDEX,
    OBJECT_BEGIN,
    ByteArray,
    Handle,
    pack,
    release,
    text_of,
    unpack,
    view,
)
from ..values.wrappers import handle_of, type_index_of
from .elements import Members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Signature

    from ..calls.functions import Function
    from ..values.wrappers import Object

__all__ = ["Field", "Method", "TypeInfo", "get_registered_type_keys", "index_of", "info_of"]

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
        self.metadata: Mapping[str, Any] = parse(text_of(info.metadata))
        schema = self.metadata.get("type_schema")
        self.annotation: str = annotation_of(parse(schema)) if schema else "Any"
        self.writable: bool = bool(flags & C.kTVMFFIFieldFlagBitMaskWritable)
        self.has_default: bool = bool(flags & C.kTVMFFIFieldFlagBitMaskHasDefault)
        self.keyword_only: bool = bool(flags & C.kTVMFFIFieldFlagBitMaskKwOnly)
        self.in_constructor: bool = not flags & C.kTVMFFIFieldFlagBitMaskInitOff
        self.__doc__ = text_of(info.doc) or f"{self.name}: {self.annotation}"
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
    def default(self) -> Any:
        """The default; a new one each time if C++ has a factory for it."""
        if not self.has_default:
            raise AttributeError(f"field {self.name!r} of {self.owner} has no default")
        value = _any(self._default)
        return value() if self.default_is_factory else value

    def _object(self, holder: Object) -> Handle:
        handle, index = handle_of(holder), type_index_of(holder)
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
        handle = self._object(holder)
        out = ffi.new("int64_t[2]")
        try:
            failed = self._get(handle + self._offset, address(out))
            owner = Handle if OBJECT_BEGIN <= out[0] <= LAST_INDEX else int
            if failed:
                raise raised()
        except BaseException:  # its own, or a Ctrl-C that came meanwhile
            release(out[0], out[1])
            raise
        # In line: a Ctrl-C before the first instruction of a function would leave it without owner.
        return unpack(out[0], owner(out[1]))

    def __set__(self, holder: Object, value: Any) -> None:
        if not self.writable:
            raise AttributeError(f"field {self.name!r} of {self.owner} is read-only")
        try:
            self._set(self._object(holder), value)
        except TypeError as exc:
            if is_from_handler(exc.__traceback__):
                raise
            raise TypeError(f"field {self.name!r} of {self.owner}: {exc}") from exc

    def _set(self, handle: Handle, value: Any) -> None:
        place = handle + self._offset
        if self._setter_is_object:
            call_with_gil(self._setter, ctypes.c_void_p(place), value)
            return
        keep = Members()
        words = ffi.new("int64_t[2]", pack(value, keep))
        if self._setter(place, address(words)):
            raise raised()

    def __delete__(self, _holder: Object) -> None:
        raise AttributeError(f"field {self.name!r} of {self.owner} cannot be deleted")

    def __repr__(self) -> str:
        return f"<field {self.name!r} of {self.owner}: {self.annotation}>"


class Method:
    """A method as the table has it: `function` takes the object first, unless `static`."""

    def __init__(self, owner: str, info: Any) -> None:
        self.owner: str = owner
        self.name: str = text_of(info.name)
        self.doc: str | None = text_of(info.doc) or None
        self.static: bool = bool(info.flags & C.kTVMFFIFieldFlagBitMaskIsStaticMethod)
        self.function: Function = _any(ffi.addressof(info, "method"))
        self._metadata = text_of(info.metadata)

    @property
    def signature(self) -> Signature:
        """The signature, as far as the library says."""
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
    return sorted(call_with_gil(builtin("ffi.GetRegisteredTypeKeys")))
