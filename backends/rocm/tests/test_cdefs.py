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
LATER = {"hipStreamGetDevice", "hipStreamGetId"}

STRUCTS = re.findall(r"^} (\w+);", TEXT, re.MULTILINE)
HIP_5_NAMES = {"hipPointerAttribute_t.type": "hipPointerAttribute_t.memoryType"}


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
    assert set(eval(done.stdout)) == LATER


def test_the_shim_has_them_all(fake):
    from dlbridge_rocm.library import load

    assert [name for name in FUNCTIONS if not hasattr(load(), name)] == []


@pytest.fixture
def compiled(tmp_path):
    """The output of a C program that includes HIP's own header, given the lines of its main."""
    compiler = shutil.which("gcc")
    header = Path("/usr/include/hip/hip_runtime_api.h")
    if compiler is None or not header.exists():
        if "hip_headers" in os.environ.get("DLBRIDGE_EXPECT", "").split(","):
            pytest.fail("HIP's headers were promised, and not found")
        pytest.skip("needs gcc and HIP's headers (Debian: libamdhip64-dev)")

    def run(lines):
        source = tmp_path / "program.c"
        head = ["#include <hip/hip_runtime_api.h>", "#include <stddef.h>", "#include <stdio.h>"]
        source.write_text("\n".join([*head, "int main(void) {", *lines, "return 0; }"]))
        flags = [
            "-D__HIP_PLATFORM_AMD__",
            "-Werror=int-conversion",
            "-o",
            str(tmp_path / "program"),
        ]
        subprocess.run([compiler, *flags, str(source)], check=True)
        done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return run


def test_layout_equals_the_c_compilers(compiled):
    """Every size, offset and constant, against HIP's own header."""
    lines, want = [], []
    for name in STRUCTS:
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        want.append(ffi.sizeof(name))
        for member, field in ffi.typeof(name).fields:
            theirs = HIP_5_NAMES.get(f"{name}.{member}", f"{name}.{member}").replace(".", ", ")
            lines.append(f'printf("%zu\\n", offsetof({theirs}));')
            want.append(field.offset)
    lines += [f'printf("%lld\\n", (long long){name});' for name in CONSTANTS]
    want += [constant(name) for name in CONSTANTS]
    assert len(STRUCTS) == 4
    assert len(CONSTANTS) > 15
    assert compiled(lines) == [str(value) for value in want]


def argument(ctype):
    """A value that only a parameter of the same sort takes: a pointer, or a number."""
    is_pointer = ctype.kind == "pointer" or ctype.cname == "uintptr_t"
    return "(void *)0" if is_pointer else f"({ctype.cname})1"


def test_parameters_are_those_of_the_header(fake, compiled):
    """As many, and pointers where HIP has pointers: handles are integers only here."""
    from dlbridge_rocm.library import load

    lines = []
    for name in FUNCTIONS:
        arguments = ", ".join(argument(each) for each in ffi.typeof(getattr(load(), name)).args)
        lines.append(f"(void)sizeof({name}({arguments}));")
    lines = [line for line in lines if not any(name in line for name in LATER)]
    assert compiled(lines) == []


def test_every_constant_is_used():
    """Nothing is declared that nobody needs."""
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
