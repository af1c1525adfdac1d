"""Ctrl-C at any moment, finalizers in the middle of any call: no hang, nothing lost.

Each storm is a process of its own, judged by its exit code and output, with a
time limit. It runs under the validation layer, which names what is left in a
device when that is closed.
"""

import os
from pathlib import Path

import pytest

from tests.support.scripts import run_script

START = """
import faulthandler, gc, mmap, os, random, signal, struct, sys, threading, time
import numpy as np
from dlbridge_vulkan import Vulkan
from backends.vulkan.tests.held_buffers import HELD, allocate, free, import_host
from dlbridge.protocol import Region, Span
faulthandler.dump_traceback_later({patience}, exit=True)
sys.setswitchinterval(1e-5)
backend = Vulkan(staged={staged})
spirv = open({spirv!r}, "rb").read()
kernel = backend.kernel(spirv, buffers=1, push_nbytes=12)
pages = mmap.mmap(-1, 1 << 14)
address = np.frombuffer(pages, "u1").__array_interface__["data"][0]
content = random.Random(1).randbytes(50_000)

def small():
    free(backend, 0, allocate(backend, 0, 1000, 64, 0), 0)

def large():
    free(backend, 0, allocate(backend, 0, 70 << 20, 64, 0), 0)

def write():
    data = allocate(backend, 0, 50_000, 64, 0)
    backend.copy_from_host(Span(0, data, 0, 50_000), memoryview(content), 0)
    got = bytearray(50_000)
    backend.copy_to_host(Span(0, data, 0, 50_000), memoryview(got), 0)
    free(backend, 0, data, 0)
    assert got == content, "wrong bytes"

def strided():
    data = allocate(backend, 0, 50_000, 64, 0)
    gaps, packed = Region((60,), (8,), 4), Region((60,), (4,), 4)
    span = Span(0, data, 0, gaps.extent)
    backend.copy_strided_from_host(span, gaps, memoryview(content)[:240], packed, 0)
    got = bytearray(240)
    backend.copy_strided_to_host(span, gaps, memoryview(got), packed, 0)
    free(backend, 0, data, 0)
    assert got == content[:240], "wrong bytes"

def shader():
    data, values = allocate(backend, 0, 400, 64, 0), np.arange(100, dtype="f4")
    backend.copy_from_host(Span(0, data, 0, 400), memoryview(values).cast("B"), 0)
    kernel.run([(backend.devices.buffer(data), 0, 400)], (2,), struct.pack("=IIf", 100, 1, 2.0))
    got = np.zeros(100, "f4")
    backend.copy_to_host(Span(0, data, 0, 400), memoryview(got).cast("B"), 0)
    free(backend, 0, data, 0)
    assert (got == 2 * values).all(), "wrong values"

def make():
    backend.kernel(spirv, buffers=1, push_nbytes=12).close()

def imported():
    data, _ = import_host(backend, 0, address, 1 << 14, False)
    backend.fill(Span(0, data, 0, 100), 7, 0)
    free(backend, 0, data, 0)

def inside():
    data = allocate(backend, 0, 1000, 64, 0)
    backend.copy(Span(0, data, 0, 400), Span(0, data, 500, 400), 0)
    backend.synchronize(0, 0)
    free(backend, 0, data, 0)

def opened():
    another = Vulkan()
    data = allocate(another, 0, 1000, 64, 0)
    free(another, 0, data, 0)
    another.close_device(0)

operations = [small, large, write, strided, shader, make, imported, inside, opened]

def finish():
    HELD.clear()
    for operation in operations:
        operation()
    backend.synchronize(0, 0)
    free(backend, 0, allocate(backend, 0, 4, 4, 0), 0)
    gc.collect()
    assert backend.live_allocations() == 0
"""

INTERRUPTED = """
from tests.support.interrupted import interrupted
def report(unraisable):  # Python's way where a handler raises in a destructor
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
sys.unraisablehook = report
pick = random.Random({seed})
interrupted(lambda: pick.choice(operations)(), KeyboardInterrupt, {hits})
finish()
kernel.close()
del kernel
gc.collect()
backend.close_device(0)
print("done")
"""

FINALIZERS = """
failed = []
class Owner:
    depth = 0
    def __init__(self):
        self.cycle = self
    def __del__(self):
        if Owner.depth > 1:
            return
        Owner.depth += 1
        try:
            random.choice(operations)()
        except BaseException as exc:
            failed.append(repr(exc))
        finally:
            Owner.depth -= 1

def work(number):
    pick = random.Random(number)
    for _ in range({rounds}):
        Owner()
        try:
            pick.choice(operations)()
        except BaseException as exc:
            failed.append(repr(exc))

operations.remove(large)
operations.remove(opened)
gc.collect(); gc.freeze()
gc.set_threshold(7)
from tests.support.threads import in_threads
failed += in_threads(work, {threads})
gc.set_threshold(700)
gc.collect()
finish()
kernel.close()
backend.close_device(0)
print("done", failed[:3])
"""


def storm(code, patience=600, **values):
    """Run *code*; its last line, or what went wrong."""
    spirv = str(Path(__file__).with_name("shaders") / "scale.spv")
    text = (START + code).format(spirv=spirv, patience=patience, **values)
    said = run_script(text, timeout=patience + 60, silent=True)
    return said.split("\n")[-2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
@pytest.mark.parametrize("staged", [False, True], ids=["mapped", "staged"])
def test_ctrl_c_at_any_moment(vulkan, staged):
    """No lock stays taken, no object stays in the device, and the next calls are right."""
    assert storm(INTERRUPTED, seed=3, hits=1500, staged=staged) == "done"


@pytest.mark.parametrize("staged", [False, True], ids=["mapped", "staged"])
@pytest.mark.parametrize("threads", [1, 4])
def test_finalizers_that_use_vulkan(vulkan, staged, threads):
    """The collector runs them inside of any call: allocations, copies, kernels, imports."""
    last = storm(FINALIZERS, rounds=150 // threads, threads=threads, staged=staged)
    assert last == "done []"
