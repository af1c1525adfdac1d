"""Times copies between host and a device: dlbridge, its driver's own binding, memcpy.

    python tests/benchmarks/copies.py opencl [device_id]        or oneapi, vulkan, webgpu

It prints the table and writes it to docs/benchmarks/NAME-copy.md. Run it with nothing else on the
machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge as bridge
from dlbridge.protocol import Span
from tests.benchmarks.copy_table import CopyTable, Ways

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
KIB, MIB = 1 << 10, 1 << 20
MEMCPY = "*memcpy* is `numpy.copyto` on the host."
COPY = "*dlbridge* is `dlbridge.copy_` between existing tensors"


def on_host(nbytes: int) -> tuple[bridge.Tensor, Any, Callable[[], None]]:
    """Touched memory as a tensor and as its array, and a memcpy of it."""
    host, other = (bridge.empty(nbytes, "uint8") for _ in range(2))
    array, into = host.numpy(), other.numpy()
    array[:], into[:] = 1, 2
    return host, array, lambda: np.copyto(into, array)


def opencl(device_id: int) -> None:
    """Beside the ways that one can write with pyopencl alone."""
    import pyopencl as cl

    plugin: Any = bridge.backend("opencl")
    info = plugin.device_info(device_id)
    stream = plugin.current_stream(device_id)
    queue = cl.CommandQueue.from_int_ptr(stream, True)

    def ways(nbytes: int, direction: str) -> Ways:
        host, array, memcpy = on_host(nbytes)
        there = bridge.zeros(nbytes, "uint8", f"opencl:{device_id}")
        data = there.data_ptr()
        buffer = cl.Buffer.from_int_ptr(data, True)
        to_device = direction == "to the device"
        ends = (there, host) if to_device else (host, there)
        given = (buffer, array) if to_device else (array, buffer)
        call = plugin.copy_from_host if to_device else plugin.copy_to_host
        access = cl.map_flags.WRITE_INVALIDATE_REGION if to_device else cl.map_flags.READ

        def backend() -> None:
            call(Span(device_id, data, 0, nbytes), array.data, stream)
            plugin.synchronize(device_id, stream)

        def later() -> None:
            event = cl.enqueue_copy(queue, *given, is_blocking=False)
            queue.finish()
            del event

        def mapped() -> None:
            view, _ = cl.enqueue_map_buffer(queue, buffer, access, 0, array.shape, array.dtype)
            np.copyto(*((view, array) if to_device else (array, view)))
            view.base.release(queue)
            queue.finish()

        return {
            "dlbridge": lambda: bridge.copy_(*ends),
            "backend": backend,
            "memcpy": memcpy,
            "pyopencl: blocking": lambda: cl.enqueue_copy(queue, *given),
            "pyopencl: finish": later,
            "pyopencl: map": mapped,
        }

    most = min(info["memory"] // 2, info["max_allocation"])
    CopyTable(
        "opencl",
        "Copies between host and OpenCL device",
        f"{info['name']} ({info['platform']}, driver {info['driver']})",
        f"{COPY}, with all that it checks; *backend* is the backend's own call under it. "
        "*pyopencl* is the fastest of a blocking `enqueue_copy`, one that is waited for with "
        f"`finish`, and map, memcpy and unmap. {MEMCPY}",
        ("dlbridge", "backend", "pyopencl", "memcpy"),
        ("pyopencl", "memcpy"),
        ("pyopencl",),
    ).write(
        BENCHMARKS / "opencl-copy.md",
        [n for n in (64, 4 * KIB, MIB, 64 * MIB, 1024 * MIB) if n <= most],
        ways,
    )


def oneapi(device_id: int) -> None:
    """Beside the best of dpctl."""
    import dpctl
    import dpctl.memory

    plugin: Any = bridge.backend("oneapi")
    info, where = plugin.device_info(device_id), f"oneapi:{device_id}"
    queue = plugin.queue(device_id)
    own = dpctl.SyclQueue(queue.sycl_device, property="in_order")

    def ways(nbytes: int, direction: str) -> Ways:
        host, array, memcpy = on_host(nbytes)
        memory = dpctl.memory.MemoryUSMDevice(nbytes, queue=queue)
        there = bridge.asarray(memory)
        memory.memset(3)
        to_device = direction == "to the device"
        ends = (there, host) if to_device else (host, there)
        given = (memory, array) if to_device else (array, memory)
        method = memory.copy_from_host if to_device else memory.copy_to_host

        def in_order() -> None:
            with bridge.use_stream(where, own):
                bridge.copy_(*ends)

        return {
            "dlbridge": lambda: bridge.copy_(*ends),
            "own queue": in_order,
            "dpctl: method": lambda: method(array),
            "dpctl: memcpy": lambda: queue.memcpy(*given, nbytes),
            "memcpy": memcpy,
        }

    CopyTable(
        "oneapi",
        "Copies between host and SYCL device",
        f"{info['name']} ({info['filter']}, driver {info['driver']})",
        f"{COPY}, on the device's default queue, with all that it checks; *own queue* is the "
        "same on an in-order queue. *dpctl* is the faster of "
        f"`MemoryUSMDevice.copy_from_host` (`copy_to_host`) and `SyclQueue.memcpy`. {MEMCPY}",
        ("dlbridge", "own queue", "dpctl", "memcpy"),
        ("dpctl", "memcpy"),
        ("dpctl",),
    ).write(BENCHMARKS / "oneapi-copy.md", [64, 4 * KIB, MIB, 64 * MIB, 1024 * MIB], ways)


def vulkan(device_id: int) -> None:
    """Memory as it is mapped and staged."""
    from dlbridge_vulkan import Vulkan

    mapped, staged = Vulkan(), Vulkan(staged=True)
    info, where = mapped.device_info(device_id), f"vulkan:{device_id}"

    def ways(nbytes: int, direction: str) -> Ways:
        host, _array, memcpy = on_host(nbytes)
        here, there = (bridge.zeros(nbytes, "uint8", where) for _ in range(2))

        def ours() -> None:
            if direction == "to the host":
                bridge.copy_(host, there)
            else:
                bridge.copy_(there, host if direction == "to the device" else here)
                bridge.synchronize(where)

        return {
            "dlbridge": ours,
            "backend": way_of(mapped, nbytes, direction),
            "staged": way_of(staged, nbytes, direction),
            "memcpy": memcpy,
        }

    def way_of(backend: Vulkan, nbytes: int, direction: str) -> Callable[[], None]:
        source, target = (backend.allocate(device_id, nbytes, 256, 0) for _ in range(2))
        array = np.ones(nbytes, "u1")
        span = Span(device_id, source.data, source.offset, nbytes)

        def copy(_held: object = (source, target)) -> None:
            if direction == "to the device":
                backend.copy_from_host(span, array.data, 0)
            elif direction == "to the host":
                backend.copy_to_host(span, array.data, 0)
            else:
                backend.copy(Span(device_id, target.data, target.offset, nbytes), span, 0)
            backend.synchronize(device_id, 0)

        return copy

    shared = "mapped memory" if info["host_memory_shared"] else "memory that is not mapped"
    CopyTable(
        "vulkan",
        "Copies between host and Vulkan memory",
        f"{info['name']} ({info['driver']}), {info['kind']}, {shared}",
        f"{COPY}, with all that it checks; *backend* is the backend's own call under it, with "
        "the wait; *staged* is the same through the ring for memory that is not mapped "
        f"(`DLBRIDGE_VULKAN_STAGED=1`). {MEMCPY}",
        ("dlbridge", "backend", "staged", "memcpy"),
        ("memcpy",),
    ).write(
        BENCHMARKS / "vulkan-copy.md",
        [64, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB],
        ways,
        ("to the device", "to the host", "inside the device"),
    )


def webgpu(device_id: int) -> None:
    """Beside plain wgpu."""
    plugin: Any = bridge.backend("webgpu")
    info, where = plugin.device_info(device_id), f"webgpu:{device_id}"

    def ways(nbytes: int, direction: str) -> Ways:
        host, array, memcpy = on_host(nbytes)
        there = bridge.zeros(nbytes, "uint8", where)
        native = there.to_native()
        queue, buffer = native.device.queue, native.buffer
        fence = native.device.create_buffer(size=4, usage="COPY_SRC")

        def upload() -> None:
            bridge.copy_(there, host)
            bridge.synchronize(where)

        def write() -> None:
            queue.write_buffer(buffer, 0, array)
            queue.read_buffer(fence)  # submits, and waits

        def read() -> None:
            array[:] = np.frombuffer(queue.read_buffer(buffer), "u1")

        to_device = direction == "to the device"
        return {
            "dlbridge": upload if to_device else lambda: bridge.copy_(host, there),
            "wgpu": write if to_device else read,
            "memcpy": memcpy,
        }

    CopyTable(
        "webgpu",
        "Copies between host and WebGPU device",
        f"{info['name']} ({info['backend_type']}, {info['description']})",
        f"{COPY}, with all that it checks, and `dlbridge.synchronize` after an upload. *wgpu* "
        "is `queue.write_buffer`, submitted and waited for, and `queue.read_buffer`, whose "
        f"result is copied to the same place. {MEMCPY}",
        ("dlbridge", "wgpu", "memcpy"),
        ("wgpu", "memcpy"),
        ("wgpu",),
    ).write(
        BENCHMARKS / "webgpu-copy.md",
        [n for n in (64, 4 * KIB, MIB, 64 * MIB, 256 * MIB) if n <= info["max_buffer_size"]],
        ways,
    )


if __name__ == "__main__":
    measure = {each.__name__: each for each in (opencl, oneapi, vulkan, webgpu)}[sys.argv[1]]
    measure(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
