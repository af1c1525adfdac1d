"""devices(): what can be used here, of all backends."""

from __future__ import annotations

import pytest

import dlbridge as bridge
from tests.support.known_backends import forget_registered


def test_each_device_of_each_backend(monkeypatch):
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,ext_dev,nonesuch")
    assert bridge.devices() == [bridge.device(d) for d in ("cpu", "ext_dev:0", "ext_dev:1")]
    assert bridge.devices("ext_dev") == bridge.devices()[1:]
    for device in bridge.devices():
        assert bridge.zeros(1, device=device).device is device


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (bridge.BackendUnavailable("no driver: install it"), bridge.BackendUnavailable),
        (OSError("libbroken.so"), bridge.BackendError),
    ],
)
def test_a_backend_that_cannot_be_used_is_left_out_or_says_why(raised, error, monkeypatch):
    class Fails:
        def __init__(self):
            raise raised

    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,fails")
    forget_registered(monkeypatch)
    bridge.register_backend("fails", Fails)
    assert bridge.devices() == [bridge.device("cpu")]
    with pytest.raises(error, match=str(raised)):
        bridge.devices("fails")
