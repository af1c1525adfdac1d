"""The memory types of each Vulkan device, and where tensors of several sizes get their memory.

python tests/hardware/vulkan_memory.py
"""

from __future__ import annotations

import dlbridge as bridge

SIZES = (16, 1000, 1 << 20, 40 << 20, 200 << 20)
"""Bytes."""


def main() -> None:
    """Print a line for each type, and one for each size."""
    backend = bridge.backend("vulkan")
    for index in range(backend.device_count()):
        device = backend.devices[index]
        print(f"vulkan:{index} {device.physical.name}, {device.physical.kind}")
        for number, (flags, heap, size) in enumerate(device.physical.memory_types):
            print(f"  type {number}: flags {flags:#x}, heap {heap} of {size >> 20} MiB")
        for heap in device.heaps:
            kind = heap.kind
            print(f"  for tensors: type {kind.index}, mapped {kind.mapped}, cached {kind.cached}")
        kept = []
        for nbytes in SIZES:
            kept.append(backend.allocate(index, nbytes, 256, 0))
            buffer = device.table[kept[-1].data]
            where = device.heaps.index(buffer.heap)
            print(f"  {nbytes} bytes: heap {where}, mapped {bool(buffer.mapped)}")
        for heap in device.heaps:
            try:
                block = heap._new(64 << 20)  # private: why a type has no room
                print(f"  64 MiB of type {heap.kind.index}: mapped {bool(block.mapped)}")
            except Exception as exc:
                print(f"  64 MiB of type {heap.kind.index}: {type(exc).__name__}: {exc}")


if __name__ == "__main__":
    main()
