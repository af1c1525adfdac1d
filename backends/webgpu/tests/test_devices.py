"""Devices: which are found, by what name, what is said of them, and their loss."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from dlbridge_webgpu import WebGPU
from dlbridge_webgpu.devices import one_per_gpu

import dlbridge as bridge
from dlbridge.errors import BackendUnavailable, DeviceLost
from dlbridge.protocol import Span
from tests.support.scripts import run_script


def adapter(api, name, kind="DiscreteGPU"):
    return SimpleNamespace(info={"backend_type": api, "device": name, "adapter_type": kind})


@pytest.mark.parametrize(
    ("listed", "kept"),
    [
        ([("Vulkan", "A"), ("OpenGL", "A")], ["A"]),
        ([("OpenGL", "A"), ("Vulkan", "CPU", "CPU"), ("Vulkan", "A")], ["A", "CPU"]),
        ([("Vulkan", "A"), ("D3D12", "A"), ("D3D12", "B", "IntegratedGPU")], ["A", "B"]),
        ([("Vulkan", "A"), ("Vulkan", "A")], ["A", "A"]),
        ([("Vulkan", "A"), ("Metal", "A")], ["A"]),
        ([("OpenGL", "A")], ["A"]),
        ([], []),
    ],
)
def test_a_gpu_of_several_apis_is_one_device(listed, kept):
    adapters = one_per_gpu([adapter(*each) for each in listed])
    assert [each.info["device"] for each in adapters] == kept


def test_the_adapters_limits_are_asked_for(webgpu, device):
    for name in ("max-buffer-size", "max-storage-buffer-binding-size"):
        assert device.limits[name] == device.adapter.limits[name]


def test_without_a_device(webgpu, monkeypatch):
    import wgpu

    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", list)
    with pytest.raises(BackendUnavailable, match="install a GPU's driver"):
        WebGPU()


def test_an_instance_that_the_program_made_is_used(webgpu):
    code = (
        "import wgpu, dlbridge\n"
        "wgpu.gpu.enumerate_adapters_sync()\n"
        "print(dlbridge.zeros(3, 'int32', 'webgpu:0').to_device('cpu').tolist())\n"
    )
    assert run_script(code) == "[0, 0, 0]\n"


USES = {
    "upload": lambda b, span: b.copy_from_host(span, memoryview(bytes(16)), 0),
    "download": lambda b, span: b.copy_to_host(span, memoryview(bytearray(16)), 0),
    "copy": lambda b, span: b.copy(span, span._replace(offset=16), 0),
    "fill": lambda b, span: b.fill(span, 0, 0),
    "fill with a value": lambda b, span: b.fill(span, 1, 0),
    "wait": lambda b, span: b.synchronize(0, 0),
    "native": lambda b, span: b.to_native(b.from_native(keep[0])),
    "import": lambda b, span: b.import_data(0, span.data, "somebody.else"),
}
keep = []


@pytest.mark.parametrize("use", USES)
def test_the_first_use_after_a_loss_says_so(webgpu, use):
    """wgpu-native ends the process where work is submitted to a lost device: that is not done."""
    backend = WebGPU()  # of its own, so that each use is the first
    memory = backend.allocate(0, 32, 4, 0)
    data = memory.data
    span = Span(0, data, 0, 16)
    described = backend.to_native(
        bridge.protocol.NativeArray(0, data, 0, "uint8", (32,), None, readonly=False, owner=None)
    )
    keep[:] = [described]
    described.device.destroy()
    if use in ("native", "import"):  # they do not need the device until its loss is known
        with pytest.raises(DeviceLost):
            backend.synchronize(0, 0)
    with pytest.raises(DeviceLost, match="lost"):
        USES[use](backend, span)
    del memory
    new = backend.allocate(0, 16, 4, 0)
    again = Span(0, new.data, 0, 16)
    backend.copy_from_host(again, memoryview(b"0123456789abcdef"), 0)
    into = bytearray(16)
    backend.copy_to_host(again, memoryview(into), 0)
    assert into == b"0123456789abcdef"
    del new
    assert backend.live_allocations() == 0


def test_a_lost_device_of_the_user(webgpu, device, gpu_buffer):
    mine = device.adapter.request_device_sync()
    buffer = gpu_buffer(bytes(16), on=mine)
    tensor = bridge.asarray(buffer)
    mine.destroy()
    with pytest.raises(DeviceLost):
        bridge.to_device(tensor, "cpu")
    again = bridge.to_device(np.arange(4, dtype="uint8"), tensor.device)
    assert again.to_native().device is not mine
    assert bridge.to_device(again, "cpu").tolist() == [0, 1, 2, 3]
    count = webgpu.device_count()
    for lost in (tensor, buffer):  # and the buffer gets no new number
        with pytest.raises(DeviceLost):
            bridge.to_device(lost, "cpu")
    assert webgpu.device_count() == count
    assert bridge.zeros(3, "int32", "webgpu:0").to_device("cpu").tolist() == [0, 0, 0]


def test_errors_of_wgpu_name_the_device_and_what_was_done(webgpu, gpu_buffer):
    buffer = gpu_buffer(bytes(16))
    tensor = bridge.asarray(buffer)
    buffer.destroy()
    with pytest.raises(bridge.DeviceError, match=r"webgpu:0: copying from the host: .*destroyed"):
        bridge.copy_(tensor, np.ones(16, "uint8"))
    assert bridge.zeros(3, "int32", "webgpu:0").to_device("cpu").tolist() == [0, 0, 0]
