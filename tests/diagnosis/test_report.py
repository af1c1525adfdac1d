"""info(): an object that prints, with what can be used first and the reasons for the rest."""

from __future__ import annotations

import json
import os
import tempfile

import dlbridge as bridge
from tests.support.scripts import run_script


def test_it_prints_itself(monkeypatch):
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,ext_dev")
    report = bridge.info()
    text = str(report)
    assert repr(report) == text == report.text()
    assert text.index("cpu:0") < text.index("ext_dev:1")
    assert "DLBRIDGE_BACKENDS=cpu,ext_dev" in text
    assert "Not usable here" not in text
    assert json.loads(json.dumps(report.as_dict(), default=str))["python"] == report.python


def test_what_cannot_be_used_has_its_reason_once():
    run_script(
        """
        import dlbridge as bridge

        class Absent:
            def __init__(self):
                raise bridge.BackendUnavailable("no driver: install it")

        class Broken:
            def __init__(self):
                raise OSError("libbroken.so")

        for name, cls in [("one", Absent), ("two", Absent), ("bad", Broken)]:
            bridge.register_backend(name, cls)
        report = bridge.info()
        states = {name: found["state"] for name, found in report.backends.items()}
        assert states == {"cpu": "usable", "one": "unavailable", "two": "unavailable",
                          "bad": "broken"}
        text = " ".join(report.text().split())
        assert text.count("install it") == 1 and "one, two no driver" in text
        assert "libbroken.so" in text and "Broken (registered by hand)" in text
        """,
        env={"DLBRIDGE_BACKENDS": "cpu,one,two,bad"},
    )


def test_mesa_has_nothing_to_say(monkeypatch):
    """It prints an error where the folder of displays is not known."""
    seen = []

    class Absent:
        def __init__(self):
            seen.append(os.environ.get("XDG_RUNTIME_DIR"))
            raise bridge.BackendUnavailable("no driver")

    for number, folder in enumerate([None, "/run/user/0"]):
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        if folder is not None:
            monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("DLBRIDGE_BACKENDS", f"cpu,display{number}")
        bridge.register_backend(f"display{number}", Absent)
        bridge.info()
        assert os.environ.get("XDG_RUNTIME_DIR") == folder
    assert seen == [tempfile.gettempdir(), "/run/user/0"]


def test_colour_is_asked_for():
    assert "\033" not in bridge.info().text()
    assert "\033[1mDevices" in bridge.info().text(color=True)
