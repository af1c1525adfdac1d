"""The kernels of the demo and of the doctor: to the byte what a blur pixel by pixel gives."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.diagnosis import kernels
from tests.support.expected_parts import backend_or_skip


def pixel_by_pixel(image, radius):
    blurred = np.empty_like(image)
    for y, x in np.ndindex(image.shape[:2]):
        rows, columns = (slice(max(n - radius, 0), n + radius + 1) for n in (y, x))
        around = image[rows, columns].reshape(-1, image.shape[2])
        blurred[y, x] = (around.sum(0, dtype="u4") + len(around) // 2) // len(around)
    return blurred


@pytest.mark.parametrize("radius", [0, 1, 4, 20])
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 14, 3), (3, 40, 4), (70, 65, 3)])
def test_by_numpy(shape, radius):
    image = np.random.default_rng(0).integers(0, 256, shape, "u1")
    assert np.array_equal(kernels.by_numpy(image, radius), pixel_by_pixel(image, radius))


# oneAPI's driver is chosen by a variable of its own tests: backends/oneapi/tests/test_kernels.py.
@pytest.mark.parametrize("name", sorted(kernels.KERNELS.keys() - {"oneapi"}))
@pytest.mark.parametrize("reads", [kernels.READS, 4000])
def test_on_each_device(name, reads, monkeypatch):
    backend_or_skip(name)
    monkeypatch.setattr(kernels, "READS", reads)  # by Vulkan the image is cut into pieces
    for shape in [(1, 1, 1), (9, 14, 3), (3, 40, 4), (70, 65, 3)]:
        image = np.random.default_rng(1).integers(0, 256, shape, "u1")
        for radius in (0, 1, 4):
            expected = kernels.by_numpy(image, radius)
            for device in bridge.devices(name):
                source = bridge.to_device(image, device, copy=True)
                target = bridge.empty(shape, "uint8", device)
                kernels.KERNELS[name](source, target, radius)
                found = bridge.to_device(target, "cpu", like="numpy")
                assert np.array_equal(found, expected), (device, shape, radius)
                assert np.array_equal(bridge.to_device(source, "cpu", like="numpy"), image)
