"""The kernel of the demo and of the doctor on SYCL devices."""

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.diagnosis import kernels


@pytest.mark.parametrize("radius", [0, 1, 4])
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 14, 3), (70, 65, 3)])
def test_the_blur(oneapi, shape, radius):
    image = np.random.default_rng(1).integers(0, 256, shape, "u1")
    source = bridge.to_device(image, "oneapi:0", copy=True)
    target = bridge.empty(shape, "uint8", "oneapi:0")
    kernels.KERNELS["oneapi"](source, target, radius)
    values = bridge.to_device(target, "cpu", like="numpy")
    assert np.array_equal(values, kernels.by_numpy(image, radius))
