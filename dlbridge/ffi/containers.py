"""Array, List, Map, Dict and Shape: the library's containers as Python's.

An Array never changes, so its elements are read out of its memory. A List may
be changed by another thread meanwhile, so it is copied first, by one call that
holds the GIL. Against what C++ does to a List without the GIL no reader is
safe, in C++ neither.
"""

from __future__ import annotations

import ctypes
import gc
import operator
import sys
from array import array
from collections import abc
from itertools import chain, cycle, repeat
from operator import itemgetter
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Self, SupportsIndex, TypeVar, overload

from dlbridge import Tensor
from dlbridge.abi import undisguised
from dlbridge.extending import public_in, unless_handler
from dlbridge.kit.resources import shared_lock

from . import _methods
from ._lib import C, address, ffi, py, tables
from .any import HEADER, OBJECT_BEGIN, Handle, Members, convert, pack, unpack, untrack, view
from .errors import Error, raised
from .frames import ask, builtin, call_with_gil
from .functions import NO_DEFAULT, Function
from .objects import (
    MAX_DEPTH,
    Argument,
    MovedObject,
    Object,
    Same,
    bounded,
    handle_of,
    new_wrapper,
    pack_peer,
)

if TYPE_CHECKING:
    from .any import Temporaries

_INT: Final[int] = C.kTVMFFIInt
_FLOAT: Final[int] = C.kTVMFFIFloat
ANY_SIZE: Final[int] = ffi.sizeof("TVMFFIAny")


class Packed(Argument):
    """A value packed ahead of the call that it is for.

    Packing may run the value's own code (``__tvm_ffi_value__``, ``__dlpack__``),
    which must not happen with a lock held that other threads wait for.
    """

    __slots__ = ("_keep", "words")

    def __init__(self, value: Any) -> None:
        self._keep = Members()
        self.words: tuple[int, int] = pack(value, self._keep)

    def _pack(self, keep: Temporaries) -> tuple[int, int]:  # the caller keeps it
        return self.words


def decode(data: Any, size: int) -> list[Any]:
    """The values of the *size* TVMFFIAny at the cffi pointer *data*, which C goes on owning."""
    if not size:
        return []
    words = array("q")
    words.frombytes(ffi.buffer(data, ANY_SIZE * size))
    tags, payloads = words[::2], words[1::2]
    # Numbers of one kind are what large arrays hold: one comparison for all of them.
    if tags == array("q", (_INT,)) * size:
        return payloads.tolist()
    if tags == array("q", (_FLOAT,)) * size:
        return memoryview(payloads).cast("B").cast("d").tolist()
    return list(map(view, tags, payloads))


_PLAIN: Final = bytes((*range(OBJECT_BEGIN), C.kTVMFFIStr, C.kTVMFFIBytes))
"""The low bytes of the tags of plain values. What else has one is no container and no tensor."""


def nested(data: Any, size: int) -> list[Any]:
    """Like `decode`, but empty where all values are plain: 2 us for a thousand."""
    kinds = ffi.buffer(data, ANY_SIZE * size)[:][::ANY_SIZE] if size else b""
    return decode(data, size) if kinds.translate(None, _PLAIN) else []


def build(constructor: str, values: abc.Sequence[Any], keep: Temporaries | None = None) -> Handle:
    """The new object that the library's function *constructor* makes of *values*.

    *keep* notes the streams of tensors among them, for the call that they are for.
    """
    made = call_with_gil(builtin(constructor), values, keep)[1]
    assert isinstance(made, Handle)  # constructors make objects
    return made


# This lock makes several calls into C one step for other threads. There is one for all
# containers: it is held for microseconds. It is reentrant, as a finalizer of what a change
# removes may take it.
changing: Final = shared_lock()


class Container(Object):
    """The one base of Array, List, Map and Dict, over the library's functions of that name.

    Elements are equal if they have the same type and value; tensors, functions
    and modules if they are the same one; Python objects if Python says so.
    """

    __slots__ = ()

    _name: str
    """The beginning of the names of the library's functions; alone it is the constructor."""
    _type: int
    """The type index."""
    _python: Any
    """Python's own class for the same content, as which it is printed where C cannot."""

    if not TYPE_CHECKING:
        # Array[int] in annotations. To a type checker its bases say that it is generic.
        __class_getitem__ = classmethod(GenericAlias)

    @classmethod
    def _new(cls, values: abc.Sequence[Any]) -> Self:
        """A new container of *values*: elements, or keys and values one after the other."""
        return new_wrapper(build(cls._name, values), cls._type, cls)

    def _pack(self, keep: Temporaries) -> tuple[int, int]:
        """The object itself; the streams of tensors anywhere inside are noted for the call."""
        packed = super()._pack(keep)
        if not isinstance(keep, Members):
            for tensor in tensors_in(self):
                pack(tensor, keep)
        return packed

    def _call(self, name: str, *arguments: Any) -> Any:
        """The result of the library's function of that *name* on this object, with the GIL held."""
        return ask(self._name + name, self, *arguments)

    def _read(self, decoder: abc.Callable[[Any, int], list[Any]]) -> list[Any]:
        """What *decoder* makes of the elements, or of keys and values, as they are now."""
        raise NotImplementedError

    def _content(self) -> list[Any]:
        """What the constructor takes: the elements, or the pairs."""
        raise NotImplementedError

    def _comparable(self, other: Any) -> Any:
        """*other* as a container that can be compared with this one, or None."""
        raise NotImplementedError

    def _paired(self, other: Any) -> abc.Iterable[tuple[Any, Any]]:
        """The values that may be more than plain ones, each with that of *other*."""
        return zip(self._read(nested), other._read(nested), strict=False)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        comparable = other if type(other) is type(self) else self._comparable(other)
        if comparable is None:
            return NotImplemented
        return ask("ffi.RecursiveEq", self, comparable) and _agree(self, comparable)

    def __hash__(self) -> int:
        return ask("ffi.RecursiveHash", self)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self._call("Size")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        if self._handle is None:
            return super().__repr__()
        try:
            bounded(self)
        except unless_handler(ValueError):
            pass  # it contains itself, which the library prints as "..."
        except unless_handler(RecursionError):
            # The library would take minutes, or overflow the stack.
            name = type(self).__name__
            return f"<{name} of size {len(self)}, nested more than {MAX_DEPTH} levels deep>"
        try:
            return ask("ffi.ReprPrint", self)  # type: ignore[no-any-return]
        except unless_handler(ValueError):
            # Of a complex tensor, whose dtype the library cannot print.
            return repr(self._python(self._content()))

    def __reduce__(self) -> tuple[Any, ...]:
        bounded(self)  # ValueError if it contains itself
        return type(self), (self._content(),)

    def __deepcopy__(self, _memo: Any = None) -> Self:
        return ask("ffi.DeepCopy", self)  # type: ignore[no-any-return]


def _agree(ours: Container, theirs: Container) -> bool:
    """Whether objects without a value are the same in both.

    To the library any two tensors are equal, any two functions, and so on.
    """
    waiting, seen = [(ours, theirs)], set()
    while waiting:
        one, other = waiting.pop()
        for x, y in one._paired(other):
            if isinstance(x, Container):
                pair = handle_of(x), handle_of(y)
                if pair not in seen:
                    seen.add(pair)
                    waiting.append((x, y))
            elif not (_has_fields(x) or same(x, y)):
                return False
    return True


def _has_fields(x: Any) -> bool:
    """Whether *x* is an object of C++, whose fields the library has compared."""
    return isinstance(x, Object) and not isinstance(x, (Error, Function, _methods.Module))


def same(x: Any, y: Any) -> bool:
    """Whether two elements are equal: in type and value, as containers compare them."""
    if x is y:
        return True
    if isinstance(x, Container) and isinstance(y, Container):
        return x == y
    if type(x) is not type(y) or isinstance(x, Tensor):
        return False
    if isinstance(x, Error):
        # An exception becomes a new Error each time that it is passed.
        exception = x.extra_context
        return exception is not None and exception is y.extra_context
    # NaN, to the library, equals itself.
    return bool(x == y or (isinstance(x, float) and x != x and y != y))


def tensors_in(value: Container) -> list[Tensor]:
    """The tensors in *value* and the containers in it, each container looked at once."""
    tensors, seen, waiting = [], {handle_of(value)}, [value]
    while waiting:
        for item in waiting.pop()._read(nested):
            if isinstance(item, Tensor):
                tensors.append(item)
            elif isinstance(item, Container) and handle_of(item) not in seen:
                seen.add(handle_of(item))
                waiting.append(item)
    return tensors


def pack_peer_container(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A container of the tvm_ffi package, which is the same object for us."""
    ours = view(*pack_peer(value, keep))
    keep.append(ours)
    return ours._pack(keep)  # type: ignore[no-any-return]


_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Same = TypeVar("_Same", bound="Same")


def _cell(handle: int) -> Any:
    return ffi.cast("TVMFFISeqCell *", handle + HEADER)


def _word(handle: Handle, position: int) -> bytes:
    """The element at *position* as C has it; empty where there is none."""
    cell = _cell(handle)
    if position >= cell.size:
        return b""
    return bytes(ffi.buffer(ffi.cast("char *", cell.data) + ANY_SIZE * position, ANY_SIZE))


class _Sequence(Container, abc.Sequence[_T_co]):
    """The common part of Array and List; both begin with a TVMFFISeqCell."""

    __slots__ = ()
    _python = list

    def _held(self) -> Handle:
        """An object with the elements of now, which does not change while it is read."""
        return handle_of(self)

    def _read(self, decoder: abc.Callable[[Any, int], list[Any]]) -> list[Any]:
        handle = self._held()
        cell = _cell(handle)
        return decoder(cell.data, cell.size)

    def _content(self) -> list[_T_co]:
        return self._read(decode)

    def _comparable(self, other: Any) -> Any:
        fits = isinstance(other, abc.Sequence) and not isinstance(other, (str, bytes))
        return type(self)(other) if fits else None

    def _position(self, index: SupportsIndex) -> int:
        size, name = len(self), type(self).__name__
        try:
            return range(size)[index]
        except IndexError:
            raise IndexError(f"index {index} is out of range for {name} of size {size}") from None
        except TypeError:
            raise TypeError(
                f"{name} indices must be integers or slices, not {type(index).__name__}"
            ) from None

    def _item(self, position: int) -> Any:
        return self._call("GetItem", position)

    @overload
    def __getitem__(self, index: SupportsIndex) -> _T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._content()[index]
        return self._item(self._position(index))

    def __len__(self) -> int:
        return _cell(handle_of(self)).size  # type: ignore[no-any-return]

    def __iter__(self) -> abc.Iterator[_T_co]:
        return iter(self._content())

    def __reversed__(self) -> abc.Iterator[_T_co]:
        return reversed(self._content())

    def _positions_of(
        self, value: Any, start: int = 0, stop: int | None = None
    ) -> abc.Iterator[int]:
        """Where elements are equal to *value*."""
        items, wanted = self._content(), convert(value)
        positions = range(*slice(start, stop).indices(len(items)))
        return (position for position in positions if same(items[position], wanted))

    def __contains__(self, value: object) -> bool:
        return next(self._positions_of(value), None) is not None

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        position = next(self._positions_of(value, start, stop), None)
        if position is None:
            raise ValueError(f"{value!r} is not in the {type(self).__name__}")
        return position

    def count(self, value: Any) -> int:
        return sum(1 for _position in self._positions_of(value))

    def __add__(self, other: abc.Iterable[Any]) -> Any:
        return type(self)([*self, *other]) if isinstance(other, abc.Iterable) else NotImplemented

    def __radd__(self, other: abc.Iterable[Any]) -> Any:
        return type(self)([*other, *self]) if isinstance(other, abc.Iterable) else NotImplemented


@public_in("dlbridge.ffi")
class Array(_Sequence[_T_co], abc.Sequence[_T_co]):
    """A sequence that never changes; what a Python list or tuple becomes as an argument.

    Elements are compared by type and value: 1.0 does not equal 1, also for ``in``, `index` and
    `count`. A slice is a Python list.

    Parameters
    ----------
    input_list : iterable
        The elements, each converted as an argument is.

    Examples
    --------
    >>> a = ffi.Array([1, "two", [3.5]])
    >>> a[-1], "two" in a, 1.0 in a
    ((3.5,), True, False)
    """

    __slots__ = ()
    _name, _type = "ffi.Array", C.kTVMFFIArray

    # The elements as they come back: of a list as an Array, of an array as a Tensor.
    @overload
    def __new__(cls, input_list: abc.Iterable[_Same]) -> Array[_Same]: ...
    @overload
    def __new__(cls, input_list: abc.Iterable[Any] = ...) -> Array[Any]: ...
    def __new__(cls, input_list: abc.Iterable[Any] = ()) -> Array[Any]:
        """An Array of the values, each converted as an argument is."""
        return cls._new(list(input_list))

    if TYPE_CHECKING:

        def __add__(self, other: abc.Iterable[Any]) -> Array[Any]: ...
        def __radd__(self, other: abc.Iterable[Any]) -> Array[Any]: ...

    def _item(self, position: int) -> Any:
        return decode(ffi.cast("char *", _cell(handle_of(self)).data) + ANY_SIZE * position, 1)[0]


@public_in("dlbridge.ffi")
class List(_Sequence[_T], abc.MutableSequence[_T]):
    """A sequence that everyone who holds it sees changing.

    It is Python's `MutableSequence`. Each change is one step for other threads, and one that
    cannot be made, as a value cannot be converted, changes nothing. Elements are compared by
    type and value: 1.0 does not equal 1, also for `remove`.

    Parameters
    ----------
    input_list : iterable
        The elements, each converted as an argument is.

    Examples
    --------
    >>> l = ffi.List([1, 2])
    >>> l.extend([3, [4]])
    >>> l, l.pop(), l.index(3)
    ([1, 2, 3], (4,), 2)
    """

    __slots__ = ()
    _name, _type = "ffi.List", C.kTVMFFIList

    # The elements as they come back: of a list as an Array, of an array as a Tensor.
    @overload
    def __new__(cls, input_list: abc.Iterable[_Same]) -> List[_Same]: ...
    @overload
    def __new__(cls, input_list: abc.Iterable[Any] = ...) -> List[Any]: ...
    def __new__(cls, input_list: abc.Iterable[Any] = ()) -> List[Any]:
        """A List of the values, each converted as an argument is."""
        return cls._new(list(input_list))

    if TYPE_CHECKING:

        def __add__(self, other: abc.Iterable[Any]) -> List[Any]: ...
        def __radd__(self, other: abc.Iterable[Any]) -> List[Any]: ...

    def _held(self) -> Handle:
        copy = List()
        ask("ffi.ListReplaceSlice", copy, 0, 0, self)
        return handle_of(copy)

    def _replace(self, positions: range, new: List[Any]) -> None:
        # What is removed lives until C++ is done: its finalizer may look at this List.
        removed = self._held() if positions else None
        self._call("ReplaceSlice", positions.start, positions.start + len(positions), new)
        del removed

    @overload
    def __setitem__(self, index: SupportsIndex, value: _T) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: abc.Iterable[_T]) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None:
        new = List(value) if isinstance(index, slice) else Packed(value)
        with changing:
            if isinstance(new, Packed):
                self._call("SetItem", self._position(index), new)
                return
            positions = range(len(self))[index]
            if positions.step == 1:
                self._replace(positions, new)
                return
            if len(new) != len(positions):
                raise ValueError(
                    f"attempt to assign sequence of size {len(new)} "
                    f"to extended slice of size {len(positions)}"
                )
            for position, item in zip(positions, new, strict=True):
                self._call("SetItem", position, item)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        with changing:
            if not isinstance(index, slice):
                self._call("Pop", self._position(index))
                return
            positions = range(len(self))[index]
            if positions.step == 1:
                self._replace(positions, List())
                return
            for position in sorted(positions, reverse=True):
                self._call("Pop", position)

    def insert(self, index: SupportsIndex, value: _T) -> None:
        """Insert *value* before *index*, as into a Python list."""
        position, item = operator.index(index), Packed(value)
        with changing:
            self._call("Insert", range(len(self))[position:].start, item)

    def append(self, value: _T) -> None:
        """Add *value* at the end."""
        self.insert(sys.maxsize, value)  # in one step: the length is read with the lock

    def extend(self, values: abc.Iterable[_T]) -> None:
        """Add all of *values* at the end, or none if one cannot be converted."""
        self[sys.maxsize :] = values

    def pop(self, index: SupportsIndex = -1) -> _T:
        """Remove and return the element at *index*."""
        with changing:
            return self._call("Pop", self._position(operator.index(index)))  # type: ignore[no-any-return]

    def remove(self, value: _T) -> None:
        """Remove the first element that equals *value*."""
        wanted = convert(value)
        while True:
            held = self._held()
            items = decode(_cell(held).data, _cell(held).size)
            # Without the lock: a comparison may run code of the elements.
            position = next((i for i, item in enumerate(items) if same(item, wanted)), None)
            if position is None:
                raise ValueError(f"{value!r} is not in the {type(self).__name__}")
            with changing:
                # Objects are the same at the same address, as *held* keeps them.
                if _word(self._held(), position) == _word(held, position):
                    self._call("Pop", position)
                    return

    def clear(self) -> None:
        """Remove all elements."""
        del self[:]

    def reverse(self) -> None:
        """Reverse the order of the elements."""
        with changing:
            self._call("Reverse")


def pack_sequence(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A Python list or tuple as an Array."""
    return keep.own(C.kTVMFFIArray, build("ffi.Array", value, keep))


@public_in("dlbridge.ffi")
class Shape(tuple[int, ...]):
    """The dimensions of a tensor: a tuple, which goes to C as a Shape object.

    Parameters
    ----------
    content : iterable of int
        Integers of 64 bits.

    Raises
    ------
    ValueError
        If one has more bits.

    Examples
    --------
    >>> ffi.Shape((2, 3))
    Shape((2, 3))
    """

    # The object, once it was passed; a tuple's subclass has no other attribute for it.
    _object: Handle | None = None

    def __new__(cls, content: abc.Iterable[SupportsIndex] = ()) -> Shape:
        """A Shape of the integers in *content*."""
        shape = super().__new__(cls, map(operator.index, content))
        for size in shape:
            if not -(1 << 63) <= size < 1 << 63:
                raise ValueError(f"a dimension of a Shape is an int of 64 bits; {size} has more")
        return shape

    def __repr__(self) -> str:
        return f"Shape({super().__repr__()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self),)


def pack_shape(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A Shape, or another tuple of integers, as a Shape object."""
    handle = getattr(value, "_object", None)
    if not isinstance(handle, Handle):
        handle = build("ffi.Shape", tuple(value), keep)
        if isinstance(value, Shape):
            untrack(handle)
            value._object = handle
    return keep.own(C.kTVMFFIShape, handle)


def shape_of(owned: Handle, _index: int) -> Shape:
    """A Shape object as a tuple, which keeps it and passes it again."""
    cell = ffi.cast("TVMFFIShapeCell *", owned + HEADER)
    shape = tuple.__new__(Shape, ffi.unpack(cell.data, cell.size) if cell.size else ())
    untrack(owned)
    shape._object = owned
    return shape


_K = TypeVar("_K")
_V = TypeVar("_V")
_V_co = TypeVar("_V_co", covariant=True)
_SameKey = TypeVar("_SameKey", bound="Same")

# Commands of a ForwardIterFunctor: the key, the value, and go on to the next pair.
_commands: Final = ffi.new("int64_t[]", [C.kTVMFFIInt, 0, C.kTVMFFIInt, 1, C.kTVMFFIInt, 2])
_COMMANDS: Final = tuple(address(_commands) + ANY_SIZE * command for command in range(3))

_missing: Final = build("ffi.GetInvalidObject", ())
"""The object that stands for "no such key"."""


def _pairs(values: Any) -> list[Any]:
    """Keys and values of a mapping, or of pairs, one after the other."""
    pairs = values.items() if isinstance(values, abc.Mapping) else values
    return list(chain.from_iterable((key, value) for key, value in pairs))


def _packed_key(key: Any) -> Any:
    """A key that is passed twice: to find its value, and to change it."""
    if type(key) is MovedObject:
        name = type(key.value).__name__
        raise TypeError(
            f"the result of _move() cannot be the key of a Dict; pass the {name} itself"
        )
    return Packed(key)


def _without_collector(steps: abc.Iterator[Any]) -> bool:
    """``any(steps)`` with the collector paused, in one call of C code.

    A fork in another thread finds the collector as it was before or as it is afterwards.
    """
    if not gc.isenabled():
        return any(steps)
    try:
        # `iter(f, None)` calls *f*, which returns None, and is at its end.
        paused: abc.Iterator[bool] = iter(gc.disable, None)
        resumed: abc.Iterator[bool] = iter(gc.enable, None)
        return list(chain(paused, map(any, [steps]), resumed)) == [True]
    except BaseException:
        gc.enable()
        raise


class _Mapping(Container, abc.Mapping[_K, _V_co]):
    """The common part of Map and Dict."""

    __slots__ = ()
    _python = dict

    def _read(self, decoder: abc.Callable[[Any, int], list[Any]]) -> list[Any]:
        """Keys and values one after the other.

        The library's iterator is good while nothing changes. It is made and asked in one
        call of C code, in which the GIL keeps out all other threads, this thread's
        signal handlers and, as the collector is paused, its finalizers.
        """
        handle = handle_of(self)
        this = ffi.new("int64_t[2]", [self._index, handle])
        size_of, iterator_of = map(
            builtin, (f"{self._name}Size", f"{self._name}ForwardIterFunctor")
        )
        call, now = py.TVMFFIFunctionCall, ffi.new("int64_t[4]")  # the size, and another result
        size = len(self)
        while size:  # an iterator at its end must not be asked
            # C writes into the memory of an Array, which owns all of it, whatever comes.
            # Its last element is the iterator.
            results = build("ffi.Array", [0] * (2 * size + 1))
            data = ffi.cast("TVMFFISeqCell *", results + HEADER).data
            functor = ffi.cast("int64_t *", data) + 4 * size
            keys = range(address(data), address(functor), 2 * ANY_SIZE)
            values = range(address(data) + ANY_SIZE, address(functor), 2 * ANY_SIZE)
            others = repeat(address(now + 2))
            steps = chain(
                map(call, [size_of], [address(this)], [1], [address(now)]),
                map(size.__ne__, map(itemgetter(1), [now])),
                map(call, [iterator_of], [address(this)], [1], [address(functor)]),
                map(
                    call,
                    map(itemgetter(1), repeat(functor)),
                    cycle(_COMMANDS),
                    repeat(1),
                    chain.from_iterable(zip(keys, values, others, strict=False)),
                ),
            )
            try:
                with tables:
                    complete = not _without_collector(steps)
            except ctypes.ArgumentError as exc:
                raise undisguised(exc) from None
            if complete:
                return decoder(data, 2 * size)
            if now[1] == size:
                raise raised()
            size = now[1]  # it has changed meanwhile
        return []

    def _content(self) -> list[tuple[_K, _V_co]]:
        items = self._read(decode)
        return list(zip(items[::2], items[1::2], strict=True))

    def _comparable(self, other: Any) -> Any:
        # A Map and a Dict are never equal, a Python mapping may be equal to both.
        fits = isinstance(other, abc.Mapping) and not isinstance(other, Container)
        return type(self)(other) if fits else None

    def _paired(self, other: Any) -> abc.Iterable[tuple[Any, Any]]:
        return ((value, other.get(key)) for key, value in self._content())

    def __getitem__(self, key: _K) -> _V_co:
        value = _Mapping.get(self, key, _missing)
        if value is _missing:
            raise KeyError(key)
        return value  # type: ignore[return-value]

    # Mapping's own would take a KeyError of a key's code, or of a signal handler, for "not there".
    if not TYPE_CHECKING:  # the types are Mapping's

        def get(self, key: Any, default: Any = None) -> Any:
            tag, payload = call_with_gil(builtin(f"{self._name}GetItemOrMissing"), (self, key))
            is_missing = payload == _missing and tag >= OBJECT_BEGIN
            return default if is_missing else unpack(tag, payload)

    def __contains__(self, key: object) -> bool:
        return self._call("Count", key) != 0  # type: ignore[no-any-return]

    def __iter__(self) -> abc.Iterator[_K]:
        return iter(self._read(decode)[::2])

    def items(self) -> abc.ItemsView[_K, _V_co]:
        return _Items(self)

    def values(self) -> abc.ValuesView[_V_co]:
        return _Values(self)


class _Items(abc.ItemsView[Any, Any]):
    _mapping: _Mapping[Any, Any]

    def __iter__(self) -> abc.Iterator[tuple[Any, Any]]:
        return iter(self._mapping._content())


class _Values(abc.ValuesView[Any]):
    _mapping: _Mapping[Any, Any]

    def __iter__(self) -> abc.Iterator[Any]:
        return iter(self._mapping._read(decode)[1::2])


@public_in("dlbridge.ffi")
class Map(_Mapping[_K, _V_co], abc.Mapping[_K, _V_co]):
    """A mapping that never changes; what a Python dict becomes as an argument.

    It keeps the order of insertion. Keys are found by the library's own hash and equality.

    Parameters
    ----------
    input_dict : mapping or iterable of pairs
        Keys and values, each converted as an argument is.

    Examples
    --------
    >>> m = ffi.Map({"a": 1})
    >>> m["a"], m.get("b", 0), list(m.items())
    (1, 0, [('a', 1)])
    """

    __slots__ = ()
    _name, _type = "ffi.Map", C.kTVMFFIMap

    # Keys and values as they come back: a list as an Array, an array as a Tensor.
    @overload
    def __new__(
        cls, input_dict: abc.Mapping[_SameKey, _Same] | abc.Iterable[tuple[_SameKey, _Same]]
    ) -> Map[_SameKey, _Same]: ...
    @overload
    def __new__(
        cls, input_dict: abc.Mapping[Any, Any] | abc.Iterable[tuple[Any, Any]] = ...
    ) -> Map[Any, Any]: ...
    def __new__(cls, input_dict: Any = ()) -> Map[Any, Any]:
        """A Map of a mapping, or of pairs; each key and value converted as an argument is."""
        return cls._new(_pairs(input_dict))


@public_in("dlbridge.ffi")
class Dict(_Mapping[_K, _V], abc.MutableMapping[_K, _V]):
    """A mapping that everyone who holds it sees changing.

    It is Python's `MutableMapping`, but `popitem` removes the first pair, and after a removal the
    order is the library's own. Each change is one step for other threads, but `update`, which
    makes one for each pair.

    Parameters
    ----------
    input_dict : mapping or iterable of pairs
        Keys and values, each converted as an argument is.

    Examples
    --------
    >>> table = ffi.Dict()
    >>> table["k"] = [1]
    >>> table, table.setdefault("k", 2), table.pop("k"), table.pop("k", None)
    ({}, (1,), (1,), None)
    """

    __slots__ = ()
    _name, _type = "ffi.Dict", C.kTVMFFIDict

    # Keys and values as they come back: a list as an Array, an array as a Tensor.
    @overload
    def __new__(
        cls, input_dict: abc.Mapping[_SameKey, _Same] | abc.Iterable[tuple[_SameKey, _Same]]
    ) -> Dict[_SameKey, _Same]: ...
    @overload
    def __new__(
        cls, input_dict: abc.Mapping[Any, Any] | abc.Iterable[tuple[Any, Any]] = ...
    ) -> Dict[Any, Any]: ...
    def __new__(cls, input_dict: Any = ()) -> Dict[Any, Any]:
        """A Dict of a mapping, or of pairs; each key and value converted as an argument is."""
        return cls._new(_pairs(input_dict))

    def __setitem__(self, key: _K, value: _V) -> None:
        packed, item = _packed_key(key), Packed(value)
        with changing:
            before = _Mapping.get(self, packed)  # not of a user's subclass
            self._call("SetItem", packed, item)
        del before  # it lives until C++ is done: its finalizer may look at this Dict

    def __delitem__(self, key: _K) -> None:
        self.pop(key)

    if not TYPE_CHECKING:  # the types are MutableMapping's

        def pop(self, key: Any, default: Any = NO_DEFAULT) -> Any:  # anybody's: the value
            """Remove *key* and return its value, or *default* if it is not there."""
            packed = _packed_key(key)
            with changing:
                value = _Mapping.get(self, packed, _missing)
                if value is not _missing:
                    self._call("Erase", packed)
                    return value
            if default is NO_DEFAULT:
                raise KeyError(key)
            return default

        def setdefault(self, key: Any, default: Any = None) -> Any:  # anybody's: the value
            """The value for *key*; if there is none, *default* becomes it."""
            packed, item = _packed_key(key), Packed(default)
            with changing:
                value = _Mapping.get(self, packed, _missing)
                if value is _missing:
                    self._call("SetItem", packed, item)
                    return default
            return value

    def popitem(self) -> tuple[_K, _V]:
        """Remove and return the first pair."""
        with changing:
            if not self:
                raise KeyError("popitem from an empty Dict")
            return super().popitem()

    def clear(self) -> None:
        """Remove everything."""
        with changing:
            removed = self._read(decode)
            self._call("Clear")
        del removed


def pack_mapping(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A Python dict as a Map."""
    return keep.own(C.kTVMFFIMap, build("ffi.Map", _pairs(value), keep))
