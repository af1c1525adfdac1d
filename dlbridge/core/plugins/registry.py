"""Finds backends by entry point, and loads each one at its first use.

Listing does not import them, and a broken backend does not affect the others.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from dlbridge.core.public import public
from dlbridge.errors import BackendError, BackendUnavailable
from dlbridge.protocol import API, Backend

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "LOADED", "backend", "backends", "loaded", "owner", "register_backend"]

GROUP = "dlbridge.backends"

BUILT_IN = "cpu"
"""The backend that is part of dlbridge: it needs no installed metadata."""

HINTS = {
    "cuda": "pip install dlbridge-cuda",
    "cuda_host": "pip install dlbridge-cuda",
    "cuda_managed": "pip install dlbridge-cuda",
    "opencl": "pip install dlbridge-opencl",
    "rocm": "pip install dlbridge-rocm",
    "rocm_host": "pip install dlbridge-rocm",
    "vulkan": "pip install dlbridge-vulkan",
}

LOADED: dict[str, Backend] = {}
"""The backends that have been loaded, by name; filled by `backend`."""

_registered: dict[str, type[Backend]] = {}
# One lock per name: while one driver takes a second to open, other backends can
# be loaded.
_locks: dict[str, threading.RLock] = {}


@public
def backends() -> list[str]:
    """Return the names of the installed and registered backends; imports none of them.

    The environment variable ``DLBRIDGE_BACKENDS`` restricts them to a list of
    names, separated by commas.

    Returns
    -------
    list of str
        Sorted.

    Examples
    --------
    >>> "cpu" in bridge.backends()
    True
    """
    return sorted(name for name in {BUILT_IN, *_entry_points(), *_registered} if _allowed(name))


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
    found = LOADED.get(name)
    if found is not None:
        return found
    with _locks.setdefault(name, threading.RLock()):
        if name not in LOADED:
            LOADED[name] = _load(name)
        return LOADED[name]


def loaded(device_type: int) -> list[tuple[str, Backend]]:
    """The loaded backends of *device_type* with their names; several may share a type."""
    known = LOADED.copy()  # one step: another thread may be loading a backend
    return [(name, plugin) for name, plugin in known.items() if plugin.device_type == device_type]


def generation() -> tuple[int, ...]:
    """A value that changes when a backend is loaded or registered, as a key of caches."""
    return (*map(id, LOADED.copy().values()), *map(id, _registered.copy().values()))


@public
def register_backend(name: str, backend: type[Backend]) -> None:
    """Add a backend by hand, for this process, instead of by entry point.

    Parameters
    ----------
    name : str
        An identifier, which devices are then named by (``"npu:0"``).
    backend : type
        A class that satisfies `dlbridge.protocol.Backend`. It is called without
        arguments when it is first needed.

    Raises
    ------
    TypeError
        If *name* is not an identifier, or *backend* is not a class.
    BackendError
        If another backend has the name.

    Examples
    --------
    >>> class NPU:
    ...     api = 1
    ...     device_type = 12  # kDLExtDev
    ...     # and the methods of dlbridge.protocol.Backend
    >>> bridge.register_backend("npu_of_an_example", NPU)
    >>> "npu_of_an_example" in bridge.backends()
    True
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"a backend's name is an identifier such as 'ext_dev', not {name!r}")
    if not isinstance(backend, type):
        raise TypeError(f"backend {name!r}: give the class, not {backend!r}")
    taken = name == BUILT_IN or name in _entry_points()
    if taken or _registered.setdefault(name, backend) is not backend:
        raise BackendError(
            f"backend {name!r} is already provided by {owner(name)}; choose another name"
        )


def owner(name: str) -> str:
    """The provider of *name*: distribution and version, or the class registered by hand."""
    if name in _registered:
        cls = _registered[name]
        return f"{cls.__module__}.{cls.__qualname__} (registered by hand)"
    found = [_distribution(point) for point in _entry_points().get(name, ())]
    return " and ".join(sorted(found + ["dlbridge (built in)"] * (name == BUILT_IN)))


def _load(name: str) -> Backend:
    who, load = _find(name)
    try:
        plugin: Backend = load()()
    except BackendUnavailable:
        raise
    except (Exception, SystemExit) as exc:  # a plugin must not end the program either
        raise BackendError(
            f"{who} failed to load backend {name!r}: {type(exc).__name__}: {exc}"
        ) from exc
    api = getattr(plugin, "api", None)
    if api not in (API, None):
        older = isinstance(api, int) and api < API
        raise BackendError(
            f"{who} speaks backend API {api}, this dlbridge speaks {API}; "
            f"upgrade {'that backend' if older else 'dlbridge'}"
        )
    missing = [member for member in _members() if not hasattr(plugin, member)]
    if missing:
        raise BackendError(f"{who}: backend {name!r} lacks {', '.join(missing)}; report it there")
    return plugin


def _find(name: str) -> tuple[str, Callable[[], type[Backend]]]:
    """The provider of *name*, and a function that returns the class."""
    if not _allowed(name):
        raise BackendUnavailable(
            f"backend {name!r} is switched off by DLBRIDGE_BACKENDS="
            f"{os.environ['DLBRIDGE_BACKENDS']!r}; add it there or unset the variable"
        )
    if name in _registered:
        return owner(name), lambda: _registered[name]
    found = _entry_points().get(name, [])
    if name == BUILT_IN and not found:
        return owner(name), _built_in
    if not found:
        hint = f"; try: {HINTS[name]}" if name in HINTS else ""
        raise BackendUnavailable(
            f"no backend for device {name!r} (installed: {', '.join(backends())}){hint}"
        )
    if len(found) + (name == BUILT_IN) > 1:
        raise BackendError(f"{owner(name)} both provide {name!r}; uninstall all but one")
    return _distribution(found[0]), found[0].load


def _built_in() -> type[Backend]:
    from .cpu import CPU

    return CPU


def _members() -> list[str]:
    """The names of all members of `Backend`, which every backend must have."""
    methods = (name for name in vars(Backend) if not name.startswith("_"))
    return sorted({*Backend.__annotations__, *methods})


def _allowed(name: str) -> bool:
    chosen = os.environ.get("DLBRIDGE_BACKENDS")
    return chosen is None or name in [part.strip() for part in chosen.split(",")]


def _distribution(entry_point: EntryPoint) -> str:
    dist = entry_point.dist
    return f"{dist.name} {dist.version}" if dist else entry_point.value


def _entry_points() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # 10 to 30 ms, only when needed

    # importlib.metadata lists a distribution once, also if it is on the path twice
    # (an editable install and its source, for example).
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if point.name == BUILT_IN and point.dist is not None and point.dist.name == "dlbridge":
            continue  # for other programs that list the group; we need no metadata for it
        found.setdefault(point.name, []).append(point)
    return found
