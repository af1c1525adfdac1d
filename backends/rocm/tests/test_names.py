"""The table of names: exported by the real library, and as HIP's own header declares them."""

import ctypes
import ctypes.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dlbridge_rocm import gpu, library

from dlbridge.kit import driver
from tests.support.expected_parts import lacking

PACKAGE = Path(library.__file__).parent
TABLE = library.FUNCTIONS
SIGNATURES = {**driver._SIGNATURES, **library.SIGNATURES}
FUNCTIONS = list(TABLE.values())
LATER = {"hipStreamGetDevice"}
CONSTANTS = {
    "hipMemcpyDefault": gpu._DEFAULT,
    "hipEventDisableTiming": driver._DISABLE_TIMING,
    "hipHostMallocPortable": driver._FOR_ALL,
    "hipHostMallocMapped": driver._MAPPED,
    "hipHostRegisterPortable": driver._FOR_ALL,
    "hipHostRegisterMapped": driver._MAPPED,
    "hipMemPoolAttrReleaseThreshold": driver._RELEASE_THRESHOLD,
    "hipMemLocationTypeDevice": driver._DEVICE,
    "hipMemAccessFlagsProtReadWrite": driver._READ_WRITE,
    "hipStreamCaptureStatusNone": 0,
    "hipStreamCaptureModeRelaxed": driver._RELAXED,
    "hipErrorInvalidValue": gpu._INVALID_VALUE,
    "hipErrorNotReady": driver.NOT_READY,
    "hipErrorNotSupported": driver.NOT_SUPPORTED,
    "hipErrorPeerAccessAlreadyEnabled": driver._ALREADY_ENABLED,
    "hipErrorStreamCaptureImplicit": driver.IMPLICIT,
    "hipDeviceAttributeConcurrentManagedAccess": library.ATTRIBUTES["concurrent_managed"],
    "hipDeviceAttributeIntegrated": library.ATTRIBUTES["integrated"],
    "hipDeviceAttributeComputeCapabilityMajor": library.ATTRIBUTES["compute_capability_major"],
    "hipDeviceAttributeComputeCapabilityMinor": library.ATTRIBUTES["compute_capability_minor"],
    "hipDeviceAttributeMaxPitch": library.ATTRIBUTES["max_pitch"],
    "hipDeviceAttributeMultiprocessorCount": library.ATTRIBUTES["multiprocessor_count"],
    "hipDeviceAttributePageableMemoryAccess": library.ATTRIBUTES["pageable_memory_access"],
    "hipDeviceAttributeWarpSize": library.ATTRIBUTES["warp_size"],
    "hipDeviceAttributeMemoryPoolsSupported": library.ATTRIBUTES["memory_pools"],
}
# Our structure and member -> where it is in HIP 5's header.
MEMBERS = {
    ("PointerAttributes", "type"): ("hipPointerAttribute_t", "memoryType"),
    **{
        ("PointerAttributes", name): ("hipPointerAttribute_t", name)
        for name in ("device", "devicePointer", "hostPointer", "isManaged", "allocationFlags")
    },
    ("_Access", "kind"): ("hipMemAccessDesc", "location.type"),
    ("_Access", "device_id"): ("hipMemAccessDesc", "location.id"),
    ("_Access", "flags"): ("hipMemAccessDesc", "flags"),
}
STRUCTURES = {"PointerAttributes": library.PointerAttributes, "_Access": driver._Access}


def test_every_function_is_exported():
    """By Debian's libamdhip64 5.2.3, apart from what came later."""
    name = ctypes.util.find_library("amdhip64")
    if name is None:
        lacking("rocm", "needs a real libamdhip64 (Debian: libamdhip64-5)")
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
    assert [name for name in FUNCTIONS if not hasattr(library.load(), name)] == []


@pytest.fixture
def compiled(tmp_path):
    """The output of a C program that includes HIP's own header, given the lines of its main."""
    compiler = shutil.which("gcc")
    header = Path("/usr/include/hip/hip_runtime_api.h")
    if compiler is None or not header.exists():
        lacking("hip_headers", "needs gcc and HIP's headers (Debian: libamdhip64-dev)")

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
    assert {(ours, each[0]) for ours in STRUCTURES for each in STRUCTURES[ours]._fields_} == set(
        MEMBERS
    )
    lines, want = [], []
    for (ours, member), (theirs, path) in MEMBERS.items():
        lines.append(f'printf("%zu %zu\\n", sizeof({theirs}), offsetof({theirs}, {path}));')
        structure = STRUCTURES[ours]
        want.append(f"{ctypes.sizeof(structure)} {getattr(structure, member).offset}")
    lines += [f'printf("%lld\\n", (long long){name});' for name in CONSTANTS]
    want += [str(value) for value in CONSTANTS.values()]
    assert compiled(lines) == want


ARGUMENTS = {"i": "(int)1", "u": "(unsigned)1", "n": "(size_t)1", "p": "(int)1"}
"""A value that only a parameter of the same sort takes; for other letters a pointer."""


def test_parameters_are_those_of_the_header(compiled):
    """As many, and pointers where HIP has pointers: handles are integers only here."""
    lines = []
    for name, symbol in TABLE.items():
        arguments = ", ".join(ARGUMENTS.get(each, "(void *)0") for each in SIGNATURES[name])
        if symbol not in LATER:
            lines.append(f"(void)sizeof({symbol}({arguments}));")
    assert compiled(lines) == []


def test_every_function_is_used():
    """Nothing is in the table that nobody needs."""
    kit = Path(driver.__file__).parent
    sources = [PACKAGE / "gpu.py", *kit.glob("*.py")]
    source = re.sub(
        r"^    \"\w+\": .*$", "", "\n".join(map(Path.read_text, sources)), flags=re.MULTILINE
    )
    used = set(re.findall(r"(?:functions\.|\")(\w+)", source))
    assert set(TABLE) <= used
    assert set(library.ATTRIBUTES) - used == {
        "compute_capability_major",
        "compute_capability_minor",
    }
