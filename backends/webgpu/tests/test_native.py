"""GPUBuffers in and out, and WGSL kernels on the memory of tensors."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from dlbridge_webgpu import WebGPUArray

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from tests.support.scripts import run_script

TWICE = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&x)) { x[id.x] *= 2; }
}
"""


def run(device, source, *bindings):
    """Submit a kernel with one thread for each of 1024 elements."""
    module = device.create_shader_module(code=source)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module})
    entries = [{"binding": n, "resource": each} for n, each in enumerate(bindings)]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, group)
    work.dispatch_workgroups(16)
    work.end()
    device.queue.submit([encoder.finish()])


def on_host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True).numpy()


@pytest.mark.parametrize(
    "make", [lambda t: t.to_native(), lambda t: bridge.to_device(t, t.device, like="webgpu")]
)
def test_a_kernel_runs_on_a_tensor_without_a_wait(webgpu, make):
    tensor = bridge.to_device(np.arange(1000, dtype="float32"), "webgpu:0")
    array = make(tensor)
    assert (array.offset, array.shape, array.dtype) == (0, (1000,), "float32")
    run(array.device, TWICE, {"buffer": array.buffer, "offset": 0, "size": 4000})
    assert np.array_equal(on_host(tensor), 2 * np.arange(1000, dtype="float32"))


def test_a_kernel_runs_on_a_view_that_begins_where_the_device_can_bind(webgpu, device):
    tensor = bridge.to_device(np.arange(1000, dtype="float32"), "webgpu:0")
    unit = device.limits["min-storage-buffer-offset-alignment"]
    view = tensor[unit // 4 : 2 * unit // 4].to_native()
    run(device, TWICE, {"buffer": view.buffer, "offset": view.offset, "size": unit})
    want = np.arange(1000, dtype="float32")
    want[unit // 4 : 2 * unit // 4] *= 2
    assert np.array_equal(on_host(tensor), want)


def test_later_copies_come_after_the_kernel(webgpu, device):
    """Upload, kernel, copy on the device, kernel, download: nothing is waited for in between."""
    source = np.arange(1024, dtype="float32")
    first, second = (bridge.empty(1024, "float32", "webgpu:0") for _ in "12")
    for _ in range(20):
        bridge.copy_(first, source)
        for tensor, other in ((first, second), (second, first)):
            run(device, TWICE, {"buffer": tensor.to_native().buffer})
            bridge.copy_(other, tensor)
        assert np.array_equal(on_host(first), 4 * source)


def test_a_buffer_of_ours_outlives_its_tensor(webgpu):
    tensor = bridge.to_device(np.arange(64, dtype="uint8"), "webgpu:0")
    buffer = tensor.to_native().buffer
    gc.collect()
    before = webgpu.live_allocations()
    del tensor
    gc.collect()
    assert webgpu.live_allocations() == before - 1
    others = [bridge.zeros(64, "uint8", "webgpu:0") for _ in range(50)]
    assert bytes(buffer._device.queue.read_buffer(buffer)) == bytes(range(64))
    assert np.array_equal(on_host(bridge.asarray(buffer)), np.arange(64))
    del others


def test_a_buffer_of_wgpu_is_a_tensor_on_its_memory(webgpu, gpu_buffer):
    buffer = gpu_buffer(bytes(range(16)))
    tensor = bridge.asarray(buffer)
    assert (str(tensor.device), str(tensor.dtype), tensor.shape) == ("webgpu:0", "uint8", (16,))
    assert not tensor.readonly
    bridge.copy_(tensor[3:6], np.full(3, 99, "uint8"))  # not a whole word at either end
    want = [0, 1, 2, 99, 99, 99, *range(6, 16)]
    assert list(buffer._device.queue.read_buffer(buffer)) == want


def test_data_is_the_address_of_the_wgpu_buffer(webgpu, gpu_buffer):
    from wgpu.backends.wgpu_native import ffi

    buffer = gpu_buffer(bytes(16))
    assert bridge.asarray(buffer)[4:].operand().data == int(ffi.cast("uintptr_t", buffer._internal))
    assert bridge.asarray(buffer)[4:].operand().byte_offset == 4


def test_two_tensors_on_one_buffer_are_one_memory(webgpu, gpu_buffer):
    buffer = gpu_buffer(bytes(16))
    first, second = bridge.asarray(buffer), bridge.asarray(WebGPUArray(buffer, "float32", (4,)))
    del buffer
    bridge.copy_(second, np.ones(4, "float32"))
    del second
    gc.collect()
    assert on_host(first).view("float32").tolist() == [1, 1, 1, 1]


def test_a_buffer_with_a_layout_is_a_tensor_of_any_kind(webgpu, gpu_buffer):
    content = np.arange(24, dtype="float32")
    buffer = gpu_buffer(content.tobytes())
    array = WebGPUArray(buffer, "float32", (3, 4), offset=8, strides=(24, 4), readonly=True)
    tensor = bridge.asarray(array)
    assert (tensor.shape, tensor.readonly, str(tensor.device)) == ((3, 4), True, "webgpu:0")
    assert np.array_equal(on_host(tensor), content.reshape(4, 6)[:3, 2:])
    beyond = bridge.asarray(WebGPUArray(buffer, "float32", (25,)))
    with pytest.raises(ExchangeError, match="outside the 96"):
        on_host(beyond)


def test_a_handle_of_a_buffer_that_is_gone_is_refused(webgpu, gpu_buffer):
    data = bridge.asarray(gpu_buffer(bytes(16))).operand().data
    gc.collect()
    with pytest.raises(ExchangeError, match="not memory that webgpu knows"):
        webgpu.import_data(0, data, "somebody.else")


def test_a_buffer_that_copies_cannot_write_is_read_only(webgpu, gpu_buffer):
    tensor = bridge.asarray(gpu_buffer(bytes(range(16)), "STORAGE|COPY_SRC"))
    assert tensor.readonly
    assert tensor.to_native().readonly
    assert on_host(tensor).tolist() == list(range(16))
    with pytest.raises((ExchangeError, ValueError), match="read-only"):
        bridge.copy_(tensor, np.zeros(16, "uint8"))


def test_a_buffer_that_cannot_be_read_or_is_mapped_is_refused(webgpu, device, gpu_buffer):
    with pytest.raises(ExchangeError, match="COPY_SRC"):
        bridge.asarray(gpu_buffer(bytes(16), "STORAGE|COPY_DST"))
    mapped = device.create_buffer(size=16, usage="MAP_WRITE|COPY_SRC", mapped_at_creation=True)
    with pytest.raises(ExchangeError, match=r"is mapped; call its unmap\(\) first"):
        bridge.asarray(mapped)
    mapped.unmap()
    assert bridge.asarray(mapped).shape == (16,)


def test_a_buffer_that_is_mapped_under_a_tensor(webgpu, device):
    """wgpu-native ends the process where such a buffer is submitted: that is not done."""
    buffer = device.create_buffer(size=16, usage="MAP_WRITE|COPY_SRC")
    tensor = bridge.asarray(buffer)
    buffer.map_sync("WRITE")
    with pytest.raises(ExchangeError, match="is mapped"):
        on_host(tensor)
    buffer.write_mapped(bytes(range(16)))
    buffer.unmap()
    assert on_host(tensor).tolist() == list(range(16))


def test_nothing_at_all(webgpu, device):
    empty = bridge.asarray(device.create_buffer(size=0, usage="STORAGE|COPY_SRC"))
    assert empty.shape == (0,)
    assert on_host(empty).shape == (0,)
    native = bridge.empty((0, 3), "float32", "webgpu:0").to_native()
    assert (native.buffer.size, native.shape, native.dtype) == (0, (0, 3), "float32")
    assert bridge.asarray(native).shape == (0, 3)


def test_a_buffer_of_an_odd_size(webgpu, device):
    """Bytes are copied in words; the last ones of such a buffer are no word."""
    tensor = bridge.asarray(device.create_buffer(size=6, usage="STORAGE|COPY_SRC|COPY_DST"))
    bridge.copy_(tensor[1:3], np.array([7, 8], "uint8"))
    assert on_host(tensor[:4]).tolist() == [0, 7, 8, 0]
    with pytest.raises(
        ExchangeError, match=r"outside of the whole units of 4 bytes.* in a buffer of 6"
    ):
        on_host(tensor)
    with pytest.raises(ExchangeError, match="outside of the whole units"):
        bridge.copy_(tensor, np.ones(6, "uint8"))
    assert on_host(tensor[:4]).tolist() == [0, 7, 8, 0]  # nothing was written


def test_a_device_of_the_user_gets_a_number_of_its_own(webgpu, device, gpu_buffer):
    mine = device.adapter.request_device_sync()
    buffer = gpu_buffer(bytes(range(16)), on=mine)
    count = webgpu.device_count()
    tensor = bridge.asarray(buffer)
    assert tensor.device.index == count == webgpu.device_count() - 1
    assert bridge.asarray(gpu_buffer(bytes(4), on=mine)).device == tensor.device
    assert webgpu.device_count() == count + 1
    there = bridge.to_device(np.arange(8, dtype="float32"), tensor.device)
    assert there.to_native().device is mine
    moved = bridge.to_device(there, "webgpu:0")
    assert moved.to_native().device is device
    assert on_host(moved).tolist() == list(range(8))
    bridge.copy_(tensor[1:5], bridge.to_device(np.full(4, 50, "uint8"), "webgpu:0"))
    assert on_host(tensor).tolist() == [0, 50, 50, 50, 50, *range(5, 16)]


def test_a_buffer_is_recognised_before_the_backend_is_loaded(webgpu):
    """By the description that the package enters; the backend is loaded then."""
    code = (
        "import sys, dlbridge\n"
        "assert 'wgpu' not in sys.modules and 'dlbridge_webgpu' not in sys.modules\n"
        "import wgpu\n"
        "device = wgpu.gpu.request_adapter_sync().request_device_sync()\n"
        "buffer = device.create_buffer_with_data(data=b'abcd', usage='STORAGE|COPY_SRC')\n"
        "print(bytes(dlbridge.to_device(dlbridge.asarray(buffer), 'cpu').tolist()))\n"
    )
    assert run_script(code) == "b'abcd'\n"


def test_numpy_is_told_the_way_to_the_elements():
    array = bridge.ones(3, device="webgpu:0").to_native()
    with pytest.raises(TypeError, match=r"to_device\(x, 'cpu', like='numpy'\)"):
        np.asarray(array)
    assert bridge.to_device(array, "cpu", like="numpy").tolist() == [1, 1, 1]
