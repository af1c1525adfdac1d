"""Work for one VkQueue: recording, submission, and waiting by a timeline semaphore.

Every submission gets the next value of one timeline; "is it done?" is a
comparison with the semaphore's counter. Each submission begins with a barrier
against all earlier ones and ends with one towards the host, so work on a queue
is ordered as it was submitted, and host reads after a wait see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from .library import Objects, check, constant, ffi, handle as number_of, load, struct

IN_FLIGHT = 64
"""Submissions that may be under way before the next one waits for the oldest."""

MORE = 16
"""Command buffers that are made at a time."""

SLICE = 100_000_000
"""Nanoseconds per wait, so that Ctrl-C is answered between two."""

NEVER = 1 << 62
"""A value that no submission reaches."""


class Used(Protocol):
    """What submissions use."""

    last_use: int
    """The queue's value after which nothing uses it."""


_last_use = attrgetter("last_use")
_COUNTER = ffi.typeof("uint64_t[1]")  # looking a type up by name costs as much as to make one


class _Commands:
    """A VkCommandBuffer, and the queue's value from which on it can be recorded anew."""

    __slots__ = ("cell", "count", "value")

    def __init__(self, *handles: Any) -> None:
        self.cell = ffi.new("VkCommandBuffer[]", handles)
        self.count = len(handles)
        self.value = 0


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
        self._semaphore = objects.create(device, "Semaphore", info)
        self.semaphore = int(self._semaphore[0])
        info = struct(
            "VkCommandPoolCreateInfo",
            flags=constant("VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT"),
            queueFamilyIndex=family,
        )
        self._pool = objects.create(device, "CommandPool", info)[0]
        self._commands: list[_Commands] = []
        self._nothing = _Commands()
        self._prepare()

    def _prepare(self) -> None:
        # What every submission passes, made once: to make it anew costs as much as the submission.
        memory = constant("VK_ACCESS_MEMORY_READ_BIT") | constant("VK_ACCESS_MEMORY_WRITE_BIT")
        host = constant("VK_ACCESS_HOST_READ_BIT") | constant("VK_ACCESS_HOST_WRITE_BIT")
        self._order = _barrier("VK_PIPELINE_STAGE_ALL_COMMANDS_BIT", memory)
        self._publish = _barrier("VK_PIPELINE_STAGE_HOST_BIT", host)
        self._begin = struct(
            "VkCommandBufferBeginInfo",
            flags=constant("VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT"),
        )
        self._value = ffi.new("uint64_t[1]")
        self._timeline = struct(
            "VkTimelineSemaphoreSubmitInfo",
            signalSemaphoreValueCount=1,
            pSignalSemaphoreValues=self._value,
        )
        self._submission = struct(
            "VkSubmitInfo",
            pNext=self._timeline,
            signalSemaphoreCount=1,
            pSignalSemaphores=self._semaphore,
        )

    def submit(self, record: Callable[[Any], object], uses: Sequence[Used] = ()) -> int:
        """Run what *record* puts into a VkCommandBuffer, after all earlier work.

        What it *uses* is marked, so that it is neither freed nor touched by the host before
        the work is done. Returns the value to `wait` for.
        """
        if self._next - self.reached > IN_FLIGHT:
            self.wait(self._next - IN_FLIGHT)  # without the lock
        lib, taken = self._lib, None
        with self.lock:
            try:
                while taken is None:
                    # From the comparison to the note that it is taken there is no call, and so
                    # no other thread, finalizer or signal handler.
                    for each in self._commands:
                        if each.value <= self.reached:
                            each.value, taken = NEVER, each
                            break
                    else:
                        self._add_commands()
                commands = taken.cell[0]
                if result := lib.vkBeginCommandBuffer(commands, self._begin):
                    check(result, "vkBeginCommandBuffer")
                lib.vkCmdPipelineBarrier(commands, *self._order)
                record(commands)
                lib.vkCmdPipelineBarrier(commands, *self._publish)
                if result := lib.vkEndCommandBuffer(commands):
                    check(result, "vkEndCommandBuffer")
                return self._submit(taken, uses)
            finally:
                if taken is not None and taken.value == NEVER:  # it was not submitted
                    lib.vkResetCommandBuffer(taken.cell[0], 0)
                    taken.value = 0

    def _submit(self, commands: _Commands, uses: Sequence[Used]) -> int:
        """VkQueueSubmit with the next value; the lock is held.

        A finalizer may submit while this prepares: then all is prepared again
        with a later value. From the comparison to the call there is no point
        where Python runs finalizers, signal handlers or other threads: it does
        so after calls, at the ends of loops and where containers are made.
        """
        call = (self.handle, 1, self._submission, 0)
        submit = self._lib.vkQueueSubmit
        while True:
            value = self._next + 1
            before = list(map(_last_use, uses))
            for one in uses:
                one.last_use = value
            self._submission.commandBufferCount = commands.count
            self._submission.pCommandBuffers = commands.cell
            self._value[0] = value
            if self._next + 1 == value:
                self._next = commands.value = value
                result = submit(*call)
                break
        # An interrupt here leaves `submitted` behind: `wait` then asks for a new mark.
        if result:
            # Nobody may wait for a value that is never reached.
            for one, old in zip(uses, before, strict=True):
                one.last_use = old
            commands.value = NEVER
            check(result, "vkQueueSubmit")
        self.submitted = value
        return value

    def _add_commands(self) -> None:
        """Make more command buffers, unless some may be free by now. Finalizers may submit here."""
        before = self.reached
        self.done(NEVER)
        if self.reached > before:
            return
        made = ffi.new("VkCommandBuffer[]", MORE)
        info = struct(
            "VkCommandBufferAllocateInfo", commandPool=self._pool, commandBufferCount=MORE
        )
        result = self._lib.vkAllocateCommandBuffers(self.device, info, made)
        check(result, "vkAllocateCommandBuffers")
        self._commands.extend(map(_Commands, made))

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
        if value > self.reached:
            # One for each call: the validation layer learns of the value when the call returns.
            counter = ffi.new(_COUNTER)
            get = self._lib.vkGetSemaphoreCounterValue
            if result := get(self.device, self.semaphore, counter):
                check(result, "vkGetSemaphoreCounterValue")
            self.reached = counter[0]
        return value <= self.reached

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
        timeout, wait = constant("VK_TIMEOUT"), self._lib.vkWaitSemaphores
        while check(wait(self.device, info, SLICE), "vkWaitSemaphores") == timeout:
            pass
        self.reached = max(self.reached, value)

    def finish(self) -> None:
        """Block until all work now on the queue is done."""
        if self.shared or self.reached != self._next:
            self.wait(self.mark())


def _barrier(until: str, access: int) -> tuple[Any, ...]:
    """What vkCmdPipelineBarrier gets behind the command buffer: from all writes to *access*."""
    write = constant("VK_ACCESS_MEMORY_WRITE_BIT")
    memory = struct("VkMemoryBarrier", srcAccessMask=write, dstAccessMask=access)
    all_commands = constant("VK_PIPELINE_STAGE_ALL_COMMANDS_BIT")
    return all_commands, constant(until), 0, 1, memory, 0, ffi.NULL, 0, ffi.NULL
