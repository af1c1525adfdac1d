"""What users write: S2, zero copies and the one copy that was predicted, two devices."""

import struct

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.errors import DeviceError, ExchangeError


@pytest.fixture
def double(vulkan, scale_spirv):
    """``double(tensor)`` by a user's own SPIR-V module."""
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)

    def run(tensor):
        push = struct.pack("=IIf", tensor.size, 1, 2.0)
        kernel(tensor, groups=-(-tensor.size // 64), push=push)

    return run


def test_s2_a_shader_writes_into_torchs_memory(vulkan, double):
    """Page-aligned memory: no byte copied on any way, one address."""
    torch = pytest.importorskip("torch")
    x = torch.from_dlpack(bridge.empty(5000, "float32", alignment=4096))
    x[:] = torch.arange(5000)
    with bridge.trace() as trace:
        g = bridge.to_device(x, "vulkan:0", copy=False)
        double(g)
        with g.host_view() as host:
            assert host.data_ptr() == x.data_ptr()
    assert (trace.nbytes, trace.copies) == (0, 0)
    assert bool((x == 2 * torch.arange(5000)).all())


def test_s2_on_memory_that_lies_badly(vulkan, double):
    """`explain` predicts one copy and says why; that is what happens.

    Where host memory in place is no gain, as on a discrete GPU, that is the reason.
    """
    torch = pytest.importorskip("torch")
    x = torch.arange(1001, dtype=torch.float32)[1:]
    said = bridge.explain(x, "vulkan:0")
    reason = vulkan.host_import_refusal(0, 0, 4, False) or "pointer not page aligned"
    assert f"4000 bytes copied: {reason}" in said
    with pytest.raises(BufferError, match="pointer not page aligned"):
        bridge.to_device(x, "vulkan:0", copy=False)
    with bridge.trace() as trace:
        g = bridge.to_device(x, "vulkan:0")
    assert (trace.nbytes, trace.copies) == (4000, 1)
    double(g)
    mapped = not vulkan.host_view_refusal(0, g.data_ptr())
    y = bridge.to_device(g, "cpu", like="torch", copy=not mapped)  # mapped: a view, no copy
    assert bool((y == 2 * x).all())


def test_a_kernel_in_the_block_of_a_view_is_refused(vulkan, double, views):
    """The host may be writing to the memory; after the block the kernel runs."""
    g = bridge.to_device(np.ones(64, np.float32), "vulkan:0", copy=True)
    with g.host_view() as host:
        with pytest.raises(BufferError, match=r"host view of vulkan:0.*after its block"):
            double(g)
        assert np.from_dlpack(host).tolist() == [1] * 64
    double(g)
    assert bridge.to_device(g, "cpu").tolist() == [2] * 64


def test_a_kernel_on_part_of_a_tensor(vulkan, double):
    """A slice is bound at its offset; one that the device cannot bind is refused."""
    g = bridge.to_device(np.ones(1024, np.float32), "vulkan:0", copy=True)
    double(g[512:768])
    want = np.ones(1024)
    want[512:768] = 2
    assert (bridge.to_device(g, "cpu", like="numpy") == want).all()
    with pytest.raises(ExchangeError, match="begins 4 bytes into its buffer"):
        double(g[1:])


def test_a_kernel_wants_vulkan_memory(vulkan, double):
    with pytest.raises(ExchangeError, match=r"on cpu:0 is not in Vulkan memory.*vulkan:0"):
        double(bridge.empty(4, "float32"))


def test_a_kernel_sees_a_strided_tensor_to_its_last_element(vulkan, double, scale_spirv):
    """The rest of the buffer is another's: it is not bound, and nothing is written there."""
    g = bridge.to_device(np.ones((8, 64), np.float32), "vulkan:0", copy=True)
    view = g[:4, ::2]
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    kernel(view, groups=8, push=struct.pack("=IIf", 512, 1, 2.0))
    want = np.ones(512)
    want[: 3 * 64 + 62 + 1] = 2
    assert (bridge.to_device(g, "cpu", like="numpy").ravel() == want).all()
    with pytest.raises(ExchangeError, match=r"strides \(-64, 1\) run backwards"):
        double(g[::-1])


def test_a_kernel_on_memory_that_is_gone(vulkan, double):
    """Freed by its owner behind the tensor's back: it is not told to be moved to its own device."""
    g = bridge.empty(4, "float32", "vulkan:0")
    known = vulkan.devices.table.pop(g.data_ptr())
    try:
        with pytest.raises(
            DeviceError, match="not a live Vulkan buffer of this process: it was freed"
        ):
            double(g)
    finally:
        vulkan.devices.table[g.data_ptr()] = known


def test_an_empty_tensor_has_no_buffer(vulkan, double):
    """Said as it is, and not that it were elsewhere or freed."""
    g = bridge.to_device(np.ones(4, np.float32), "vulkan:0", copy=True)
    with pytest.raises(ExchangeError, match=r"of shape \(0,\) has no bytes, and no buffer"):
        double(g[0:0])
    with pytest.raises(ExchangeError, match=r"of shape \(0, 3\) has no bytes, and no buffer"):
        bridge.empty((0, 3), "float32", "vulkan:0").to_native()
