"""Array and List: the library's sequences as Python sequences.

An Array never changes, so its elements are read out of its memory. A List may
be changed by another thread meanwhile, so it is copied first, by one call that
holds the GIL. Against what C++ does to a List without the GIL no reader is
safe, in C++ neither.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeVar, overload

from .._lib import C, ffi
from ..values.words import HEADER, Handle, Temporaries
from ..values.wrappers import handle_of
from . import containers
from .containers import Container, same
from .conversion import convert
from .elements import ANY_SIZE, Packed, build, decode, method, nested

if TYPE_CHECKING:
    from ..values.words import Packer, Same

__all__ = ["Array", "List", "sequence_rule"]

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
        method("ffi.ListReplaceSlice", _LIST, copy, 0, 0, self)
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
            with containers.changing:
                self._call("ffi.ListSetItem", self._position(index), item)
            return
        replacement = List(value)
        with containers.changing:
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
        with containers.changing:
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
        with containers.changing:
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
        with containers.changing:
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
        with containers.changing:
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
        with containers.changing:
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
            with containers.changing:
                # Objects are the same at the same address, as *held* keeps them.
                if _word(self._held(), place) == _word(held, place):
                    self._call("ffi.ListPop", place)
                    return

    def clear(self) -> None:
        """Remove all elements."""
        with containers.changing:
            removed = self._held()
            self._call("ffi.ListClear")
        del removed

    def reverse(self) -> None:
        """Reverse the order of the elements."""
        with containers.changing:
            self._call("ffi.ListReverse")


def _pack_sequence(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A Python list or tuple as an Array."""
    handle = build("ffi.Array", value, keep)
    keep.append(handle)
    return _ARRAY, handle


def sequence_rule(cls: type) -> Packer | None:
    """Packers for Python's lists and tuples."""
    return _pack_sequence if issubclass(cls, (list, tuple)) else None
