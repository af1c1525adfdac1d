"""Frees of dlbridge.kit: consumers, order, room, pools, pinned memory and imports."""

import mmap
import threading

from dlbridge.kit.driver import ALL_STREAMS, Location
from dlbridge.kit.memory import FREES_KEPT
from dlbridge.kit.order import KEPT, Consumer, Consumers
from dlbridge.kit.status import CaptureError

PAGE = mmap.PAGESIZE


# consumers ---------------------------------------------------------------------------


def test_default_streams_of_two_devices_are_two(driver):
    consumers = Consumers(driver)
    consumers.note(0, 1, 1)
    assert consumers.uses(0, 0, 1) == [(Consumer(1, 1), None)]


def test_old_streams_are_forgotten(driver):
    consumers = Consumers(driver)
    for _ in range(3000):
        consumers.note(0, driver.stream(), 0)
    assert len(consumers._seen) < 600


def test_the_objects_of_the_last_streams_are_kept(driver):
    """What is behind all work stands for the others, which may be destroyed then."""
    consumers, handles = Consumers(driver, lambda: [0]), [driver.stream() for _ in range(KEPT + 5)]
    for handle in handles:
        consumers.note(0, handle, 0)
        driver.destroy_stream(handle)
    assert set(driver.streams) == {1, *handles[-KEPT:]}
    uses = dict(consumers.uses(0, 0, 1))
    assert set(uses) == {Consumer(ALL_STREAMS, 0), *(Consumer(each, 0) for each in handles[-KEPT:])}
    assert uses[Consumer(ALL_STREAMS, 0)] is None
    assert dict(consumers.uses(0, 5, 1)).keys() == uses.keys() - {Consumer(ALL_STREAMS, 0)}


# frees -------------------------------------------------------------------------------


# room --------------------------------------------------------------------------------


def test_streams_from_before_do_not_matter(driver, pool, pinned):
    """Neither to a block that was not aligned, nor to the second free of a shared import."""
    for memory in (pool, pinned):
        old = driver.stream()
        memory.consumers.note(0, old, 0)
        driver.destroy_stream(old)
    driver.addresses = iter(range(100, 1 << 30, 1000))
    pool.allocate(0, 64, 4096, 1)
    for _ in range(2):
        pinned.import_host(0, PAGE, PAGE, False)
    for _ in range(2):
        pinned.free(0, PAGE, 1)
    assert ("wait for device",) not in driver.log


def test_events_of_frees_are_bounded(driver, pool):
    for _ in range(FREES_KEPT + 50):
        own = driver.stream()
        pool.free(0, pool.allocate(0, 64, 256, own), own)
    assert len(pool._last_frees) == FREES_KEPT


# pools -------------------------------------------------------------------------------


def test_plain_memory_whose_free_is_refused_stays_plain(driver, pool, monkeypatch):
    """Else the next try would give it to the pool."""

    def refused(*_):
        raise CaptureError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "allocate_async", refused)
        data = pool.allocate(0, 64, 256, 1)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "free", refused)
        pool.free(0, data, 1)
    pool.settle()
    assert data not in driver.live
    assert ("free behind", 1) not in driver.log


# pinned memory -----------------------------------------------------------------------


def test_an_import_that_ends_while_another_is_planned(driver, pinned, monkeypatch):
    """Both ends of the memory are looked at before the pages are unlocked, or after."""
    pinned.import_host(0, PAGE, 4 * PAGE, False)
    ends = threading.Thread(target=pinned.free, args=(0, PAGE, 1))

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
        if stream == theirs:
            driver.destroy_stream(theirs)
            pool.consumers._seen.clear()
        return state(stream)

    data = pool.allocate(0, 64, 256, 1)
    pool.consumers.note(0, theirs, 0)
    monkeypatch.setattr(driver, "stream_state", asked)
    pool.free(0, data, 1)
    assert data not in driver.live
    assert ("wait for device",) not in driver.log
    assert theirs not in driver.streams
