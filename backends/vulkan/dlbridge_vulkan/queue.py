"""Work for one VkQueue: recording, submission, and waiting by a timeline semaphore.

Every submission gets the next value of one timeline; "is it done?" is a
comparison with the semaphore's counter. Each submission begins with a barrier
against all earlier ones and ends with one towards the host, so work on a queue
is ordered as it was submitted, and host reads after a wait see it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .errors import check
from .library import constant, ffi, load, struct

if TYPE_CHECKING:
    from .memory import Allocation

__all__ = ["Queue"]

IN_FLIGHT = 64
"""Command buffers before a submission waits for the oldest."""

SLICE = 100_000_000
"""Nanoseconds per wait, so that Ctrl-C is answered between two."""


class Queue:
    """One VkQueue of an open VkDevice.

    *lock* guards it (vkQueueSubmit wants that), and with it the command pool.
    Whoever else submits to the same VkQueue must hold it too.
    """

    def __init__(
        self, device: Any, handle: Any, family: int, lock: Any = None, *, shared: bool = False
    ) -> None:
        self.device = device
        self.handle = handle
        self.family = family
        self.lock = lock or threading.Lock()
        self.shared = shared
        """Whether others have the handles, so that they may submit here too."""
        self.submitted = 0
        """The timeline's value after the last submission."""
        self.reached = 0
        """The newest value that is known to be reached; it may be further by now."""
        self._next = 0
        self._lib = lib = load()
        timeline = struct(
            "VkSemaphoreTypeCreateInfo", semaphoreType=constant("VK_SEMAPHORE_TYPE_TIMELINE")
        )
        semaphore = ffi.new("VkSemaphore[1]")
        info = struct("VkSemaphoreCreateInfo", pNext=timeline)
        check(lib.vkCreateSemaphore(device, info, ffi.NULL, semaphore), "vkCreateSemaphore")
        pool = ffi.new("VkCommandPool *")
        info = struct(
            "VkCommandPoolCreateInfo",
            flags=constant("VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT"),
            queueFamilyIndex=family,
        )
        result = lib.vkCreateCommandPool(device, info, ffi.NULL, pool)
        if result < 0:
            lib.vkDestroySemaphore(device, semaphore[0], ffi.NULL)
        check(result, "vkCreateCommandPool")
        self.semaphore = int(semaphore[0])
        self._pool = pool[0]
        self._free: list[Any] = []  # VkCommandBuffer[1]
        self._running: deque[tuple[int, Any]] = deque()
        self._prepare(semaphore)

    def _prepare(self, semaphore: Any) -> None:
        # The structures of every submission, made once: building them anew
        # costs as much as the submission.
        memory = constant("VK_ACCESS_MEMORY_READ_BIT") | constant("VK_ACCESS_MEMORY_WRITE_BIT")
        self._order = struct(
            "VkMemoryBarrier",
            srcAccessMask=constant("VK_ACCESS_MEMORY_WRITE_BIT"),
            dstAccessMask=memory,
        )
        self._publish = struct(
            "VkMemoryBarrier",
            srcAccessMask=constant("VK_ACCESS_MEMORY_WRITE_BIT"),
            dstAccessMask=constant("VK_ACCESS_HOST_READ_BIT")
            | constant("VK_ACCESS_HOST_WRITE_BIT"),
        )
        self._begin = struct(
            "VkCommandBufferBeginInfo",
            flags=constant("VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT"),
        )
        self._value = ffi.new("uint64_t[1]")
        self._semaphore = semaphore
        self._timeline = struct(
            "VkTimelineSemaphoreSubmitInfo",
            signalSemaphoreValueCount=1,
            pSignalSemaphoreValues=self._value,
        )
        self._submission = struct(
            "VkSubmitInfo",
            pNext=self._timeline,
            signalSemaphoreCount=1,
            pSignalSemaphores=semaphore,
        )
        self._commands = constant("VK_PIPELINE_STAGE_ALL_COMMANDS_BIT")
        self._host = constant("VK_PIPELINE_STAGE_HOST_BIT")

    def submit(self, record: Callable[[Any], None], uses: Iterable[Allocation] = ()) -> int:
        """Run what *record* puts into a VkCommandBuffer, after all earlier work.

        The allocations that it *uses* are marked, so that they are neither freed
        nor touched by the host before it is done. The value to `wait` for.
        """
        lib = self._lib
        with self.lock:
            commands = self._take()
            check(lib.vkBeginCommandBuffer(commands[0], self._begin), "vkBeginCommandBuffer")
            try:
                self._barrier(commands[0], self._commands, self._order)
                record(commands[0])
                self._barrier(commands[0], self._host, self._publish)
            except BaseException:
                lib.vkEndCommandBuffer(commands[0])
                self._free.append(commands)
                raise
            check(lib.vkEndCommandBuffer(commands[0]), "vkEndCommandBuffer")
            return self._submit(commands, uses)

    def _submit(self, commands: Any, uses: Iterable[Allocation]) -> int:
        # A value is never used twice, and marked before it is submitted: a
        # KeyboardInterrupt in between leaves a gap, which `wait` can close.
        self._next += 1
        value = self._value[0] = self._next
        marked = [(allocation, allocation.last_use) for allocation in uses]
        for allocation, _ in marked:
            allocation.last_use = value
        self._submission.commandBufferCount = len(commands)
        self._submission.pCommandBuffers = commands
        result = self._lib.vkQueueSubmit(self.handle, 1, self._submission, 0)
        if result < 0:
            # Nobody may wait for a value that never comes: a finalizer that
            # does so while this thread holds the lock would wait for ever.
            for allocation, before in marked:
                allocation.last_use = before
            if len(commands):
                self._free.append(commands)
        check(result, "vkQueueSubmit")
        self.submitted = value
        if len(commands):
            self._running.append((value, commands))
        return value

    def mark(self) -> int:
        """A value that is reached when all work now on the queue is done.

        Work that others submitted counts too, where they can have: a signal
        waits for everything earlier in submission order.
        """
        if not self.shared and self._next == self.submitted:
            return self.submitted
        with self.lock:
            return self._submit(ffi.new("VkCommandBuffer[0]"), ())

    def done(self, value: int) -> bool:
        """Whether the submission *value* is done; does not block."""
        if value <= self.reached:
            return True
        counter = ffi.new("uint64_t *")  # one per call: the threads do not wait for each other
        check(
            self._lib.vkGetSemaphoreCounterValue(self.device, self.semaphore, counter),
            "vkGetSemaphoreCounterValue",
        )
        self.reached = counter[0]
        return bool(value <= self.reached)

    def wait(self, value: int) -> None:
        """Block until the submission *value* is done."""
        if self.done(value):
            return
        if value > self.submitted:  # the gap of an interrupted submission
            value = self.mark()
        values = ffi.new("uint64_t[1]", [value])
        info = struct(
            "VkSemaphoreWaitInfo",
            semaphoreCount=1,
            pSemaphores=self._semaphore,
            pValues=values,
        )
        while check(
            self._lib.vkWaitSemaphores(self.device, info, SLICE), "vkWaitSemaphores"
        ) == constant("VK_TIMEOUT"):
            pass
        self.reached = max(self.reached, value)

    def finish(self) -> None:
        """Block until all work now on the queue is done."""
        if self.shared or self.reached != self._next:
            self.wait(self.mark())

    def close(self) -> None:
        """Destroy what the queue made; no work may be on it."""
        self._lib.vkDestroyCommandPool(self.device, self._pool, ffi.NULL)
        self._lib.vkDestroySemaphore(self.device, self.semaphore, ffi.NULL)

    def _take(self) -> Any:
        """A command buffer that is not in use. The lock is held."""
        while self._running and (self.done(self._running[0][0]) or len(self._running) >= IN_FLIGHT):
            value, commands = self._running.popleft()
            self.wait(value)
            self._free.append(commands)
        if self._free:
            return self._free.pop()
        commands = ffi.new("VkCommandBuffer[1]")
        info = struct("VkCommandBufferAllocateInfo", commandPool=self._pool, commandBufferCount=1)
        check(
            self._lib.vkAllocateCommandBuffers(self.device, info, commands),
            "vkAllocateCommandBuffers",
        )
        return commands

    def _barrier(self, commands: Any, until: int, barrier: Any) -> None:
        self._lib.vkCmdPipelineBarrier(
            commands, self._commands, until, 0, 1, barrier, 0, ffi.NULL, 0, ffi.NULL
        )
