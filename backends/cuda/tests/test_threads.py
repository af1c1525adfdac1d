"""Eight threads on everything at once, at every pace, with the collector running."""

import gc
import random
import threading

import numpy as np
import pytest
from cuda_support import stream

import dlbridge

NAMES = ["cuda:0", "cuda:1", "cuda_host", "cuda_managed", "cpu"]


def round_trip(rng, own):
    """One random tensor through three devices and back; whether it is still the same."""
    array = np.frombuffer(rng.randbytes(rng.choice([1, 100, 70_000, 300_000])), "u1")
    devices = NAMES if dlbridge.backend("cuda").device_count() > 1 else NAMES[:1] + NAMES[2:]
    with dlbridge.use_stream("cuda:0", own):
        moved = array
        for _ in range(3):
            moved = dlbridge.to_device(moved, rng.choice(devices), copy=rng.choice([None, True]))
            if rng.random() < 0.3 and moved.size > 1:
                moved = dlbridge.to_device(moved[:], moved.device, copy=True)
        back = np.asarray(dlbridge.to_device(moved, "cpu"))
        return np.array_equal(back, array)


def test_eight_threads(cuda, pace):
    failures = []

    def work(seed):
        rng = random.Random(seed)
        try:
            with stream() as own:
                failures.extend(
                    f"seed {seed}, turn {turn}"
                    for turn in range(12)
                    if not round_trip(rng, rng.choice([own, 1, 2]))
                )
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    threshold = gc.get_threshold()
    gc.set_threshold(50)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*threshold)
    assert failures == []


def test_nothing_is_left(fake, cuda):
    """After all those threads: as many allocations as before, the rings apart."""
    rng = random.Random(1)
    with stream() as own:
        for _ in range(5):
            round_trip(rng, own)
        gc.collect()
        cuda.synchronize(0, 1)
        live = fake.live()
        for _ in range(40):
            assert round_trip(rng, own)
        gc.collect()
        for device_id in range(cuda.device_count()):
            cuda.synchronize(device_id, 1)
        cuda.synchronize(0, own)
        assert fake.live() == live


@pytest.mark.parametrize("members", [("wait", "wait"), ("allocate", "free")])
def test_first_use_in_many_threads(fake, members):
    """Contexts, pools and events are made once, whoever comes first."""
    from dlbridge_cuda import contexts, memory, streams

    contexts.primary.cache_clear()
    memory.default_pool.cache_clear()
    streams._events.clear()
    cuda = dlbridge.backend("cuda")
    start = threading.Barrier(8)
    failures = []

    def work():
        start.wait()
        try:
            with stream() as own:
                if members[0] == "wait":
                    cuda.wait(0, own, 1)
                else:
                    cuda.free(0, cuda.allocate(0, 64, 256, own), own)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
