"""Map and Dict: the library's hash maps as Python mappings, in the order of insertion."""

from __future__ import annotations

import gc
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from itertools import chain, cycle, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from .._lib import C, address, ffi, py
from ..calls.registry import builtin
from ..values.errors import raised
from ..values.words import HEADER, OBJECT_BEGIN, Temporaries, unpack
from ..values.wrappers import MovedObject, handle_of
from . import containers
from .containers import Container
from .elements import ANY_SIZE, Packed, build, decode, method

if TYPE_CHECKING:
    from ..values.words import Packer, Same

__all__ = ["Dict", "Map", "mapping_rule"]

_K = TypeVar("_K")
_V = TypeVar("_V")
_V_co = TypeVar("_V_co", covariant=True)
_Default = TypeVar("_Default")
_SameKey = TypeVar("_SameKey", bound="Same")
_Same = TypeVar("_Same", bound="Same")

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
        found = method(f"{self._name}GetItemOrMissing", self._index, handle_of(self), key)
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
        with containers.changing:
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
        with containers.changing:
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
        with containers.changing:
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
        with containers.changing:
            pairs = self._snapshot()
            if not pairs:
                raise KeyError("popitem from an empty Dict")
            return pairs[0], self.pop(pairs[0])

    def clear(self) -> None:
        """Remove everything."""
        with containers.changing:
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
