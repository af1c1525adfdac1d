"""Backends that a test brings, and how the core forgets what it knows: there is no public way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import dlbridge
from dlbridge.core.plugins import lookup, registry
from dlbridge.extending import LOADED


@contextmanager
def registered(name: str, cls: type) -> Iterator[Any]:
    """The backend *name* of *cls* inside the block, through the public door; gone at its end."""
    before, loaded = dict(registry._registered), dict(LOADED)
    dlbridge.register_backend(name, cls)
    try:
        yield dlbridge.backend(name)
    finally:
        registry._registered.clear()
        registry._registered.update(before)
        LOADED.pop(name, None)
        LOADED.update(loaded)


def replace_backend(patch: pytest.MonkeyPatch, name: str, cls: type) -> None:
    """Let *cls* be the backend *name* from its next use on; its object stays in `LOADED`."""
    patch.setitem(registry._registered, name, cls)
    LOADED.pop(name, None)


def forget_registered(patch: pytest.MonkeyPatch) -> None:
    """No backend was registered by hand."""
    patch.setattr(registry, "_registered", {})


def forget_identities(patch: pytest.MonkeyPatch) -> None:
    """No device has said which one it is."""
    patch.setattr(lookup, "_known", {})
