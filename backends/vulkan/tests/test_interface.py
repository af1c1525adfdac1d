"""What a module says of itself is checked before Vulkan sees it: names, and types of elements."""

import struct

import numpy as np
import pytest
from dlbridge_vulkan import demo, strided_kernel
from dlbridge_vulkan.interface import Element, elements_of, entry_points
from dlbridge_vulkan.spirv import MAGIC

import dlbridge as bridge
from dlbridge.errors import ExchangeError

HEADER = [MAGIC, 0x00010300, 0, 100, 0]
INT, UINT, FLOAT, COMPLEX = 0, 1, 2, 5


def module(*instructions):
    words = list(HEADER)
    for code, *operands in instructions:
        words += [(len(operands) + 1) << 16 | code, *operands]
    return struct.pack(f"<{len(words)}I", *words)


def text(name):
    raw = name.encode() + b"\0"
    return struct.unpack(f"<{-(-len(raw) // 4)}I", raw.ljust(-(-len(raw) // 4) * 4, b"\0"))


def test_the_names_of_the_compute_shaders():
    found = module((15, 5, 1, *text("main")), (15, 4, 2, *text("pixels")), (15, 5, 3, *text("two")))
    assert entry_points(found) == ["main", "two"]
    assert entry_points(demo.SHADER.read_bytes()) == ["main"]
    assert entry_points(b"") == []


SCALARS = [(21, 1, 32, 0), (21, 2, 32, 1), (22, 3, 32), (22, 4, 16), (23, 5, 3, 4)]
NAMES = {1: Element(UINT, 32), 2: Element(INT, 32), 3: Element(FLOAT, 32), 4: Element(FLOAT, 16)}


def buffer(binding, *members, at=20):
    """A variable whose block has these members, each an array of a scalar."""
    arrays = [(29, at + i, kind) for i, kind in enumerate(members)]
    return [
        *arrays,
        (30, at + 8, *[number for _, number, _ in arrays]),
        (32, at + 9, 12, at + 8),
        (59, at + 9, at + 10, 12),
        (71, at + 10, 33, binding),
        (71, at + 10, 34, 0),
    ]


@pytest.mark.parametrize("kind", NAMES)
def test_a_buffer_that_is_one_array(kind):
    assert elements_of(module(*SCALARS, *buffer(2, kind))) == {2: NAMES[kind]}


def test_vectors_are_arrays_of_their_scalar():
    assert elements_of(module(*SCALARS, *buffer(0, 5))) == {0: Element(FLOAT, 32)}


def test_what_is_not_known_is_left_out():
    several = buffer(0, 1, 3)
    aliases = [*buffer(1, 1, at=40), *buffer(1, 3, at=60)]
    assert elements_of(module(*SCALARS, *several, *aliases)) == {}
    circle = [(32, 3, 12, 4), (32, 4, 12, 3), (59, 3, 5, 12), (71, 5, 33, 0)]
    assert elements_of(module(*circle)) == {}


@pytest.mark.parametrize("cut", range(0, 200, 12))
def test_what_is_not_well_formed_ends_the_reading(cut):
    whole = module(*SCALARS, *buffer(2, 1), (15, 5, 1, *text("main")))
    assert elements_of(whole[:cut]) in ({}, {2: NAMES[1]})
    entry_points(whole[:cut])


def test_the_packages_own_modules(scale_spirv):
    assert elements_of(scale_spirv) == {0: Element(FLOAT, 32)}
    for shader in (demo.SHADER, strided_kernel.SHADER):
        assert {element.code for element in elements_of(shader.read_bytes()).values()} <= {UINT}


def test_a_wrong_name_lists_the_modules(vulkan, scale_spirv):
    with pytest.raises(ValueError, match=r"entry='scale': .* it has 'main'"):
        vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12, entry="scale")


@pytest.mark.parametrize("dtype", ["int32", "float64", "float16", "uint32", "bfloat16", "bool"])
def test_elements_of_another_type_are_refused(vulkan, scale_spirv, dtype):
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    tensor = bridge.zeros(4, dtype, "vulkan:0")
    message = rf"tensor 0 holds {dtype}, and the shader's binding 0 float32"
    with pytest.raises(ExchangeError, match=message):
        kernel(tensor, groups=1, push=struct.pack("=IIf", 4, 1, 2.0))


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float32x2", "uint8"])
def test_elements_that_the_shader_can_mean(vulkan, scale_spirv, dtype):
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    kind = bridge.dtype(dtype)
    tensor = bridge.zeros(32 * 8 // (kind.bits * kind.lanes), dtype, "vulkan:0")
    kernel(tensor, groups=1, push=struct.pack("=IIf", 8, 1, 2.0))
    assert not np.frombuffer(tensor.tobytes(), "u1").any()
