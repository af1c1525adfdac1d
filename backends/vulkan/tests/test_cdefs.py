"""The declarations: fresh, laid out as the C compiler does, and exported by the loader."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from dlbridge_vulkan.library import _structure_type, ffi, load

from tests.support.expected_parts import lacking

CDEFS = Path(__file__).resolve().parents[1] / "cdefs"
HEADER = (CDEFS / "vulkan.h").read_text()
TEXT = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)
OURS = "DlbridgeVulkanBuffer"
STRUCTS = [name for name in re.findall(r"^\} (\w+);", TEXT, re.MULTILINE) if name != OURS]
CONSTANTS = re.findall(r"^    (VK_\w+) = ", TEXT, re.MULTILINE)
FUNCTIONS = re.findall(r"^\w+ (vk\w+)\(", TEXT, re.MULTILINE)


def test_the_module_is_fresh():
    """`python backends/vulkan/cdefs --check` finds nothing to change."""
    done = subprocess.run(
        [sys.executable, str(CDEFS), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stale_module_is_found(tmp_path):
    """The check can fail: with one constant changed it prints the difference."""
    shutil.copytree(CDEFS, tmp_path / "cdefs")
    (tmp_path / "dlbridge_vulkan").mkdir()
    header = tmp_path / "cdefs" / "vulkan.h"
    run = [sys.executable, str(tmp_path / "cdefs")]
    subprocess.run(run, check=True)
    assert subprocess.run([*run, "--check"], check=False).returncode == 0
    header.write_text(header.read_text().replace("VK_TIMEOUT = 2", "VK_TIMEOUT = 3"))
    done = subprocess.run([*run, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "VK_TIMEOUT" in done.stdout


def test_every_declared_function_is_exported(vulkan):
    lib = load()
    assert len(FUNCTIONS) > 40
    assert [name for name in FUNCTIONS if not hasattr(lib, name)] == []


def test_every_structure_with_a_type_has_its_constant():
    """The name of a structure gives its VkStructureType."""
    typed = [s for s in STRUCTS if dict(ffi.typeof(s).fields).get("sType")]
    assert len(typed) > 30
    named = {name for name in CONSTANTS if name.startswith("VK_STRUCTURE_TYPE_")}
    assert len({_structure_type(name) for name in typed}) == len(typed) == len(named)


def program():
    """A C program that prints what the compiler makes of the real header."""
    lines = [
        "#include <stddef.h>",
        "#include <stdio.h>",
        "#include <vulkan/vulkan.h>",
        "int main(void) {",
    ]
    for name in STRUCTS:
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for member, _ in ffi.typeof(name).fields:
            lines.append(
                f'printf("{name}.{member} %zu %zu\\n", offsetof({name}, {member}), '
                f"sizeof((({name} *)0)->{member}));"
            )
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in CONSTANTS]
    return "\n".join([*lines, "return 0; }"])


def layout():
    """The same lines, by cffi."""
    for name in STRUCTS:
        yield f"{name} {ffi.sizeof(name)}"
        for member, field in ffi.typeof(name).fields:
            yield f"{name}.{member} {field.offset} {ffi.sizeof(field.type)}"
    for name in CONSTANTS:
        yield f"{name} {ffi.integer_const(name)}"


def test_layout_equals_the_c_compilers(tmp_path):
    """Every size, offset and constant, against Vulkan's own header."""
    compiler = shutil.which("cc")
    source = tmp_path / "layout.c"
    source.write_text(program())
    command = [compiler or "cc", "-o", str(tmp_path / "layout"), str(source)]
    if compiler is None or not any(
        Path(folder, "vulkan", "vulkan.h").exists()
        for folder in ("/usr/include", "/usr/local/include")
    ):
        lacking("vulkan_headers", "needs a C compiler and vulkan.h (Debian: gcc libvulkan-dev)")
    subprocess.run(command, check=True)
    done = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(layout())


def test_the_descriptor_begins_as_tvms_does():
    """{VkDevice, VkBuffer, VkDeviceMemory}: design.md, and TVM's VulkanBuffer."""
    fields = [(name, field.offset) for name, field in ffi.typeof(OURS).fields]
    assert fields[:4] == [("device", 0), ("buffer", 8), ("memory", 16), ("magic", 24)]
