"""Submission and waiting: order, the timeline, interrupted and failed submissions."""

import mmap
import signal
import threading

import numpy as np
import pytest
from dlbridge_vulkan.library import STATUS, check, ffi

from backends.vulkan.tests.held_buffers import Loader, free, import_host
from dlbridge.errors import DeviceError, DeviceMemoryError
from dlbridge.protocol import Span


def test_the_host_sees_what_the_device_wrote(vulkan, tensors, monkeypatch):
    """Each submission ends with a barrier towards the host (Vulkan 1.3, "Host Write Ordering").

    No software driver needs it and the layer does not see the host, so what is
    recorded is looked at.
    """
    queue = vulkan.devices[0].queue
    real, recorded = queue._lib, []

    class Recording:
        def __getattr__(self, name):
            if name == "vkCmdPipelineBarrier":
                return self.barrier
            function = getattr(real, name)
            if name.startswith("vkCmd"):
                return lambda *given: recorded.append(name) or function(*given)
            return function

        def barrier(self, commands, before, after, flags, count, memory, *rest):
            recorded.append((before, after, memory.srcAccessMask, memory.dstAccessMask))
            real.vkCmdPipelineBarrier(commands, before, after, flags, count, memory, *rest)

    monkeypatch.setattr(queue, "_lib", Recording())
    monkeypatch.setattr(vulkan.devices[0], "lib", queue._lib)
    data = tensors.new(64)
    vulkan.copy(Span(0, data, 32, 32), Span(0, data, 0, 32), 0)
    everything, host = 0x10000, 0x4000  # VkPipelineStageFlagBits
    read, write, host_access = 0x8000, 0x10000, 0x6000  # VkAccessFlagBits
    assert recorded == [
        (everything, everything, write, read | write),
        "vkCmdCopyBuffer",
        (everything, host, write, host_access),
    ]


def test_a_recording_that_fails_loses_no_command_buffer(vulkan, tensors):
    """Whatever exception it is, in a recording inside of a recording, too."""
    queue = vulkan.devices[0].queue

    def broken(commands):
        raise KeyboardInterrupt

    def within(commands):
        with pytest.raises(KeyboardInterrupt):
            queue.submit(broken)
        raise KeyboardInterrupt

    queue.finish()
    counts = []
    for _ in range(100):
        with pytest.raises(KeyboardInterrupt):
            queue.submit(within)
        counts.append(len(queue._commands))
    assert counts[-1] == counts[0]
    assert all(each.value <= queue.reached for each in queue._commands)


def test_a_submission_that_fails_is_an_error_and_leaves_no_gap(vulkan, tensors, monkeypatch):
    """Nobody waits for a value that will never come.

    A finalizer that did, in the middle of a recording, would wait for ever: the
    value is only passed by a submission, whose lock this very thread holds.
    """
    queue = vulkan.devices[0].queue
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    address = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    imported, _ = import_host(vulkan, 0, address, mmap.PAGESIZE, False)
    data = tensors.of(bytes(64))
    vulkan.copy(Span(0, data, 32, 32), Span(0, data, 0, 32), 0)
    before = tensors.allocation(data).last_use
    assert before > 0
    monkeypatch.setattr(queue, "_lib", Loader(vkQueueSubmit=lambda *_: -1))
    with pytest.raises(DeviceMemoryError, match="vkQueueSubmit: VK_ERROR_OUT_OF_HOST"):
        vulkan.copy(Span(0, data, 0, 32), Span(0, imported, 0, 32), 0)
    monkeypatch.undo()
    assert tensors.allocation(data).last_use == before
    assert tensors.allocation(imported).last_use == 0
    queue.submit(lambda commands: free(vulkan, 0, imported, 0))  # as a finalizer would
    assert tensors.bytes(data, 64) == bytes(64)


def test_work_of_others_on_the_queue_is_waited_for(vulkan):
    """Once handles are out, `synchronize` covers what others submit to the VkQueue."""
    queue = vulkan.devices[0].queue
    queue.shared, before = True, queue.shared
    try:
        first = queue.mark()
        assert queue.mark() > first
        queue.finish()
    finally:
        queue.shared = before


def test_waits_on_a_shared_queue_leave_nothing_behind(vulkan, tensors, monkeypatch):
    """Each is a submission of its own, without a command buffer to keep."""
    queue = vulkan.devices[0].queue
    monkeypatch.setattr(queue, "shared", True)
    data = tensors.of(bytes(64))
    before, submitted = len(queue._commands), queue.submitted
    for _ in range(20):
        tensors.bytes(data, 64)
    assert queue.submitted >= submitted + 20
    assert len(queue._commands) == before


def test_ctrl_c_is_answered_while_waiting(vulkan, tensors, scale, gate):
    """A wait is cut into slices of 100 ms; the work goes on."""
    closed = gate(vulkan)
    value = scale(vulkan, tensors.new(4), 1, 1.0)
    main = threading.main_thread().ident

    def wait_for_it():
        # On a busy machine the wait may not have begun.
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()  # no verdict
        vulkan.synchronize(0, 0)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job's ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_for_it()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not vulkan.devices[0].queue.done(value)
    closed.open()
    vulkan.synchronize(0, 0)


@pytest.mark.parametrize("stream", [None, 0])
def test_the_default_stream_is_the_queue(vulkan, stream):
    queue = vulkan.current_stream(0)
    assert vulkan.normalize_stream(0, stream) == queue != 0
    assert vulkan.normalize_stream(0, queue) == queue
    assert vulkan.normalize_stream(0, ffi.cast("VkQueue", queue)) == queue
    assert vulkan.normalize_stream(0, -1) == -1


def test_other_queues_are_refused(vulkan):
    with pytest.raises(ValueError, match=r"0x1234 is not the queue of vulkan:0"):
        vulkan.normalize_stream(0, 0x1234)


@pytest.mark.parametrize("code", STATUS.meanings)
def test_every_error_has_its_exception(code):
    """The code in the table is the code of the name in the header."""
    exception, meaning = STATUS.meanings[code]
    with pytest.raises(exception, match=f"^vkCall: VK_ERROR_[A-Z_]+; {meaning}$"):
        check(code, "vkCall")


def test_unknown_results():
    assert check(5, "vkCall") == 5
    with pytest.raises(DeviceError, match="vkCall: VkResult -77"):
        check(-77, "vkCall")
