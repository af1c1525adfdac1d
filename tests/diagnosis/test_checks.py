"""doctor: each thing that can be wrong is found, and the finding says what to do."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from dlbridge.diagnosis import checks, files, report, trials
from tests.support.packages import install
from tests.support.peers import peer
from tests.support.scripts import run_command


def states(findings):
    return [found.state for found in findings]


# Files ------------------------------------------------------------------------


def test_opencl_drivers(tmp_path):
    library = tmp_path / "libdriver.so"
    library.touch()
    (tmp_path / "a.icd").write_text(f"{library}\n")
    (tmp_path / "b.icd").write_text("libsomewhere.so\n")
    (tmp_path / "c.icd").write_text("/nowhere/libgone.so\n")
    found = list(files.check_opencl_drivers({"OCL_ICD_VENDORS": str(tmp_path)}))
    assert states(found) == ["ok", "ok", "problem"]
    assert "/nowhere/libgone.so, which does not exist" in found[2].said
    assert "c.icd" in found[2].remedy


def test_opencl_drivers_that_a_variable_hides(tmp_path):
    (found,) = files.check_opencl_drivers({"OCL_ICD_VENDORS": str(tmp_path)})
    assert found.state == "problem"
    assert "unset OCL_ICD_VENDORS" in found.remedy


def test_vulkan_drivers(tmp_path):
    def manifest(name, text):
        (tmp_path / name).write_text(text)

    manifest("a.json", json.dumps({"ICD": {"library_path": "libvulkan_a.so"}}))
    manifest("b.json", json.dumps({"ICD": {"library_path": "/nowhere/libvulkan_b.so"}}))
    manifest("c.json", json.dumps({"ICD": {"library_path": "./libvulkan_c.so"}}))
    manifest("d.json", "{")
    manifest("e.json", "[]")
    (tmp_path / "libvulkan_c.so").touch()
    found = list(files.check_vulkan_drivers({}, (str(tmp_path), "/nowhere")))
    assert states(found) == ["ok", "problem", "ok", "problem", "problem"]


@pytest.mark.parametrize("variable", ["VK_ICD_FILENAMES", "VK_DRIVER_FILES"])
def test_vulkan_drivers_that_a_variable_names(tmp_path, variable):
    there = tmp_path / "a.json"
    there.write_text(json.dumps({"ICD": {"library_path": "libvulkan_a.so"}}))
    chosen = os.pathsep.join([str(there), "/nowhere/b.json"])
    found = list(files.check_vulkan_drivers({variable: chosen}))
    assert states(found) == ["problem", "ok"]
    assert found[0].remedy == f"unset {variable}"


def test_a_device_that_this_user_may_not_open(tmp_path, monkeypatch):
    (tmp_path / "renderD128").touch()
    pattern = {f"{tmp_path}/renderD*": "do that"}
    assert states(files.check_device_files(pattern)) == ["ok"]
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may open everything
    (found,) = files.check_device_files(pattern)
    assert (found.state, found.remedy) == ("problem", "do that")


# Settings and packages ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "state", "said"),
    [
        ("DLBRIDGE_BACKEND", "cpu", "problem", "did you mean 'DLBRIDGE_BACKENDS'"),
        ("DLBRIDGE_BACKENDS", "cpu", "ok", "only these"),
        ("DLBRIDGE_BACKENDS", "-opencl,-vulkan", "ok", "are left out"),
        ("DLBRIDGE_BACKENDS", "ext_dev", "problem", "leaves out cpu"),
        ("DLBRIDGE_BACKENDS", "cpu,metal", "problem", "'metal', which is not installed"),
        ("DLBRIDGE_TVM_FFI_LIB", "/nowhere.so", "problem", "does not exist"),
        ("DLBRIDGE_TVM_FFI_LIB", sys.executable, "ok", "is set"),
        ("DLBRIDGE_EXPECT", "peers", "note", "is for tests"),
    ],
)
def test_settings(name, value, state, said, monkeypatch):
    monkeypatch.setenv(name, value)
    found = checks.check_settings({name: value})
    assert [one.state for one in found if said in one.said] == [state]


def test_versions_that_clash(monkeypatch):
    """As pip says it."""

    class Done:
        stdout = "dlbridge 0.1.0 has requirement numpy>=2.1, but you have numpy 1.9.\nx 1 ...\n"
        stderr = ""

    monkeypatch.setattr(checks.subprocess, "run", lambda *_, **__: Done)
    (found,) = checks.check_packages()
    assert found.state == "problem"
    assert "numpy>=2.1" in found.said
    assert found.remedy.endswith("pip install --upgrade dlbridge")


# Trials -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "failed", "said"),
    [
        ("print('first'); print('last')", False, "last"),
        ("raise OSError('libgone.so')", True, "ended with code 1: OSError: libgone.so"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", True, "ended by SIGSEGV"),
        ("import os; os._exit(3)", True, "ended with code 3"),
    ],
)
def test_a_script_that_ends(source, failed, said):
    assert trials.try_script(source) == (failed, said)


def test_a_script_that_does_not_end():
    assert trials.try_script("while True: pass", limit=0.3) == (True, "did not end within 0.3 s")


BROKEN = """
import {modules}
class Broken:
    api = 1
    device_type = 12
    def __init__(self):
        {action}
"""


@pytest.mark.parametrize(
    ("action", "state", "said"),
    [
        ("os.abort()", "problem", "SIGABRT"),
        ("raise dlbridge.errors.BackendUnavailable('no driver: buy one')", "note", "buy one"),
        ("raise OSError('libgone.so')", "problem", "libgone.so"),
    ],
)
def test_a_backend_that_crashes_ends_its_trial_only(action, state, said, tmp_path, monkeypatch):
    (tmp_path / "broken_plugin.py").write_text(
        BROKEN.format(action=action, modules="os, dlbridge.errors")
    )
    install(tmp_path, "broken-plugin", "[dlbridge.backends]\nbad = broken_plugin:Broken")
    monkeypatch.syspath_prepend(str(tmp_path))
    trials.try_devices.cache_clear()
    found = trials.try_backend("bad")
    assert (found.state, said in found.said) == (state, True)


def test_backends_with_the_same_reason_are_one_finding(monkeypatch):
    found = {
        "a": ("note", "no driver", ""),
        "b": ("note", "no driver", ""),
        "c": ("ok", "1 device", ""),
        "d": ("ok", "1 device", ""),
        "e": ("problem", "no driver", "get one"),
    }

    def try_backend(name):
        state, said, remedy = found[name]
        return files.Finding(state, f"backend {name}", said, remedy)

    monkeypatch.setattr(checks, "try_backend", try_backend)
    whats = [each.what for each in checks.check_backends(found)]
    assert whats == ["backends a, b", "backend c", "backend d", "backend e"]
    assert list(checks.check_backends([])) == []


def test_a_peer():
    assert trials.try_peer("numpy").state == "ok"


@pytest.mark.parametrize("hip", [False, True])
def test_bindings_that_call_hip_are_named(hip, tmp_path, monkeypatch):
    """Both packages are ``cuda.bindings``; that of hip-python-interop says so in one attribute."""
    peer("dlbridge_cuda")
    bindings = tmp_path / "cuda" / "bindings"
    bindings.mkdir(parents=True)
    (bindings / "__init__.py").touch()
    name, attribute = ("hip-python-interop", "HIP_PYTHON = True") if hip else ("cuda-bindings", "")
    (bindings / "driver.py").write_text(attribute)
    install(tmp_path, name, "", version="98.76")
    chosen = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = run_command("doctor", "--json", "cuda", env=chosen)
    assert done.stdout.startswith("["), done.stderr
    (found,) = json.loads(done.stdout)
    said = "the package cuda.bindings that is here calls HIP, and is of hip-python-interop;"
    assert (said in found["said"]) == hip, found
    if hip:
        assert (done.returncode, found["state"]) == (1, "problem")
        assert "`pip uninstall hip-python-interop`" in found["remedy"]
    monkeypatch.syspath_prepend(tmp_path)
    assert report.packages()[name] == "98.76"


# Text -----------------------------------------------------------------------------


def test_long_lines_are_wrapped_and_paths_are_not_cut():
    path = "/a/path/" + "x" * 120
    lines = report.wrapped("name", f"the file {path} is not there " * 2)
    assert lines[0].startswith("name      the file")
    assert sum(path in line for line in lines) == 2


def test_columns_and_units():
    assert report.columns([("a", "bb"), ("ccc", "")]) == ["a    bb", "ccc"]
    assert report.columns([]) == []
    assert report.value_text("memory", 3 << 30) == "3.0 GiB"
    assert report.value_text("max_allocations", 3 << 30) == str(3 << 30)
    assert report.value_text("host_import", True) == "yes"


def test_colour_is_for_terminals_only(monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert report.shows_color(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not report.shows_color(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not report.shows_color(Terminal())
    assert report.heading("x", False) == "x"


def test_a_setting_of_a_plugin_is_the_plugins(monkeypatch):
    """It begins with the plugin's name; dlbridge's own backends have no others than ours."""
    monkeypatch.setattr(checks, "backends", lambda: ["cpu", "cuda", "my_npu"])
    chosen = {"DLBRIDGE_MY_NPU_SERVER": "there:80", "DLBRIDGE_CUDA_SERVER": "here"}
    assert [found.state for found in checks.check_settings(chosen)] == ["ok", "problem"]


def test_every_variable_of_the_documents_is_known():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(DLBRIDGE_[A-Z_]+)=", text, re.MULTILINE))
    assert rows == checks.VARIABLES | checks.FOR_TESTS
