"""The counting device, on which nothing stays."""

import gc

import pytest

from tests.support.counting_backend import counting


def checked():
    with counting() as plugin:
        yield plugin
        gc.collect()
        assert plugin.live_allocations() == 0


@pytest.fixture
def backend():
    yield from checked()


@pytest.fixture
def shared(monkeypatch):
    """Its memory is the host's."""
    monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
    yield from checked()
