"""Read-only tensors are bound only where the module says that it writes nothing."""

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from dlbridge_vulkan.spirv import Module

import dlbridge as bridge
from dlbridge.diagnosis import kernels
from dlbridge.errors import ExchangeError

HEADER = [0x07230203, 0x00010300, 0, 100, 0]
SOURCE = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer A {{ float a[]; }};
layout(set = 0, binding = 1) {first} buffer B {{ {second} float b; {third} float c[]; }};
layout(set = 0, binding = 2) buffer C {{ float d[]; }} many[2];
void main() {{ many[0].d[0] = a[0] + b + c[0]; {body} }}
"""

COPY = Path(__file__).parent / "shaders" / "strided_copy.spv"
"""Marks its first binding as one that is only read."""


def writable_bindings(spirv):
    return Module(spirv).writable_bindings()


def module(*instructions):
    """A SPIR-V module of ``(code, operands...)``, which need not be valid beyond its form."""
    words = list(HEADER)
    for code, *operands in instructions:
        words += [(len(operands) + 1) << 16 | code, *operands]
    return struct.pack(f"<{len(words)}I", *words)


STRUCT, POINTER, VARIABLE = (30, 10, 11, 11), (32, 12, 12, 10), (59, 12, 13, 12)
BINDING, SET = (71, 13, 33, 5), (71, 13, 34, 0)


@pytest.mark.parametrize(
    ("extra", "writable"),
    [
        ([], {5}),
        ([(71, 13, 24)], set()),  # the variable is NonWritable
        ([(72, 10, 0, 24), (72, 10, 1, 24)], set()),  # all members of the block are
        ([(72, 10, 1, 24)], {5}),  # one member of two is
        ([(71, 13, 34, 1)], set()),  # it is in another set
    ],
)
def test_what_the_decorations_say(extra, writable):
    first = [BINDING, SET, *extra]
    assert writable_bindings(module(*first, STRUCT, POINTER, VARIABLE)) == writable


def test_a_binding_with_two_variables_is_written_by_one():
    """Aliases: one of them is enough."""
    second = [(71, 14, 33, 5), (71, 14, 24), (59, 12, 14, 12)]
    assert writable_bindings(module(BINDING, SET, *second, STRUCT, POINTER, VARIABLE)) == {5}


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_what_is_not_well_formed_ends_the_reading(cut):
    whole = module(BINDING, SET, STRUCT, POINTER, VARIABLE)
    assert writable_bindings(whole[:cut]) <= {5}
    assert writable_bindings(whole[:20] + b"\0" * cut) == set()


def test_the_packages_own_modules(scale_spirv):
    assert writable_bindings(scale_spirv) == {0}
    assert writable_bindings(Path(kernels.__file__).with_name("box_blur.spv").read_bytes()) == {1}
    assert writable_bindings(COPY.read_bytes()) == {1}


@pytest.mark.parametrize(
    ("words", "writable"),
    [
        ({"first": "readonly", "second": "", "third": "", "body": ""}, {2}),
        ({"first": "", "second": "readonly", "third": "readonly", "body": ""}, {2}),
        ({"first": "", "second": "readonly", "third": "", "body": ""}, {1, 2}),
        ({"first": "", "second": "", "third": "", "body": "b = 1;"}, {1, 2}),
    ],
)
def test_what_glslang_writes(tmp_path, words, writable, expected):
    """``readonly`` on the block, on its members, and arrays of buffers."""
    if shutil.which("glslangValidator") is None:
        assert not expected("glslang")
        pytest.skip("needs glslangValidator (Debian: glslang-tools)")
    source, made = tmp_path / "x.comp", tmp_path / "x.spv"
    source.write_text(SOURCE.format(**words))
    for target in ("vulkan1.0", "vulkan1.3"):
        command = ["glslangValidator", "-V", "--target-env", target, str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True)
        assert writable_bindings(made.read_bytes()) == writable


def readonly_tensor(vulkan):
    info = vulkan.device_info(0)
    if info["kind"] != "cpu":
        pytest.skip(
            f"{info['name']} is a GPU: read-only host memory is copied, and no other is such"
        )
    pages = bridge.empty(1024, "float32", alignment=4096)
    source = np.from_dlpack(pages)
    source[:] = 1
    source.flags.writeable = False
    return source, bridge.to_device(source, "vulkan:0", copy=False)


def test_a_read_only_tensor_is_not_written(vulkan, scale_spirv):
    """It may be another library's memory in place: a jax array, a mapped file."""
    source, t = readonly_tensor(vulkan)
    assert t.readonly
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    for argument in (t, t.to_native()):
        with pytest.raises(ExchangeError, match=r"tensor 0 is read-only.* binding 0.*`readonly`"):
            kernel(argument, groups=16, push=struct.pack("=IIf", 1024, 1, 2.0))
    bridge.synchronize("vulkan:0")
    assert (source == 1).all()


def test_a_read_only_tensor_is_read(vulkan):
    """Where the module marks the binding, as the strided copy's first."""
    _, t = readonly_tensor(vulkan)
    out = bridge.to_device(np.zeros(1024, np.float32), "vulkan:0", copy=True)
    kernel = vulkan.kernel(COPY.read_bytes(), buffers=2, push_nbytes=68)
    push = struct.pack("=17I", 4, 0, 0, 1024, 1024, *[1] * 4, *[0] * 8)
    kernel(t, out, groups=16, push=push)
    assert (bridge.to_device(out, "cpu", like="numpy") == 1).all()
    with pytest.raises(ExchangeError, match="tensor 1 is read-only"):
        kernel(out, t, groups=16, push=push)
