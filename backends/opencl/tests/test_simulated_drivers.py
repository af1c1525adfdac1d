"""Other drivers' behaviour, played by the layer in front of this one (layer/layer.c)."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest

import dlbridge as bridge
from dlbridge.errors import DeviceMemoryError
from dlbridge.protocol import Region, Span
from dlbridge.testing import side

LOOK = """
import ctypes, os
import numpy as np
import dlbridge as bridge
from dlbridge.errors import DeviceMemoryError
from dlbridge.protocol import Span

opencl = bridge.backend("opencl")
layer = ctypes.CDLL(os.environ["OPENCL_LAYERS"])
layer.layer_get.restype = ctypes.c_long
def count(name):
    return layer.layer_get(name.encode())

host = bridge.empty(1 << 20, "uint8", alignment=4096).numpy()
host[:] = 1
"""


# Host memory in place ---------------------------------------------------------------

REFUSALS = [-4, -5, -6, -30, -34, -37, -38, -59, -61, -9999]
"""No memory (three kinds), invalid value, context, host pointer, memory object, operation,
size; and a status that no table knows."""


@pytest.mark.parametrize("status", REFUSALS)
def test_an_import_that_the_driver_refuses_becomes_a_copy(opencl, layer, shared, status):
    host = bridge.empty(4096, "uint8").numpy()
    host[:] = 7
    bridge.to_device(host, "opencl:0", copy=False)  # so that only this import is refused
    layer.set("refuse_import", status)
    with bridge.trace() as trace:
        tensor = bridge.to_device(host, "opencl:0")
    assert [step.kind for step in trace.plans[0].steps] == ["upload"]
    assert (bridge.to_device(tensor, "cpu", copy=True).numpy() == 7).all()
    with pytest.raises(bridge.Error, match="in place"):
        bridge.to_device(host, "opencl:0", copy=False)


@pytest.mark.parametrize("status", [-4, -5, -6, -14])
def test_an_import_that_fails_at_the_first_command_becomes_a_copy(script, status, shared):
    """Drivers of GPUs pin the pages then."""
    script(
        LOOK
        + f"""
assert opencl.host_import_refusal(0, host.ctypes.data, host.nbytes, True) == ""
layer.layer_set(b"late_import", {status})
tensor = bridge.to_device(host, "opencl:0")
assert (bridge.to_device(tensor, "cpu", copy=True).numpy() == 1).all()
assert count("imports") >= 2
""",
        gpu=1,
    )


@pytest.mark.parametrize(
    ("shadow", "says"), [(1, "the device reads that copy"), (3, "the device writes to that copy")]
)
@pytest.mark.parametrize("gpu", [0, 1])
def test_a_driver_that_keeps_a_copy_of_host_memory_is_found_out(script, shadow, says, gpu, shared):
    """Data would be stale in silence: it is refused, and the tensor is a copy."""
    said = script(
        LOOK
        + """
print(bridge.explain(host, "opencl:0"))
tensor = bridge.to_device(host, "opencl:0")
host[:] = 2
assert (bridge.to_device(tensor, "cpu", copy=True).numpy() == 1).all()
""",
        shadow=shadow,
        gpu=gpu,
    )
    assert "upload" in said
    assert says in said


def test_a_driver_that_fetches_host_memory_once_is_found_out(script, shared):
    """At the first command: one look would take it for one memory."""
    said = script(LOOK + 'print(bridge.explain(host, "opencl:0"))', shadow=2)
    assert "keeps a copy of host memory" in said


def test_a_driver_that_fetches_host_memory_once_and_writes_it_back_is_found_out(script, shared):
    """What it fetched was right, and so is what it wrote; only a second look shows the copy."""
    said = script(LOOK + 'print(bridge.explain(host, "opencl:0"))', shadow=4)
    assert "the device reads that copy" in said


def test_the_probe_runs_once(script, shared):
    script(
        LOOK
        + """
for _ in range(5):
    bridge.explain(host, "opencl:0")
assert count("imports") == 1, count("imports")
"""
    )


OWN_MEMORY = """
drawback = opencl.host_import_refusal(0, host.ctypes.data, host.nbytes, False)
assert "memory of its own" in drawback, drawback
plan = bridge.plan(host, "opencl:0")
assert [step.kind for step in plan.steps] == ["upload"]
assert "memory of its own" in str(plan)
assert count("imports") == 0
requested = opencl.host_import_refusal(0, host.ctypes.data, host.nbytes, True)
"""


def test_a_gpu_with_memory_of_its_own_copies_unless_asked(script, opencl):
    """Each use would cross the bus; `copy=False` asks for it, where the driver can do it.

    NVIDIA's keeps a copy of host memory, which its own memory is for it.
    """
    one_memory = opencl.device_info(0)["host_memory_shared"]
    script(
        LOOK
        + OWN_MEMORY
        + f"one_memory = {one_memory}"
        + """
if requested and not one_memory:
    assert "keeps a copy" in requested
    try:
        bridge.to_device(host, "opencl:0", copy=False)
    except bridge.Error as exc:
        assert requested in str(exc), exc
    else:
        raise AssertionError
    os._exit(0)
assert requested == "", requested
moved = bridge.to_device(host, "opencl:0", copy=False)
o = moved.operand()
opencl.fill(Span(0, o.data, o.byte_offset, 9), 5, o.stream)
opencl.synchronize(0, o.stream)
assert (host[:9] == 5).all()
""",
        unified=0,
        gpu=1,
    )


def test_a_gpu_that_keeps_a_copy_refuses_also_when_asked(script):
    script(
        LOOK
        + OWN_MEMORY
        + """
assert "memory of its own, and" in requested and "keeps a copy" in requested, requested
try:
    opencl.import_host(0, host.ctypes.data, host.nbytes, False, 0)
except BufferError as exc:
    assert "keeps a copy" in str(exc)
else:
    raise AssertionError
""",
        unified=0,
        gpu=1,
        shadow=1,
    )


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("host.ctypes.data, (1 << 20) + 64, False", "in one buffer"),
        ("host.ctypes.data + 64, 4096, False", "not a multiple of 4096 bytes"),
        ("host.ctypes.data, 100, False", "not a multiple of 64 bytes"),
        ("host.ctypes.data, 4096, True", "read-only"),
    ],
)
def test_imports_that_gpus_refuse_are_not_tried(script, what, says):
    script(
        LOOK
        + f"""
try:
    opencl.import_host(0, {what}, 0)
except BufferError as exc:
    assert {says!r} in str(exc)
else:
    raise AssertionError
""",
        gpu=1,
        max_allocation=1 << 20,
    )


def test_read_only_memory_becomes_a_copy_on_a_gpu(script):
    script(
        LOOK
        + """
host.flags.writeable = False
tensor = bridge.to_device(host, "opencl:0")
assert (bridge.to_device(tensor, "cpu", copy=True).numpy() == 1).all()
assert count("imports") <= 1, "only the probe"
""",
        gpu=1,
    )


# Memory that is short -------------------------------------------------------------------

LATE = """
stream = opencl.current_stream(0)
half = opencl.allocate(0, 600_000, 64, stream)
half = None
half = opencl.allocate(0, 700_000, 64, stream)
try:
    opencl.allocate(0, 800_000, 64, stream)
except DeviceMemoryError as exc:
    assert "allocating 800000 bytes" in str(exc), exc
else:
    raise AssertionError("the driver's refusal would come with a later command")
half = None
memory = opencl.allocate(0, 800_000, 64, stream)
opencl.fill(Span(0, memory.data, 0, 800_000), 1, stream)
opencl.synchronize(0, stream)
"""


@pytest.mark.parametrize("status", [-4, -5, -6])
def test_memory_that_runs_out_at_the_first_command(script, status):
    """NVIDIA's driver allocates then: the error comes from `allocate` all the same."""
    script(LOOK + LATE, unified=0, gpu=1, room=1_000_000, late=status)


def test_allocating_does_not_wait_for_the_stream(opencl, layer, context, gate):
    """Though the first command on new memory is waited for."""
    own = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
    cl.enqueue_barrier(own, wait_for=gate.closed)
    memory = opencl.allocate(0, 12345, 64, own.int_ptr)
    gate.open()
    assert memory.nbytes == 12345


def test_more_than_the_promised_size_is_tried(script):
    """CL_DEVICE_MAX_MEM_ALLOC_SIZE is a promise of so much at least, not a limit."""
    script(
        LOOK
        + """
tensor = bridge.zeros(1 << 21, "uint8", "opencl:0")
assert not bridge.to_device(tensor, "cpu").numpy().any()
""",
        max_allocation=1 << 20,
    )


def test_more_than_the_driver_accepts_names_the_promise(opencl):
    promised = opencl.device_info(0)["max_allocation"]
    with pytest.raises(DeviceMemoryError, match=f"accepts up to {promised} bytes"):
        opencl.allocate(0, 1 << 50, 64, 0)


# Transfers and order --------------------------------------------------------------------

LARGE = """
rng = np.random.default_rng(0)
pinned, reads, writes = count("pinned"), count("reads"), count("writes")
sizes = 4096, 256 << 10, (4 << 20) + 1, (12 << 20) + 5
for nbytes in sizes:
    content = rng.integers(0, 256, nbytes, "u1")
    tensor = bridge.to_device(content, "opencl:0", copy=True)
    content_was = content.copy()
    content[:] = 0  # it has been read
    assert (bridge.to_device(tensor, "cpu", copy=True).numpy() == content_was).all(), nbytes
assert (count("reads") - reads, count("writes") - writes) == (len(sizes), len(sizes))
assert count("pinned") == pinned
"""


def test_large_copies_are_one_command_each(script):
    script(LOOK + LARGE, unified=0, gpu=1)


def test_copies_between_contexts_go_through_host_memory_in_pieces(script):
    script(
        LOOK
        + """
import pyopencl as cl
from dlbridge_opencl.copies import CHUNK
content = np.random.default_rng(0).integers(0, 256, 3 * CHUNK + 5, "u1")
here = bridge.to_device(content, "opencl:0", copy=True)
own = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
maps, reads, writes = count("maps"), count("reads"), count("writes")
with bridge.use_stream("opencl:0", cl.CommandQueue(cl.Context([own.device]))):
    there = bridge.to_device(here, "opencl:0", copy=True)
    assert (count("reads") - reads, count("writes") - writes) == (4, 4)
    assert count("maps") == maps
    assert (bridge.to_device(there, "cpu", copy=True).numpy() == content).all()
""",
        unified=0,
        gpu=1,
    )


BETWEEN = """
import pyopencl as cl

def commands():
    return count("reads"), count("writes"), count("rectangles"), count("maps")

own = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
other = cl.CommandQueue(cl.Context([own.device]))
rng = np.random.default_rng(0)
bridge.to_device(bridge.to_device(np.zeros(1 << 20, "u1"), "opencl:0", copy=True), "cpu")
for shape, view in (
    (((24 << 20) + 1,), np.s_[::2]),
    ((96 << 20,), np.s_[::8]),
    ((4000, 8192), np.s_[:, :4096]),
    ((4000, 32768), np.s_[:, :4096]),
):
    content = rng.integers(0, 256, shape, "u1")
    here = bridge.to_device(content, "opencl:0", copy=True)
    before = commands()
    with bridge.use_stream("opencl:0", other):
        there = bridge.to_device(here[view], "opencl:0", copy=True)
        after = commands()
        assert (bridge.to_device(there, "cpu", copy=True).numpy() == content[view]).all()
    assert sum(after) <= sum(before) + 2, (view, before, after)

    # back, into a target with gaps
    target = bridge.to_device(np.zeros(shape, "u1"), "opencl:0", copy=True)
    before = commands()
    bridge.copy_(target[view], there)
    after = commands()
    assert sum(after) <= sum(before) + 2, (view, before, after)
    content[:], kept = 0, content[view].copy()
    content[view] = kept
    assert (bridge.to_device(target, "cpu", copy=True).numpy() == content).all()
"""


def test_strided_copies_between_contexts(script):
    """To the host, and from there: two commands for each, of short runs and of rows."""
    script(LOOK + BETWEEN, unified=0, gpu=1)


COMMANDS = {
    "fill": lambda opencl, a, b: opencl.fill(Span(0, a.data, 0, 64), 1, a.stream),
    "copy": lambda opencl, a, b: opencl.copy(
        Span(0, a.data, 0, 64), Span(0, b.data, 0, 64), a.stream
    ),
    "strided copy": lambda opencl, a, b: opencl.copy_strided(
        *side(0, a.data, 0, (8,), (8,), 4), *side(0, b.data, 0, (8,), (8,), 4), a.stream
    ),
    "upload": lambda opencl, a, b: a.write(np.zeros(64, "u1")),
    "strided upload": lambda opencl, a, b: opencl.copy_strided_from_host(
        *side(0, a.data, 0, (8,), (8,), 4), memoryview(bytes(32)), Region((8,), (4,), 4), a.stream
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_stays_behind_unflushed(opencl, layer, make, command):
    """A driver may keep commands back until a flush, and nobody waits for these."""
    a, b = make(64), make(64)
    layer.set("unflushed", 0)
    COMMANDS[command](opencl, a, b)
    assert layer["unflushed"] == 0


KIT = {
    "GPU with memory of its own": {"unified": 0, "gpu": 1, "tight": 1},
    "GPU that shares memory": {"gpu": 1},
    "driver that keeps copies": {"shadow": 1},
    "GPU that keeps copies": {"gpu": 1, "shadow": 2},
}


@pytest.mark.parametrize("kind", KIT)
def test_the_conformance_kit_on_other_drivers(script, kind, shared):
    """Not in front of a GPU with memory of its own: there the switches change too little."""
    from pathlib import Path

    kit = str(Path(__file__).with_name("test_conformance.py"))
    script(
        f"import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {kit!r}]))",
        timeout=300,
        **KIT[kind],
    )
