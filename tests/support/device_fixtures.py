"""The devices of a machine without GPUs, and a backend of a test's own, which is gone after it."""

import gc
import sys

import pytest

import dlbridge as bridge
from dlbridge.extending import LOADED
from tests.support.expected_parts import backend_or_skip
from tests.support.known_backends import replace_backend


@pytest.fixture(params=["cpu", "ext_dev:1", "opencl:0", "vulkan:0"])
def device(request):
    """Each kind of device that a machine without GPUs has."""
    backend_or_skip(request.param.partition(":")[0])
    return request.param


@pytest.fixture
def register(monkeypatch):
    """The object of a class that is registered as a backend."""
    names = []

    def load(name, cls):
        replace_backend(monkeypatch, name, cls)
        names.append(name)
        return bridge.backend(name)

    yield load
    gc.collect()
    for name in names:
        LOADED.pop(name, None)


@pytest.fixture
def reported(monkeypatch):
    """What the hook for exceptions that nobody can catch was given: each, and its place."""
    found = []

    def hook(said):
        # Since CPython 3.14 the message names the callback of a weak reference.
        _, _, place = (said.err_msg or "").partition("weakref callback ")
        found.append((said.exc_value, repr(said.object) if said.object is not None else place))

    monkeypatch.setattr(sys, "unraisablehook", hook)
    return found
