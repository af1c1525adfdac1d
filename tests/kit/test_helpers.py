"""The kit's helpers: threads that do nothing but memcpy, and jobs that are done once."""

import ctypes
import gc
import random
import signal
import sys
import threading
import time

import pytest

from dlbridge.kit import helpers
from dlbridge.kit.helpers import Helpers, Job, cancel_all


@pytest.fixture
def threads():
    made = Helpers()
    yield made
    made.close()


@pytest.fixture
def slow(monkeypatch):
    """A memcpy of 50 ms; the list has the target of each that has begun, and of each that ended."""
    copy, begun, ended = helpers._memmove, [], []

    def late(target, source, nbytes):
        begun.append(target)
        time.sleep(0.05)
        copy(target, source, nbytes)
        ended.append(target)
        return target

    monkeypatch.setattr(helpers, "_memmove", late)
    return begun, ended


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
    time.sleep(0.1)
    assert len(begun) == len(ended) == 1


def test_more_jobs_than_threads(threads, slow):
    (_, source), (into, target) = memory(bytes(range(1, 200))), memory(b" " * 199)
    jobs = [Job(target + i, source + i, 1) for i in range(199)]
    for job in jobs:
        threads.put(job)
    for job in reversed(jobs[-30:]):
        job.wait()
    cancel_all(jobs)
    assert into.raw[-31:-1] == bytes(range(170, 200))
    begun, ended = slow
    assert len(begun) == len(ended)


def test_what_was_cancelled_never_begins(threads, slow):
    begun, ended = slow
    (_, source), (_, target) = memory(b"abc"), memory(b"   ")
    jobs = [Job(target, source, 3) for _ in range(100)]
    for job in jobs:
        threads.put(job)
    cancel_all(jobs)
    assert len(begun) == len(ended) < 100
    seen = len(begun)
    time.sleep(0.15)
    assert len(begun) == seen


@pytest.mark.parametrize("started", [0, 1])
def test_at_the_limit_of_threads_nothing_is_done_twice(threads, slow, monkeypatch, started):
    start, left = helpers.start_new_thread, [None] * started

    def limited(function, arguments):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        return start(function, arguments)

    monkeypatch.setattr(helpers, "start_new_thread", limited)
    (_, source), (into, target) = memory(bytes(range(1, 9))), memory(b" " * 8)
    jobs = [Job(target + i, source + i, 1) for i in range(8)]
    for job in jobs:
        threads.put(job)
    for job in jobs:
        job.wait()
    into.raw = b"changed  "
    time.sleep(0.2)
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
    pick, heard, end = random.Random(3), 0, time.monotonic() + 2
    before = signal.signal(signal.SIGALRM, strike)
    try:
        while time.monotonic() < end:
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
                    cancel_all(jobs)
                    armed.clear()
            except Struck:
                heard += 1
            ctypes.memset(target, 7, 40_000)
            assert target.raw[:40_000] == b"\7" * 40_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard > 20


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
        thread.join(60)
    finally:
        gc.set_threshold(*threshold)
    assert not thread.is_alive()
    assert len(copied) > 1000
