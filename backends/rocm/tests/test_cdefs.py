"""The declarations: fresh, laid out as the C compiler does, and exported by the real library."""

import ctypes.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dlbridge_rocm.library import constant, ffi

CDEFS = Path(__file__).resolve().parents[1] / "cdefs"
TEXT = re.sub(r"/\*.*?\*/", "", (CDEFS / "hip.h").read_text(), flags=re.DOTALL)
FUNCTIONS = re.findall(r"^(?:hipError_t |const char \*)(hip\w+)\(", TEXT, re.MULTILINE)
CONSTANTS = re.findall(r"(\w+) = \d+", TEXT)
SINCE_5_6 = {"hipStreamGetDevice"}

# As gcc laid them out from the headers of HIP 5.2.3 (libamdhip64-dev).
LAYOUT = {
    "hipUUID": (16, {"bytes": 0}),
    "hipPointerAttribute_t": (
        32,
        {
            "type": 0, "device": 4, "devicePointer": 8, "hostPointer": 16, "isManaged": 24,
            "allocationFlags": 28,
        },
    ),
    "hipMemLocation": (8, {"type": 0, "id": 4}),
    "hipMemAccessDesc": (12, {"location": 0, "flags": 8}),
}  # fmt: skip


def test_the_module_is_fresh():
    """`python backends/rocm/cdefs --check` finds nothing to change."""
    done = subprocess.run(
        [sys.executable, str(CDEFS), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stale_module_is_found(tmp_path):
    """The check can fail: with one constant changed it prints the difference."""
    shutil.copytree(CDEFS, tmp_path / "cdefs")
    (tmp_path / "dlbridge_rocm").mkdir()
    run = [sys.executable, str(tmp_path / "cdefs")]
    subprocess.run(run, check=True)
    header = tmp_path / "cdefs" / "hip.h"
    header.write_text(header.read_text().replace("hipMemcpyDefault = 4", "hipMemcpyDefault = 3"))
    done = subprocess.run([*run, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "hipMemcpyDefault" in done.stdout


def test_every_declared_function_is_exported():
    """By Debian's libamdhip64 5.2.3, apart from what came later."""
    name = ctypes.util.find_library("amdhip64")
    if name is None:
        if "rocm" in os.environ.get("DLBRIDGE_EXPECT", "").split(","):
            pytest.fail("libamdhip64 was promised, and not found")
        pytest.skip("needs a real libamdhip64 (Debian: libamdhip64-5)")
    code = f"""
import ctypes
library = ctypes.CDLL({name!r})
print([name for name in {FUNCTIONS!r} if not hasattr(library, name)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )  # a process of its own: no second runtime in this one
    assert len(FUNCTIONS) > 40
    assert set(eval(done.stdout)) == SINCE_5_6


def test_the_shim_has_them_all(fake):
    from dlbridge_rocm.library import load

    assert [name for name in FUNCTIONS if not hasattr(load(), name)] == []


def test_layout():
    for name, (size, offsets) in LAYOUT.items():
        assert ffi.sizeof(name) == size
        assert {member: field.offset for member, field in ffi.typeof(name).fields} == offsets


def test_every_constant_is_used():
    """What nobody needs is not declared."""
    package = CDEFS.parent / "dlbridge_rocm"
    source = "\n".join(
        path.read_text() for path in package.glob("*.py") if path.name != "_cdefs.py"
    )
    used = set(re.findall(r'constant\("(\w+)"\)', source))
    used |= {
        f"hipDeviceAttribute{name}" for name in re.findall(r"attribute\(\w+, [\"'](\w+)", source)
    }
    assert set(CONSTANTS) == used
    assert all(constant(name) >= 0 for name in CONSTANTS)
    called = set(re.findall(r"hip[A-Z]\w+", source))
    assert set(FUNCTIONS) <= called
