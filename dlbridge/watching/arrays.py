"""What the descriptions of libraries say: which callables exchange arrays, and what an array is."""

from __future__ import annotations

import inspect
import sys
import sysconfig
from dataclasses import dataclass
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

    Look = Callable[[Any], tuple[str, int, str, tuple[int, ...], int]]


Facts = tuple[str, str, str, int, str, tuple[int, ...], int]
"""What the table says of an array: its class, its library, its device, its address, its dtype, its
shape and its bytes. A plain tuple, which is made in a quarter of the time of one with names."""


def text_of(facts: Facts) -> str:
    """The class, and the device unless it is the CPU."""
    return facts[0] if facts[2] == "cpu" else f"{facts[0]} {facts[2]}"


@dataclass(slots=True, eq=False)
class Known:
    """A callable that exchanges arrays; no tuple, as that is read four times slower by name."""

    exchange: Exchange
    makes: str
    result: str
    library: str
    code: CodeType | None
    """Of a Python function."""
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
        for thing, known in new.items():
            self.table.setdefault(thing, known)
        self.modules = 0 if incomplete else count

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
            said = exchange, exchange.makes, exchange.result, name
            known = Known(*said, code, _inner(thing), not is_method, fixed, prefix)
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


def facts_of(x: Any) -> Facts | None:
    """The facts of *x*: an array of a described library, or a list that begins with one."""
    cls = type(x)
    try:
        entry = _readers[cls]
    except KeyError:
        entry = _reader(cls)
    if entry is not None:
        names, look = entry
        try:
            return names + look(x)
        except unless_handler(Exception):
            return _other_facts(*names, x)
    if (cls is list or cls is tuple) and x:
        inner = facts_of(x[0])
        if inner is not None:
            kind, library, device, _, dtype, shape, nbytes = inner
            many = len(x)
            kind = f"{cls.__name__} of {kind}"
            return kind, library, device, 0, dtype, (many, *shape), many * nbytes
    return None


_readers: dict[type, tuple[tuple[str, str], Look] | None] = {}


def forget() -> None:
    """Drop the classes that were seen."""
    _readers.clear()


def _reader(cls: type) -> tuple[tuple[str, str], Look] | None:
    try:
        library = library_of(cls)
    except unless_handler(Exception):
        library = None
    entry = None
    if library is not None and is_array_of(library, cls):
        kind = f"{library.name}.{cls.__name__.rpartition('.')[2]}"
        if kind not in library.arrays:
            kind = library.arrays[0]
        entry = (kind, library.name), library.look or _look_by_dlbridge
    if len(_readers) > 1000:  # classes that are made in a loop
        _readers.clear()
    return _readers.setdefault(cls, entry)


def _look_by_dlbridge(x: Any) -> tuple[str, int, str, tuple[int, ...], int]:
    """By dlbridge itself, without a copy."""
    import dlbridge as bridge

    where = bridge.device_of(x)
    if not where.is_host:
        return str(where), 0, str(x.dtype), tuple(x.shape), x.nbytes
    t = bridge.asarray(x, copy=False)
    device = "cpu" if str(where) == "cpu:0" else str(where)
    return device, t.data_ptr(), t.dtype.name, t.shape, t.nbytes


def _other_facts(kind: str, library: str, x: Any) -> Facts:
    """Of what has no memory that can be shared: a picture, a table of several types."""
    shape = _asked(x, "shape") or _asked(x, "size")
    extents = shape if isinstance(shape, tuple) else (shape,) if isinstance(shape, int) else ()
    types = (_asked(x, name) for name in ("dtype", "type", "mode"))
    dtype = next((str(each) for each in types if each is not None and not callable(each)), "")
    nbytes = _asked(x, "nbytes")
    size = nbytes if isinstance(nbytes, int) else 0
    return kind, library, "cpu", 0, dtype, extents, size


def _asked(x: Any, name: str) -> Any:
    try:
        return getattr(x, name, None)
    except unless_handler(Exception):
        return None
