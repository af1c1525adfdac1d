"""Finds backends by entry point, loads each one at its first use, and records its members.

Listing does not import them, and a broken backend does not affect the others.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import ArgumentError
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge import protocol
from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.implementation_details.python_api import increment_references, undisguised
from dlbridge.core.public import for_guests, public, typed
from dlbridge.core.values.devices import type_names
from dlbridge.core.values.text import did_you_mean
from dlbridge.errors import (
    BackendError,
    BackendUnavailable,
    DeviceError,
    DeviceMemoryError,
    DeviceNotFound,
    Error,
    ExchangeError,
)
from dlbridge.kit.resources import in_child, shared_lock
from dlbridge.protocol import Allocation, Backend, ExportedMemory, Facts, NativeArray, Span

from .contract import CONTRACTS, check_backend, type_of_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from dlbridge.core.values.devices import Device


GROUP = "dlbridge.backends"

BUILT_IN = "cpu"
"""The backend that is part of dlbridge: it needs no installed metadata."""

_PARTS = {
    **{name: name for name in ("cuda", "oneapi", "opencl", "rocm", "vulkan", "webgpu")},
    "cuda_host": "cuda",
    "cuda_managed": "cuda",
    "rocm_host": "rocm",
    "ext_dev": "fake",
    "torch-": "torch",
}


@for_guests
def installation() -> dict[str, str]:
    """Return how the backends of this project are installed, by the name of the device.

    Returns
    -------
    dict
        A command for each, and where it works: by the package's name if pip got dlbridge by its.

    Examples
    --------
    >>> from dlbridge.extending import installation
    >>> installation()["opencl"].startswith("pip install ")
    True
    """
    from importlib.metadata import PackageNotFoundError, distribution

    from_index = False
    with suppress(PackageNotFoundError):  # sources on the path
        # From a folder, a file or a repository pip writes this file (PEP 610).
        from_index = distribution("dlbridge").read_text("direct_url.json") is None
    here, by_name = "backends/{}, in the folder with dlbridge's source", "dlbridge-{}"
    return {  # the simulated device is on no index
        name: "pip install " + (by_name if from_index and part != "fake" else here).format(part)
        for name, part in _PARTS.items()
    }


LOADED: dict[str, Backend] = {}
"""The backends that have been loaded, by name; `backend` fills it. Whoever walks through it takes a
copy first: another thread may load one."""

_registered: dict[str, type[Backend]] = {}
# One lock per name: while one driver takes a second to open, other backends can
# be loaded.
_locks: dict[str, threading.RLock] = {}


@public
def backends() -> list[str]:
    """Return the names of the installed and registered backends; imports none of them.

    The environment variable ``DLBRIDGE_BACKENDS`` restricts them to a list of
    names, separated by commas. If it begins with a minus, as ``-opencl,-vulkan``
    does, it names those that are left out. The backends of a family (``torch-npu``) are
    among them once they are loaded; ``torch-`` in the variable means all of it.

    Returns
    -------
    list of str
        Sorted.

    Examples
    --------
    >>> "cpu" in bridge.backends()
    True
    """
    named = {BUILT_IN, *_entry_points(), *_registered}
    named = {name for name in named if not name.endswith("-")}
    named |= {name for name in LOADED.copy() if "-" in name}
    return sorted(name for name in named if _allowed(name))


@for_guests
def all_backends() -> list[str]:
    """Return the names of `dlbridge.backends`, and those that families have here.

    Returns
    -------
    list of str
        Sorted. The libraries of families are imported and asked; a family that has no device here
        stands for itself (``"torch-"``): to load it says why.

    Examples
    --------
    >>> from dlbridge.extending import all_backends
    >>> set(bridge.backends()) <= set(all_backends())
    True
    """
    known = set(backends())
    for prefix in {*_entry_points(), *_registered}:
        if prefix.endswith("-") and _allowed(prefix):
            try:
                names = _find(prefix)[1]()().names()
            except (Exception, SystemExit):  # to load it says why
                names = ()
            known |= {name for name in names if _allowed(name)} or {prefix}
    return sorted(known)


def family_of(cls: type) -> list[str]:
    """The backends of the family that is named after the package of *cls*; it is imported."""
    prefix = cls.__module__.partition(".")[0] + "-"
    if prefix not in _registered and prefix not in _packages(tuple(sys.path)):
        return []
    return [name for name in all_backends() if name.startswith(prefix) and name != prefix]


def is_served(name: str) -> bool:
    """Whether a backend is called *name*, or a family serves such names; none is imported."""
    if "-" not in name:
        return name in backends()
    return _allowed(name) and _prefix(name) in {*_entry_points(), *_registered}


def _prefix(name: str) -> str:
    """The name of the family that *name* would be of: ``torch-``; *name* itself without a dash."""
    first, dash, _ = name.partition("-")
    return first + dash


@typed
@public
def backend(name: str) -> Backend:
    """Return the backend *name*; the first call loads it.

    Parameters
    ----------
    name : str
        One of `backends`.

    Returns
    -------
    Backend
        See `dlbridge.protocol`.

    Raises
    ------
    TypeError
        If *name* is no str.
    BackendUnavailable
        If it is not installed or cannot run here. A failure is not remembered:
        the next call tries again.
    BackendError
        If it is broken.

    Examples
    --------
    >>> bridge.backend("cpu").device_count()
    1
    """
    plugin = LOADED.get(name)
    if plugin is not None:
        return plugin
    if not isinstance(name, str):
        raise TypeError(
            f"the name of a backend is a text, such as 'cpu', not {name!r}; dlbridge.backends() "
            "lists them"
        )
    with _locks.setdefault(name, shared_lock()):
        if name not in LOADED:
            # A signal handler in this thread may have loaded it meanwhile: there is one.
            LOADED.setdefault(name, _load(name))
        return LOADED[name]


def sharing(device_type: int) -> list[str]:
    """The names of the usable backends of *device_type*, also of those not loaded before.

    A backend's type is known when it is loaded, unless DLPack has its name. What
    could not be loaded is tried again when another backend has been loaded.
    """
    if device_type in _sharing:
        *then, names = _sharing[device_type]
        if then == [LOADED, _registered]:
            return names
    registered = _registered.copy()
    for name in backends():
        if name not in LOADED and type_of_name(name) in (None, device_type):
            with suppress(Error):  # it cannot run here, or is broken: nothing is its own
                backend(name)
    now = LOADED.copy()  # one step: another thread may be loading a backend
    names = sorted(name for name, plugin in now.items() if plugin.device_type == device_type)
    _sharing[device_type] = now, registered, names
    return names


_sharing: dict[int, tuple[dict[str, Backend], dict[str, type[Backend]], list[str]]] = {}
"""What `sharing` has said, and of which backends."""


def packages_of(cls: type) -> list[str]:
    """The backends whose own package defines *cls* or a base of it; none is loaded."""
    packages = {base.__module__.partition(".")[0] for base in cls.__mro__}
    packages -= _STANDARD
    names = [
        name
        for name, plugin in _registered.copy().items()
        if _package(plugin.__module__) in packages
    ]
    packages -= {"__main__", "numpy"}
    if packages:
        installed = _packages(tuple(sys.path))
        names += [name for name in installed if packages & installed[name]]
    return [name for name in sorted(set(names)) if _allowed(name) and not name.endswith("-")]


_STANDARD = sys.stdlib_module_names


def known_backends() -> list[str]:
    """As `backends`, for messages: entry points are listed once, and one added later is missed."""
    installed = _packages(tuple(sys.path))
    named = {BUILT_IN, *installed, *_registered}
    return sorted(name for name in named if _allowed(name) and not name.endswith("-"))


@lru_cache(maxsize=4)
def _packages(_path: tuple[str, ...]) -> dict[str, set[str]]:
    """The package that each installed backend is in; *_path* is the key of the cache."""
    return {
        name: {_package(point.module) for point in points}
        for name, points in _entry_points().items()
    }


def _package(module: str) -> str:
    return module.partition(".")[0]


@public
def register_backend(name: str, backend: type[Backend]) -> None:
    """Add a backend for this process, without an entry point.

    Parameters
    ----------
    name : str
        An identifier, which devices are then named by (``"npu:0"``); with a dash behind it,
        the beginning of the names of a family.
    backend : type
        A class that satisfies `dlbridge.protocol.Backend`, or `dlbridge.protocol.BackendFamily`.
        It is called without arguments when it is first needed.

    Raises
    ------
    TypeError
        If *name* is not an identifier, or *backend* is not a class.
    BackendError
        If another backend has the name.

    Examples
    --------
    >>> class NPU:
    ...     api = 2
    ...     device_type = 12  # kDLExtDev
    ...     # and the methods of dlbridge.protocol.Backend
    >>> bridge.register_backend("npu_of_an_example", NPU)
    >>> "npu_of_an_example" in bridge.backends()
    True
    """
    if not isinstance(name, str) or not name.removesuffix("-").isidentifier():
        raise TypeError(f"a backend's name is an identifier such as 'ext_dev', not {name!r}")
    if not isinstance(backend, type):
        raise TypeError(f"backend {name!r}: give the class, not {backend!r}")
    taken = name == BUILT_IN or name in _entry_points()
    if taken or _registered.setdefault(name, backend) is not backend:
        raise BackendError(
            f"backend {name!r} is already provided by {provider_of(name)}; choose another name"
        )


@for_guests
def provider_of(name: str) -> str:
    """Return who provides a backend; it is not loaded.

    Parameters
    ----------
    name : str
        That of the backend, installed or not.

    Returns
    -------
    str
        The distribution and its version, or the class that was registered by hand. Empty if
        there is none.

    Examples
    --------
    >>> from dlbridge.extending import provider_of
    >>> provider_of("cpu")
    'dlbridge (built in)'
    """
    name = name if "-" not in name else _prefix(name)
    if name in _registered:
        cls = _registered[name]
        return f"{cls.__module__}.{cls.__qualname__} (registered by hand)"
    providers = [_distribution(point) for point in _entry_points().get(name, ())]
    return " and ".join(sorted(providers + ["dlbridge (built in)"] * (name == BUILT_IN)))


def _load(name: str) -> Backend:
    who, load = _find(name)
    try:
        plugin: Backend = load()().open(name) if "-" in name else load()()
    except BackendUnavailable:
        raise
    except (Exception, SystemExit) as exc:  # a plugin must not end the program either
        raise BackendError(
            f"{who} failed to load backend {name!r}: {type(exc).__name__}: {exc}"
        ) from exc
    check_backend(plugin, name, who)
    return plugin


def _find(name: str) -> tuple[str, Callable[[], type[Any]]]:
    """The provider of *name*, and a function that returns the class, or that of its family."""
    if not _allowed(name):
        raise BackendUnavailable(
            f"backend {name!r} is switched off by DLBRIDGE_BACKENDS="
            f"{os.environ['DLBRIDGE_BACKENDS']!r}; change or unset the variable"
        )
    known_as = _prefix(name)
    if known_as in _registered:
        return provider_of(name), lambda: _registered[known_as]
    if name == BUILT_IN:  # no look at distributions, which takes longer than all else
        from .cpu import CPU

        return "dlbridge", lambda: CPU
    points = _entry_points()
    if BUILT_IN in points:
        raise BackendError(
            f"{provider_of(BUILT_IN)} both provide {BUILT_IN!r}; uninstall all but one"
        )
    candidates = points.get(known_as, [])
    if not candidates:
        ways = installation()
        hint = f"; try: {ways[known_as]}" if known_as in ways else did_you_mean(name, backends())
        if name == "metal":
            way = "use 'webgpu:0'" if "webgpu" in backends() else ways["webgpu"]
            hint = f"; 'webgpu' works on Metal: {way}"
        elif not hint and name in type_names():
            hint = f"; `python -m dlbridge new-backend {name}` begins one"
        first, colon, _ = name.partition(":")
        if colon and first in backends():
            hint = f"; that is a device, and its backend is {first!r}, without a number"
        raise BackendUnavailable(
            f"no backend for device {name!r} (installed: {', '.join(backends())}){hint}"
        )
    if not known_as.removesuffix("-").isidentifier():
        raise BackendError(
            f"{provider_of(name)} provides a backend {name!r}, which no device string can name; "
            "the entry point needs an identifier, such as 'my_npu'"
        )
    if len(candidates) > 1:
        raise BackendError(f"{provider_of(name)} both provide {name!r}; uninstall all but one")
    return _distribution(candidates[0]), candidates[0].load


def _allowed(name: str) -> bool:
    chosen = os.environ.get("DLBRIDGE_BACKENDS")
    if chosen is None:
        return True
    parts = [part.strip() for part in chosen.split(",")]
    names = {name, _prefix(name)}
    if parts[0].startswith("-"):
        return names.isdisjoint(part.removeprefix("-") for part in parts)
    return any(part in names or (name[-1:] == "-" and part.startswith(name)) for part in parts)


def _distribution(entry_point: EntryPoint) -> str:
    dist = entry_point.dist
    return f"{dist.name} {dist.version}" if dist else entry_point.value


def _entry_points() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # 10 to 30 ms, only when needed

    # importlib.metadata lists a distribution once, also if it is on the path twice
    # (an editable install and its source, for example).
    by_name: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if point.name == BUILT_IN and point.dist is not None and point.dist.name == "dlbridge":
            continue  # for other programs that list the group; we need no metadata for it
        by_name.setdefault(point.name, []).append(point)
    return by_name


# Forks ----------------------------------------------------------------------------

_OF_PYTHON = {"__class__", "__dict__", "__module__", "api", "device_type"}
"""What a stub has: no driver is called for it, and a tensor's device is told by it."""


def _stub(name: str, plugin: Backend) -> type:
    """A class all of whose members raise the one error for the backend *name*."""

    def refuse(self: object, member: str) -> object:
        if member in _OF_PYTHON:
            return object.__getattribute__(self, member)
        raise DeviceError(
            f"the backend {name!r} was used before fork(), which its driver does not survive: "
            "start processes with 'spawn' (multiprocessing.get_context('spawn')), or use the "
            "device in the child only"
        )

    members = {"api": plugin.api, "device_type": plugin.device_type}
    # A class under the backend's own, as an object takes no other class.
    return type("Stub", (type(plugin),), {**members, "__slots__": (), "__getattribute__": refuse})


@in_child
def _after_fork() -> None:
    """In a child: replace every backend that the parent has used by a stub.

    Drivers have threads and connections that do not exist here. What the parent's tensors own
    is not given back (`dlbridge.kit.resources`).
    """
    _locks.clear()  # a thread that held one does not exist
    for name, plugin in LOADED.items():
        if name != BUILT_IN:
            stub = _stub(name, plugin)
            LOADED[name] = object.__new__(stub)
            increment_references(plugin)  # what it has would call the driver when it ends
            try:
                plugin.__class__ = stub  # for those who have kept the object
            except TypeError:  # its class has slots
                continue


# The members of a backend -----------------------------------------------------------


_ALLOWED: dict[str, tuple[type[Exception], ...]] = {
    "normalize_stream": (TypeError, ValueError),
    "find_device": (LookupError,),
}
"""What a member may raise beside dlbridge's errors, by the contract."""


class Plugin:
    """A backend's members, asked once: those of a capability that it lacks are None.

    Each is called by its name in the contract, with the same parameters. What it raises is
    one of dlbridge's errors that names the backend and the member.
    """

    device_count: Callable[[], int]
    allocate: Callable[..., Allocation]
    copy_from_host: Callable[[Span, memoryview, int], None]
    copy_to_host: Callable[[Span, memoryview, int], None]
    current_stream: Callable[[int], int]
    synchronize: Callable[[int, int], None] | None
    wait: Callable[[int, int, int], None] | None
    normalize_stream: Callable[[int, object], int] | None
    copy: Callable[[Span, Span, int], None] | None
    copy_strided: Callable[..., None] | None
    copy_strided_from_host: Callable[..., None] | None
    copy_strided_to_host: Callable[..., None] | None
    fill: Callable[[Span, int, int], None] | None
    host_view_refusal: Callable[[int, int], str] | None
    host_view: Callable[[Span, bool, int], Allocation] | None
    host_import_refusal: Callable[[int, int, int, bool], str] | None
    import_host: Callable[[int, int, int, bool, int], Allocation] | None
    memory_export_refusal: Callable[[int, int], str] | None
    export_memory: Callable[[int, int], ExportedMemory] | None
    allocate_exportable: Callable[[int, int, int], Allocation] | None
    memory_import_refusal: Callable[[int], str] | None
    import_memory: Callable[[int, ExportedMemory, int], Allocation] | None
    from_native: Callable[[object], NativeArray | None] | None
    to_native: Callable[[NativeArray], object] | None
    import_data: Callable[[int, int, str], tuple[int, int]] | None
    device_info: Callable[[int], Mapping[str, object]] | None
    find_device: Callable[[str], int] | None
    trim: Callable[[int], None] | None

    def __init__(self, name: str, plugin: Backend) -> None:
        self.name = name
        self.backend: Any = plugin  # with the members of a capability, too
        self.device_type: int = plugin.device_type
        self.host_copies_block: bool = getattr(plugin, "host_copies_block", Facts.host_copies_block)
        self.content_limit: int = getattr(plugin, "content_limit", Facts.content_limit)
        self.max_strided_ndim: int = getattr(plugin, "max_strided_ndim", 0)
        for contract, members in CONTRACTS.items():
            has = contract is protocol.Backend or isinstance(plugin, contract)
            for member, function in members.items():
                if function is not None:
                    setattr(self, member, self._translated(member) if has else None)

    def _translated(self, member: str) -> Callable[..., Any]:
        """The *member*; it is looked up in each call: after ``fork()`` it is another one."""

        def call(*given: Any) -> Any:
            try:
                return getattr(self.backend, member)(*given)
            except Exception as exc:
                self.fail(exc, member)

        return call

    def fail(self, exc: Exception, member: str) -> NoReturn:
        """Raise what *exc*, which left *member* and is handled now, is among dlbridge's errors."""
        # A signal handler may raise anything, which says nothing of the backend.
        allowed: tuple[type[Exception], ...] = Error, *_ALLOWED.get(member, ())
        if isinstance(exc, allowed) or is_from_handler(exc.__traceback__):
            raise  # noqa: PLE0704 - by the `except` of the caller
        try:
            text = f"backend {self.name!r} failed in {member}: {type(exc).__name__}: {exc}"
            if isinstance(undisguised(exc) if isinstance(exc, ArgumentError) else exc, MemoryError):
                raise DeviceMemoryError(text) from exc
            raise BackendError(
                f"{text}; report it to {provider_of(self.name) or 'its authors'}"
            ) from exc
        finally:
            # The traceback of *exc* holds this frame: a cycle would keep the tensor's memory.
            del exc


_plugins: dict[str, Plugin] = {}
"""The records of the loaded backends, by name."""


def plugin_named(name: str) -> Plugin:
    """The backend *name*, which is loaded; BackendUnavailable or BackendError if it cannot be."""
    loaded = LOADED[name] if name in LOADED else backend(name)
    if name in _plugins and (known := _plugins[name]).backend is loaded:
        return known
    record = _plugins.setdefault(name, made := Plugin(name, loaded))
    if record.backend is not loaded:  # that of a backend which a fork has ended
        record = _plugins[name] = made
    return record


@for_guests
def plugin_of(device: Device) -> Plugin:
    """Return the backend of a device, with its members.

    Parameters
    ----------
    device : Device
        The device.

    Returns
    -------
    object
        It has the members of `dlbridge.protocol.Backend`, and None for those of a capability that
        the backend does not have. Whatever one raises is an error of dlbridge: a `BackendError`
        names the backend.

    Raises
    ------
    BackendUnavailable
        If there is no backend for it, or its driver is not here.
    ExchangeError
        If the backend does not have that number, or is for another type. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import CPU, plugin_of
    >>> plugin_of(CPU).device_count()
    1
    """
    try:
        known = _usable[device]
        if LOADED[device.name] is known.backend:
            return known
    except KeyError:
        pass
    plugin = plugin_named(device.name)
    if plugin.device_type != device.type:
        raise ExchangeError(
            f"backend {device.name!r} is for device type {plugin.device_type}, not {device.type:d}"
        )
    count = plugin.device_count()
    if device.index >= count:
        listed = _listed(plugin, device.name, count)
        raise DeviceNotFound(
            f"there is no {device}: backend {device.name!r} has {count} "
            f"device{'s' if count != 1 else ''} here, counted from 0{listed}"
        )
    _usable[device] = plugin
    return plugin


def _listed(plugin: Plugin, name: str, count: int) -> str:
    """The devices of *plugin* by number, with their names where it has them, for a message."""
    shown = []
    for index in range(min(count, 8)):
        called: object = None
        if plugin.device_info is not None:
            with suppress(Error):  # the message is about something else, and has the number
                called = plugin.device_info(index).get("name")
        shown.append(f"{name}:{index}" + (f" ({called})" if called else ""))
    return f": {', '.join(shown)}{', ...' if count > 8 else ''}" if shown else ""


_usable: dict[Device, Plugin] = {}
"""Cache of validated devices, with the backend that serves each."""
