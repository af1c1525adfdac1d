"""Strided copies: inside one buffer, and of many short runs."""

from __future__ import annotations

import random

import numpy as np
import pyopencl as cl
import pytest

from dlbridge.protocol import Region
from dlbridge.testing import side

SIZE = 4096


def positions(offset, strides, shape, run):
    """The bytes of a region, in the order of the copy."""
    starts = offset + np.zeros((1,), "i8")
    for count, step in zip(shape, strides, strict=True):
        starts = (starts[:, None] + np.arange(count) * step).reshape(-1)
    return (starts[:, None] + np.arange(run)).reshape(-1)


def layouts(number, apart):
    """Pairs of regions without common bytes; *apart*: nor does one reach into the other's span."""
    chance, cases = random.Random(number), []
    while len(cases) < number:
        run = chance.choice([1, 2, 4, 8, 12])
        shape = [chance.randint(2, 6), chance.randint(2, 9)][: chance.choice([1, 2])]
        sides = []
        for _ in range(2):
            inner = run * chance.randint(1, 4)
            outer = inner * shape[-1] + run * chance.randint(0, 3)
            sides.append((chance.randrange(1500), [outer, inner][-len(shape) :]))
        there, here = (positions(offset, strides, shape, run) for offset, strides in sides)
        if max(there.max(), here.max()) >= SIZE or np.intersect1d(there, here).size:
            continue
        if (there.min() > here.max() or here.min() > there.max()) == apart:
            cases.append((sides, shape, run, there, here))
    return cases


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "interleaved"])
def test_regions_of_one_buffer(opencl, make, apart):
    """Any two without common bytes: OpenCL's own command refuses most of them."""
    memory = make(SIZE)
    for sides, shape, run, there, here in layouts(150, apart):
        content = np.random.default_rng(run).integers(0, 256, SIZE, "u1")
        memory.write(content)
        (offset, strides), (start, steps) = sides
        opencl.copy_strided(
            *side(0, memory.data, offset, shape, strides, run),
            *side(0, memory.data, start, shape, steps, run),
            memory.stream,
        )
        content[there] = content[here]
        assert (memory.read() == content).all(), (sides, shape, run)


def test_regions_of_two_parts_of_one_buffer(opencl, context):
    """Sub-buffers, which OpenCL treats as the buffer that they are parts of."""
    content = np.random.default_rng(0).integers(0, 256, SIZE, "u1")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    whole = cl.Buffer(context, flags, hostbuf=content)
    part = whole.get_sub_region(0, 2048)
    there, here = (
        side(0, part.int_ptr, 0, (20,), (64,), 4),
        side(0, whole.int_ptr, 4, (20,), (32,), 4),
    )
    opencl.copy_strided(*there, *here, 0)
    content[positions(0, (64,), (20,), 4)] = content[positions(4, (32,), (20,), 4)]
    got = np.empty(SIZE, "u1")
    cl.enqueue_copy(cl.CommandQueue(context), got, whole, is_blocking=True)
    assert (got == content).all()


RAGGED = {
    # rows, elements, bytes of an element, pitch of rows that is no multiple of the element's
    "many rectangles": ((300, 200), 4, 8, 4 * 403),
    "wide gaps": ((300, 70), 2, 32, 2 * 1121),
}


@pytest.mark.parametrize("case", RAGGED)
def test_pitches_that_do_not_divide_each_other(opencl, layer, make, case):
    """A rectangle for each slice, and not one command for each run."""
    shape, run, inner, outer = RAGGED[case]
    nbytes = outer * shape[0]
    content = np.random.default_rng(0).integers(0, 256, nbytes, "u1")
    memory, packed = make(nbytes).write(content), Region(shape, (run * shape[1], run), run)
    there = positions(0, (outer, inner), shape, run)
    kinds = ("rectangles", "reads", "writes")
    before = [layer[kind] for kind in kinds]

    into = np.zeros(len(there), "u1")
    region = side(0, memory.data, 0, shape, (outer, inner), run)
    opencl.copy_strided_to_host(*region, memoryview(into), packed, memory.stream)
    assert (into == content[there]).all()

    source = memoryview(into[::-1].copy())
    opencl.copy_strided_from_host(*region, source, packed, memory.stream)
    content[there] = into[::-1]
    assert (memory.read() == content).all()

    other = make(nbytes).write(np.zeros(nbytes, "u1"))
    target = side(0, other.data, 0, shape, (outer, inner), run)
    opencl.copy_strided(*target, *region, memory.stream)
    got = other.read()
    assert (got[there] == content[there]).all()
    assert got.sum() == content[there].sum()
    commands = sum(layer[kind] for kind in kinds) - sum(before)
    assert commands <= 3 * shape[0] + 5


def test_many_short_runs_are_few_commands(opencl, layer, make, simulated):
    """16 of the million that a reader of other drivers feared 1,024 submissions for.

    One command; or one read of the whole span.
    """
    count = 4096 if simulated else 1 << 20
    content = np.arange(2 * count, dtype="u4")
    memory = make(content.nbytes).write(content)
    into = np.zeros(count, "u4")
    before = layer["rectangles"], layer["reads"]
    gaps, packed = side(0, memory.data, 0, (count,), (8,), 4), Region((count,), (4,), 4)
    opencl.copy_strided_to_host(*gaps, memoryview(into).cast("B"), packed, memory.stream)
    after = layer["rectangles"], layer["reads"]
    assert (into == content[::2]).all()
    assert sum(after) - sum(before) == 1


TIGHT = """
import ctypes, os, traceback
import numpy as np
import dlbridge as bridge

layer = ctypes.CDLL(os.environ["OPENCL_LAYERS"])
layer.layer_get.restype = ctypes.c_long

def to_the_host(there, content):
    got = bridge.to_device(there[..., 4096:], "cpu", copy=True).numpy()
    assert (got == content[..., 4096:]).all()

def from_the_host(there, content):
    content[..., 4096:] = 7
    bridge.copy_(there[..., 4096:], content[..., 4096:])
    assert (bridge.to_device(there, "cpu", copy=True).numpy() == content).all()

def on_the_device(there, content):
    got = bridge.to_device(there[..., 4096:], "opencl:0", copy=True)
    assert (bridge.to_device(got, "cpu", copy=True).numpy() == content[..., 4096:]).all()

for planes in (1, 3):
    for copy in (to_the_host, from_the_host, on_the_device):
        content = np.random.default_rng(0).integers(0, 256, (planes, 16, 8192), "u1")
        there = bridge.to_device(content, "opencl:0", copy=True)
        before = layer.layer_get(b"refused")
        try:
            copy(there, content)
            assert layer.layer_get(b"refused") > before, "the driver accepts it: nothing is shown"
        except Exception:
            print(copy.__name__, planes, traceback.format_exc())
"""


@pytest.mark.parametrize("kind", [{}, {"gpu": 1, "unified": 0}], ids=["cpu", "gpu"])
def test_rectangles_that_the_driver_refuses_are_copied_in_parts(script, kind):
    """NVIDIA's driver refuses some that OpenCL allows: the copy was a DeviceError."""
    assert script(TIGHT, tight=1, **kind) == ""
