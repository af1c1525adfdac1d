"""The delayed device: it passes the kit, and shows stale data wherever a wait is missing."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time

import pytest
from dlbridge_fake import Fake, Stream
from dlbridge_fake.stream import by_handle

from dlbridge.errors import BackendUnavailable
from dlbridge.protocol import Span
from dlbridge.testing import BackendTests

NEW = memoryview(b"new!")


@pytest.fixture
def fake(monkeypatch):
    """A device whose work is done late."""
    monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", "1000")
    return Fake()


@pytest.fixture
def data(fake):
    memory = fake.allocate(0, 4, 1, 0)
    yield memory.data  # noqa: PT022 - the memory lives until the test is over


@pytest.fixture
def gate():
    """Work enqueued as ``gate.wait`` holds a stream up until ``gate.set()``: no test is timed."""
    gate = threading.Event()
    yield gate
    gate.set()


def read(fake, data, stream):
    into = bytearray(4)
    fake.copy_to_host(Span(0, data, 0, len(into)), memoryview(into), stream.handle)
    fake.synchronize(0, stream.handle)
    return bytes(into)


def test_reading_without_synchronize_shows_stale_data(fake, data, gate):
    into, stream = bytearray(b"old!"), Stream()
    stream.enqueue(gate.wait)
    fake.copy_from_host(Span(0, data, 0, len(NEW)), NEW, stream.handle)
    fake.copy_to_host(Span(0, data, 0, len(into)), memoryview(into), stream.handle)
    assert into == b"old!"
    gate.set()
    fake.synchronize(0, stream.handle)
    assert into == b"new!"


def test_a_missing_wait_between_streams_shows_stale_data(fake, data, gate):
    first, second = Stream(), Stream()
    first.enqueue(gate.wait)
    fake.copy_from_host(Span(0, data, 0, len(NEW)), NEW, first.handle)
    assert read(fake, data, second) == bytes(4)
    gate.set()
    fake.synchronize(0, first.handle)
    assert read(fake, data, second) == b"new!"


def test_a_source_that_changes_too_early_shows(fake, data, gate):
    source, stream = bytearray(b"good"), Stream()
    stream.enqueue(gate.wait)
    fake.copy_from_host(Span(0, data, 0, len(source)), memoryview(source), stream.handle)
    source[:] = b"gone"  # the contract: it may be read until synchronize
    gate.set()
    assert read(fake, data, stream) == b"gone"


@pytest.fixture
def shared(monkeypatch):
    """A device whose work is done late, and that uses host memory."""
    monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", "1000")
    monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
    return Fake()


@pytest.fixture
def pages():
    """Address and bytes of a page of the host."""
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    pin = ctypes.c_char.from_buffer(pages)
    yield ctypes.addressof(pin), pages
    del pin
    pages.close()


def test_the_end_of_other_memory_does_not_wait(shared, gate):
    """Else this test would not end: nothing opens the gate."""
    stream = Stream()
    memory = [shared.allocate(0, 4, 1, stream.handle)]
    stream.enqueue(gate.wait)
    shared.copy_from_host(Span(0, memory[0].data, 0, 4), NEW, stream.handle)
    thread = threading.Thread(target=memory.clear, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert shared.live_allocations() == 0


def test_an_import_that_ends_in_the_thread_of_a_stream_does_not_wait_for_itself(shared, pages):
    """A garbage collection there may free the memory of any tensor."""
    stream = Stream()
    imported = [shared.import_host(0, pages[0], 4, False, stream.handle)]
    done = threading.Event()
    stream.enqueue(imported.clear)
    stream.enqueue(done.set)
    assert done.wait(60)
    assert shared.live_allocations() == 0


def test_the_end_of_an_import_waits_after_an_exception(shared, pages, monkeypatch):
    """That of a signal handler, which cuts the destructor off."""
    address, content = pages
    imported = shared.import_host(0, address, 4, False, 0)
    finish, calls = shared.finish, []

    def interrupted(*where):
        calls.append(where)
        if len(calls) == 1:
            raise KeyboardInterrupt
        finish(*where)

    monkeypatch.setattr(shared, "finish", interrupted)
    shared.copy_from_host(Span(0, imported.data, 0, 4), NEW, 0)
    raised = []
    monkeypatch.setattr("sys.unraisablehook", lambda told: raised.append(told.exc_type))
    del imported
    assert raised == [KeyboardInterrupt]
    assert content[:4] == b"new!"


def test_threads_end_with_their_streams(monkeypatch):
    monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", "1")
    before = set(threading.enumerate())
    streams = [Stream() for _ in range(20)]
    started = set(threading.enumerate()) - before
    assert len(started) == 20
    del streams
    for thread in started:
        thread.join(60)
    assert not any(thread.is_alive() for thread in started)


class WithStreams(BackendTests):
    """The kit with streams of one's own."""

    name = "ext_dev"
    unknown_stream = 12345

    def make_stream(self, backend, device_id):
        return Stream(device_id)

    def make_current(self, backend, device_id, stream):
        return stream

    def slow_work(self, backend, device_id, stream):
        done = threading.Event()
        queue = by_handle[stream] if stream else backend.default_streams[device_id]
        queue.enqueue(lambda: (time.sleep(0.05), done.set()))
        return done

    def is_done(self, backend, device_id, stream, work):
        return work.is_set()

    def failing_work(self, backend, device_id, stream):
        queue = by_handle[stream] if stream else backend.default_streams[device_id]
        queue.enqueue(lambda: 1 // 0)
        return True


class TestShared(WithStreams):
    """On a device that uses host memory, and whose work is late.

    To share memory changes what it says of views and imports, when imports end, and nothing else.
    """

    nightly = ("contract", "memory", "copy", "native")

    @pytest.fixture
    def backend(self, monkeypatch):
        monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
        monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", "100")
        return Fake()


@pytest.mark.exhaustive
class TestSharedAtOnce(BackendTests):
    """The same on a device whose work is done in the call."""

    name = "ext_dev"

    @pytest.fixture
    def backend(self, monkeypatch):
        monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
        monkeypatch.delenv("DLBRIDGE_FAKE_DELAY_US", raising=False)
        return Fake()


class TestTwoStreams(WithStreams):
    """Each piece of work 2 ms late."""

    allocations = 200

    @pytest.fixture
    def backend(self, monkeypatch):
        monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", "2000")
        return Fake()


@pytest.mark.parametrize(
    "delay", ["-5", "abc", "nan", "1e30", "0.5", "3600000001", "9" * 30, "9" * 5000, "1_000"]
)
def test_a_delay_that_is_no_number_of_microseconds_is_refused(delay, monkeypatch):
    monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", delay)
    with pytest.raises(BackendUnavailable, match=f"DLBRIDGE_FAKE_DELAY_US is {delay!r}.*micro"):
        Fake()
