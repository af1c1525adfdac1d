"""Objects of libtvm_ffi in Python: one wrapper for each, Python objects in C, graphs of objects."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from dlbridge import Device, DType
from dlbridge.abi import object_at
from dlbridge.extending import public_in, with_article

from . import _methods
from ._lib import C, address, destructor, ffi, py
from .any import (
    HEADER,
    Handle,
    Temporaries,
    Unowned,
    WeakTable,
    convert,
    made,
    native_type_index,
    new_slot,
    shared,
    text_of,
    untrack,
)


@public_in("dlbridge.ffi")
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

    if TYPE_CHECKING:  # the fields are known to the library only

        def __getattr__(self, name: str) -> Any: ...

    def _move(self) -> MovedObject:
        """The object as an rvalue argument: the callee gets our only reference.

        The wrapper is empty once the call is made.
        """
        return MovedObject(self)

    def __tvm_ffi_object__(self) -> Any:
        """The tvm_ffi package's wrapper of this object, for which that package asks."""
        return _methods.hand_over(self)

    def _pack(self, keep: Temporaries) -> tuple[int, int]:
        """The object itself; *keep* owns a reference, as *self* may be moved away meanwhile."""
        return keep.own(self._index, handle_of(self))

    def __reduce__(self) -> Any:
        # Python would copy the address, and drop a reference that was never taken.
        raise TypeError(
            f"{with_article(type_key_of(self._index))} can be neither copied nor pickled"
        )

    def __repr__(self) -> str:
        if self._handle is None:
            return f"<moved {type(self).__name__}>"
        return f"<{type_key_of(self._index)} at {self._handle:#x}>"


# What comes back from C as it went: an element of a container has this type, too.
Same: TypeAlias = int | float | str | bytes | DType | Device | Object | None


class Argument:
    """The base of our classes of values that stand for another one in a call, and pack it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value

    def _pack(self, keep: Temporaries) -> tuple[int, int]:
        raise NotImplementedError


class MovedObject(Argument):
    """The result of `Object._move`, to be used as an argument once."""

    __slots__ = ()

    def _pack(self, keep: Temporaries) -> tuple[int, int]:
        """The address of a slot with the object's reference, for the callee to take."""
        slot = _Slot(self.value)
        keep.append(slot)
        return C.kTVMFFIObjectRValueRef, address(slot.slot)


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


class _Slot:
    """Holds an object's only reference during a call; what is not taken goes back."""

    __slots__ = ("moved", "slot")

    def __init__(self, moved: Object) -> None:
        self.slot = ffi.new("void **")  # empty, should the next line fail
        handle = handle_of(moved)
        self.moved = moved
        owner, pointer = shared(handle), ffi.cast("void *", handle)
        owner.__class__, self.slot[0] = Unowned, pointer  # type: ignore[assignment]
        # Whoever asks for the object from now on gets a new wrapper.
        _wrappers.remove(int(handle))
        moved._adopt(None)

    def __del__(self) -> None:
        if self.slot[0]:
            handle = Handle(address(self.slot[0]))
            self.moved._adopt(handle)
            remember(self.moved, int(handle))


# Objects that C has, by address, and the number of references that it has to each.
#
# Nothing below makes a call or a loop while it changes them, and each change is one
# line, so that neither a thread nor a Ctrl-C nor a trace function comes between.
# A deleter that makes no call also leaves an exception alone that is pending in its
# caller (measured; docs/safety.md).
# An exception that comes before the change, for want of memory or by a trace function, has
# `destructor` do it again: so it comes first to what needs memory, and drops the value last.
_kept: Final[dict[int, Any]] = {}
_counts: Final[defaultdict[int, int]] = defaultdict(int)


def _drop(key: int, _kept: dict[int, Any] = _kept, _counts: dict[int, int] = _counts) -> None:
    if _counts[key] > 1:
        _counts[key] -= 1
    else:
        del _counts[key], _kept[key]


_DELETER: Final = destructor("void(*)(void *)", _drop)


def with_owner(value: object, make: Callable[..., int], *arguments: Any) -> Handle | None:
    """The object that a C function makes, which keeps *value* alive; None if it fails.

    *make* takes a pointer first and its deleter last, before the slot for the object.
    """
    key, slot, entered = id(value), new_slot(), False
    pointer = ffi.cast("void *", key)
    try:
        _kept[key], _counts[key], entered = value, _counts[key] + 1, True
        _status, handle = made(slot, make, pointer, *arguments, _DELETER)
    finally:
        if entered and not slot[0]:
            _drop(key)
        elif not entered and key in _counts and not _counts[key]:
            del _counts[key]  # to read it has entered a 0, and there was no memory for more
    return handle


def make_opaque(value: object) -> Handle:
    """A new opaque object that holds *value*; its address is the ``PyObject *``.

    tvm_ffi reads and makes the same, so such objects pass both ways.
    """
    handle = with_owner(value, C.TVMFFIObjectCreateOpaque, C.kTVMFFIOpaquePyObject)
    if handle is None:
        raise MemoryError("libtvm_ffi could not allocate an object")
    return handle


def pack_opaque(value: object, keep: Temporaries) -> tuple[int, int]:
    """Any Python object, carried as it is."""
    return keep.own(C.kTVMFFIOpaquePyObject, make_opaque(value))


def opaque_value(handle: Handle, _index: int) -> Any:
    """The Python object in an opaque one."""
    cell = ffi.cast("TVMFFIOpaqueObjectCell *", handle + HEADER)
    return object_at(address(cell.handle))


MAX_DEPTH: Final = 2000
"""Levels that are passed on to C++: a tenth of what was seen to crash with 8 MiB of stack."""


def pack_peer(value: Any, keep: Temporaries) -> tuple[int, int]:
    """An object of the tvm_ffi package; ValueError if it was moved away."""
    handle = value.__chandle__()
    if not handle:
        raise ValueError(f"the {type(value).__name__} was moved into a call and is empty now")
    index = native_type_index(handle)
    if keep.checking:
        keep.own(index, handle)  # an int: the reference is the peer's
    return index, handle


def _parts(value: Any) -> list[Any]:
    """What *value* contains that may itself contain something."""
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = itertools.chain(value, value.values())
    elif isinstance(value, Sequence):
        parts = value
    elif info := getattr(value, "__tvm_ffi_type_info__", None):
        parts = (field.__get__(value) for field in info.all_fields())
    return [part for part in parts if isinstance(part, (Object, list, tuple, dict))]


def _identity(value: Any) -> int:
    return value._handle or 0 if isinstance(value, Object) else id(value)


def bounded(value: Any) -> Any:  # anybody's: the value itself
    """*value*; ValueError if it contains itself, RecursionError if it is nested too deep."""
    # Identity -> levels, 0 while its parts are looked at: shared parts may lie deeper elsewhere.
    levels: dict[int, int] = {}
    kept = []  # alive, so that identities stay unique
    # What is still to be done: a value, the level that it is on, its parts if they are done.
    waiting: list[tuple[Any, int, list[Any] | None]] = [(value, 1, None)]
    while waiting:
        item, level, parts = waiting.pop()
        identity = _identity(item)
        if parts is not None:
            level = levels[identity] = 1 + max((levels[_identity(x)] for x in parts), default=0)
        elif identity not in levels:
            parts, levels[identity] = _parts(item), 0
            kept.append(item)
            waiting.append((item, level, parts))
            waiting += [(part, level + 1, None) for part in parts]
        elif not levels[identity]:
            raise ValueError(f"{with_article(type(item).__name__)} contains itself")
        if level > MAX_DEPTH:
            raise RecursionError(f"the value is nested more than {MAX_DEPTH} levels deep")
    return value


def checked(value: Any) -> Any:
    """An argument for C: *value*, or the object that C will see, which is `bounded`."""
    if isinstance(value, Argument):
        checked(value.value)
        return value
    try:
        converted = bounded(convert(value))
    except RecursionError:
        bounded(value)
        raise
    return converted if isinstance(converted, Object) else value  # errors name what was passed
