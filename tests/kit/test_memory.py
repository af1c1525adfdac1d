"""Frees of dlbridge.kit that no driver can be made to show: what is noted, kept, bounded, asked.

By a driver in Python, whose streams have no work. What drivers show is in tests/drivers/suite.
"""

import mmap
import threading
from itertools import count
from types import SimpleNamespace

import pytest

from dlbridge.kit import order
from dlbridge.kit.driver import ALL_STREAMS, Location, StreamDriver
from dlbridge.kit.memory import FREES_KEPT, PinnedMemory, PoolMemory
from dlbridge.kit.order import KEPT, Consumer, Consumers, EventPool
from dlbridge.kit.status import CaptureError, StatusTable

PAGE = mmap.PAGESIZE


class Owner:
    """The object of a library that keeps a stream; dropped, the stream is destroyed."""

    def __init__(self, driver, handle):
        self.driver, self.handle = driver, handle

    def __del__(self):
        self.driver.streams.remove(self.handle)


class Driver(StreamDriver):
    """Memory is addresses, and streams are handles, whose work is always done."""

    api, memory_api, device_name, default_stream = "SIM", "the SIM driver", "sim", 1
    contexts, pools = {0: 0, 1: 1}, {0: "pool", 1: "pool"}

    def __init__(self):
        self.table = StatusTable({}, str)
        self.functions = SimpleNamespace(is_capturing=lambda stream, cell: 0)
        self._capturing = set()
        self.addresses, self.handles = count(1 << 20, 1 << 16), count(100)
        self.streams, self.owners = {1}, {}  # handle -> what keeps the stream
        self.live, self.locked, self.log, self.events = set(), set(), [], 0

    def not_here(self, *_):
        raise NotImplementedError

    library = describe = device_count = version_text = copy_rectangle = not_here

    def stream(self):
        handle = next(self.handles)
        self.streams.add(handle)
        self.owners[handle] = Owner(self, handle)
        return handle

    def destroy_stream(self, stream):
        """Its library drops the object that keeps it."""
        del self.owners[stream]

    def run(self, context, work, *arguments):
        return work(*arguments)

    def context_of(self, stream, device_id):
        assert stream in self.streams
        return device_id

    def wait_for_stream(self, stream):
        assert stream in self.streams

    def wait_for_device(self):
        self.log.append("wait for device")

    def create_event(self):
        self.events += 1
        return []

    def record_event(self, event, stream):
        assert stream in self.streams

    def is_event_done(self, event):
        return True

    def allocate(self, nbytes, cell):
        cell.value = next(self.addresses)
        self.live.add(cell.value)

    def free(self, pointer, codes):
        self.live.remove(pointer)
        codes.append(0)

    def allocate_async(self, pool, nbytes, stream, cell):
        self.allocate(nbytes, cell)

    def free_async(self, pointer, stream, codes):
        assert stream in self.streams
        self.free(pointer, codes)
        self.log.append("free behind a stream")

    def lock_pages(self, device_id, address, nbytes, readonly, codes):
        self.locked.add(address)
        codes.append(0)

    def unlock_pages(self, address, codes):
        self.locked.remove(address)
        codes.append(0)

    def locate(self, address, device_id):
        return Location("pageable", device_id)


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(order, "owner", lambda stream, _home: made.owners.get(stream))
    return made


@pytest.fixture
def pool(driver):
    return PoolMemory(driver, EventPool(driver), "sim")


@pytest.fixture
def pinned(driver):
    return PinnedMemory(driver, EventPool(driver), "sim_host")


def test_default_streams_of_two_devices_are_two(driver):
    consumers = Consumers(driver)
    consumers.note(0, 1, 1)
    assert consumers.uses(0, 0, 1) == [(Consumer(1, 1), None)]


def test_old_streams_are_forgotten(driver):
    consumers = Consumers(driver)
    for _ in range(3000):
        consumers.note(0, driver.stream(), 0)
    assert len(consumers.uses(0, 0, 1)) < 600


def test_the_objects_of_the_last_streams_are_kept(driver):
    """What is behind all work stands for the others, which may be destroyed then."""
    consumers, handles = Consumers(driver, lambda: [0]), [driver.stream() for _ in range(KEPT + 5)]
    for handle in handles:
        consumers.note(0, handle, 0)
        driver.destroy_stream(handle)
    assert driver.streams == {1, *handles[-KEPT:]}
    uses = dict(consumers.uses(0, 0, 1))
    assert set(uses) == {Consumer(ALL_STREAMS, 0), *(Consumer(each, 0) for each in handles[-KEPT:])}
    assert uses[Consumer(ALL_STREAMS, 0)] is None
    assert dict(consumers.uses(0, 5, 1)).keys() == uses.keys() - {Consumer(ALL_STREAMS, 0)}


def test_streams_from_before_do_not_matter(driver, pool, pinned):
    """Neither to a block that was not aligned, nor to the second free of a shared import."""
    for memory in (pool, pinned):
        old = driver.stream()
        memory.consumers.note(0, old, 0)
        driver.destroy_stream(old)
    driver.addresses = iter(range(100, 1 << 30, 1000))
    held = [pool.allocate(0, 64, 4096, 1)]
    held += [pinned.import_host(0, PAGE, PAGE, False, 1) for _ in range(2)]
    del held[1:]
    assert "wait for device" not in driver.log


def test_events_of_frees_are_bounded(driver, pool):
    for _ in range(FREES_KEPT + 50):
        pool.allocate(0, 64, 256, driver.stream())
    assert driver.events == FREES_KEPT + 1


def test_plain_memory_whose_free_is_refused_stays_plain(driver, pool, monkeypatch):
    """Else the next try would give it to the pool."""

    def refused(*_):
        raise CaptureError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "allocate_async", refused)
        held = [pool.allocate(0, 64, 256, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(driver, "free", refused)
        held.clear()
        assert driver.live
    pool.settle()
    assert not driver.live
    assert driver.log == []


def test_an_import_that_ends_while_another_is_planned(driver, pinned, monkeypatch):
    """Both ends of the memory are looked at before the pages are unlocked, or after."""
    held = [pinned.import_host(0, PAGE, 4 * PAGE, False, 1)]
    ends = threading.Thread(target=held.clear)

    def locate(address, device_id):
        kind = "host" if PAGE in driver.locked else "pageable"
        if not ends.ident:
            ends.start()
            ends.join(0.2)  # no verdict: what is wrong may come later, unseen
        return Location(kind, device_id)

    monkeypatch.setattr(driver, "locate", locate)
    assert pinned.import_refusal(0, PAGE, 4 * PAGE) == ""
    ends.join()
    assert not driver.locked


def test_a_stream_is_kept_while_it_is_asked(driver, pool, monkeypatch):
    """Another thread drops its object as soon as the driver is asked about it."""
    theirs = driver.stream()
    state = driver.stream_state

    def asked(stream):
        if stream == theirs and theirs in driver.owners:
            driver.destroy_stream(theirs)
            pool.consumers._seen.clear()
        assert stream in driver.streams
        return state(stream)

    held = [pool.allocate(0, 64, 256, 1)]
    pool.consumers.note(0, theirs, 0)
    monkeypatch.setattr(driver, "stream_state", asked)
    held.clear()
    assert not driver.live
    assert driver.log == ["free behind a stream"]
    assert driver.streams == {1}
