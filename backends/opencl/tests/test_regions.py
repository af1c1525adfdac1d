"""Strided copies: inside one buffer, and of many short runs."""

from __future__ import annotations

import random

import numpy as np
import pyopencl as cl
import pytest

SIZE = 4096


def positions(offset, strides, shape, run):
    """The bytes of a region, in the order of the copy."""
    starts = offset + np.zeros((1,), "i8")
    for count, step in zip(shape, strides, strict=True):
        starts = (starts[:, None] + np.arange(count) * step).reshape(-1)
    return (starts[:, None] + np.arange(run)).reshape(-1)


def layouts(number, apart):
    """Pairs of regions without common bytes; *apart*: nor does one reach into the other's span."""
    chance, found = random.Random(number), []
    while len(found) < number:
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
            found.append((sides, shape, run, there, here))
    return found


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "interleaved"])
def test_regions_of_one_buffer(opencl, make, apart):
    """Any two without common bytes: OpenCL's own command refuses most of them."""
    memory = make(SIZE)
    for sides, shape, run, there, here in layouts(150, apart):
        content = np.random.default_rng(run).integers(0, 256, SIZE, "u1")
        memory.write(content)
        (offset, strides), (start, steps) = sides
        opencl.copy_strided(
            0, memory.data, offset, strides, memory.data, start, steps, shape, run, memory.stream
        )
        content[there] = content[here]
        assert (memory.read() == content).all(), (sides, shape, run)


def test_regions_of_two_parts_of_one_buffer(opencl, context):
    """Sub-buffers, which OpenCL treats as the buffer that they are parts of."""
    content = np.random.default_rng(0).integers(0, 256, SIZE, "u1")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    whole = cl.Buffer(context, flags, hostbuf=content)
    part = whole.get_sub_region(0, 2048)
    opencl.copy_strided(0, part.int_ptr, 0, (64,), whole.int_ptr, 4, (32,), (20,), 4, 0)
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
def test_pitches_that_do_not_divide_each_other(opencl, layer, make, case, simulated):
    """A few commands, and not one for each row."""
    shape, run, inner, outer = RAGGED[case]
    nbytes = outer * shape[0]
    content = np.random.default_rng(0).integers(0, 256, nbytes, "u1")
    memory, packed = make(nbytes).write(content), [run * shape[1], run]
    there = positions(0, (outer, inner), shape, run)
    kinds = ("rectangles", "kernels", "reads", "writes")
    before = [layer[kind] for kind in kinds]

    into = np.zeros(len(there), "u1")
    region = (memory.data, 0, (outer, inner))
    opencl.copy_strided_to_host(0, *region, memoryview(into), packed, shape, run, memory.stream)
    assert (into == content[there]).all()

    source = memoryview(into[::-1].copy())
    opencl.copy_strided_from_host(0, *region, source, packed, shape, run, memory.stream)
    content[there] = into[::-1]
    assert (memory.read() == content).all()

    other = make(nbytes).write(np.zeros(nbytes, "u1"))
    opencl.copy_strided(0, other.data, 0, (outer, inner), *region, shape, run, memory.stream)
    got = other.read()
    assert (got[there] == content[there]).all()
    assert got.sum() == content[there].sum()
    commands = sum(layer[kind] for kind in kinds) - sum(before)
    assert commands < 12 or simulated


def test_many_short_runs_are_one_command(opencl, layer, make, simulated):
    """16 of the million that a reader of other drivers feared 1,024 submissions for."""
    count = 4096 if simulated else 1 << 20
    content = np.arange(2 * count, dtype="u4")
    memory = make(content.nbytes).write(content)
    into = np.zeros(count, "u4")
    before = layer["rectangles"], layer["reads"], layer["kernels"]
    opencl.copy_strided_to_host(
        0, memory.data, 0, (8,), memoryview(into).cast("B"), (4,), (count,), 4, memory.stream
    )
    after = layer["rectangles"], layer["reads"], layer["kernels"]
    assert (into == content[::2]).all()
    assert sum(after) - sum(before) == 1


SHORT = """
import ctypes, os
import numpy as np
import dlbridge as bridge

layer = ctypes.CDLL(os.environ["OPENCL_LAYERS"])
layer.layer_get.restype = ctypes.c_long
def commands():
    return {name: layer.layer_get(name.encode()) for name in ("rectangles", "kernels")}

x = np.arange(600 * 1000, dtype="f4").reshape(600, 1000)
for view in (np.s_[:, ::2], np.s_[::3, ::7], np.s_[:, 5:6]):
    there = bridge.to_device(x, "opencl:0", copy=True)[view]
    before = commands()
    assert (bridge.to_device(there, "cpu", copy=True).numpy() == x[view]).all()
    y = np.zeros_like(x)
    target = bridge.to_device(y, "opencl:0", copy=True)
    bridge.copy_(target[view], np.ascontiguousarray(x[view]))
    y[view] = x[view]
    assert (bridge.to_device(target, "cpu", copy=True).numpy() == y).all()
    again = bridge.to_device(there, "opencl:0", copy=True)
    assert (bridge.to_device(again, "cpu", copy=True).numpy() == x[view]).all()
    after = commands()
    assert after["rectangles"] == before["rectangles"], (view, before, after)
    assert 2 <= after["kernels"] - before["kernels"] <= 3, (view, before, after)
"""


def test_short_runs_of_gpus_are_copied_by_a_kernel(script):
    """By the host where the span is at most four times the bytes."""
    script(SHORT, gpu=1, unified=0)
