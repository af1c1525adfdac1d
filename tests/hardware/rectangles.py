"""Which rectangles does this OpenCL driver refuse? A table, for the first device.

Two of the columns are what a rule may look at: how far the last row, with its whole
pitch, would reach beyond the end of the buffer, and how many bytes are copied.
"""

from __future__ import annotations

import numpy as np
import pyopencl as cl

CASES = [
    (rows, width, pitch, slack)
    for rows, width, pitch in [(16, 4096, 8192), (4, 64, 208), (4, 512, 1024), (2, 4096, 8192),
                               (16, 64, 8192), (16, 4096, 4352), (256, 256, 512)]
    for slack in (0, 1, pitch - width)
]  # fmt: skip
"""Rows, bytes of each, bytes between their beginnings, bytes of the buffer behind the last."""


def status(enqueue: object, *arguments: object, **keywords: object) -> str:
    """What a command gives."""
    try:
        enqueue(*arguments, **keywords)  # type: ignore[operator]
    except cl.Error as exc:
        return str(cl.status_code.to_string(exc.code, "status %d"))
    return "accepted"


def main() -> None:
    """Print one line for each case: to the device, to the host, on the device."""
    device = cl.get_platforms()[0].get_devices()[0]
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    print(f"{device.name}, {device.version}, driver {device.driver_version}")
    print("rows width pitch slack beyond bytes: write, write of packed rows, read, copy")
    for rows, width, pitch, slack in CASES:
        size = (rows - 1) * pitch + width + slack
        buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, size=size) for _ in range(2)]
        host, packed = np.zeros(size, "u1"), np.zeros(rows * width, "u1")
        zero, region = (0, 0, 0), (width, rows, 1)
        both = {"buffer_origin": zero, "host_origin": zero, "region": region}
        both |= {"buffer_pitches": (pitch, 0), "host_pitches": (pitch, 0)}
        sides = {"src_origin": zero, "dst_origin": zero, "region": region}
        sides |= {"src_pitches": (pitch, 0), "dst_pitches": (pitch, 0)}
        said = [
            status(cl.enqueue_copy, queue, buffers[0], host, **both),
            status(cl.enqueue_copy, queue, buffers[0], packed, **both | {"host_pitches": (0, 0)}),
            status(cl.enqueue_copy, queue, host, buffers[0], **both),
            status(cl.enqueue_copy, queue, buffers[1], buffers[0], **sides),
        ]
        queue.finish()
        print(rows, width, pitch, slack, rows * pitch - size, rows * width, "", *said)


if __name__ == "__main__":
    main()
