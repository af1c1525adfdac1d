"""Array, List, Map, Dict and Shape: the library's containers as Python's.

An Array never changes, so its elements are read out of its memory. A List may
be changed by another thread meanwhile, so it is copied first, by one call that
holds the GIL. Against what C++ does to a List without the GIL no reader is
safe, in C++ neither.
"""

from __future__ import annotations

import gc
import operator
import os
import sys
import threading
from array import array
from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
    ValuesView,
)
from itertools import accumulate, chain, cycle, repeat
from operator import itemgetter
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Self, SupportsIndex, TypeVar, overload

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.tensor.tensor import Tensor

from ._lib import C, address, ffi, py
from .any import (
    HEADER,
    OBJECT_BEGIN,
    Handle,
    Members,
    Packer,
    Temporaries,
    convert,
    pack,
    unpack,
    untrack,
    view,
)
from .calls import ask, builtin, call_with_gil, new_memory, perform
from .errors import Error, raised
from .objects import (
    MAX_DEPTH,
    MovedObject,
    Object,
    Same,
    bounded,
    handle_of,
    new_wrapper,
    pack_object,
    pack_peer,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


_INT: Final[int] = C.kTVMFFIInt
_FLOAT: Final[int] = C.kTVMFFIFloat
_RAW_STR: Final[int] = C.kTVMFFIRawStr
_STR: Final[int] = C.kTVMFFIStr
ANY_SIZE: Final[int] = ffi.sizeof("TVMFFIAny")


class Packed:
    """A value packed ahead of the call that it is for.

    Packing may run the value's own code (``__tvm_ffi_value__``, ``__dlpack__``),
    which must not happen with a lock held that other threads wait for.
    """

    __slots__ = ("_keep", "words")

    def __init__(self, value: Any) -> None:
        self._keep = Members()
        self.words: tuple[int, int] = pack(value, self._keep)


def pack_packed(value: Packed, _keep: Temporaries) -> tuple[int, int]:
    """The words that were made ahead; the caller keeps *value*."""
    return value.words


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
    return [
        payload if tag == _INT else _text(payload) if tag == _STR else view(tag, payload)
        for tag, payload in zip(tags, payloads, strict=True)
    ]


def _text(handle: int) -> str:
    """The text of the String object at *handle*, which the container holds meanwhile."""
    content = ffi.cast("TVMFFIByteArray *", handle + HEADER)
    if not content.size:  # its pointer may be NULL
        return ""
    return ffi.unpack(content.data, content.size).decode("utf-8", "surrogateescape")  # type: ignore[no-any-return]


# Containers, and objects that have no value to compare. The low byte of a tag
# is enough to rule them out; what else has it does no harm.
_NESTED: Final = bytes(
    (
        C.kTVMFFIError,
        C.kTVMFFIFunction,
        C.kTVMFFITensor,
        C.kTVMFFIArray,
        C.kTVMFFIMap,
        C.kTVMFFIModule,
        C.kTVMFFIOpaquePyObject,
        C.kTVMFFIList,
        C.kTVMFFIDict,
    )
)


def nested(data: Any, size: int) -> list[Any]:
    """Like `decode`, but empty where all values are plain: 2 us for a thousand."""
    kinds = ffi.buffer(data, ANY_SIZE * size)[:][::ANY_SIZE] if size else b""
    return [] if kinds == kinds.translate(None, _NESTED) else decode(data, size)


def _alike(values: Sequence[Any], keep: Temporaries) -> tuple[int, array[int]] | None:
    """The tag and the payloads of values that are all `int`, all `float` or all `str`."""
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return _INT, array("q", values)
        except OverflowError:  # a BigInt among them
            return None
    if kinds == {float}:
        return _FLOAT, array("q", array("d", values).tobytes())
    if kinds == {str}:
        parts = [value.encode("utf-8", "surrogateescape") for value in values]
        texts = b"\0".join([*parts, b""])
        if texts.count(0) == len(parts):  # none has a NUL of its own
            buffer = ffi.from_buffer(texts)
            keep.append(buffer)
            ends = accumulate([len(part) + 1 for part in parts], initial=address(buffer))
            return _RAW_STR, array("q", list(ends)[:-1])
    return None


def _pack_all(values: Sequence[Any], keep: Temporaries) -> Any:
    """A TVMFFIAny array with *values*, borrowed: good while *keep* lives."""
    size = len(values)
    memory = ffi.new("TVMFFIAny[]", size)
    words = memoryview(ffi.buffer(memory)).cast("B").cast("q")
    alike = _alike(values, keep)
    if alike is not None:
        tag, payloads = alike
        words[::2] = memoryview(array("q", (tag,)) * size)
        words[1::2] = memoryview(payloads)
        return memory
    place = 0
    for value in values:
        words[place], words[place + 1] = pack(value, keep)
        place += 2
    return memory


def build_by(
    function: int, values: Sequence[Any], keep: Temporaries | None = None
) -> tuple[int, int]:
    """Tag and payload, owned, of what the function at the address *function* makes of *values*.

    *keep* notes the streams of tensors among them, for the call that they are for.
    """
    keep = Members() if keep is None else keep
    words, _none, result = new_memory(0)
    arguments = _pack_all(values, keep)
    place, count = address(arguments), len(values)
    return perform(words, py.TVMFFIFunctionCall, function, place, count, address(result))


def build(constructor: str, values: Sequence[Any], keep: Temporaries | None = None) -> Handle:
    """The new object that the library's function *constructor* makes of *values*."""
    made = build_by(builtin(constructor), values, keep)[1]
    assert isinstance(made, Handle)  # constructors make objects
    return made


# This lock makes several calls into C one step for other threads. There is one for all
# containers: it is held for microseconds. It is reentrant, as a finalizer of what a change
# removes may take it. Read it from this module: a forked child gets a new one.
changing: AbstractContextManager[bool] = threading.RLock()


def _renew_lock() -> None:
    # A thread that held it does not exist in the child.
    global changing
    changing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class Container(Object):
    """The common part of the library's four containers: equality, hash, repr and copies.

    Elements are equal if they have the same type and value; tensors, functions
    and modules if they are the same one; Python objects if Python says so.
    """

    __slots__ = ()

    if not TYPE_CHECKING:
        # Array[int] in annotations. To a type checker its bases say that it is generic.
        __class_getitem__ = classmethod(GenericAlias)

    @classmethod
    def _make(cls, index: int, handle: Handle) -> Self:
        """The wrapper of a new object of type *index*."""
        return new_wrapper(handle, index, cls)

    @classmethod
    def _of(cls, values: Any) -> Any:
        """A new container of this class."""
        return cls(values)

    def _call(self, name: str, *arguments: Any) -> Any:
        """The result of the library's function *name* on this object, with the GIL held."""
        return ask(name, self, *arguments)

    def _nested(self) -> list[Any]:
        """The values in the container, if any of them may be more than a plain value."""
        raise NotImplementedError

    def _paired(self, other: Any) -> Iterable[tuple[Any, Any]]:
        """The values that may be more than plain ones, each with *other*'s in its place."""
        raise NotImplementedError

    def _same_kind(self, other: object) -> Any:
        """*other* as a container that can be compared with this one, or None."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        comparable = self._same_kind(other)
        if comparable is None:
            return NotImplemented
        return self._call("ffi.RecursiveEq", comparable) and _agree(self, comparable)

    def __hash__(self) -> int:
        return self._call("ffi.RecursiveHash")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        if self._handle is None:
            return super().__repr__()
        try:
            bounded(self)
        except ValueError as exc:  # it contains itself, which the library prints as "..."
            if is_from_handler(exc.__traceback__):
                raise
        except RecursionError as exc:  # the library would take minutes, or overflow the stack
            if is_from_handler(exc.__traceback__):
                raise
            name = type(self).__name__
            return f"<{name} of size {len(self)}, nested more than {MAX_DEPTH} levels deep>"
        try:
            return self._call("ffi.ReprPrint")  # type: ignore[no-any-return]
        except ValueError as exc:  # of a complex tensor, whose dtype the library cannot print
            if is_from_handler(exc.__traceback__):
                raise
            return self._python_repr()

    def __len__(self) -> int:
        raise NotImplementedError

    def _python_repr(self) -> str:
        """The repr in Python's own way."""
        raise NotImplementedError

    def _pickled(self, content: Any) -> tuple[Any, ...]:
        """The result of `__reduce__`; ValueError if the container contains itself."""
        bounded(self)
        return type(self), (content,)

    def __deepcopy__(self, _memo: Any = None) -> Self:
        return self._call("ffi.DeepCopy")  # type: ignore[no-any-return]


def _agree(ours: Container, theirs: Container) -> bool:
    """Whether objects without a value are the same in both.

    To the library any two tensors are equal, any two functions, and so on.
    """
    waiting, seen = [(ours, theirs)], set()
    while waiting:
        one, other = waiting.pop()
        for x, y in one._paired(other):
            if x is y:
                continue
            if isinstance(x, Container):
                pair = handle_of(x), handle_of(y)
                if pair not in seen:
                    seen.add(pair)
                    waiting.append((x, y))
            elif not _same_object(x, y):
                return False
    return True


def same(x: Any, y: Any) -> bool:
    """Whether two elements are equal: in type and value, as containers compare them."""
    if x is y:
        return True
    if type(x) is not type(y):
        return isinstance(x, Container) and isinstance(y, Container) and x == y
    if isinstance(x, float):
        return x == y or (x != x and y != y)  # NaN, to the library, equals itself
    return bool(_same_object(x, y))


def _same_object(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor):
        return x is y
    if isinstance(x, Error) and isinstance(y, Error):
        # An exception becomes a new Error each time that it is passed.
        exception = x.extra_context
        return x == y or (exception is not None and exception is y.extra_context)
    return bool(x == y)


def _pack_container(value: Container, keep: Temporaries) -> tuple[int, int]:
    """The object itself; the streams of tensors anywhere inside are noted for the call."""
    packed = pack_object(value, keep)
    if not isinstance(keep, Members):
        for tensor in tensors_in(value):
            pack(tensor, keep)
    return packed


def tensors_in(value: Container) -> list[Tensor]:
    """The tensors in *value* and the containers in it, each container looked at once."""
    found, seen, waiting = [], {handle_of(value)}, [value]
    while waiting:
        for item in waiting.pop()._nested():
            if isinstance(item, Tensor):
                found.append(item)
            elif isinstance(item, Container) and handle_of(item) not in seen:
                seen.add(handle_of(item))
                waiting.append(item)
    return found


def _pack_peer_container(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A container of the tvm_ffi package, which is the same object for us."""
    ours = view(*pack_peer(value, keep))
    keep.append(ours)
    return _pack_container(ours, keep)


def container_rule(cls: type) -> Packer | None:
    """Packers for the library's own containers, in our wrapper or in tvm_ffi's."""
    if issubclass(cls, Container):
        return _pack_container
    peer = sys.modules.get("tvm_ffi")
    peers = [getattr(peer, name, Container) for name in ("Array", "List", "Map", "Dict")]
    return _pack_peer_container if issubclass(cls, tuple(peers)) else None


_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Same = TypeVar("_Same", bound="Same")

_ARRAY: Final[int] = C.kTVMFFIArray
_LIST: Final[int] = C.kTVMFFIList


def _cell(handle: int) -> Any:
    return ffi.cast("TVMFFISeqCell *", handle + HEADER)


def _word(handle: Handle, place: int) -> bytes:
    """The element at *place* as C has it; empty where there is none."""
    cell = _cell(handle)
    if place >= cell.size:
        return b""
    return bytes(ffi.buffer(ffi.cast("char *", cell.data) + ANY_SIZE * place, ANY_SIZE))


class _Sequence(Container, Sequence[_T_co]):
    """The common part of Array and List; both begin with a TVMFFISeqCell."""

    __slots__ = ()

    def _held(self) -> Handle:
        """An object with the elements of now, which does not change while it is read."""
        raise NotImplementedError

    def _values(self) -> list[_T_co]:
        """All elements, as they are now."""
        handle = self._held()
        cell = _cell(handle)
        return decode(cell.data, cell.size)

    def _nested(self) -> list[Any]:
        handle = self._held()
        cell = _cell(handle)
        return nested(cell.data, cell.size)

    def _paired(self, other: Any) -> Iterable[tuple[Any, Any]]:
        return zip(self._nested(), other._nested(), strict=False)

    def _same_kind(self, other: object) -> Any:
        if type(other) is type(self):
            return other
        if isinstance(other, Sequence) and not isinstance(other, (str, bytes)):
            return self._of(other)
        return None

    def _position(self, index: SupportsIndex) -> int:
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"{type(self).__name__} indices must be integers or slices, "
                f"not {type(index).__name__}"
            ) from None
        size = len(self)
        if not -size <= place < size:
            raise IndexError(
                f"index {place} is out of range for {type(self).__name__} of size {size}"
            )
        return place + size if place < 0 else place

    def __len__(self) -> int:
        handle = handle_of(self)
        return _cell(handle).size  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[_T_co]:
        return iter(self._values())

    def __reversed__(self) -> Iterator[_T_co]:
        return self._values().__reversed__()

    def __contains__(self, value: object) -> bool:
        wanted = convert(value)
        return any(same(item, wanted) for item in self._values())

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The first position of *value*, as a Python list gives it.

        Parameters
        ----------
        value : object
            It is compared by type and value: 1.0 does not equal 1.
        start : int, optional
            The position at which the search begins; a negative one counts from the end.
        stop : int, optional
            The position before which it ends. None: the end.

        Returns
        -------
        int
            Counted from 0, from the beginning of the sequence also where *start* is given.

        Raises
        ------
        ValueError
            If *value* is not there.

        Examples
        --------
        >>> ffi.Array(["a", "b", "a"]).index("a", 1)
        2
        """
        values, wanted = self._values(), convert(value)
        for place in range(*slice(start, stop).indices(len(values))):
            if same(values[place], wanted):
                return place
        raise ValueError(f"{value!r} is not in the {type(self).__name__}")

    def count(self, value: Any) -> int:
        """How often *value* is an element.

        Parameters
        ----------
        value : object
            It is compared by type and value: 1.0 does not equal 1.

        Returns
        -------
        int
            0 if it is not there.

        Examples
        --------
        >>> ffi.Array([1, 1.0, 1]).count(1)
        2
        """
        wanted = convert(value)
        return sum(same(item, wanted) for item in self._values())

    def __add__(self, other: Iterable[Any]) -> Any:
        if not isinstance(other, Iterable):
            return NotImplemented
        return self._of([*self, *other])

    def __radd__(self, other: Iterable[Any]) -> Any:
        if not isinstance(other, Iterable):
            return NotImplemented
        return self._of([*other, *self])

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled(self._values())

    def _python_repr(self) -> str:
        return repr(self._values())


class Array(_Sequence[_T_co], Sequence[_T_co]):
    """A sequence that never changes; what a Python list or tuple becomes as an argument.

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

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ()

    # The elements as they come back: of a list as an Array, of an array as a Tensor.
    @overload
    def __new__(cls) -> Array[Any]: ...
    @overload
    def __new__(cls, input_list: Iterable[_Same]) -> Array[_Same]: ...
    @overload
    def __new__(cls, input_list: Iterable[Any]) -> Array[Any]: ...
    def __new__(cls, input_list: Iterable[Any] = ()) -> Array[Any]:
        """An Array of the values, each converted as an argument is."""
        return cls._make(_ARRAY, build("ffi.Array", list(input_list)))

    if TYPE_CHECKING:

        def __add__(self, other: Iterable[Any]) -> Array[Any]: ...
        def __radd__(self, other: Iterable[Any]) -> Array[Any]: ...

    def _held(self) -> Handle:
        return handle_of(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> _T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._values()[index]
        handle = handle_of(self)
        place = self._position(index)
        return decode(ffi.cast("char *", _cell(handle).data) + ANY_SIZE * place, 1)[0]


class List(_Sequence[_T], MutableSequence[_T]):
    """A sequence that everyone who holds it sees changing.

    Parameters
    ----------
    input_list : iterable
        The elements, each converted as an argument is.

    Examples
    --------
    >>> l = ffi.List([1, 2])
    >>> l.append(3)
    >>> l
    [1, 2, 3]
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ()

    # The elements as they come back: of a list as an Array, of an array as a Tensor.
    @overload
    def __new__(cls) -> List[Any]: ...
    @overload
    def __new__(cls, input_list: Iterable[_Same]) -> List[_Same]: ...
    @overload
    def __new__(cls, input_list: Iterable[Any]) -> List[Any]: ...
    def __new__(cls, input_list: Iterable[Any] = ()) -> List[Any]:
        """A List of the values, each converted as an argument is."""
        return cls._make(_LIST, build("ffi.List", list(input_list)))

    if TYPE_CHECKING:

        def __add__(self, other: Iterable[Any]) -> List[Any]: ...
        def __radd__(self, other: Iterable[Any]) -> List[Any]: ...

    def _held(self) -> Handle:
        copy = build("ffi.List", ())
        ask("ffi.ListReplaceSlice", new_wrapper(copy, _LIST, List), 0, 0, self)
        return copy

    @overload
    def __getitem__(self, index: SupportsIndex) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._values()[index]
        return self._call("ffi.ListGetItem", self._position(index))

    @overload
    def __setitem__(self, index: SupportsIndex, value: _T) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[_T]) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, slice):
            item = Packed(value)
            with changing:
                self._call("ffi.ListSetItem", self._position(index), item)
            return
        replacement = List(value)
        with changing:
            start, stop, step = index.indices(len(self))
            if step == 1:
                self._replace(start, max(start, stop), replacement)
                return
            places = range(start, stop, step)
            if len(replacement) != len(places):
                raise ValueError(
                    f"attempt to assign sequence of size {len(replacement)} "
                    f"to extended slice of size {len(places)}"
                )
            for place, item in zip(places, replacement, strict=True):
                self._call("ffi.ListSetItem", place, item)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        with changing:
            if not isinstance(index, slice):
                self._call("ffi.ListPop", self._position(index))
                return
            start, stop, step = index.indices(len(self))
            if step == 1:
                self._replace(start, max(start, stop), List())
                return
            for place in sorted(range(start, stop, step), reverse=True):
                self._call("ffi.ListPop", place)

    def _replace(self, start: int, stop: int, new: List[Any]) -> None:
        # What is removed lives until C++ is done: its finalizer may look at this List.
        removed = self._held() if start < stop else None
        self._call("ffi.ListReplaceSlice", start, stop, new)
        del removed

    def insert(self, index: SupportsIndex, value: _T) -> None:
        """Insert *value* before position *index*.

        Parameters
        ----------
        index : int
            The position; a negative one counts from the end. One outside the List
            means its beginning or its end, as for a Python list.
        value : object
            The new element, converted as an argument is.

        Examples
        --------
        >>> l = ffi.List([1, 3])
        >>> l.insert(1, 2)
        >>> l
        [1, 2, 3]
        """
        place, item = operator.index(index), Packed(value)
        with changing:
            size = len(self)
            place = max(0, place + size) if place < 0 else min(place, size)
            self._call("ffi.ListInsert", place, item)

    def append(self, value: _T) -> None:
        """Add *value* at the end.

        Parameters
        ----------
        value : object
            The new element, converted as an argument is.

        Examples
        --------
        >>> l = ffi.List([1])
        >>> l.append("two")
        >>> l
        [1, "two"]
        """
        item = Packed(value)
        with changing:
            self._call("ffi.ListAppend", item)

    def extend(self, values: Iterable[_T]) -> None:
        """Add all of *values* at the end, in one step for other threads.

        Parameters
        ----------
        values : iterable
            The new elements, each converted as an argument is. If one cannot be
            converted, none is added.

        Examples
        --------
        >>> l = ffi.List([1])
        >>> l.extend([2, 3])
        >>> l
        [1, 2, 3]
        """
        new = List(values)
        with changing:
            self._replace(len(self), len(self), new)

    def pop(self, index: SupportsIndex = -1) -> _T:
        """Remove and return the element at *index*.

        Parameters
        ----------
        index : int, optional
            The position; a negative one counts from the end. The last by default.

        Returns
        -------
        object
            The element that was removed.

        Raises
        ------
        IndexError
            If there is no such element.

        Examples
        --------
        >>> l = ffi.List([1, 2, 3])
        >>> l.pop(), l.pop(0), l
        (3, 1, [2])
        """
        with changing:
            if not len(self):
                raise IndexError("pop from empty List")
            return self._call("ffi.ListPop", self._position(index))  # type: ignore[no-any-return]

    def remove(self, value: _T) -> None:
        """Remove the first element that equals *value*.

        Parameters
        ----------
        value : object
            It is compared by type and value: 1.0 does not equal 1.

        Raises
        ------
        ValueError
            If *value* is not there.

        Examples
        --------
        >>> l = ffi.List(["a", "b", "a"])
        >>> l.remove("a")
        >>> l
        ["b", "a"]
        """
        wanted = convert(value)
        while True:
            held = self._held()
            items = decode(_cell(held).data, _cell(held).size)
            # Without the lock: a comparison may run code of the elements.
            place = next((i for i, item in enumerate(items) if same(item, wanted)), None)
            if place is None:
                raise ValueError(f"{value!r} is not in the {type(self).__name__}")
            with changing:
                # Objects are the same at the same address, as *held* keeps them.
                if _word(self._held(), place) == _word(held, place):
                    self._call("ffi.ListPop", place)
                    return

    def clear(self) -> None:
        """Remove all elements."""
        with changing:
            removed = self._held()
            self._call("ffi.ListClear")
        del removed

    def reverse(self) -> None:
        """Reverse the order of the elements."""
        with changing:
            self._call("ffi.ListReverse")


def _pack_sequence(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A Python list or tuple as an Array."""
    handle = build("ffi.Array", value, keep)
    keep.append(handle)
    return _ARRAY, handle


def sequence_rule(cls: type) -> Packer | None:
    """Packers for Python's lists and tuples."""
    return _pack_sequence if issubclass(cls, (list, tuple)) else None


_SHAPE: Final[int] = C.kTVMFFIShape


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

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    # The object, once it was passed; a tuple's subclass has no other place for it.
    _object: Handle | None = None

    def __new__(cls, content: Iterable[SupportsIndex] = ()) -> Shape:
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


def _pack_shape(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A Shape, or another tuple of integers, as a Shape object."""
    handle = getattr(value, "_object", None)
    if not isinstance(handle, Handle):
        handle = build("ffi.Shape", tuple(value), keep)
        if isinstance(value, Shape):
            untrack(handle)
            value._object = handle
    keep.append(handle)
    return _SHAPE, handle


def shape_rule(cls: type) -> Packer | None:
    """Packers for Shapes, ours and tvm_ffi's."""
    peer = getattr(sys.modules.get("tvm_ffi"), "Shape", Shape)
    return _pack_shape if issubclass(cls, (Shape, peer)) else None


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
_Default = TypeVar("_Default")
_SameKey = TypeVar("_SameKey", bound="Same")

_MAP: Final[int] = C.kTVMFFIMap
_DICT: Final[int] = C.kTVMFFIDict

# Commands of a ForwardIterFunctor: the key, the value, and go on to the next pair.
_commands: Final = ffi.new("int64_t[]", [C.kTVMFFIInt, 0, C.kTVMFFIInt, 1, C.kTVMFFIInt, 2])
_COMMANDS: Final = tuple(address(_commands) + ANY_SIZE * command for command in range(3))

_missing: Final = build("ffi.GetInvalidObject", ())
"""The object that stands for "no such key"."""


def _pairs(values: Any) -> list[Any]:
    """Keys and values of a mapping, or of pairs, one after the other."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return list(chain.from_iterable((key, value) for key, value in pairs))


def _packed_key(key: Any) -> Packed:
    """A key that is passed twice: to find its value, and to change it."""
    if type(key) is MovedObject:
        name = type(key.moved).__name__
        raise TypeError(
            f"the result of _move() cannot be the key of a Dict; pass the {name} itself"
        )
    return Packed(key)


def _without_collector(steps: Iterator[Any]) -> bool:
    """``any(steps)`` with the collector paused, in one call of C code.

    A fork in another thread finds the collector as it was before or as it is afterwards.
    """
    if not gc.isenabled():
        return any(steps)
    try:
        # `iter(f, None)` calls *f*, which returns None, and is at its end.
        paused: Iterator[bool] = iter(gc.disable, None)
        resumed: Iterator[bool] = iter(gc.enable, None)
        return list(chain(paused, map(any, [steps]), resumed)) == [True]
    except BaseException:
        gc.enable()
        raise


class _Mapping(Container, Mapping[_K, _V_co]):
    """The common part of Map and Dict."""

    __slots__ = ()

    _name: str
    """The beginning of the names of the library's functions."""

    def _snapshot(self) -> list[Any]:
        """Keys and values one after the other, as they are now.

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
            if not _without_collector(steps):
                return decode(data, 2 * size)
            if now[1] == size:
                raise raised()
            size = now[1]  # it has changed meanwhile
        return []

    def _nested(self) -> list[Any]:
        return self._snapshot()[1::2]

    def _paired(self, other: Any) -> Iterable[tuple[Any, Any]]:
        found = self._snapshot()
        return ((value, other.get(key)) for key, value in zip(found[::2], found[1::2], strict=True))

    def _same_kind(self, other: object) -> Any:
        if type(other) is type(self):
            return other
        # A Map and a Dict are never equal, a Python mapping may be equal to both.
        return (
            self._of(other)
            if isinstance(other, Mapping) and not isinstance(other, Container)
            else None
        )

    def _find(self, key: Any) -> tuple[int, int] | None:
        """Tag and payload of the value for *key*, owned by the caller; None if there is none."""
        found = call_with_gil(builtin(f"{self._name}GetItemOrMissing"), (self, key))
        if found[1] == _missing and found[0] >= OBJECT_BEGIN:
            return None
        return found

    def __getitem__(self, key: _K) -> _V_co:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return unpack(*found)  # type: ignore[no-any-return]

    @overload
    def get(self, key: _K) -> _V_co | None: ...
    @overload
    def get(self, key: _K, default: _V_co | _Default) -> _V_co | _Default: ...
    def get(self, key: Any, default: Any = None) -> Any:  # anybody's: the value
        """The value for *key*; *default* if there is none.

        Parameters
        ----------
        key : object
            The key, converted as an argument is.
        default : object, optional
            It is returned as it is.

        Returns
        -------
        object
            The value, or *default*.

        Examples
        --------
        >>> table = ffi.Map({"a": 1})
        >>> table.get("a"), table.get("b", 0)
        (1, 0)
        """
        found = self._find(key)
        return default if found is None else unpack(*found)

    def __contains__(self, key: object) -> bool:
        return self._call(f"{self._name}Count", key) != 0  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self._call(f"{self._name}Size")  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[_K]:
        return iter(self._snapshot()[::2])

    def items(self) -> ItemsView[_K, _V_co]:
        """A view of the pairs, in the order of insertion.

        Returns
        -------
        ItemsView
            Each iteration gives the pairs that are there when it begins.

        Examples
        --------
        >>> list(ffi.Map({"a": 1, "b": 2}).items())
        [('a', 1), ('b', 2)]
        """
        return _Items(self)

    def values(self) -> ValuesView[_V_co]:
        """A view of the values, in the order of insertion.

        Returns
        -------
        ValuesView
            Each iteration gives the values that are there when it begins.

        Examples
        --------
        >>> list(ffi.Map({"a": 1, "b": 2}).values())
        [1, 2]
        """
        return _Values(self)

    def __reduce__(self) -> tuple[Any, ...]:
        found = self._snapshot()
        return self._pickled(list(zip(found[::2], found[1::2], strict=True)))

    def _python_repr(self) -> str:
        return repr(dict(self.items()))


class _Items(ItemsView[Any, Any]):
    _mapping: _Mapping[Any, Any]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        found = self._mapping._snapshot()
        return zip(found[::2], found[1::2], strict=True)


class _Values(ValuesView[Any]):
    _mapping: _Mapping[Any, Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping._snapshot()[1::2])


class Map(_Mapping[_K, _V_co], Mapping[_K, _V_co]):
    """A mapping that never changes; what a Python dict becomes as an argument.

    Parameters
    ----------
    input_dict : mapping or iterable of pairs
        Keys and values, each converted as an argument is.

    Examples
    --------
    >>> ffi.Map({"a": 1})["a"]
    1
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ()
    _name = "ffi.Map"

    # Keys and values as they come back: a list as an Array, an array as a Tensor.
    @overload
    def __new__(cls) -> Map[Any, Any]: ...
    @overload
    def __new__(cls, input_dict: Mapping[_SameKey, _Same]) -> Map[_SameKey, _Same]: ...
    @overload
    def __new__(cls, input_dict: Iterable[tuple[_SameKey, _Same]]) -> Map[_SameKey, _Same]: ...
    @overload
    def __new__(
        cls, input_dict: Mapping[Any, Any] | Iterable[tuple[Any, Any]]
    ) -> Map[Any, Any]: ...
    def __new__(cls, input_dict: Any = ()) -> Map[Any, Any]:
        """A Map of a mapping, or of pairs; each key and value converted as an argument is."""
        return cls._make(_MAP, build("ffi.Map", _pairs(input_dict)))


class Dict(_Mapping[_K, _V], MutableMapping[_K, _V]):
    """A mapping that everyone who holds it sees changing.

    Parameters
    ----------
    input_dict : mapping or iterable of pairs
        Keys and values, each converted as an argument is.

    Examples
    --------
    >>> table = ffi.Dict()
    >>> table["k"] = [1]
    >>> table
    {"k": (1,)}
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    __slots__ = ()
    _name = "ffi.Dict"

    # Keys and values as they come back: a list as an Array, an array as a Tensor.
    @overload
    def __new__(cls) -> Dict[Any, Any]: ...
    @overload
    def __new__(cls, input_dict: Mapping[_SameKey, _Same]) -> Dict[_SameKey, _Same]: ...
    @overload
    def __new__(cls, input_dict: Iterable[tuple[_SameKey, _Same]]) -> Dict[_SameKey, _Same]: ...
    @overload
    def __new__(
        cls, input_dict: Mapping[Any, Any] | Iterable[tuple[Any, Any]]
    ) -> Dict[Any, Any]: ...
    def __new__(cls, input_dict: Any = ()) -> Dict[Any, Any]:
        """A Dict of a mapping, or of pairs; each key and value converted as an argument is."""
        return cls._make(_DICT, build("ffi.Dict", _pairs(input_dict)))

    def __setitem__(self, key: _K, value: _V) -> None:
        place, item = _packed_key(key), Packed(value)
        with changing:
            # The value that goes lives until C++ is done: its finalizer may look at this Dict.
            before = self._find(place)
            try:
                self._call("ffi.DictSetItem", place, item)
            finally:
                if before:
                    unpack(*before)

    def __delitem__(self, key: _K) -> None:
        self.pop(key)

    @overload
    def pop(self, key: _K) -> _V: ...
    @overload
    def pop(self, key: _K, default: _V | _Default, /) -> _V | _Default: ...
    def pop(self, key: Any, *default: Any) -> Any:  # anybody's: the value
        """Remove *key* and return its value.

        Parameters
        ----------
        key : object
            The key, converted as an argument is.
        *default : object
            At most one value, which is returned if *key* is not there.

        Returns
        -------
        object
            The value that was removed, or *default*.

        Raises
        ------
        KeyError
            If *key* is not there, and no *default* was given.

        Examples
        --------
        >>> table = ffi.Dict({"a": 1})
        >>> table.pop("a"), table.pop("a", None)
        (1, None)
        """
        if len(default) > 1:
            raise TypeError(f"pop expected at most 2 arguments, got {1 + len(default)}")
        place = _packed_key(key)
        with changing:
            found = self._find(place)
            if found is not None:
                value = unpack(*found)
                self._call("ffi.DictErase", place)
                return value
        if default:
            return default[0]
        raise KeyError(key)

    @overload
    def setdefault(self: Dict[_K, _V | None], key: _K, default: None = None) -> _V | None: ...
    @overload
    def setdefault(self, key: _K, default: _V) -> _V: ...
    def setdefault(self, key: Any, default: Any = None) -> Any:  # anybody's: the value
        """The value for *key*; if there is none, *default* becomes it.

        Parameters
        ----------
        key : object
            The key, converted as an argument is.
        default : object, optional
            The new value, converted as an argument is.

        Returns
        -------
        object
            The value that was there, or *default* as it was given.

        Examples
        --------
        >>> table = ffi.Dict({"a": 1})
        >>> table.setdefault("a", 2), table.setdefault("b", 2)
        (1, 2)
        """
        place, item = _packed_key(key), Packed(default)
        with changing:
            found = self._find(place)
            if found is None:
                self._call("ffi.DictSetItem", place, item)
                return default
        return unpack(*found)

    def popitem(self) -> tuple[_K, _V]:
        """Remove and return the first pair.

        Returns
        -------
        tuple
            The key and the value.

        Raises
        ------
        KeyError
            If the Dict is empty.

        Examples
        --------
        >>> ffi.Dict({"a": 1}).popitem()
        ('a', 1)
        """
        with changing:
            pairs = self._snapshot()
            if not pairs:
                raise KeyError("popitem from an empty Dict")
            return pairs[0], self.pop(pairs[0])

    def clear(self) -> None:
        """Remove everything."""
        with changing:
            removed = self._snapshot()
            self._call("ffi.DictClear")
        del removed


def _pack_mapping(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A Python dict as a Map."""
    handle = build("ffi.Map", _pairs(value), keep)
    keep.append(handle)
    return _MAP, handle


def mapping_rule(cls: type) -> Packer | None:
    """Packers for Python's dicts."""
    return _pack_mapping if issubclass(cls, dict) else None
