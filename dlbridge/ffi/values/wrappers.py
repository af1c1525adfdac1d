"""Objects of libtvm_ffi in Python: one wrapper per object, weak references, identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from dlbridge.core.values.suggestions import with_article

from .._lib import C, address, ffi, py
from .weak import WeakTable
from .words import Handle, Temporaries, shared, text_of, untrack

if TYPE_CHECKING:
    from .words import Packer

__all__ = [
    "MovedObject",
    "Object",
    "borrow",
    "handle_of",
    "new_wrapper",
    "object_rule",
    "pack_moved",
    "pack_object",
    "remember",
    "type_index_of",
    "type_key_of",
    "wrap",
]


class Object:
    """A reference-counted object of libtvm_ffi.

    As long as one wrapper of an object lives, every value that is this object
    is that wrapper: ``a.x is a.x``. Compare by ``is`` or ``==``; hash by
    identity. It can be referenced weakly.

    Examples
    --------
    >>> f = ffi.convert_func(lambda: 1)
    >>> isinstance(f, ffi.Object), ffi.Array([f])[0] is f
    (True, True)
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ("__weakref__", "_handle", "_index")

    _handle: Handle | None
    """The strong reference; None once the object was moved away."""

    _index: int
    """The object's own type index; the type may be a subtype of its Python class's."""

    def __new__(cls, *_args: Any, **_keywords: Any) -> Any:
        """For classes that C++ says how to make; TypeError for the others."""
        if cls.__init__ is object.__init__:
            raise TypeError(
                f"{cls.__name__}() makes nothing: its objects come from the library's functions"
            )
        return object.__new__(cls)

    def same_as(self, other: object) -> bool:
        """Whether *other* is this very object of the library.

        Parameters
        ----------
        other : object
            Anything; the result is False for what is not an `Object`.

        Returns
        -------
        bool
            Whether both refer to one object in C. `is_` is another name of this method.

        Examples
        --------
        >>> a = ffi.Array([1])
        >>> a.same_as(a), a.same_as(ffi.Array([1]))
        (True, False)
        """
        if not isinstance(other, Object) or self._handle is None:
            return other is self
        return self._handle == other._handle

    is_ = same_as

    def _adopt(self, handle: Handle | None) -> None:
        """Own *handle* from now on; None once the object was moved away."""
        if handle is not None:
            untrack(handle)
        self._handle = handle

    def _move(self) -> MovedObject:
        """The object as an rvalue argument: the callee gets our only reference.

        The wrapper is empty once the call is made.
        """
        return MovedObject(self)

    def __tvm_ffi_object__(self) -> Any:
        """The tvm_ffi package's wrapper of this object; that package asks for it."""
        from ..objects.peers import hand_over  # needs functions, which are objects

        return hand_over(self)

    def __reduce__(self) -> Any:
        # Python would copy the address, and drop a reference that was never taken.
        raise TypeError(
            f"{with_article(type_key_of(self._index))} can be neither copied nor pickled"
        )

    def __repr__(self) -> str:
        if self._handle is None:
            return f"<moved {type(self).__name__}>"
        return f"<{type_key_of(self._index)} at {self._handle:#x}>"


class MovedObject:
    """The result of `Object._move`, to be used as an argument once."""

    __slots__ = ("moved",)

    def __init__(self, moved: Object) -> None:
        self.moved: Object = moved


_Wrapper = TypeVar("_Wrapper", bound=Object)


_wrappers: Final[WeakTable[Object]] = WeakTable()
"""Address of an object -> its wrapper."""


def wrap(owned: Handle, index: int, cls: type[_Wrapper]) -> _Wrapper:
    """The wrapper of an object: the one that lives, of whatever class, or a new *cls*."""
    key = int(owned)  # the table must own nothing
    known: Any = _wrappers.get(key)
    if known is not None:
        return known  # type: ignore[no-any-return]  # of whatever class it was made
    return new_wrapper(owned, index, cls)


def new_wrapper(owned: Handle, index: int, cls: type[_Wrapper]) -> _Wrapper:
    """A *cls* for an object that was just made, and so has no wrapper yet."""
    wrapper: Any = object.__new__(cls)
    wrapper._adopt(owned)
    wrapper._index = index
    return remember(wrapper, int(owned))  # type: ignore[no-any-return]


def handle_of(value: Object) -> Handle:
    """The object's address; ValueError if it was moved into a call."""
    handle = value._handle
    if handle is None:
        raise ValueError(f"the {type(value).__name__} was moved into a call and is empty now")
    return handle


def type_index_of(value: Object) -> int:
    """The index of the object's type."""
    return value._index


def remember(wrapper: Any, handle: int) -> Any:
    """*wrapper*, or the one that another thread has made for the same object meanwhile."""
    return _wrappers.add(handle, wrapper)


def borrow(handle: int, index: int, cls: type[_Wrapper]) -> _Wrapper:
    """Like `wrap`, for an object that somebody else owns: takes a reference of its own."""
    return wrap(shared(handle), index, cls)


def type_key_of(index: int) -> str:
    """The type key of *index*, which must come from a live object."""
    info = ffi.cast("TVMFFITypeInfo *", py.TVMFFIGetTypeInfo(index))
    return text_of(info.type_key)


def pack_object(value: Object, keep: Temporaries) -> tuple[int, int]:
    """The object itself; *keep* owns a reference, as *value* may be moved away meanwhile."""
    handle = handle_of(value)
    keep.append(handle)
    return value._index, handle


def pack_moved(value: MovedObject, keep: Temporaries) -> tuple[int, int]:
    """The address of a slot with the object's reference, for the callee to take."""
    slot = _Slot(value.moved)
    keep.append(slot)
    return C.kTVMFFIObjectRValueRef, address(slot.slot)


class _Slot:
    """Holds an object's only reference during a call; what is not taken goes back."""

    __slots__ = ("moved", "slot")

    def __init__(self, moved: Object) -> None:
        self.slot = ffi.new("void **")  # empty, should the next line fail
        _tag, handle = pack_object(moved, Temporaries())
        self.moved = moved
        py.TVMFFIObjectIncRef(handle)
        self.slot[0] = ffi.cast("void *", handle)
        # Whoever asks for the object from now on gets a new wrapper.
        _wrappers.remove(int(handle))
        moved._adopt(None)

    def __del__(self) -> None:
        if self.slot[0]:
            handle = Handle(address(self.slot[0]))
            self.moved._adopt(handle)
            remember(self.moved, int(handle))


def object_rule(cls: type) -> Packer | None:
    """Packers for `Object` classes and for `MovedObject`."""
    if issubclass(cls, Object):
        return pack_object
    return pack_moved if cls is MovedObject else None
