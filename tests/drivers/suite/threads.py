"""Eight threads on everything at once, at every pace, with the collector running."""

import gc
import random
import threading

import numpy as np
import pytest

import dlbridge
from tests.support.threads import in_threads

from .rig import backend, default, drop, hold, rig, stream


def round_trip(rng, own):
    """One random tensor through three devices and back; whether it is still the same."""
    array = np.frombuffer(rng.randbytes(rng.choice([1, 100, 70_000, 300_000])), "u1")
    gpus = [f"{rig().device}:{index}" for index in range(backend().device_count())]
    devices = [*gpus, *rig().kinds[1:], "cpu"]
    with dlbridge.use_stream(f"{rig().device}:0", own):
        moved = array
        for _ in range(3):
            moved = dlbridge.to_device(moved, rng.choice(devices), copy=rng.choice([None, True]))
            if rng.random() < 0.3 and moved.size > 1:
                moved = dlbridge.to_device(moved[:], moved.device, copy=True)
        return np.array_equal(np.asarray(dlbridge.to_device(moved, "cpu")), array)


@pytest.fixture
def busy_collector():
    before = gc.get_threshold()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)


def test_eight_threads(device, pace, busy_collector):
    def work(seed):
        rng = random.Random(seed)
        with stream() as own:
            return [
                f"seed {seed}, turn {turn}"
                for turn in range(12)
                if not round_trip(rng, rng.choice([own, *rig().default_streams]))
            ]

    assert in_threads(work) == []


@pytest.mark.parametrize("member", ["wait", "allocate"])
def test_first_use_in_many_threads(fake, device, member):
    """Pools and events are made by whoever comes first."""
    fake.forget()
    rig().events().clear()
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        with stream() as own:
            if member == "wait":
                device.wait(0, own, default())
            else:
                drop(hold(device.allocate(0, 64, 256, own)), own)

    assert in_threads(work) == []
