"""A backend of a test's own, which is gone after it; exceptions that nobody can catch."""

import gc
import sys

import pytest

import dlbridge as bridge
from dlbridge.core.plugins import registry


@pytest.fixture
def register(monkeypatch):
    """The object of a class that is registered as a backend."""
    names = []

    def load(name, cls):
        monkeypatch.setitem(registry._registered, name, cls)
        registry.LOADED.pop(name, None)
        names.append(name)
        return bridge.backend(name)

    yield load
    gc.collect()
    for name in names:
        registry.LOADED.pop(name, None)


@pytest.fixture
def reported(monkeypatch):
    """What the hook for exceptions that nobody can catch was given: each, and its place."""
    found = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda said: found.append((said.exc_value, repr(said.object)))
    )
    return found
