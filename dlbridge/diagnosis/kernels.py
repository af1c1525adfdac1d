"""A box blur of an image on each kind of device, launched as its users launch kernels.

Each function takes two tensors of a device, uint8 of shape (height, width, channels). A pixel
becomes the mean of the ``2 * radius + 1`` squared pixels around it, as far as they are inside the
image, halves rounded up.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dlbridge as bridge

if TYPE_CHECKING:
    import numpy as np

    Image = np.ndarray[Any, np.dtype[np.uint8]]

OPENCL_C = """
/* sums[y, x, c] = the sum of source[y, x - radius .. x + radius, c] inside the image. */
__kernel void along_rows(__global const uchar *source, __global uint *sums,
                         ulong offset, int width, int channels, int radius)
{
    const size_t start = get_global_id(0) * width * channels + get_global_id(1);
    source += offset;
    uint sum = 0;
    for (int x = 0; x < min(radius, width); ++x)
        sum += source[start + x * channels];
    for (int x = 0; x < width; ++x) {
        if (x + radius < width) sum += source[start + (x + radius) * channels];
        if (x - radius > 0) sum -= source[start + (x - radius - 1) * channels];
        sums[start + x * channels] = sum;
    }
}

/* target[y, x, c] = the mean over the square, of the sums of its rows. */
__kernel void down_columns(__global const uint *sums, __global uchar *target,
                           ulong offset, int height, int width, int channels, int radius)
{
    const int x = get_global_id(0);
    const size_t start = x * channels + get_global_id(1), row = (size_t)width * channels;
    const uint columns = min(x + radius, width - 1) - max(x - radius, 0) + 1;
    target += offset;
    uint sum = 0;
    for (int y = 0; y < min(radius, height); ++y)
        sum += sums[start + y * row];
    for (int y = 0; y < height; ++y) {
        if (y + radius < height) sum += sums[start + (y + radius) * row];
        if (y - radius > 0) sum -= sums[start + (y - radius - 1) * row];
        const uint count = columns * (min(y + radius, height - 1) - max(y - radius, 0) + 1);
        target[start + y * row] = (sum + count / 2) / count;
    }
}
"""
"""Running sums along the rows, then down the columns: a few steps for each pixel and every radius,
so that a simulator needs seconds only."""

WGSL = """
struct Size { height: u32, width: u32, channels: u32, radius: u32 }
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
            let at = (y * size.width + x) * size.channels + index % size.channels;
            sum += image[at / 4] >> (at % 4 * 8) & 255;
        }
    }
    return sum / count;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let first = 4 * (id.y * groups.x * 64 + id.x);
    let end = size.height * size.width * size.channels;
    var word = 0u;
    for (var at = first; at < min(first + 4, end); at++) { word |= mean(at) << (at % 4 * 8); }
    if first < end { blurred[first / 4] = word; }
}
"""

READS = 1 << 27
"""Bytes that one dispatch of Vulkan reads."""


def by_numpy(image: Image, radius: int) -> Image:
    """The blur on the host, by differences of running sums."""
    import numpy as np

    def sums(values: Any) -> Any:
        for axis in (0, 1):
            values = np.moveaxis(values, axis, 0)
            running = np.concatenate([np.zeros_like(values[:1]), values.cumsum(0)])
            places = np.arange(len(values))
            high = np.minimum(places + radius + 1, len(values))
            values = running[high] - running[np.maximum(places - radius, 0)]
            values = np.moveaxis(values, 0, axis)
        return values

    total, count = sums(image.astype("int64")), sums(np.ones(image.shape, "int64"))
    blurred: Image = ((total + count // 2) // count).astype("u1")
    return blurred


def by_opencl(source: bridge.Tensor, target: bridge.Tensor, radius: int) -> None:
    """Build for the context of the pyopencl arrays, and run on their queue."""
    import numpy as np
    import pyopencl as cl

    height, width, channels = source.shape
    sums = bridge.empty(source.shape, "uint32", source.device)
    arrays: list[Any] = [tensor.to_native() for tensor in (source, sums, target)]
    image, between, blurred = arrays
    size = [np.int32(extent) for extent in (height, width, channels, radius)]
    program = cl.Program(image.context, OPENCL_C).build()
    program.along_rows(
        image.queue, (height, channels), None,
        image.base_data, between.base_data, np.uint64(image.offset), *size[1:],
    )  # fmt: skip
    program.down_columns(
        image.queue, (width, channels), None,
        between.base_data, blurred.base_data, np.uint64(blurred.offset), *size,
    )  # fmt: skip


def by_oneapi(source: bridge.Tensor, target: bridge.Tensor, radius: int) -> None:
    """Let dpctl compile the OpenCL C for the device's queue."""
    from dpctl.memory import as_usm_memory
    from dpctl.program import create_program_from_source

    height, width, channels = source.shape
    sums = bridge.empty(source.shape, "uint32", source.device)
    image, between, blurred = (as_usm_memory(each.to_native()) for each in (source, sums, target))
    size = [ctypes.c_int32(extent) for extent in (height, width, channels, radius)]
    queue = bridge.backend("oneapi").queue(source.device.index)
    program = create_program_from_source(queue, OPENCL_C)
    # SYCL counts its axes from the other end.
    rows, columns = (program.get_sycl_kernel(name) for name in ("along_rows", "down_columns"))
    start = ctypes.c_uint64(0)
    first = queue.submit(rows, [image, between, start, *size[1:]], [channels, height])
    queue.submit(columns, [between, blurred, start, *size], [channels, width], dEvents=[first])
    queue.wait()  # for the kernels; what dlbridge frees waits for its own work only


def by_vulkan(source: bridge.Tensor, target: bridge.Tensor, radius: int) -> None:
    """Run a compute shader, in pieces: systems reset a GPU whose dispatch takes seconds."""
    spirv = Path(__file__).with_name("box_blur.spv").read_bytes()  # of box_blur.comp beside it
    blur = bridge.backend("vulkan").kernel(
        spirv, buffers=2, push_nbytes=32, device_id=source.device.index
    )
    step = max(256, READS // (2 * radius + 1) ** 2 // 4 * 4)
    for begin in range(0, source.nbytes, step):
        end = min(begin + step, source.nbytes)
        groups = -(-(end - begin) // 256)  # of 64 words
        push = struct.pack("=IIiiiiII", 0, 0, *source.shape, radius, begin, end)
        blur(source, target, groups=(min(groups, 1024), -(-groups // 1024)), push=push)
    blur.close()


def by_webgpu(source: bridge.Tensor, target: bridge.Tensor, radius: int) -> None:
    """Submit a compute pass on the `wgpu.GPUDevice` of the tensors."""
    arrays: list[Any] = [source.to_native(), target.to_native()]
    device = arrays[0].device
    module = device.create_shader_module(code=WGSL)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module})
    nbytes = -(-source.nbytes // 4) * 4
    bound = [{"buffer": it.buffer, "offset": it.offset, "size": nbytes} for it in arrays]
    sizes = struct.pack("=4I", *source.shape, radius)
    bound.append({"buffer": device.create_buffer_with_data(data=sizes, usage="UNIFORM")})
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[{"binding": number, "resource": each} for number, each in enumerate(bound)],
    )
    encoder = device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, group)
    groups = -(-nbytes // 256)  # of 64 words
    work.dispatch_workgroups(min(groups, 1024), -(-groups // 1024))
    work.end()
    device.queue.submit([encoder.finish()])


KERNELS = {"opencl": by_opencl, "oneapi": by_oneapi, "vulkan": by_vulkan, "webgpu": by_webgpu}
"""By the name of the device."""
