"""The search for the HIP runtime, and the messages without one or without a device.

The real library is Debian's libamdhip64-5 (5.2.3), on a machine without an AMD GPU.
"""

import ctypes.util
import sys
import types

import pytest

from backends.rocm.tests.rocm_support import python
from tests.drivers.suite.rig import refusals
from tests.support.expected_parts import lacking

NO_LIBRARY = """
from dlbridge_rocm import library
library.NAMES = ("libamdhip64.so.none",)
"""


@pytest.fixture
def debian():
    """The real libamdhip64 5, by its full name."""
    if ctypes.util.find_library("amdhip64") is None:
        lacking("rocm", "needs a real libamdhip64 (Debian: libamdhip64-5)")
    return ctypes.util.find_library("amdhip64")


# The order of the search --------------------------------------------------------------


def test_the_order(monkeypatch):
    from dlbridge_rocm import library

    sdk = types.SimpleNamespace(find_libraries=lambda name: [f"/sdk/lib{name}.so.7"])
    monkeypatch.setitem(sys.modules, "rocm_sdk", sdk)
    monkeypatch.setenv("ROCM_PATH", "/opt/rocm-9")
    monkeypatch.setattr(library, "loaded_already", lambda: ["/torch/lib/libamdhip64.so"])
    assert list(library.candidates()) == [
        "/torch/lib/libamdhip64.so",
        "/opt/rocm-9/lib/libamdhip64.so",
        "/sdk/libamdhip64.so.7",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "libamdhip64.so",
    ]


@pytest.mark.parametrize("sdk", [None, types.SimpleNamespace()])
def test_without_a_rocm_sdk(monkeypatch, sdk):
    """Not installed, or broken: the next path."""
    from dlbridge_rocm import library

    monkeypatch.setitem(sys.modules, "rocm_sdk", sdk)
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setattr(library, "loaded_already", list)
    assert list(library.candidates()) == list(library.NAMES)


def test_a_loaded_runtime_is_found_under_any_name(monkeypatch, tmp_path):
    """Wheels rename their copies (auditwheel); each is listed once."""
    from dlbridge_rocm import library

    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 00000000 08:01 11 /usr/lib/libc.so.6\n"
        "7f01-7f02 r--p 00000000 00:00 0 \n"
        "7f02-7f03 r--p 00000000 08:01 12 /venv/with space/libamdhip64-9a1b.so.7\n"
        "7f03-7f04 r-xp 00001000 08:01 12 /venv/with space/libamdhip64-9a1b.so.7\n"
        "7f04-7f05 r--p 00000000 08:01 13 /home/libamdhip64.so.6/notes.txt\n"
    )
    monkeypatch.setattr(library, "_MAPS", maps)
    assert library.loaded_already() == ["/venv/with space/libamdhip64-9a1b.so.7"]
    monkeypatch.setattr(library, "_MAPS", tmp_path / "none")  # no Linux
    assert library.loaded_already() == []


def test_a_loaded_runtime_is_used_before_another(fake, debian):
    """The shim is loaded; ROCM_PATH and the loader would give the real one."""
    done = python("""
    import dlbridge
    from dlbridge_rocm import library
    rocm = dlbridge.backend("rocm")
    print(rocm.device_count(), rocm.driver.version(), len(library.loaded_already()))
    """)
    assert done.stdout.split("\n")[0] == "2 (7, 0) 1", done.stdout + done.stderr


def test_rocm_path(fake, tmp_path):
    """A runtime that only ROCM_PATH leads to."""
    done = python(
        """
    build.load("cuda")
    os.mkdir(os.environ["ROCM_PATH"] + "/lib")
    os.symlink(build.library("hip"), os.environ["ROCM_PATH"] + "/lib/libamdhip64.so")
    import dlbridge
    print(dlbridge.backend("rocm").device_count())
    """,
        simulated=False,
        ROCM_PATH=str(tmp_path),
    )
    assert done.stdout == "2\n", done.stderr


# No library, no device ------------------------------------------------------------------


def test_no_library():
    """Every path that was tried, and the remedy; nothing else is affected."""
    for said in refusals(NO_LIBRARY, simulated=False, ROCM_PATH="/nowhere"):
        assert "no HIP runtime: tried /nowhere/lib/libamdhip64.so (" in said
        assert "libamdhip64.so.none (" in said
        assert "Install ROCm" in said


def test_no_device_on_the_real_library(debian):
    for said in refusals(simulated=False, HIP_VISIBLE_DEVICES="5", ROCM_PATH=""):
        assert "no usable ROCm device: hipGetDeviceCount gave hipErrorNoDevice (100)" in said
        assert "(HIP_VISIBLE_DEVICES='5')" in said
        assert "/dev/kfd" in said


def test_no_device_below_the_shim(fake):
    for said in refusals(FAKE_CUDA_DEVICES="0"):
        assert "no usable ROCm device" in said


def test_too_old(fake):
    for said in refusals(FAKE_HIP_VERSION="40531121"):
        assert "the HIP runtime is too old: it is HIP 4.5" in said


def test_a_runtime_that_comes_later_is_found(fake):
    """A refusal is not kept."""
    code = (
        NO_LIBRARY
        + """
import dlbridge
try:
    dlbridge.backend("rocm")
except dlbridge.BackendUnavailable as exc:
    assert "no HIP runtime" in str(exc)
drivers()
print("now:", dlbridge.backend("rocm").device_count())
"""
    )
    done = python(code, simulated=False, FAKE_CUDA_DEVICES="3", ROCM_PATH="")
    assert done.stdout == "now: 3\n", done.stdout + done.stderr


def test_the_real_library_agrees_with_us(debian):
    """Its version, the names of our errors, and what it says of a call without a device."""
    done = python(
        """
    from dlbridge_rocm.gpu import gpu
    print(gpu.library(), gpu.version())
    for code in gpu.table.meanings:
        print(code, gpu.describe(code))
    print(gpu.functions.get_stream_device(0, None))
    """,
        simulated=False,
        ROCM_PATH="",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("(5, 2)")
    names = dict(line.split(" ", 1) for line in lines[1:-1])
    assert names["2"] == "hipErrorOutOfMemory (2)"
    assert names["709"] == "hipErrorContextIsDestroyed (709)"
    assert not [name for name in names.values() if "Unknown" in name or "Tbd" in name]
    assert lines[-1] == "801"  # 5.2.3 has no such function
