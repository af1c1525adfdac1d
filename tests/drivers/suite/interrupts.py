"""Exceptions of signal handlers at any moment: no memory of the driver is lost, or freed twice.

Each storm is a process of its own; freeing twice ends it, for the simulated driver knows no such
memory then.
"""

import sys

import pytest

from tests.support.scripts import finished

from .rig import rig

STORM = """
import ctypes, gc, mmap, os, random, sys
from tests.drivers import build
from tests.support.interrupted import Alarm, interrupted
cuda, *_ = map(build.load, {libraries!r})  # the simulated HIP runtime stands on CUDA's
cuda.fake_cuda_live.restype = ctypes.c_size_t
import numpy as np
import dlbridge as bridge
from dlbridge.kit import staging

device, name = {device!r}, {name!r}
pages = np.frombuffer(mmap.mmap(-1, 1 << 14), "u1")
x = np.arange(10_000, dtype="f4")
# Through the ring of pinned chunks, where there is one, and round it: small chunks take little time.
staging.DIRECT, staging.Stager.__init__.__defaults__ = 1 << 20, (staging.Plan(1 << 18, 4),)
large = np.arange(320_000, dtype="f4")
# Not the exceptions that Python drops in destructors: it prints them.
sys.unraisablehook = lambda args: None if args.exc_type is Alarm else sys.__unraisablehook__(args)

def allocate():
    bridge.empty(1000, "u1", name)

def aligned():
    bridge.empty(1000, "u1", name, alignment=1 << 20)

def round_trip():
    there = bridge.to_device(x, name, copy=True)
    assert (bridge.to_device(there, "cpu", copy=True).numpy() == x).all(), "wrong values"

def staged():
    there = bridge.to_device(large, name, copy=True)
    assert (bridge.to_device(there, "cpu", copy=True).numpy() == large).all(), "wrong values"

def in_place():
    bridge.to_device(pages, name, copy=False)

def shared():  # memory for other processes: on CUDA
    bridge.share(x, name)

def live():  # allocations and files, once every free is done that was put off or queued
    for _ in range(2):
        gc.collect()
        allocate()
        bridge.synchronize(device)
    return cuda.fake_cuda_live() + len(os.listdir("/proc/self/fd"))

works = [globals()[each] for each in {works!r}]
for work in works * 2:
    work()
before = live()
pick = random.Random(4)
interrupted(lambda: pick.choice(works)(), Alarm, {strikes})
live()
for work in works:
    work()
print("left", live() - before)
"""


def storm(name, works):
    """The last line of a storm of *works* on the device *name*."""
    script = STORM.format(
        libraries=list(rig().libraries),
        device=f"{rig().device}:0",
        name=name,
        works=works,
        strikes=300,
    )
    done = finished(script)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "is not freed" not in done.stderr, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timer that sends signals")
def test_signals_lose_no_memory(fake, kind):
    """375 of 644 exceptions in a loop of allocations had left their memory behind."""
    works = ["allocate", "aligned", "round_trip", "staged"]
    works += ["shared"] if hasattr(kind, "allocate_exportable") else []
    assert storm(f"{kind.name}:0", works) == "left 0"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timer that sends signals")
def test_signals_leave_no_page_locked(fake):
    assert storm(f"{rig().host}:0", ["in_place"]) == "left 0"
