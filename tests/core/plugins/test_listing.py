"""devices(): what can be used here, of all backends."""

from __future__ import annotations

from scripts import run_script

import dlbridge as bridge


def test_each_device_of_each_backend(monkeypatch):
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,ext_dev,nonesuch")
    assert bridge.devices() == [bridge.device(d) for d in ("cpu", "ext_dev:0", "ext_dev:1")]
    assert bridge.devices("ext_dev") == bridge.devices()[1:]
    for device in bridge.devices():
        assert bridge.zeros(1, device=device).device is device


def test_a_backend_that_cannot_be_used_is_left_out_or_says_why():
    run_script(
        """
        import dlbridge as bridge

        class Absent:
            def __init__(self):
                raise bridge.BackendUnavailable("no driver: install it")

        class Broken:
            def __init__(self):
                raise OSError("libbroken.so")

        class Fails:
            pass

        bridge.register_backend("absent", Absent)
        bridge.register_backend("broken", Broken)
        assert {device.name for device in bridge.devices()} == {"cpu"}
        for name, error, text in [
            ("absent", bridge.BackendUnavailable, "install it"),
            ("broken", bridge.BackendError, "libbroken"),
        ]:
            try:
                bridge.devices(name)
            except error as exc:
                assert text in str(exc)
            else:
                raise AssertionError(name)
        """,
        env={"DLBRIDGE_BACKENDS": "cpu,absent,broken"},
    )
