"""The end of a process, beyond the kit's scenes."""

from __future__ import annotations

import pytest

from tests.support.scripts import finished

START = """
import sys
import numpy as np
import dlbridge as bridge
tensor = bridge.to_device(np.arange(1000, dtype="float32"), "webgpu:0")
native = tensor.to_native()
device = native.device
"""

SCENES = {
    "a buffer of wgpu is a tensor": """
buffer = device.create_buffer_with_data(data=bytes(64), usage="STORAGE|COPY_SRC|COPY_DST")
sys.modules['kept'] = bridge.asarray(buffer)
""",
    "a device of the user": """
mine = device.adapter.request_device_sync()
buffer = mine.create_buffer_with_data(data=bytes(64), usage="STORAGE|COPY_SRC|COPY_DST")
bridge.to_device(bridge.asarray(buffer), "webgpu:0")
""",
    "a kernel runs": """
module = device.create_shader_module(code='''
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(1) fn main() {
    var x = out[0] | 1;
    for (var i = 0; i < 60000; i++) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; }
    out[0] = x;
}''')
pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module})
entries = [{"binding": 0, "resource": {"buffer": native.buffer}}]
group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
encoder = device.create_command_encoder()
work = encoder.begin_compute_pass()
work.set_pipeline(pipeline)
work.set_bind_group(0, group)
work.dispatch_workgroups(1000)
work.end()
device.queue.submit([encoder.finish()])
""",
    "the device is lost": """
device.destroy()
try:
    bridge.to_device(tensor, "cpu")
except bridge.DeviceLost:
    pass
""",
}


@pytest.mark.parametrize("scene", SCENES)
def test_exit(webgpu, scene):
    done = finished(START + SCENES[scene] + "\nprint('the end')")
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
    for word in ("Traceback", "Exception ignored", "panicked"):
        assert word not in done.stderr, done.stderr
