"""The description of an array's library, and of the library that ``like=`` names."""

from __future__ import annotations

import importlib
import sys
import weakref
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from dlbridge.core.plugins.registry import installation, known_backends, provider_of
from dlbridge.core.public import for_guests
from dlbridge.core.tensor.operand import MEMORY_CHECKS
from dlbridge.core.values.devices import type_names
from dlbridge.core.values.dtypes import dtype, is_name
from dlbridge.core.values.text import did_you_mean, with_article
from dlbridge.errors import BackendError, ExchangeError

from .library import Library, is_array_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device

GROUP = "dlbridge.libraries"
"""The entry points by which other packages describe their arrays."""

_FILES = {
    "numpy": "numpy:LIBRARY",
    "torch": "torch:LIBRARY",
    "jax": "jax:LIBRARY",
    "tvm_ffi": "tvm_ffi:LIBRARY",
    "pyarrow": "columns:PYARROW",
    "polars": "columns:POLARS",
    "pandas": "columns:PANDAS",
}
"""Library -> the module with its description, loaded when it is asked for."""

_ROOM = "dlbridge.interop"
"""Where these modules are. They stand above this one, so that it imports none by its name."""


@lru_cache(maxsize=len(_FILES))
def _load(name: str) -> Library:
    module, _, description = _FILES[name].partition(":")
    library: Library = getattr(import_module(f"{_ROOM}.{module}"), description)
    return library


@lru_cache(maxsize=1)
def _small() -> dict[str, Library]:
    """The descriptions that need no file of their own."""
    descriptions: dict[str, Library] = import_module(f"{_ROOM}.descriptions").SMALL
    return descriptions


@for_guests
def known_libraries() -> tuple[str, ...]:
    """Return the names of the libraries whose arrays dlbridge describes itself.

    Returns
    -------
    tuple of str
        What ``like=`` calls them. Packages that describe others by entry point are not asked.

    Examples
    --------
    >>> from dlbridge.extending import known_libraries
    >>> known_libraries()[:2]
    ('numpy', 'torch')
    """
    return *_FILES, *_small()


def find_description(name: str) -> Library | None:
    """The description of the library *name*, if there is one here."""
    return _load(name) if name in _FILES else _small().get(name)


@for_guests
def loaded_libraries() -> dict[str, Library]:
    """Return the descriptions of the libraries that this process has imported.

    Returns
    -------
    dict
        The name of a library's module -> its `Library`. A module that is being imported just now,
        perhaps by another thread, is among them, unless a package describes it by entry point: that
        may import the library, and would wait for the other thread.

    Examples
    --------
    >>> from dlbridge.extending import loaded_libraries
    >>> "numpy" in loaded_libraries()
    True
    """
    # Ours are all loaded by the first call: a later one imports nothing of dlbridge.
    ours = {name: find_description(name) for name in known_libraries()}
    others = {name for name in _entry_points() if name not in ours and _is_complete(name)}
    found = {**ours, **{name: _of_others(name) for name in others}}
    return {name: library for name, library in found.items() if library and name in sys.modules}


def _is_complete(name: str) -> bool:
    """Whether the module *name* is imported, by importlib's mark, which has no public name."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return name in sys.modules and not getattr(spec, "_initializing", False)


@for_guests
def described_packages() -> frozenset[str]:
    """Return the packages of all libraries that have a description, loaded or not.

    Returns
    -------
    frozenset of str
        Names of top-level packages.

    Examples
    --------
    >>> from dlbridge.extending import described_packages
    >>> "torch" in described_packages()
    True
    """
    names = {*known_libraries(), *_entry_points(), *_SAME}
    return frozenset(name.partition(".")[0] for name in names)


@for_guests
def library_of(kind: type) -> Library | None:
    """Return the description of the library whose arrays are of a class, or of a class under it.

    Parameters
    ----------
    kind : type
        Any class.

    Returns
    -------
    Library or None
        The first base class whose package has a description decides. No library is imported.

    Examples
    --------
    >>> from dlbridge.extending import library_of
    >>> library_of(np.ndarray).name, library_of(str)
    ('numpy', None)
    """
    try:
        return _of_class[kind]
    except KeyError:
        library = _of_class[kind] = _search_bases(kind)
        return library


_of_class: weakref.WeakKeyDictionary[type, Library | None] = weakref.WeakKeyDictionary()


def _search_bases(cls: type) -> Library | None:
    for base in cls.__mro__:
        if (base.__module__, base.__name__) == ("dlbridge", "Exporter"):
            continue  # a part of other libraries' classes
        library = _of_module(base.__module__)
        if library is not None:
            return next((own for own in library.special if is_array_of(own, cls)), library)
    return None


IMPORTERS: dict[type, Callable[[Any], Tensor] | None] = {}
"""Cache of `importer_of`."""


def importer_of(cls: type) -> Callable[[Any], Tensor] | None:
    """The short way in for arrays of exactly *cls*, if its library has one."""
    try:
        return IMPORTERS[cls]
    except KeyError:
        pass
    home = sys.modules.get(cls.__module__)
    if getattr(home, cls.__qualname__, None) is not cls:
        return None  # it may not live for ever
    library = library_of(cls)
    importer = None
    if library is not None and library.importer is not None and is_array_of(library, cls, True):
        importer = library.importer(cls)
        if library.check_memory is not None:
            MEMORY_CHECKS[cls] = library.check_memory
    return IMPORTERS.setdefault(cls, importer)


def _of_module(module: str) -> Library | None:
    """The description for the classes of *module*."""
    first, _, rest = module.partition(".")
    second = f"{first}.{rest.partition('.')[0]}"
    for package in (_SAME.get(first, first), second):
        library = find_description(package)
        if library is not None:
            return library
    return None if first in _NO_LIBRARY else _of_others(first)


_SAME = {"jaxlib": "jax", "numba_cuda": "numba"}
"""Packages with the array classes of another one."""

_NO_LIBRARY = {*sys.stdlib_module_names, "__main__", "__mp_main__"}


@lru_cache(maxsize=64)
def _of_others(package: str) -> Library | None:
    """The description that *package*, or a package beside it, gives by entry point."""
    points = _entry_points().get(package)
    if points is None:
        return None
    who = f"{points.dist.name} {points.dist.version}" if points.dist else points.value
    who += f": the entry point {package!r} of {GROUP!r}"
    try:
        library = points.load()
    except Exception as exc:
        failed = f"{who} failed with {type(exc).__name__}: {exc}; report it there"
        raise BackendError(failed) from exc
    if not isinstance(library, Library):
        wrong = with_article(type(library).__name__)
        raise BackendError(f"{who} is {wrong}, not a dlbridge.libraries.Library; report it there")
    if is_native_library(library):
        return library._replace(make=NATIVE, check=_of_backend(library))
    return library


NATIVE = "dlbridge.interop.descriptions:to_native"
"""What makes the arrays of a library that only says whose native objects they are."""


@for_guests
def is_native_library(library: Library) -> bool:
    """Return whether the arrays of a library are made by the backend that it names.

    Parameters
    ----------
    library : Library
        The description.

    Returns
    -------
    bool
        False where it makes them itself.

    Examples
    --------
    >>> from dlbridge.extending import find_library, is_native_library
    >>> is_native_library(find_library("numpy")[0])
    False
    """
    return bool(library.backend) and library.make in (None, NATIVE)


def _of_backend(library: Library) -> Callable[[Tensor, Device], object]:
    return lambda _tensor, device: check_own_device(library.name, library.backend, device)


def check_own_device(like: str, backend: str, device: Device) -> None:
    """ExchangeError if *device* is another backend's: its native objects are on its own memory."""
    if device.name != backend:
        raise ExchangeError(
            f"like={like!r} is an object of the backend {backend!r} on its own memory, and the "
            f"tensor is on {device}; move it first: dlbridge.to_device(t, '{backend}:0', "
            f"like={like!r})"
        )


@lru_cache(maxsize=1)
def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # 10 to 30 ms, for unknown classes only

    return {point.name: point for point in entry_points(group=GROUP)}


@for_guests
def is_known_library(name: str) -> bool:
    """Return whether a library has a description, here or by entry point.

    Parameters
    ----------
    name : str
        The name of a module.

    Returns
    -------
    bool
        True: what `find_library` gives for the name stays the same while the module does. Another
        name is that of the module that is imported now, with the function that it has now.

    Examples
    --------
    >>> from dlbridge.extending import is_known_library
    >>> is_known_library("numpy"), is_known_library("json")
    (True, False)
    """
    if name in _FILES or name in _small():
        return True
    return name not in _NO_LIBRARY and _of_others(name) is not None


@for_guests
def find_library(like: object) -> tuple[Library, Callable[[Tensor], Any]]:
    """Return the library that ``like=`` names, and the function that makes its array of a Tensor.

    Parameters
    ----------
    like : str, module, array or array type
        As in `dlbridge.to_device`.

    Returns
    -------
    tuple of Library and callable
        The function gets a `Tensor`. It checks nothing: whether the library would change or
        write the elements, the description says.

    Raises
    ------
    TypeError
        If it names no library.
    ModuleNotFoundError
        If the library is not installed.

    Examples
    --------
    >>> from dlbridge.extending import find_library
    >>> library, make = find_library("numpy")
    >>> library.name, make(bridge.zeros(2))
    ('numpy', array([0., 0.], dtype=float32))
    """
    if isinstance(like, str):
        return _find_by_name(like)
    if isinstance(like, ModuleType):
        return _find_by_module(like)
    return _find_by_class(like if isinstance(like, type) else type(like), like)


def _find_by_class(cls: type, like: object) -> tuple[Library, Callable[[Tensor], Any]]:
    package = cls.__module__.partition(".")[0]
    name = f"{package}.{cls.__name__}"
    own = getattr(cls, "__from_tensor__", None)
    # `dlbridge.Exporter`: it gets the Tensor, and with it what there is to know.
    if own is not None:
        ours = _small()["dlbridge"]
        return ours._replace(name=name, arrays=(name,), make=None, keeps_types=False), own
    if hasattr(cls, "__as_tensor__"):
        raise TypeError(
            f"like={cls!r} is an Exporter without the class method __from_tensor__(tensor), which "
            "would return an instance; define it"
        )
    library = library_of(cls)
    if library is not None and is_array_of(library, cls):
        return (library, _maker(library)) if library.make else _find_by_name(library.name)
    if library is not None or not hasattr(cls, "__dlpack__"):
        raise _no_library(like)
    own = getattr(cls, "from_dlpack", None)
    if own is None:
        return _find_by_name(package)
    return Library(name, (name,)), own


def _search(name: str) -> tuple[Library, Callable[[Tensor], Any]]:
    if not all(part.isidentifier() for part in name.split(".")):
        raise _no_library(name)
    try:
        return _find_by_module(importlib.import_module(name))
    except (ModuleNotFoundError, TypeError) as exc:
        if isinstance(exc, ModuleNotFoundError) and not f"{name}.".startswith(f"{exc.name}."):
            raise  # something that the module itself misses
        command = installation().get(name)
        if command and not provider_of(name):  # also where `cuda` is that of NVIDIA's packages
            said = f"that is a device, whose backend is not installed here; try: {command}"
        elif isinstance(exc, TypeError):
            raise
        elif is_name(name):
            said = _A_DTYPE.format(name)
        else:
            hint = did_you_mean(name.partition(".")[0], known_libraries())
            said = (
                f"there is no module {name!r} here{hint}; install it, or name a library that is "
                f"installed ({', '.join(_installed())})"
            )
        missing = getattr(exc, "name", name)
        raise ModuleNotFoundError(f"like={name!r}: {said}", name=missing) from exc


def _installed() -> list[str]:
    """The libraries with arrays that are known and are here."""
    from importlib.util import find_spec  # 0.5 ms of a first call, for an error only

    names = []
    for name in known_libraries():
        with suppress(ImportError, ValueError):  # of the package that it is in
            library = find_description(name) if name in sys.modules or find_spec(name) else None
            if library is not None and library.arrays:
                names.append(name)
    return names


def _find_by_name(name: str) -> tuple[Library, Callable[[Tensor], Any]]:
    if not is_known_library(name):
        return _search(name)
    module, kept = sys.modules.get(name), _DESCRIBED.get(name)
    if kept is None or kept[0] is not module:
        kept = _DESCRIBED[name] = module, _search(name)
    return kept[1]


_DESCRIBED: dict[str, tuple[object, tuple[Library, Callable[[Tensor], Any]]]] = {}
"""Library -> its module, and what was found; a test or a reload may give it another module."""


def _find_by_module(module: ModuleType) -> tuple[Library, Callable[[Tensor], Any]]:
    library = _of_module(module.__name__)
    if library is None or library.make is None:
        function = _from_dlpack_of(module)
        # array_api_compat.torch is torch.
        home = getattr(function, "__module__", None) or module.__name__
        library = _of_module(home) or library or _unknown(module, home)
        if library.make is None:
            return library, function
    return library, _maker(library)


def _maker(library: Library) -> Callable[[Tensor], Any]:
    """The function of *library*, which has one, for a Tensor."""
    make = library.make
    if isinstance(make, str):
        from pkgutil import resolve_name  # 2 ms of a first call that needs no maker

        make = resolve_name(make)
    if library.takes == "tensor":
        return cast("Callable[[Tensor], Any]", make)
    if library.takes == "numpy":
        return lambda tensor: make(tensor.numpy())  # type: ignore[misc]  # it has one
    return lambda tensor: make(tensor.__dlpack__())  # type: ignore[misc]  # likewise


def _unknown(module: ModuleType, home: str) -> Library:
    """A library without a description: its arrays are of its package, or its function's."""
    homes = {name.partition(".")[0] for name in (module.__name__, home)}
    return Library(module.__name__, tuple(f"{name}.*" for name in homes))


def _no_library(like: Any) -> TypeError:
    if isinstance(like, (str, type, int, float, type(None))):
        text = repr(like)
    else:  # the repr of an array may be long
        text = f"{with_article(type(like).__module__)}.{type(like).__qualname__}"
    for cls, way_out in _OF_PYTHON.items():
        if like is cls:  # `in` would call the == of a library's array
            return TypeError(f"like={text}: {way_out}")
    with suppress(TypeError, ValueError, ExchangeError):
        return TypeError(f"like={text}: {_A_DTYPE.format(dtype(like).name)}")
    hint = ""
    if isinstance(like, int):
        hint = "; a device and its number are one text, such as 'opencl:0'"
    elif isinstance(like, str) and like.partition(":")[0] in {*known_backends(), *type_names()}:
        hint = "; that is a device, which is the second argument: dlbridge.to_device(x, device)"
    return TypeError(
        f"like={text} is neither a library's name, nor a module with from_dlpack, nor an array or "
        f"array type{hint}"
    )


_A_DTYPE = "that is a dtype; dlbridge.astype(x, {!r}) converts the elements"
_A_LIST = "a list is no array; dlbridge.asarray(x).tolist() gives one"
_OF_PYTHON: dict[object, str] = {
    list: _A_LIST,
    tuple: _A_LIST,
    bytes: "bytes are no array; dlbridge.asarray(x).tobytes() gives them",
    memoryview: "it is no array; memoryview(dlbridge.to_device(x, 'cpu', like='numpy')) gives one",
}
"""Of Python's own classes: what to write in place of ``like=``."""


def _from_dlpack_of(module: ModuleType) -> Any:
    function = getattr(module, "from_dlpack", None)
    if function is None:
        with suppress(ModuleNotFoundError):
            inner = importlib.import_module(f"{module.__name__}.dlpack")
            function = getattr(inner, "from_dlpack", None)
    if function is None:
        raise TypeError(
            f"the module {module.__name__!r} has neither from_dlpack nor dlpack.from_dlpack, so "
            "it makes no arrays of tensors; like='numpy' gives an array that most libraries take"
        )
    return function
