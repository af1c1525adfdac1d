"""Eight threads on everything at once, at every pace, with the collector running."""

import gc
import random
import threading

import numpy as np
import pytest
from rocm_support import stream

import dlbridge


def round_trip(rng, own):
    """One random tensor through three devices and back; whether it is still the same."""
    array = np.frombuffer(rng.randbytes(rng.choice([1, 100, 70_000, 300_000])), "u1")
    gpus = [f"rocm:{i}" for i in range(dlbridge.backend("rocm").device_count())]
    with dlbridge.use_stream("rocm:0", own):
        moved = array
        for _ in range(3):
            device = rng.choice([*gpus, "rocm_host", "cpu"])
            moved = dlbridge.to_device(moved, device, copy=rng.choice([None, True]))
            if rng.random() < 0.3 and moved.size > 1:
                moved = dlbridge.to_device(moved[:], moved.device, copy=True)
        return np.array_equal(np.asarray(dlbridge.to_device(moved, "cpu")), array)


def in_threads(work, count=8):
    """Run *work(number)* in *count* threads; what went wrong."""
    failures = []

    def run(number):
        try:
            failures.extend(work(number) or [])
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.fixture
def busy_collector():
    before = gc.get_threshold()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)


def test_eight_threads(rocm, pace, busy_collector):
    def work(seed):
        rng = random.Random(seed)
        with stream() as own:
            return [
                f"seed {seed}, turn {turn}"
                for turn in range(12)
                if not round_trip(rng, rng.choice([own, 0]))
            ]

    assert in_threads(work) == []


def test_nothing_is_left(fake, rocm):
    rng = random.Random(1)
    live = fake.live()
    with stream() as own:
        for _ in range(40):
            assert round_trip(rng, own)
        gc.collect()
        for device_id in range(rocm.device_count()):
            rocm.synchronize(device_id, 0)
        rocm.synchronize(0, own)
    assert fake.live() == live


@pytest.mark.parametrize("member", ["wait", "allocate"])
def test_first_use_in_many_threads(fake, member):
    """Pools and events are made by whoever comes first."""
    from dlbridge_rocm import memory, streams

    memory.default_pool.cache_clear()
    streams._events.clear()
    rocm = dlbridge.backend("rocm")
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        with stream() as own:
            if member == "wait":
                rocm.wait(0, own, 0)
            else:
                rocm.free(0, rocm.allocate(0, 64, 256, own), own)

    assert in_threads(work) == []
