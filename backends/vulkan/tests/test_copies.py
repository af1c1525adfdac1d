"""Copies and fills beyond the kit: chunk borders, overlaps, many regions, two devices."""

import random
import tracemalloc

import numpy as np
import pytest
from dlbridge_vulkan import copies
from dlbridge_vulkan.device import CHUNK

from backends.vulkan.tests.held_buffers import allocate, free, read, write
from dlbridge.protocol import Region, Span
from dlbridge.testing import side

SEED = 5


def noise(nbytes):
    return random.Random(SEED).randbytes(nbytes)


# Strided


@pytest.mark.parametrize("itemsize", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("limit", [7, 1000])
def test_a_transposed_image_both_ways(each, monkeypatch, itemsize, limit):
    """Few regions per command, so that there are many commands; odd runs.

    With more runs than that the host takes part, where the target has no gaps.
    """
    monkeypatch.setattr(copies, "MAX_REGIONS", limit)
    backend, rows, columns = each.backend, 9, 11
    image = np.frombuffer(noise(rows * columns * itemsize), f"V{itemsize}").reshape(rows, columns)
    flat = image.tobytes()
    row = (columns * itemsize, itemsize)
    turned = (itemsize, rows * itemsize)  # of the transposed target
    want = image.T.tobytes()
    shape = (rows, columns)
    source, target = each.of(flat), each.of(bytes(len(flat)))
    backend.copy_strided(
        *side(0, target, 0, shape, turned, itemsize), *side(0, source, 0, shape, row, itemsize), 0
    )
    assert each.bytes(target, len(flat)) == want
    target = each.of(bytes(len(flat)))
    backend.copy_strided_from_host(
        *side(0, target, 0, shape, turned, itemsize),
        memoryview(flat),
        Region(shape, row, itemsize),
        0,
    )
    assert each.bytes(target, len(flat)) == want
    into = bytearray(len(flat))
    backend.copy_strided_to_host(
        *side(0, source, 0, shape, row, itemsize),
        memoryview(into),
        Region(shape, turned, itemsize),
        0,
    )
    backend.synchronize(0, 0)
    assert into == want


def test_runs_longer_than_a_chunk(each):
    """A run that does not fit a slot of the ring is copied by itself."""
    run, gap = CHUNK + 5, 11
    content = noise(3 * (run + gap))
    source, target = each.of(content), each.of(bytes(3 * run))
    strides, packed = (run + gap,), (run,)
    want = b"".join(content[i * (run + gap) :][:run] for i in range(3))
    each.backend.copy_strided(
        *side(0, target, 0, (3,), packed, run), *side(0, source, 0, (3,), strides, run), 0
    )
    assert each.bytes(target, 3 * run) == want
    into = bytearray(3 * run)
    each.backend.copy_strided_to_host(
        *side(0, source, 0, (3,), strides, run), memoryview(into), Region((3,), packed, run), 0
    )
    assert into == want
    target = each.of(bytes(3 * run))
    each.backend.copy_strided_from_host(
        *side(0, target, 0, (3,), packed, run), memoryview(content), Region((3,), strides, run), 0
    )
    assert each.bytes(target, 3 * run) == want


def test_far_runs_are_read_without_what_lies_between(staged):
    """20,000 runs, a page apart: 80 MB of host memory for 20 kB, once there were many."""
    count, step = 20_000, 4096
    data = allocate(staged, 0, count * step, 256, 0)
    copies.fill(staged.devices.buffer(data), 0, count * step, 7)
    into = memoryview(bytearray(count))
    tracemalloc.start()
    try:
        there = side(0, data, 0, (count,), (step,), 1)
        staged.copy_strided_to_host(*there, into, Region((count,), (1,), 1), 0)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert bytes(into) == b"\7" * count
    free(staged, 0, data, 0)


# Two devices


@pytest.mark.parametrize("direction", ["into mapped", "out of mapped"])
def test_between_mapped_and_unmapped_memory(vulkan, second, monkeypatch, direction):
    """One side through its ring, straight to the other side's memory."""
    content = noise(3 * CHUNK)
    a = allocate(vulkan, 0, len(content), 16, 0)
    b = allocate(vulkan, second, len(content), 16, 0)
    write(vulkan, a, content)
    hidden = vulkan.devices.buffer(a if direction == "into mapped" else b)
    monkeypatch.setattr(hidden, "mapped", 0)
    monkeypatch.setattr(hidden, "cached", False)
    vulkan.copy(Span(second, b, 0, len(content)), Span(0, a, 0, len(content)), 0)
    vulkan.synchronize(second, 0)
    got = read(vulkan, b, len(content), device_id=second)
    assert got == content
    free(vulkan, 0, a, 0)
    free(vulkan, second, b, 0)


def test_memory_that_is_written_directly_and_read_by_staging(vulkan, tensors, monkeypatch):
    """A discrete GPU with a resizable BAR: mapped, and not cached."""
    content = noise(CHUNK + 7)
    data = tensors.new(len(content))
    if not tensors.allocation(data).mapped:
        pytest.skip(vulkan.host_view_refusal(0, data))
    monkeypatch.setattr(tensors.allocation(data), "cached", False)
    write(vulkan, data, content)
    before = vulkan.devices[0].queue.submitted
    assert tensors.bytes(data, len(content)) == content
    assert vulkan.devices[0].queue.submitted > before
    assert "uncached" in vulkan.host_view_refusal(0, data)
