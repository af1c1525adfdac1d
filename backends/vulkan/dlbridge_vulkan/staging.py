"""The staging ring: host memory through which unmapped device memory is copied.

Chunks go round the ring, so that the host fills or empties one while the device
copies others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

from .host import move
from .library import ffi, load

if TYPE_CHECKING:
    from .memory import Allocation, Heap
    from .queue import Queue

__all__ = ["CHUNK", "Part", "Staging", "copy_regions"]

CHUNK = 4 << 20
SLOTS = 4
# Measured on lavapipe with two busy cores, against memcpy: chunks of 512 KiB 0.47x,
# 1 MiB 0.53x, 2 MiB 0.57x, 4 MiB 0.61x; more slots change nothing.

Part = tuple[Callable[[int], None], Any]
"""What moves a chunk between the host and a slot (called with the slot's
address), and the chunk's regions (a C array of VkBufferCopy; the slot begins at 0)."""


def copy_regions(commands: Any, source: Allocation, target: Allocation, regions: Any) -> None:
    """Record one vkCmdCopyBuffer of all *regions* (a C array of VkBufferCopy)."""
    load().vkCmdCopyBuffer(commands, source.buffer, target.buffer, len(regions), regions)


class Staging:
    """A ring of `SLOTS` buffers of `CHUNK` bytes each. Safe from any thread."""

    def __init__(self, queue: Queue, heap: Heap) -> None:
        self._queue = queue
        self._heap = heap
        self._slots = [heap.allocate(CHUNK, 4096) for _ in range(SLOTS)]
        self._turn = cycle(self._slots)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give the ring back to its heap."""
        for slot in self._slots:
            self._heap.free(slot)

    def upload(self, target: Allocation, offset: int, address: int, nbytes: int) -> None:
        """Copy host memory into *target*. The host memory may change on return."""

        def part(done: int, size: int) -> Part:
            return (
                lambda slot: move(slot, address + done, size),
                ffi.new("VkBufferCopy[1]", [(0, offset + done, size)]),
            )

        self.scatter(target, (part(*chunk) for chunk in _chunks(nbytes)))

    def download(self, source: Allocation, offset: int, address: int, nbytes: int) -> None:
        """Copy *source* into host memory; done on return."""

        def part(done: int, size: int) -> Part:
            return (
                lambda slot: move(address + done, slot, size),
                ffi.new("VkBufferCopy[1]", [(offset + done, 0, size)]),
            )

        self.gather(source, (part(*chunk) for chunk in _chunks(nbytes)))

    def scatter(self, target: Allocation, parts: Iterable[Part]) -> None:
        """For each part: fill a slot, then copy its regions from there to *target*."""
        with self._lock:
            for fill, regions in parts:
                slot = next(self._turn)
                self._queue.wait(slot.last_use)
                fill(slot.mapped)
                self._copy(slot, target, regions)

    def gather(self, source: Allocation, parts: Iterable[Part]) -> None:
        """For each part: copy its regions from *source* to a slot, then empty that."""
        with self._lock:
            coming: deque[tuple[Allocation, int, Callable[[int], None]]] = deque()
            for empty, regions in parts:
                if len(coming) == SLOTS:
                    self._receive(*coming.popleft())
                slot = next(self._turn)
                coming.append((slot, self._copy(source, slot, regions), empty))
            while coming:
                self._receive(*coming.popleft())

    def _copy(self, source: Allocation, target: Allocation, regions: Any) -> int:
        return self._queue.submit(
            lambda commands: copy_regions(commands, source, target, regions), (source, target)
        )

    def _receive(self, slot: Allocation, value: int, empty: Callable[[int], None]) -> None:
        self._queue.wait(value)
        empty(slot.mapped)


def _chunks(nbytes: int) -> Iterator[tuple[int, int]]:
    return ((done, min(CHUNK, nbytes - done)) for done in range(0, nbytes, CHUNK))
