"""What works on the last byte of an OpenCL buffer that is larger than the driver promises.

    python tests/hardware/large_buffer.py

Each case is a process of its own, as a failure loses the context. CL_DEVICE_MAX_MEM_ALLOC_SIZE is
a quarter of the memory with NVIDIA's driver, which accepts larger buffers.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyopencl as cl

SIZES = {"limit": 0, "limit + 1": 1, "limit + 1 MiB": 1 << 20, "limit + 4 GiB": 4 << 30}
WAYS = ("write", "fill", "fill before the limit", "copy", "kernel")
KERNEL = "__kernel void put(__global uchar *x, ulong at) { x[at] = 7; }"


def ask(beyond: int, way: str) -> str:
    """Put 7 into the last byte by *way*, and read it."""
    device = cl.get_platforms()[0].get_devices()[0]
    limit = device.max_mem_alloc_size
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, limit + beyond)
    last = limit + beyond - 1
    seven, into = np.full(1, 7, "u1"), np.zeros(1, "u1")
    steps: dict[str, Any] = {
        "write": lambda: cl.enqueue_copy(queue, buffer, seven, dst_offset=last),
        "fill": lambda: cl.enqueue_fill_buffer(queue, buffer, seven, last, 1),
        "fill before the limit": lambda: cl.enqueue_fill_buffer(queue, buffer, seven, 64, 1),
        "copy": lambda: copied(context, queue, buffer, seven, last),
        "kernel": lambda: (
            cl.Program(context, KERNEL).build().put(queue, (1,), None, buffer, np.uint64(last))
        ),
    }
    steps[way]()
    queue.finish()
    at = 64 if way == "fill before the limit" else last
    cl.enqueue_copy(queue, into, buffer, src_offset=at)
    return "right" if into[0] == 7 else f"wrong: {into[0]}"


def copied(context: Any, queue: Any, buffer: Any, seven: Any, last: int) -> None:
    """The last byte from a small buffer."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    small = cl.Buffer(context, flags, hostbuf=seven)
    cl.enqueue_copy(queue, buffer, small, byte_count=1, dst_offset=last)


def main() -> None:
    """One line for each size and way."""
    for size in SIZES:
        for way in WAYS:
            command = [sys.executable, __file__, size, way]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            last = done.stderr.strip().rpartition("\n")[2]
            print(f"{size}, {way}: {done.stdout.strip() or last}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(ask(SIZES[sys.argv[1]], sys.argv[2]))
    else:
        main()
