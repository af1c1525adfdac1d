"""Finds backends by entry point, and loads each one at its first use.

Listing imports none of them, and a broken one harms nobody else.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from dlbridge.errors import BackendError, BackendUnavailable
from dlbridge.protocol import API, Backend

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "LOADED", "backend", "backends", "loaded", "owner", "register_backend"]

GROUP = "dlbridge.backends"

BUILT_IN = "cpu"
"""The backend that is part of dlbridge: it is there without installed metadata too."""

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

_registered: dict[str, type] = {}
# One lock per name: a driver that takes a second to open holds up nobody who
# wants another one.
_locks: dict[str, threading.RLock] = {}


def backends() -> list[str]:
    """Names of the installed and registered backends. Imports none of them."""
    return sorted(name for name in {BUILT_IN, *_entry_points(), *_registered} if _allowed(name))


def backend(name: str) -> Backend:
    """The backend *name*, loaded at the first call.

    BackendUnavailable if it is not installed or cannot run here, BackendError
    if it is broken. Failures are not kept: after installing a driver or a
    package the next call tries again.
    """
    found = LOADED.get(name)
    if found is not None:
        return found
    with _locks.setdefault(name, threading.RLock()):
        if name not in LOADED:
            LOADED[name] = _load(name)
        return LOADED[name]


def loaded(device_type: int) -> list[tuple[str, Backend]]:
    """The backends of *device_type* that are loaded: several may share one."""
    known = LOADED.copy()  # one step: another thread may be loading a backend
    return [(name, plugin) for name, plugin in known.items() if plugin.device_type == device_type]


def generation() -> tuple[int, ...]:
    """What changes when a backend is loaded or registered."""
    return (*map(id, LOADED.copy().values()), *map(id, _registered.copy().values()))


def register_backend(name: str, backend: type) -> None:
    """Add the class *backend* under *name*, by hand instead of by entry point."""
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
    """Who provides *name*: distribution and version, or the class registered by hand."""
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


def _find(name: str) -> tuple[str, Callable[[], type]]:
    """Who provides *name*, and how to get its class."""
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


def _built_in() -> type:
    from .cpu import CPU

    return CPU


def _members() -> list[str]:
    """What the contract requires of every backend."""
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

    # A distribution that is on the path twice (an editable install and its
    # source, say) is listed once: importlib.metadata sees to that.
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if point.name == BUILT_IN and point.dist is not None and point.dist.name == "dlbridge":
            continue  # for other programs that list the group; we need no metadata for it
        found.setdefault(point.name, []).append(point)
    return found
