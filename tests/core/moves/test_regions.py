"""Regions that a backend is asked to copy in one call: no runs of one side overlap."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from counting_backend import Counting
from dlbridge_fake import Array

import dlbridge as bridge
from dlbridge.core.plugins import registry
from dlbridge.protocol import NativeArray

NAME = "ext_dev"

NBYTES = 400


class Asked(Counting):
    """Fails where a region is not as the contract says."""

    regions = 0

    def _region(self, region):
        extent, inner = region.run_nbytes, 0
        for count, stride in reversed(list(zip(region.shape, region.strides, strict=True))):
            assert stride >= extent, f"runs overlap: {region}"
            assert stride >= inner, f"the strides do not descend: {region}"
            extent, inner = extent + (count - 1) * stride, stride
        assert extent == region.extent
        self.regions += 1

    def copy_strided(self, target, target_region, source, source_region, stream):
        self._region(target_region)
        self._region(source_region)
        super().copy_strided(target, target_region, source, source_region, stream)

    def copy_strided_from_host(self, target, target_region, source, source_region, stream):
        self._region(target_region)
        self._region(source_region)
        super().copy_strided_from_host(target, target_region, source, source_region, stream)

    def copy_strided_to_host(self, source, source_region, into, into_region, stream):
        self._region(source_region)
        self._region(into_region)
        super().copy_strided_to_host(source, source_region, into, into_region, stream)


@pytest.fixture
def plugin(monkeypatch):
    plugin = Asked()
    monkeypatch.setitem(registry.LOADED, NAME, plugin)
    monkeypatch.setattr("dlbridge.core.moves.regions.CALL", 0)  # calls cost nothing: all are made
    yield plugin
    gc.collect()
    assert plugin.live_allocations() == 0


def on_device(plugin, content, shape, strides):
    """A tensor of bytes on the device whose elements may share bytes, and its values."""
    whole = bridge.to_device(content, f"{NAME}:0", copy=True)
    data = whole.operand().data
    array = NativeArray(0, data, 0, "uint8", shape, strides, readonly=False, owner=whole)
    values = np.lib.stride_tricks.as_strided(content, shape, strides)
    return bridge.asarray(Array(array), device=f"{NAME}:0"), values


def test_windows_are_copied(plugin):
    """Overlapping windows: the runs of one row are read again by the next."""
    content = np.random.default_rng(1).integers(0, 255, NBYTES).astype("u1")
    windows, values = on_device(plugin, content, (30, 10), (4, 1))
    assert np.array_equal(bridge.to_device(windows, "cpu").numpy(), values)
    copied = bridge.to_device(windows, f"{NAME}:0", copy=True)
    assert np.array_equal(bridge.to_device(copied, "cpu").numpy(), values)
    rows, values = on_device(plugin, content, (10, 30, 4), (13, 7, 1))
    target = bridge.empty(rows.shape, "uint8", f"{NAME}:0")
    bridge.copy_(target, rows)
    assert np.array_equal(bridge.to_device(target, "cpu").numpy(), values)


@pytest.mark.parametrize("seed", range(20))
def test_random_layouts(plugin, seed):
    """Whatever the strides, the elements are right and no region of a call overlaps itself."""
    random = np.random.default_rng(seed)
    content = random.integers(0, 255, NBYTES).astype("u1")
    for _ in range(10):
        ndim = int(random.integers(1, 4))
        shape = tuple(int(n) for n in random.integers(1, 6, ndim))
        strides = tuple(int(n) for n in random.integers(1, 25, ndim))
        tensor, values = on_device(plugin, content, shape, strides)
        assert np.array_equal(bridge.to_device(tensor, "cpu", copy=True).numpy(), values)
        target = bridge.zeros((*shape, 2), "uint8", f"{NAME}:0")[..., 0]
        bridge.copy_(target, tensor)
        assert np.array_equal(bridge.to_device(target, "cpu").numpy(), values)
        bridge.copy_(target, 255 - values)
        assert np.array_equal(bridge.to_device(target, "cpu").numpy(), 255 - values)
    assert plugin.regions
