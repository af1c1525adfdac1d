"""The kit's helpers: threads that copy memory or make its pages, and jobs that are done once."""

import _thread
import ctypes
import gc
import mmap
import random
import signal
import sys
import threading
import time

import pytest

from dlbridge.kit import staging
from dlbridge.kit.resources import do_all
from dlbridge.kit.staging import Helpers, Job, PagesJob


@pytest.fixture
def threads():
    made = Helpers()
    made.others = _thread._count()
    yield made
    made.close()


@pytest.fixture
def slow(monkeypatch):
    """A memcpy of 50 ms; the list has the target of each that has begun, and of each that ended."""
    copy, begun, ended = staging._memmove, [], []

    def late(target, source, nbytes):
        begun.append(target)
        time.sleep(0.05)
        copy(target, source, nbytes)
        ended.append(target)
        return target

    monkeypatch.setattr(staging, "_memmove", late)
    return begun, ended


def finish(threads):
    """End the threads, which do all jobs before that."""
    threads.close()
    while _thread._count() > threads.others:
        time.sleep(0.001)


def memory(text):
    buffer = ctypes.create_string_buffer(text)
    return buffer, ctypes.addressof(buffer)


def test_a_job_is_done_once(threads, slow):
    begun, ended = slow
    (_, source), (into, target) = memory(b"abc"), memory(b"   ")
    job = Job(target, source, 3)
    for _ in range(3):
        threads.put(job)
    job.wait()
    assert into.value == b"abc"
    finish(threads)
    assert len(begun) == len(ended) == 1


def test_more_jobs_than_threads(threads, slow):
    (_, source), (into, target) = memory(bytes(range(1, 200))), memory(b" " * 199)
    jobs = [Job(target + i, source + i, 1) for i in range(199)]
    for job in jobs:
        threads.put(job)
    for job in reversed(jobs[-30:]):
        job.wait()
    do_all(lambda job: job.cancel(), jobs)
    assert into.raw[-31:-1] == bytes(range(170, 200))
    begun, ended = slow
    assert len(begun) == len(ended)


def test_what_was_cancelled_never_begins(threads, slow, monkeypatch):
    """Each helper stays in its first job until all that nobody has begun are cancelled."""
    begun, ended = slow
    late, go = staging._memmove, threading.Event()
    monkeypatch.setattr(staging, "_memmove", lambda *what: go.wait() and late(*what))

    class Opens(Job):
        def cancel(self):
            go.set()
            super().cancel()

    (_, source), (_, target) = memory(b"abc"), memory(b"   ")
    most = staging._MOST
    jobs = [(Opens if i == most else Job)(target, source, 3) for i in range(2 * most)]
    for job in jobs:
        threads.put(job)
    do_all(lambda job: job.cancel(), jobs)
    assert len(begun) == len(ended) <= most
    seen = len(begun)
    finish(threads)
    assert len(begun) == seen


@pytest.mark.parametrize("started", [0, 1])
def test_at_the_limit_of_threads_nothing_is_done_twice(threads, slow, monkeypatch, started):
    start, left = staging.start_new_thread, [None] * started

    def limited(function, arguments):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        return start(function, arguments)

    monkeypatch.setattr(staging, "start_new_thread", limited)
    (_, source), (into, target) = memory(bytes(range(1, 9))), memory(b" " * 8)
    jobs = [Job(target + i, source + i, 1) for i in range(8)]
    for job in jobs:
        threads.put(job)
    for job in jobs:
        job.wait()
    into.raw = b"changed  "
    finish(threads)
    assert into.raw == b"changed  "
    assert len(slow[0]) == 8


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timer that sends signals")
def test_exceptions_of_handlers(threads):
    """None is lost, none hangs a later job, and nobody copies when one has arrived."""

    class Struck(Exception):
        pass

    armed = []

    def strike(*_):
        if armed:
            armed.clear()
            raise Struck

    source, target = (ctypes.create_string_buffer(bytes([k]) * 40_000) for k in (1, 0))
    pick, heard = random.Random(3), 0
    before = signal.signal(signal.SIGALRM, strike)
    try:
        while heard < 500:
            jobs = []
            try:
                try:
                    armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, pick.uniform(1e-6, 5e-4))
                    for i in range(40):
                        at = i * 1000
                        jobs.append(
                            Job(ctypes.addressof(target) + at, ctypes.addressof(source) + at, 1000)
                        )
                        threads.put(jobs[-1])
                    for job in jobs:
                        job.wait()
                finally:
                    do_all(lambda job: job.cancel(), jobs)
                    armed.clear()
            except Struck:
                heard += 1
            ctypes.memset(target, 7, 40_000)
            assert target.raw[:40_000] == b"\7" * 40_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_finalizer_may_copy_too(threads):
    """The garbage collector may come in the middle of any step."""
    (_, source), (_, target) = memory(b"abc"), memory(b"   ")
    copied = []

    class Copies:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            job = Job(target, source, 3)
            threads.put(job)
            job.wait()
            copied.append(None)

    def work():
        for _ in range(3000):
            Copies()
            job = Job(target, source, 3)
            threads.put(job)
            job.wait()

    threshold = gc.get_threshold()
    gc.set_threshold(1, 1_000_000, 1_000_000)
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        thread.join(300)
    finally:
        gc.set_threshold(*threshold)
    assert not thread.is_alive()
    assert len(copied) > 1000


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has the call")
def test_pages_are_made_and_nothing_in_them_changes(threads):
    """Of new memory those of the job alone; memory that is written already stays as it is."""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 8 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        pages[2 * page : 2 * page + 4] = b"kept"
        held = ctypes.c_char.from_buffer(pages)
        start = ctypes.addressof(held)
        job = PagesJob(start + page, 4 * page)
        threads.put(job)
        job.wait()
        assert pages[2 * page : 2 * page + 4] == b"kept"
        there = (ctypes.c_ubyte * 8)()
        libc = ctypes.CDLL(None)
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(8 * page), there) == 0
        del held
    can = job._ended == [0]  # private: an older kernel says that it cannot
    assert [each & 1 for each in there] == (
        [0, 1, 1, 1, 1, 0, 0, 0] if can else [0, 0, 1] + 5 * [0]
    )


def test_memory_without_pages_is_no_error(threads):
    job = PagesJob(0, mmap.PAGESIZE)
    threads.put(job)
    job.wait()
