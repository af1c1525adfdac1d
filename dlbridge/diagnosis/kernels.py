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

_CODE = Path(__file__).with_name("box_blur")
"""The kernels in the language of each device, beside this file."""

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
    program = cl.Program(image.context, _CODE.with_suffix(".cl").read_text()).build()
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
    program = create_program_from_source(queue, _CODE.with_suffix(".cl").read_text())
    # SYCL counts its axes from the other end.
    rows, columns = (program.get_sycl_kernel(name) for name in ("along_rows", "down_columns"))
    start = ctypes.c_uint64(0)
    first = queue.submit(rows, [image, between, start, *size[1:]], [channels, height])
    queue.submit(columns, [between, blurred, start, *size], [channels, width], dEvents=[first])
    queue.wait()  # for the kernels; what dlbridge frees waits for its own work only


def by_vulkan(source: bridge.Tensor, target: bridge.Tensor, radius: int) -> None:
    """Run a compute shader, in pieces: systems reset a GPU whose dispatch takes seconds."""
    spirv = _CODE.with_suffix(".spv").read_bytes()  # of box_blur.comp beside it
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
    module = device.create_shader_module(code=_CODE.with_suffix(".wgsl").read_text())
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
