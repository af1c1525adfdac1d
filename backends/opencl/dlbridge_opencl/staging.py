"""Large copies between the host and a device with memory of its own, through pinned memory.

A bus moves memory that the driver has pinned (CL_MEM_ALLOC_HOST_PTR, mapped), and
the driver itself copies other memory there first. Two pieces of pinned memory
take turns: the host fills or empties one while the bus moves the other (NVIDIA's
OpenCL best practices guide, "Pinned Memory"). Not confirmed on hardware.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from . import devices, queues
from .forking import in_child, inherited, never_released
from .mappings import Mapping

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PIECE", "THRESHOLD", "download", "is_worth_it", "read", "release_unused", "upload"]

PIECE = 4 << 20
"""Bytes in one piece of pinned memory."""

THRESHOLD = 256 << 10
"""Bytes above which a copy goes through pinned memory. Drivers have a fast way for small ones."""


class _Piece:
    """Pinned memory, and the last command that uses it. It is unmapped when it is dropped."""

    def __init__(self, context: cl.Context, queue: cl.CommandQueue) -> None:
        flags = cl.mem_flags
        self.buffer = cl.Buffer(context, flags.READ_WRITE | flags.ALLOC_HOST_PTR, size=PIECE)
        # It stays mapped: no kernel uses the buffer, it is only a source and target for the bus.
        both = cl.map_flags.READ | cl.map_flags.WRITE
        self.last: cl.Event | None = None
        self.array: np.ndarray[Any, Any]
        self.array, _ = cl.enqueue_map_buffer(
            queue, self.buffer, both, 0, (PIECE,), np.uint8, is_blocking=True
        )
        self._mapping = Mapping(self.array.base, queue)

    def wait(self) -> None:
        """Wait for the last command, after which the host may use the memory."""
        if self.last is not None:
            self.last.wait()
            self.last = None

    def __del__(self) -> None:
        mapping = getattr(self, "_mapping", None)
        if mapping is None:  # it could not be mapped
            return
        try:
            if not in_child():
                self.wait()
                mapping.unmap()
        except cl.Error:  # as of a lost context
            pass
        finally:
            if not mapping.events:
                mapping.keep()


_Pair = tuple[_Piece, _Piece]

# A copy takes a pair, or makes one if other threads use them all, and puts it back.
# A pair whose copy failed is not put back. At its end the process keeps them.
_unused: dict[tuple[int, cl.Context], deque[_Pair]] = never_released(inherited({}))


def is_worth_it(device_id: int) -> bool:
    """Whether a copy of more than `THRESHOLD` bytes goes through pinned memory."""
    chosen = devices.device(device_id)
    return not chosen.shares_memory and chosen.thread_safe


def upload(
    device_id: int, queue: cl.CommandQueue, buffer: cl.MemoryObject, offset: int, source: memoryview
) -> None:
    """Copy *source* to *buffer*; it has been read on return, though the copy may not be done."""
    content = np.frombuffer(source, "u1")
    pair = _take(device_id, queue.context)
    for turn, start in enumerate(range(0, len(content), PIECE)):
        piece = pair[turn % 2]
        piece.wait()
        part = content[start : start + PIECE]
        staged = piece.array[: len(part)]
        np.copyto(staged, part)
        piece.last = cl.enqueue_copy(
            queue, buffer, staged, dst_offset=offset + start, is_blocking=False
        )
        queue.flush()
    _put_back(device_id, queue.context, pair)


def download(
    device_id: int, queue: cl.CommandQueue, buffer: cl.MemoryObject, offset: int, into: memoryview
) -> None:
    """Copy ``len(into)`` bytes of *buffer* to the host; done on return."""
    target = np.frombuffer(into, "u1")

    def use(start: int, part: np.ndarray[Any, Any]) -> None:
        np.copyto(target[start : start + len(part)], part)

    read(device_id, queue, buffer, offset, len(target), use)


def read(
    device_id: int,
    queue: cl.CommandQueue,
    buffer: cl.MemoryObject,
    offset: int,
    nbytes: int,
    use: Callable[[int, np.ndarray[Any, Any]], None],
) -> None:
    """Call ``use(start, part)`` for all parts of the bytes, in order; *part* is pinned memory."""
    pair = _take(device_id, queue.context)
    for piece in pair:
        piece.wait()  # an earlier upload

    def finish(start: int) -> None:
        piece = pair[start // PIECE % 2]
        piece.wait()
        use(start, piece.array[: min(PIECE, nbytes - start)])

    for start in range(0, nbytes, PIECE):
        if start >= 2 * PIECE:
            finish(start - 2 * PIECE)
        piece = pair[start // PIECE % 2]
        staged = piece.array[: min(PIECE, nbytes - start)]
        piece.last = cl.enqueue_copy(
            queue, staged, buffer, src_offset=offset + start, is_blocking=False
        )
        queue.flush()
    last = (nbytes - 1) // PIECE * PIECE
    for start in range(max(0, last - PIECE), nbytes, PIECE):
        finish(start)
    _put_back(device_id, queue.context, pair)


def _take(device_id: int, context: cl.Context) -> _Pair:
    try:
        return _unused[device_id, context].pop()  # atomic, as other threads may do the same
    except LookupError:
        queue = queues.service(device_id, context)
        return _Piece(context, queue), _Piece(context, queue)


def _put_back(device_id: int, context: cl.Context, pair: _Pair) -> None:
    _unused.setdefault((device_id, context), deque()).append(pair)
    # A pair keeps its context alive. list() is one step, as other threads may do the same.
    for oldest in list(_unused)[: -queues.CONTEXTS_KEPT]:
        _release(oldest)


def release_unused(device_id: int) -> None:
    """Release the pinned memory of the device that no copy uses now."""
    for key in list(_unused):  # one step, as above
        if key[0] == device_id:
            _release(key)


def _release(key: tuple[int, cl.Context]) -> None:
    for pieces in _unused.pop(key, ()):
        for piece in pieces:
            piece.wait()  # no command refers to the buffer: it is host memory to them
