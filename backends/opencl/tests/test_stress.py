"""Threads that make, fill, copy, hand on, check and free tensors at random."""

from __future__ import annotations

import gc
import queue
import random
import sys
import threading
import traceback

import numpy as np
import pytest

from dlbridge.protocol import Span

SIZES = [4, 1000, 1000, 65536]
THREADS = 4


class Worker(threading.Thread):
    """Holds buffers whose content it knows; gives some to the others, takes some from them."""

    def __init__(self, opencl, seed, turns, market, failures):
        super().__init__(daemon=True)
        self.turns = turns
        self.opencl, self.market, self.failures = opencl, market, failures
        self.random = random.Random(seed)
        self.held = []  # (memory, bytes that it must hold)

    def run(self):
        try:
            self.stream = self.opencl.current_stream(0)
            for _ in range(self.turns):
                self.random.choice([self.make, self.copy, self.hand_on, self.take, self.check])()
            while self.held:
                self.check()
        except BaseException as exc:
            self.failures.append(exc)

    def make(self):
        nbytes, value = self.random.choice(SIZES), self.random.randrange(256)
        memory = self.opencl.allocate(0, nbytes, 64, self.stream)
        self.opencl.fill(Span(0, memory.data, 0, nbytes), value, self.stream)
        self.held.append((memory, bytes([value]) * nbytes))

    def copy(self):
        if self.held:
            source, content = self.random.choice(self.held)
            memory = self.opencl.allocate(0, len(content), 64, self.stream)
            there, here = (Span(0, each.data, 0, len(content)) for each in (memory, source))
            self.opencl.copy(there, here, self.stream)
            source.stream = self.stream
            self.held.append((memory, content))

    def hand_on(self):
        if self.held:
            self.market.put((*self.held.pop(), self.stream))

    def take(self):
        try:
            memory, content, stream = self.market.get_nowait()
        except queue.Empty:
            return
        self.opencl.wait(0, self.stream, stream)
        self.held.append((memory, content))

    def check(self):
        if self.held:
            memory, content = self.held.pop(self.random.randrange(len(self.held)))
            got = np.zeros(len(content), "u1")
            span = Span(0, memory.data, 0, len(got))
            self.opencl.copy_to_host(span, memoryview(got), self.stream)
            memory.stream = self.stream
            if got.tobytes() != content:
                self.failures.append(f"{len(content)} bytes: {got[:4]}, not {content[:4]!r}")


def where_threads_are():
    """The stack of each thread, for the message of a failure."""
    frames = sys._current_frames().items()
    return "\n".join(f"{number}\n{''.join(traceback.format_stack(top))}" for number, top in frames)


@pytest.mark.parametrize("turns", [200, pytest.param(10_000, marks=pytest.mark.stress)])
def test_threads_never_see_each_others_data(opencl, turns):
    market, failures = queue.SimpleQueue(), []
    gc.collect()  # of the tests before
    before = opencl.live_allocations()
    workers = [Worker(opencl, seed, turns, market, failures) for seed in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
        assert not worker.is_alive(), "deadlock\n" + where_threads_are()
    while not market.empty():
        market.get()
    assert failures == []
    assert opencl.live_allocations() == before
