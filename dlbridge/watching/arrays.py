"""What the descriptions of libraries say: which callables exchange arrays, and what an array is."""

from __future__ import annotations

import inspect
import sys
import sysconfig
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from dlbridge.extending import (
    described_packages,
    is_array_of,
    library_of,
    loaded_libraries,
    unless_handler,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from dlbridge.libraries import Exchange


What = tuple[object, object, tuple[int, ...], int]
"""The device, the dtype, the shape and the bytes of an array: what is mostly the same each time."""


def text_of(kind: str, device: str) -> str:
    """The class, and the device unless it is the CPU."""
    return kind if device == "cpu" else f"{kind} {device}"


@dataclass(slots=True, eq=False)
class Known:
    """A callable that exchanges arrays; no tuple, as that is read four times slower by name."""

    thing: object
    exchange: Exchange
    library: str
    code: CodeType | None
    """Of a Python function."""
    is_late: bool
    """Whether its array, no first argument, is asked for when the Python function returns."""
    inner: CodeType | None
    """Of that which it wraps or its own, or a class's ``__init__``."""
    arguments: int
    """How many are written in a call with the array alone: none, of a method."""
    is_fixed: bool
    """Whether the description says what becomes of an array that is the only argument."""
    prefix: str
    """The library that it makes arrays of; empty where an array of its own counts, too."""


# Callables -----------------------------------------------------------------------------


class Callables:
    """The described callables of the libraries that are loaded, found again as more are.

    Without a lock, as descriptions are imported and destructors run here: what two threads find at
    once is the same, and each entry is made in one step.
    """

    def __init__(self) -> None:
        self.table: dict[Hashable, Known] = {}
        self.types: set[int] = set()  # of the callables, by address: a class may have no hash
        self.modules = 0
        self._packages = described_packages()
        self._missing: dict[str, list[Exchange]] = {}
        self._own: tuple[tuple[str, ...], dict[str, bool]] = (), {}

    def refresh(self, prepare: Callable[[list[Known]], object] = len) -> None:
        """Look for what modules have brought that came since the last time.

        *prepare* gets the new callables before anybody finds them here.
        """
        if len(sys.modules) == self.modules or _is_incomplete("numpy"):
            return  # the descriptions need numpy
        count = len(sys.modules)
        libraries = loaded_libraries()
        new: dict[Hashable, Known] = {}
        incomplete = any(map(_is_incomplete, self._packages))
        for name, library in libraries.items():
            missing = self._missing.setdefault(name, list(library.exchanges))
            homes = {name, *(each.name.rpartition(":")[0] for each in missing)}
            incomplete = incomplete or any(map(_is_incomplete, homes))
            if missing:
                self._find(name, new)
        folders = tuple(
            f"{path}/"
            for name in sorted(libraries)
            for path in getattr(sys.modules.get(name), "__path__", ())
        )
        if folders != self._own[0]:
            self._own = folders, {}
        prepare(list(new.values()))
        self.types.update(id(type(thing)) for thing in new)
        for thing, known in new.items():
            self.table.setdefault(thing, known)
        self.modules = 0 if incomplete else count

    def find(self, callee: Any) -> Known | None:
        """What is known of *callee*; another class than theirs is not asked for its hash."""
        return self.table.get(callee) if id(type(callee)) in self.types else None

    def _find(self, name: str, new: dict[Hashable, Known]) -> None:
        missing = []
        for exchange in self._missing[name]:
            owner, thing = _thing_of(exchange.name, name)
            if thing is None:
                missing.append(exchange)
                continue
            gives = exchange.result == "moved" or not exchange.makes.startswith(f"{name}.")
            is_method = isinstance(owner, type) and gives
            code = getattr(thing, "__code__", None) if isinstance(thing, FunctionType) else None
            fixed = exchange.result in ("shared", "copied")
            prefix = "" if exchange.result == "moved" else exchange.makes.partition(".")[0]
            is_late = code is not None and bool(exchange.argument)
            known = Known(
                thing, exchange, name, code, is_late, _inner(thing), not is_method, fixed, prefix
            )
            new.setdefault(thing, known)
        self._missing[name] = missing

    def is_own(self, filename: str) -> bool:
        """Whether code of *filename* is a described library's, Python's or ours."""
        folders, own = self._own
        try:
            return own[filename]
        except KeyError:
            found = filename.startswith(("<frozen ", *folders, _HERE)) or (
                filename.startswith(_STDLIB) and not is_installed(filename)
            )
            if not found and is_installed(filename):
                package = filename.partition("-packages/")[2].partition("/")[0]
                found = package in self._packages
            return own.setdefault(filename, found)


_HERE = f"{Path(__file__).parents[1]}/"
_STDLIB = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))


def is_installed(filename: str) -> bool:
    """Whether *filename* is that of an installed package."""
    return "site-packages/" in filename or "dist-packages/" in filename


def _is_incomplete(name: str) -> bool:
    """Whether *name* is being imported, by importlib's mark, which has no public name."""
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def _inner(thing: Any) -> CodeType | None:
    if isinstance(thing, type):
        thing = vars(thing).get("__init__")
    code = getattr(inspect.unwrap(thing), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _thing_of(path: str, name: str) -> tuple[Any, Any]:
    """What *path* means in the module *name*, behind its owner; None if it is not there."""
    home, _, names = path.rpartition(":")
    owner, thing = None, sys.modules.get(home or name)
    for part in names.split("."):
        # A module's __getattr__ may import: nothing is, for this.
        is_module = isinstance(thing, ModuleType)
        owner, thing = thing, vars(thing).get(part) if is_module else getattr(thing, part, None)
    return owner, thing


# Arrays --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Kind:
    """A class of arrays of a described library, or a list or a dict of such."""

    name: str
    library: str
    look: Callable[[Any], What]
    address: Callable[[Any], int]
    is_first: bool = False
    """Whether it is a list or a dict, and the address that of its first array."""


kinds: dict[type, Kind] = {}
"""Those that were seen: what is asked first, for each array."""


def forget() -> None:
    """Drop the classes that were seen."""
    kinds.clear()


def kind_of(x: Any) -> Kind | None:
    """The kind of *x*, of a class that is not in `kinds`; None if it is no array."""
    cls = type(x)
    if (cls is list or cls is tuple or cls is dict) and x:
        first = _first(x)
        inner = kinds.get(type(first)) or kind_of(first)
        if inner is None:
            return None
        both = partial(_look_at_all, inner), lambda y: address_of(inner, _first(y))
        return Kind(f"{cls.__name__} of {inner.name}", inner.library, *both, is_first=True)
    try:
        library = library_of(cls)
    except unless_handler(Exception):
        library = None
    if library is None or not is_array_of(library, cls):
        return None
    name = f"{library.name}.{cls.__name__.rpartition('.')[2]}"
    if name not in library.arrays:
        name = library.arrays[0]
    if len(kinds) > 1000:  # classes that are made in a loop
        kinds.clear()
    asked = library.look or (_look_by_dlbridge, _address_by_dlbridge)
    return kinds.setdefault(cls, Kind(name, library.name, *asked))


def what_of(kind: Kind, x: Any) -> What:
    """What *x* is, of that kind; no exception of its library comes out."""
    try:
        return kind.look(x)
    except unless_handler(Exception):
        return _look_by_dlbridge(x)


def address_of(kind: Kind, x: Any) -> int:
    """Where *x*, of that kind, is; 0 if that cannot be said."""
    try:
        return kind.address(x)
    except unless_handler(Exception):
        return _address_by_dlbridge(x)


def _first(x: Any) -> Any:
    return next(iter(x.values() if type(x) is dict else x))


def _look_at_all(inner: Kind, x: Any) -> What:
    device, dtype, shape, nbytes = what_of(inner, _first(x))
    return device, dtype, (len(x), *shape), len(x) * nbytes


def _nowhere(_x: Any) -> int:
    return 0


def _look_by_dlbridge(x: Any) -> What:
    """By dlbridge itself, without a copy."""
    import dlbridge as bridge

    try:
        where = bridge.device_of(x)
        if not where.is_host:
            return str(where), x.dtype, tuple(x.shape), x.nbytes
        t = bridge.asarray(x, copy=False)
    except unless_handler(Exception):
        return _other(x)
    device = "cpu" if str(where) == "cpu:0" else str(where)
    return device, t.dtype.name, t.shape, t.nbytes


def _address_by_dlbridge(x: Any) -> int:
    import dlbridge as bridge

    try:
        return bridge.asarray(x, copy=False).data_ptr() if bridge.device_of(x).is_host else 0
    except unless_handler(Exception):
        return 0


def _other(x: Any) -> What:
    """Of what has no memory that can be shared: a picture, a table of several types."""
    shape = _asked(x, "shape") or _asked(x, "size")
    extents = shape if isinstance(shape, tuple) else (shape,) if isinstance(shape, int) else ()
    types = (_asked(x, name) for name in ("dtype", "type", "mode"))
    dtype = next((str(each) for each in types if each is not None and not callable(each)), "")
    nbytes = _asked(x, "nbytes")
    return "cpu", dtype, extents, nbytes if isinstance(nbytes, int) else 0


def _asked(x: Any, name: str) -> Any:
    try:
        return getattr(x, name, None)
    except unless_handler(Exception):
        return None


NO_KIND = Kind("", "", _other, _nowhere)
