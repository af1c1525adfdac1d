"""Views whose elements share bytes: a backend is never asked to copy runs that overlap.

Such are numpy's sliding windows and broadcasts, and what other libraries export.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dlbridge_fake import Array, Fake
from numpy.lib.stride_tricks import as_strided

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from dlbridge.extending import copy_elements
from dlbridge.protocol import NativeArray

NAME = "runs_of_a_test"
DEVICE, OTHER = f"{NAME}:0", f"{NAME}:1"


class Strict(Fake):
    """Refuses the regions that `dlbridge.protocol.Region` rules out, and counts the others."""

    def __init__(self):
        super().__init__()
        self.regions = 0

    def check(self, *sides):
        self.regions += 1
        for nbytes, (shape, strides, run_nbytes) in sides:
            assert 1 <= len(shape) == len(strides) <= self.max_strided_ndim
            assert min(shape) >= 1
            extent, inner = run_nbytes, 0
            for length, stride in zip(reversed(shape), reversed(strides), strict=True):
                assert stride >= extent, (shape, strides, run_nbytes)
                assert stride >= inner, "the strides do not descend"
                extent, inner = extent + (length - 1) * stride, stride
            assert nbytes == extent

    def copy_strided(self, target, target_region, source, source_region, stream):
        self.check((target.nbytes, target_region), (source.nbytes, source_region))
        super().copy_strided(target, target_region, source, source_region, stream)

    def copy_strided_from_host(self, target, target_region, source, source_region, stream):
        self.check((target.nbytes, target_region), (len(source), source_region))
        super().copy_strided_from_host(target, target_region, source, source_region, stream)

    def copy_strided_to_host(self, source, source_region, into, into_region, stream):
        self.check((source.nbytes, source_region), (len(into), into_region))
        super().copy_strided_to_host(source, source_region, into, into_region, stream)


@pytest.fixture
def strict(register):
    return register(NAME, Strict)


BYTES = np.random.default_rng(0).integers(0, 256, 4096, "u1")

LAYOUTS = {
    # shape, strides in elements
    "sliding windows": ((30, 5), (1, 1)),
    "windows in steps": ((10, 5), (3, 1)),
    "windows of every second": ((10, 5), (3, 2)),
    "rows that overlap in part": ((6, 40), (24, 1)),
    "a number repeated": ((7,), (0,)),
    "a row repeated": ((4, 9), (0, 1)),
    "a column repeated": ((9, 4), (2, 0)),
    "two equal strides": ((5, 6), (7, 7)),
    "planes that interleave": ((2, 5, 3), (8, 4, 1)),
    "planes that overlap": ((3, 4, 5), (10, 6, 1)),
    "the middle one repeated": ((3, 4, 5), (20, 0, 2)),
    "backwards, overlapping": ((6, 4), (-2, 1)),
}


def on_device(array, where):
    """The strided *array*, with all bytes that it lies in, as a tensor on a device."""
    low, high = np.lib.array_utils.byte_bounds(array)
    start = array.ctypes.data
    whole = np.frombuffer((np.ctypeslib.ctypes.c_ubyte * (high - low)).from_address(low), "u1")
    memory = bridge.to_device(whole, where)
    held = NativeArray(
        memory.device.index, memory.operand().data, start - low, array.dtype.name,
        array.shape, array.strides, False, memory,
    )  # fmt: skip
    return bridge.asarray(Array(held), device=where), memory


def content(tensor):
    return bridge.to_device(tensor, "cpu", copy=True).numpy()


def layout(name, dtype):
    """A view of `BYTES` with these strides, somewhere in the middle."""
    shape, strides = LAYOUTS[name]
    size = np.dtype(dtype).itemsize
    start = BYTES.copy()[1000 - 1000 % size :].view(dtype)
    if min(strides) < 0:
        start = start[40:]
    return as_strided(start, shape, [step * size for step in strides])


REPEATED = [name for name, (_, strides) in LAYOUTS.items() if 0 in strides]


@pytest.mark.parametrize("place", ["cpu", DEVICE, OTHER])
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in REPEATED])
def test_as_the_target(strict, name, place):
    """Of the elements that share bytes, one is there in the end: the last one.

    `copy_` refuses such a target, so the copy inside is called.
    """
    there, memory = on_device(layout(name, "u2"), DEVICE)
    new = np.arange(1, 1 + there.size, dtype="u2").reshape(there.shape)
    before = content(memory).copy()
    low = -min(0, sum((n - 1) * s for n, s in zip(*LAYOUTS[name], strict=True) if s < 0)) * 2
    want = as_strided(before[low:].view("u2"), there.shape, [s * 2 for s in LAYOUTS[name][1]])
    for index in itertools.product(*map(range, there.shape)):
        want[index] = new[index]
    copy_elements(there.operand(), bridge.to_device(new, place).operand())
    assert (content(memory) == before).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_elements_that_share_a_place_are_no_target(strict, name):
    there, memory = on_device(layout(name, "u2"), DEVICE)
    before = content(memory).copy()
    with pytest.raises(ExchangeError, match="several elements share one place in memory"):
        bridge.copy_(there, np.zeros(there.shape, "u2"))
    assert (content(memory) == before).all()


def test_rows_apart_are_still_one_call(strict):
    array = np.arange(600, dtype="f4").reshape(10, 6, 10)
    there = bridge.to_device(array, DEVICE)
    assert (content(there[:, :3, 2:7]) == array[:, :3, 2:7]).all()
    assert strict.regions == 1


@pytest.mark.parametrize("calls_cost", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_any_strides(strict, seed, calls_cost, monkeypatch):
    """Where calls cost nothing, the device copies each region itself."""
    if not calls_cost:
        monkeypatch.setattr("dlbridge.core.moves.copies.CALL", 0)
    random = np.random.default_rng(seed)
    for _ in range(40):
        ndim = random.integers(1, 5)
        shape = [int(n) for n in random.integers(1, 5, ndim)]
        strides = [int(n) * 2 for n in random.integers(0, 30, ndim)]
        source = as_strided(BYTES.copy().view("u2"), shape, strides)
        there, _ = on_device(source, DEVICE)
        assert content(there).tobytes() == source.tobytes(), (shape, strides)
        moved = bridge.to_device(there, DEVICE, copy=True)
        assert content(moved).tobytes() == source.tobytes(), (shape, strides)
        target = bridge.zeros((*shape, 2), "uint16", DEVICE)[..., 0]
        for given, want in ((there, source), (65535 - source, 65535 - source)):
            bridge.copy_(target, given)
            assert content(target).tobytes() == want.tobytes(), (shape, strides)
    assert calls_cost or strict.regions
