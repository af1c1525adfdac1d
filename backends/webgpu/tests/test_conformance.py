"""The conformance kit on this machine's first WebGPU device."""

from __future__ import annotations

import struct

from wgpu.backends.wgpu_native import ffi, lib

from dlbridge.protocol import NativeArray
from dlbridge.testing import BackendTests

SLOW = """
@group(0) @binding(0) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(1) fn main() {
    var x = out[0] | 1;
    for (var i = 0; i < 60000; i++) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }
    out[0] = x;
}
"""
GROUPS = 400
"""Each takes 60,000 steps: llvmpipe ends a shader's loops after 65,535."""


class TestWebGPU(BackendTests):
    name = "webgpu"
    without_package = "wgpu"

    def slow_work(self, backend, device_id, stream):
        nothing = NativeArray(device_id, 0, 0, "uint8", (0,), None, readonly=False, owner=None)
        device = backend.to_native(nothing).device
        out = device.create_buffer_with_data(data=struct.pack("=I", 1), usage="STORAGE|COPY_SRC")
        done = device.create_buffer(size=4, usage="MAP_READ|COPY_DST")
        pipeline = device.create_compute_pipeline(
            layout="auto", compute={"module": device.create_shader_module(code=SLOW)}
        )
        entries = [{"binding": 0, "resource": {"buffer": out}}]
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        encoder = device.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(pipeline)
        work.set_bind_group(0, group)
        work.dispatch_workgroups(GROUPS)
        work.end()
        encoder.copy_buffer_to_buffer(out, 0, done, 0, 4)
        device.queue.submit([encoder.finish()])
        # Not wgpu's map_async: its thread hears of the end first, and says so a moment later.
        told = []
        callback = ffi.callback("WGPUBufferMapCallback", lambda *answer: told.append(answer))
        info = {"mode": lib.WGPUCallbackMode_AllowProcessEvents, "callback": callback}
        lib.wgpuBufferMapAsync(done._internal, lib.WGPUMapMode_Read, 0, 4, info)
        return told, device, done, callback

    def is_done(self, backend, device_id, stream, work):
        lib.wgpuDevicePoll(work[1]._internal, False, ffi.NULL)
        return bool(work[0])

    def make_native(self, backend, device_id, content):
        nothing = NativeArray(device_id, 0, 0, "uint8", (0,), None, readonly=False, owner=None)
        device = backend.to_native(nothing).device
        return device.create_buffer_with_data(data=content, usage="COPY_SRC|COPY_DST")

    def lose_device(self, backend, device_id):
        """A new device is opened by the next allocation."""
        nothing = NativeArray(device_id, 0, 0, "uint8", (0,), None, readonly=False, owner=None)
        backend.to_native(nothing).device.destroy()
        return True
