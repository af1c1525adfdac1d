"""Work for one VkQueue: recording, submission, and waiting by a timeline semaphore.

Every submission gets the next value of one timeline; "is it done?" is a
comparison with the semaphore's counter. Each submission begins with a barrier
against all earlier ones and ends with one towards the host, so work on a queue
is ordered as it was submitted, and host reads after a wait see it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

from .library import Objects, check, constant, ffi, handle as number_of, load, struct

__all__ = ["NEVER", "Queue", "Used"]

IN_FLIGHT = 64
"""Command buffers before a submission waits for the oldest."""

SLICE = 100_000_000
"""Nanoseconds per wait, so that Ctrl-C is answered between two."""

NEVER = 1 << 62
"""A value that no submission reaches: waiting for it waits for all work on the queue."""


class Used(Protocol):
    """Memory that submissions use."""

    last_use: int
    """The queue's value after which nothing uses it."""


class Queue:
    """One VkQueue of an open VkDevice.

    *lock* is held for each vkQueueSubmit, which Vulkan allows one thread at a
    time, and it guards the command pool. Whoever else submits to the same
    VkQueue must hold it too. It must be reentrant: a finalizer may submit while
    the same thread records. It is one lock for all devices that are opened here: a finalizer
    may use one while its thread works for another. It is only ever taken by ``with``, which a
    signal handler cannot separate from the release, and nobody waits while holding it.
    """

    def __init__(
        self,
        objects: Objects,
        device: Any,
        handle: Any,
        family: int,
        lock: Any,
        *,
        shared: bool = False,
    ) -> None:
        self.device = device
        self.handle = handle
        self.number = number_of(handle)
        """The handle as an integer, which is a stream of dlbridge."""
        self.family = family
        self.lock = lock
        self.shared = shared
        """Whether others have the handles, so that they may submit here too."""
        self.alive = True
        """False once the device is closed: nothing may be called then."""
        self.submitted = 0
        """The timeline's value after the last submission."""
        self.reached = 0
        """A value that is known to be reached; the queue may be further by now."""
        self._next = 0
        self._lib = load()
        timeline = struct(
            "VkSemaphoreTypeCreateInfo", semaphoreType=constant("VK_SEMAPHORE_TYPE_TIMELINE")
        )
        info = struct("VkSemaphoreCreateInfo", pNext=timeline)
        semaphore = objects.create(device, "Semaphore", info)
        info = struct(
            "VkCommandPoolCreateInfo",
            flags=constant("VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT"),
            queueFamilyIndex=family,
        )
        self._pool = objects.create(device, "CommandPool", info)[0]
        self.semaphore = int(semaphore[0])
        self._free: list[Any] = []  # VkCommandBuffer[1]
        self._running: deque[tuple[int, Any]] = deque()
        self._nothing = ffi.new("VkCommandBuffer[0]")
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

    def submit(self, record: Callable[[Any], None], uses: Iterable[Used] = ()) -> int:
        """Run what *record* puts into a VkCommandBuffer, after all earlier work.

        The memory that it *uses* is marked, so that it is neither freed nor
        touched by the host before the work is done. Returns the value to `wait` for.
        """
        lib, used = self._lib, tuple(uses)
        self._limit()
        with self.lock:
            commands = self._take()
            try:
                check(lib.vkBeginCommandBuffer(commands[0], self._begin), "vkBeginCommandBuffer")
                self._barrier(commands[0], self._commands, self._order)
                record(commands[0])
                self._barrier(commands[0], self._host, self._publish)
            except BaseException:
                lib.vkEndCommandBuffer(commands[0])
                self._free.append(commands)
                raise
            check(lib.vkEndCommandBuffer(commands[0]), "vkEndCommandBuffer")
            return self._submit(commands, used)

    def _submit(self, commands: Any, used: tuple[Used, ...]) -> int:
        """VkQueueSubmit with the next value; the lock is held.

        A finalizer may submit while this prepares: then all is prepared again
        with a later value. From the comparison to the call there is no place
        where Python runs finalizers, signal handlers or other threads: it does
        so after calls, at the ends of loops and where containers are made.
        """
        call = (self.handle, 1, self._submission, 0)
        submit = self._lib.vkQueueSubmit
        while True:
            value = self._next + 1
            before = [one.last_use for one in used]
            for one in used:
                one.last_use = value
            entry = (value, commands)
            if len(commands):
                self._running.append(entry)
            self._submission.commandBufferCount = len(commands)
            self._submission.pCommandBuffers = commands
            self._value[0] = value
            if self._next + 1 == value:
                self._next = value
                result = submit(*call)
                break
            if len(commands):
                self._running.remove(entry)
        # An interrupt here leaves `submitted` behind: `wait` then asks for a new mark.
        if result < 0:
            # Nobody may wait for a value that is never reached.
            for one, old in zip(used, before, strict=True):
                one.last_use = old
            if len(commands):
                self._running.remove(entry)
                self._free.append(commands)
        check(result, "vkQueueSubmit")
        self.submitted = value
        return value

    def mark(self) -> int:
        """A value that is reached when all work now on the queue is done.

        Work that others submitted counts too, where they can have: a signal
        waits for everything earlier in submission order.
        """
        if not self.shared and self._next == self.submitted:
            return self.submitted
        with self.lock:
            return self._submit(self._nothing, ())

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

    def wait(self, value: int, seconds: float | None = None) -> bool:
        """Block until the submission *value* is done; False if *seconds* pass before."""
        if self.done(value):
            return True
        if value > self.submitted:  # the gap of an interrupted submission
            value = self.mark()
        values = ffi.new("uint64_t[1]", [value])
        info = struct(
            "VkSemaphoreWaitInfo",
            semaphoreCount=1,
            pSemaphores=self._semaphore,
            pValues=values,
        )
        end = None if seconds is None else time.monotonic() + seconds
        while check(
            self._lib.vkWaitSemaphores(self.device, info, SLICE), "vkWaitSemaphores"
        ) == constant("VK_TIMEOUT"):
            if end is not None and time.monotonic() >= end:
                return False
        self.reached = max(self.reached, value)
        return True

    def finish(self, seconds: float | None = None) -> bool:
        """Block until all work now on the queue is done; False if *seconds* pass before."""
        if self.shared or self.reached != self._next:
            return self.wait(self.mark(), seconds)
        return True

    def _limit(self) -> None:
        """Wait, without the lock, while too many submissions are under way."""
        with suppress(IndexError):  # another thread has taken the oldest out
            if len(self._running) >= IN_FLIGHT:
                self.wait(self._running[0][0])

    def _take(self) -> Any:
        """A command buffer that is not in use. The lock is held, but finalizers may submit."""
        for entry in self._running.copy():
            if not self.done(entry[0]):
                break
            with suppress(ValueError):  # taken out by a finalizer meanwhile
                self._running.remove(entry)
                self._free.append(entry[1])
        with suppress(IndexError):
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
