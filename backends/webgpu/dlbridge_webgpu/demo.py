"""The demo's filter, a box blur of an image, in WGSL."""

from __future__ import annotations

import struct
from typing import Any

from .devices import Place, Slot

__all__ = ["box_blur"]

SOURCE = """
struct Size { begin_in: u32, begin_out: u32, height: u32, width: u32, channels: u32, radius: u32 }
@group(0) @binding(0) var<storage, read> image: array<u32>;
@group(0) @binding(1) var<storage, read_write> blurred: array<u32>;
@group(0) @binding(2) var<uniform> size: Size;

fn mean(index: u32) -> u32 {
    let pixel = vec2u(index / size.channels % size.width, index / size.channels / size.width);
    let first = max(pixel, vec2u(size.radius)) - size.radius;
    let last = min(pixel + size.radius, vec2u(size.width, size.height) - 1);
    let count = (last.x - first.x + 1) * (last.y - first.y + 1);
    var sum = count / 2;
    for (var y = first.y; y <= last.y; y++) {
        for (var x = first.x; x <= last.x; x++) {
            let at = (y * size.width + x) * size.channels + index % size.channels + size.begin_in;
            sum += image[at / 4] >> (at % 4 * 8) & 255;
        }
    }
    return sum / count;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let word = size.begin_out / 4 + id.y * groups.x * 64 + id.x;
    let end = size.begin_out + size.height * size.width * size.channels;
    for (var at = max(word * 4, size.begin_out); at < min(word * 4 + 4, end); at++) {
        let shift = at % 4 * 8;  // bytes outside the image stay
        blurred[word] = (blurred[word] & ~(255u << shift)) | (mean(at - size.begin_out) << shift);
    }
}
"""


def box_blur(slot: Slot, target: Place, source: Place, shape: Any, radius: int) -> None:
    """Submit the blur of *source* into *target*."""
    device, nbytes = slot.device, shape[0] * shape[1] * shape[2]
    if slot.pipeline is None:
        module = device.create_shader_module(code=SOURCE)
        slot.pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module})
    bound = []  # where every device can; the shader adds the rest
    for buffer, offset in (source, target):
        size = (offset % 256 + nbytes + 3) // 4 * 4
        bound.append({"buffer": buffer, "offset": offset // 256 * 256, "size": size})
    sizes = struct.pack("=8I", source[1] % 256, target[1] % 256, *shape, radius, 0, 0)
    bound.append({"buffer": device.create_buffer_with_data(data=sizes, usage="UNIFORM")})
    entries = [{"binding": number, "resource": each} for number, each in enumerate(bound)]
    layout = slot.pipeline.get_bind_group_layout(0)
    encoder = device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(slot.pipeline)
    work.set_bind_group(0, device.create_bind_group(layout=layout, entries=entries))
    work.dispatch_workgroups(min(nbytes // 256 + 1, 65535), nbytes // 256 // 65535 + 1)
    work.end()
    slot.submit(encoder)
