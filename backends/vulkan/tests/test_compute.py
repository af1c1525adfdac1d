"""Kernels: SPIR-V modules over tensors, their push constants, and what is refused."""

import gc
import shutil
import struct
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from dlbridge_vulkan.compute import SETS
from dlbridge_vulkan.instance import features

from dlbridge.diagnosis import kernels
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from tests.support.expected_parts import lacking

HERE = Path(__file__).parent
SOURCES = [
    HERE / "shaders" / "scale.comp",
    HERE / "shaders" / "strided_copy.comp",
    Path(kernels.__file__).with_name("box_blur.comp"),
]


def push(count, factor, rounds=1):
    return struct.pack("=IIf", count, rounds, factor)


@pytest.fixture
def kernel(either, scale_spirv):
    return either.kernel(scale_spirv, buffers=1, push_nbytes=12)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 10_000])
def test_a_kernel_over_a_tensor(each, kernel, count):
    values = np.arange(count + 1, dtype=np.float32)
    data = each.of(values)
    groups = -(-count // 64)
    kernel.run([(each.allocation(data), 0, 4 * count)], (groups,), push(count, 3.0))
    got = np.frombuffer(each.bytes(data, values.nbytes), np.float32)
    assert (got[:count] == 3 * values[:count]).all()
    assert got[count] == count


def test_more_dispatches_than_descriptor_sets(each, kernel):
    """Each dispatch binds its own tensor, though the sets go round."""
    made = [each.of(np.full(1, i, np.float32)) for i in range(3 * SETS)]
    for data in made:
        kernel.run([(each.allocation(data), 0, 4)], (1,), push(1, 2.0))
    got = [np.frombuffer(each.bytes(data, 4), np.float32)[0] for data in made]
    assert got == [2 * i for i in range(3 * SETS)]


def test_a_dropped_kernel_finishes_its_work(vulkan, tensors, scale_spirv):
    """Its pipeline is in use until then: the validation layer would name it."""
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    data = tensors.of(np.ones(1, np.float32))
    kernel.run([(tensors.allocation(data), 0, 4)], (1, 30), push(1, 1.0, 60_000))
    kernel.run([(tensors.allocation(data), 0, 4)], (1,), push(1, 5.0))
    del kernel
    gc.collect()
    assert np.frombuffer(tensors.bytes(data, 4), np.float32)[0] == 5


def test_out_of_bounds_stays_inside(each, kernel):
    """robustBufferAccess: a shader that counts too far harms no neighbour."""
    guard = [each.of(np.ones(64, np.float32)) for _ in range(3)]
    middle = each.allocation(guard[1])
    kernel.run([(middle, 0, 256)], (64,), push(4096, 9.0))
    assert np.frombuffer(each.bytes(guard[1], 256), np.float32).tolist() == [9.0] * 64
    for data in (guard[0], guard[2]):
        assert np.frombuffer(each.bytes(data, 256), np.float32).tolist() == [1.0] * 64


def test_a_closed_kernel_says_so(vulkan, tensors, scale_spirv):
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    kernel.close()
    kernel.close()
    with pytest.raises(DeviceError, match="this kernel is closed"):
        kernel.run([(tensors.allocation(tensors.new(64)), 0, 64)], (1,), push(1, 1.0))


def test_a_call_that_is_under_way_keeps_what_it_uses(vulkan, tensors, scale_spirv, monkeypatch):
    """Another thread closes the kernel meanwhile: it is freed after the call, not under it."""
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    data = tensors.of(np.ones(1, np.float32))
    closer, objects = threading.Thread(target=kernel.close), kernel._owner.resource
    bind = kernel._bind

    def close_meanwhile(*arguments):
        closer.start()
        closer.join()
        assert len(objects)  # to go on without it would end the process
        bind(*arguments)

    monkeypatch.setattr(kernel, "_bind", close_meanwhile)
    kernel.run([(tensors.allocation(data), 0, 4)], (1,), push(1, 2.0))
    assert np.frombuffer(tensors.bytes(data, 4), np.float32)[0] == 2
    vulkan.devices[0].kernels.sweep()
    assert not len(objects)
    with pytest.raises(DeviceError, match="this kernel is closed"):
        kernel.run([(tensors.allocation(data), 0, 4)], (1,), push(1, 2.0))


@pytest.mark.parametrize(("error", "left"), [(DeviceError, False), (DeviceMemoryError, True)])
def test_a_kernel_that_cannot_wait_ends_in_silence(vulkan, scale_spirv, monkeypatch, error, left):
    """Its finalizer must not raise; what may be in use still is not pulled away."""
    kernel, device = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12), vulkan.devices[0]
    made = list(kernel._owner.resource._made)

    def failing(value):
        raise error("no answer")

    monkeypatch.setattr(device.queue, "done", failing)
    kernel.close()
    assert {bool(cell[0]) for _, _, cell, _ in made} == {left}
    assert len(device.kernels.ended) == left
    monkeypatch.undo()
    device.kernels.sweep()
    assert not any(cell[0] for _, _, cell, _ in made)


# What is refused


@pytest.mark.parametrize("module", [b"", b"x" * 100, b"\x03\x02\x23\x07" + b"\0" * 17])
def test_what_is_no_spirv(vulkan, module):
    with pytest.raises(ValueError, match=r"not a SPIR-V module.*glslangValidator"):
        vulkan.kernel(module, buffers=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffers": 0}, "buffers=0: 1 to"),
        ({"buffers": 1 << 32}, "buffers=4294967296: 1 to"),
        ({"buffers": 1, "push_nbytes": 6}, "push_nbytes=6: a multiple of 4"),
        ({"buffers": 1, "push_nbytes": 1 << 20}, "push_nbytes=1048576: .* at most"),
    ],
)
def test_beyond_the_limits(vulkan, scale_spirv, options, message):
    with pytest.raises(ValueError, match=message):
        vulkan.kernel(scale_spirv, **options)


def test_wrong_arguments(vulkan, tensors, scale_spirv):
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    a = tensors.allocation(tensors.new(64))
    one = [(a, 0, 64)]
    with pytest.raises(ValueError, match="2 tensors given; the kernel binds 1"):
        kernel.run(one * 2, (1,), push(1, 1.0))
    with pytest.raises(ValueError, match="3 bytes of push constants given; the kernel takes 12"):
        kernel.run(one, (1,), b"abc")
    for groups in ((0,), (1, -1), (1, 1, 10**6)):
        with pytest.raises(ValueError, match="each must be 1 to"):
            kernel.run(one, groups, push(1, 1.0))
    with pytest.raises(ExchangeError, match=r"begins 4 bytes into its buffer.*multiples of"):
        kernel.run([(a, 4, 60)], (1,), push(1, 1.0))
    for offset in (-4, 64, 128):
        with pytest.raises(ExchangeError, match=f"begins at byte {offset}, outside .* 64 bytes"):
            kernel.run([(a, offset, 4)], (1,), push(1, 1.0))
    with pytest.raises(ExchangeError, match="ends at byte 68, outside its buffer of 64 bytes"):
        kernel.run([(a, 0, 68)], (1,), push(1, 1.0))
    with pytest.raises(ExchangeError, match="shaders see at most"):
        kernel.run([(a, 0, 1 << 40)], (1,), push(1, 1.0))


@pytest.mark.parametrize("groups", [(), (1, 1, 1, 1), "four", 1.5, (1, None)])
def test_wrong_groups(vulkan, tensors, scale_spirv, groups):
    """None is dropped, and none is made up."""
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    binding = (tensors.allocation(tensors.new(64)), 0, 64)
    with pytest.raises((TypeError, ValueError), match=r"groups=.*one to three whole numbers"):
        kernel.run([binding], groups, push(1, 1.0))


@pytest.mark.parametrize("groups", [1, np.int64(1), (np.int32(1), 1), np.ones(3, np.int64)])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_whole_numbers_and_any_bytes(vulkan, tensors, scale_spirv, groups, kind):
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    data = tensors.of(np.ones(4, np.float32))
    kernel.run([(tensors.allocation(data), 0, 16)], groups, kind(push(4, 3.0)))
    assert np.frombuffer(tensors.bytes(data, 16), np.float32).tolist() == [3] * 4
    with pytest.raises(TypeError, match="push must be bytes, not str"):
        kernel.run([(tensors.allocation(data), 0, 16)], 1, "text")


@pytest.mark.parametrize("stranger", [None, 5, b"bytes", np.ones(3)])
def test_what_is_no_tensor(vulkan, scale_spirv, stranger):
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    with pytest.raises(TypeError, match="was given, which is not in Vulkan memory; move it"):
        kernel(stranger, groups=1, push=push(1, 1.0))


def test_a_tensor_of_another_device(vulkan, second, tensors, scale_spirv):
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12, device_id=second)
    data = tensors.new(64)
    with pytest.raises(ExchangeError, match="on vulkan:0, the kernel on vulkan:1"):
        kernel.run([(tensors.allocation(data), 0, 64)], (1,), push(1, 1.0))


EVERY_DTYPE = """\
#version 450
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Values {{ {kind} values[]; }};
void main() {{ values[gl_GlobalInvocationID.x] *= {kind}(3); }}
"""


@pytest.mark.parametrize(
    ("kind", "dtype", "needs"),
    [
        ("int8_t", "int8", "shaderInt8 storageBuffer8BitAccess"),
        ("uint8_t", "uint8", "shaderInt8 storageBuffer8BitAccess"),
        ("int16_t", "int16", "shaderInt16 storageBuffer16BitAccess"),
        ("float16_t", "float16", "shaderFloat16 storageBuffer16BitAccess"),
        ("int64_t", "int64", "shaderInt64"),
        ("double", "float64", "shaderFloat64"),
    ],
)
def test_shaders_of_every_dtype(vulkan, tensors, compiled, kind, dtype, needs):
    """The layer names a feature that a module needs and the device was not opened with."""
    offered = features(vulkan.devices[0].physical.pointer).values()
    enabled = [getattr(s.features if hasattr(s, "features") else s, n, 0)
             for n in needs.split() for s in offered]  # fmt: skip
    if sum(enabled) < len(needs.split()):
        pytest.skip(f"this device lacks one of {needs}")
    kernel = vulkan.kernel(compiled(EVERY_DTYPE.format(kind=kind)), buffers=1)
    values = np.arange(32).astype(dtype)
    data = tensors.of(values)
    kernel.run([(tensors.allocation(data), 0, values.nbytes)], (1,), b"")
    got = np.frombuffer(tensors.bytes(data, values.nbytes), dtype)
    assert (got == values * values.dtype.type(3)).all()


# The modules themselves


def _version(tool):
    command = [tool, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_committed_modules_are_fresh(source, tmp_path):
    """The same compiler makes the same bytes of the committed source."""
    tool = shutil.which("glslangValidator")
    version = tool and _version(tool)
    if not version or ":12.0.0\n" not in version:
        lacking("glslang", "needs glslangValidator 12.0.0 (Debian 12: glslang-tools)")
    made = tmp_path / "made.spv"
    command = [tool, "-V", "--target-env", "vulkan1.1", str(source), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    assert made.read_bytes() == source.with_suffix(".spv").read_bytes()
