"""Programs for processes of their own, over a driver that the layer plays (layer/layer.c).

``@scene(gpu=1)`` enters one with the layer's switches; `test_scenes.py` runs each of `SCENES`.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pyopencl as cl

import dlbridge as bridge
from dlbridge.errors import DeviceMemoryError
from dlbridge.protocol import Span


class Scene(NamedTuple):
    """A program, the layer's switches for it, and whether the device must share memory."""

    play: Callable[[], object]
    switches: dict[str, int]
    shared: bool


SCENES: dict[str, Scene] = {}
APART = {"gpu": 1, "unified": 0}
"""A GPU with memory of its own."""


def scene(name=None, *arguments, shared=False, **switches):
    """Enter the program below, once for each time that this stands above it."""

    def enter(function):
        play = partial(function, *arguments)
        SCENES[name or function.__name__] = Scene(play, switches, shared)
        return function

    return enter


def opencl():
    return bridge.backend("opencl")


def count(name):
    layer = ctypes.CDLL(os.environ["OPENCL_LAYERS"])
    layer.layer_get.restype = ctypes.c_long
    return layer.layer_get(name.encode())


def turn(name, value):
    ctypes.CDLL(os.environ["OPENCL_LAYERS"]).layer_set(name.encode(), ctypes.c_long(value))


def pages(value=1):
    """A megabyte of the host, at a page's beginning."""
    host = bridge.empty(1 << 20, "uint8", alignment=4096).numpy()
    host[:] = value
    return host


def on_host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True).numpy()


def refusal(call, *arguments):
    """What the error says."""
    try:
        call(*arguments)
    except bridge.Error as exc:
        return str(exc)
    raise AssertionError("it was not refused")


def own_queue():
    return cl.CommandQueue.from_int_ptr(opencl().current_stream(0), True)


# Host memory in place ---------------------------------------------------------------


@scene("an import fails at the first command: -4", -4, gpu=1, shared=True)
@scene("an import fails at the first command: -5", -5, gpu=1, shared=True)
@scene("an import fails at the first command: -6", -6, gpu=1, shared=True)
@scene("an import fails at the first command: -14", -14, gpu=1, shared=True)
def becomes_a_copy(status):
    """Drivers of GPUs pin the pages then."""
    host = pages()
    assert opencl().host_import_refusal(0, host.ctypes.data, host.nbytes, True) == ""
    turn("late_import", status)
    assert (on_host(bridge.to_device(host, "opencl:0")) == 1).all()
    assert count("imports") >= 2


@scene("the driver keeps a copy", "the device reads that copy", shadow=1, shared=True)
@scene("a GPU keeps a copy", "the device reads that copy", shadow=1, gpu=1, shared=True)
@scene("it writes to its copy", "the device writes to that copy", shadow=3, shared=True)
@scene("a GPU writes to its copy", "the device writes to that copy", shadow=3, gpu=1, shared=True)
# At the first command: one look would take it for one memory.
@scene("it fetches host memory once", "keeps a copy of host memory", shadow=2, shared=True)
# What it fetched was right, and so is what it wrote; only a second look shows the copy.
@scene("it fetches once and writes back", "the device reads that copy", shadow=4, shared=True)
def copies_because(reason):
    """Data would be stale in silence: it is refused, and the tensor is a copy."""
    host = pages()
    said = bridge.explain(host, "opencl:0")
    assert "upload" in said
    assert reason in said
    tensor = bridge.to_device(host, "opencl:0")
    host[:] = 2
    assert (on_host(tensor) == 1).all()


@scene(shared=True)
def the_probe_runs_once():
    host = pages()
    for _ in range(5):
        bridge.explain(host, "opencl:0")
    assert count("imports") == 1, count("imports")


def refused_unless_asked(host):
    """What the GPU says when it is asked to use host memory all the same."""
    drawback = opencl().host_import_refusal(0, host.ctypes.data, host.nbytes, False)
    assert "memory of its own" in drawback, drawback
    plan = bridge.plan(host, "opencl:0")
    assert [step.kind for step in plan.steps] == ["upload"]
    assert "memory of its own" in str(plan)
    assert count("imports") == 0
    return opencl().host_import_refusal(0, host.ctypes.data, host.nbytes, True)


@scene(**APART)
def a_gpu_with_memory_of_its_own_copies_unless_asked():
    """Each use would cross the bus; `copy=False` asks for it, where the driver can do it.

    NVIDIA's keeps a copy of host memory, which its own memory is for it.
    """
    host = pages()
    requested = refused_unless_asked(host)
    if requested and "keeps a copy" in requested:
        assert requested in refusal(lambda: bridge.to_device(host, "opencl:0", copy=False))
        return
    assert requested == "", requested
    o = bridge.to_device(host, "opencl:0", copy=False).operand()
    opencl().fill(Span(0, o.data, o.byte_offset, 9), 5, o.stream)
    opencl().synchronize(0, o.stream)
    assert (host[:9] == 5).all()


@scene(**APART, shadow=1)
def a_gpu_that_keeps_a_copy_refuses_also_when_asked():
    host = pages()
    requested = refused_unless_asked(host)
    assert "memory of its own, and" in requested, requested
    assert "keeps a copy" in requested
    given = 0, host.ctypes.data, host.nbytes, False, 0
    assert "keeps a copy" in refusal(opencl().import_host, *given)


@scene(gpu=1, max_allocation=1 << 20)
def imports_that_gpus_refuse_are_not_tried():
    at = pages().ctypes.data
    for given, says in (
        ((at, (1 << 20) + 64, False), "in one buffer"),
        ((at + 64, 4096, False), "not a multiple of 4096 bytes"),
        ((at, 100, False), "not a multiple of 64 bytes"),
        ((at, 4096, True), "read-only"),
    ):
        assert says in refusal(opencl().import_host, 0, *given, 0)


@scene(gpu=1)
def read_only_memory_becomes_a_copy_on_a_gpu():
    host = pages()
    host.flags.writeable = False
    assert (on_host(bridge.to_device(host, "opencl:0")) == 1).all()
    assert count("imports") <= 1, "only the probe"


# Memory that is short -------------------------------------------------------------------


@scene("no memory at the first command: -4", **APART, room=1_000_000, late=-4)
@scene("no memory at the first command: -5", **APART, room=1_000_000, late=-5)
@scene("no memory at the first command: -6", **APART, room=1_000_000, late=-6)
def allocate_says_so():
    """NVIDIA's driver allocates then: the error comes from `allocate` all the same."""
    stream = opencl().current_stream(0)
    half = opencl().allocate(0, 600_000, 64, stream)
    half = None
    half = opencl().allocate(0, 700_000, 64, stream)
    try:
        opencl().allocate(0, 800_000, 64, stream)
    except DeviceMemoryError as exc:
        assert "allocating 800000 bytes" in str(exc)  # noqa: PT017 - no pytest here
    else:
        raise AssertionError("the driver's refusal would come with a later command")
    del half
    memory = opencl().allocate(0, 800_000, 64, stream)
    opencl().fill(Span(0, memory.data, 0, 800_000), 1, stream)
    opencl().synchronize(0, stream)


@scene(max_allocation=1 << 20)
def more_than_the_promised_size_is_tried():
    """CL_DEVICE_MAX_MEM_ALLOC_SIZE is a promise of so much at least, not a limit."""
    assert not on_host(bridge.zeros(1 << 21, "uint8", "opencl:0")).any()


# Transfers ------------------------------------------------------------------------------


def commands(*kinds):
    return [count(kind) for kind in kinds]


@scene(**APART)
def large_copies_are_one_command_each():
    sizes = 4096, 256 << 10, (4 << 20) + 1, (12 << 20) + 5
    bridge.zeros(1, "uint8", "opencl:0")
    before = commands("reads", "writes", "pinned")
    for nbytes in sizes:
        content = np.random.default_rng(0).integers(0, 256, nbytes, "u1")
        tensor = bridge.to_device(content, "opencl:0", copy=True)
        was, content[:] = content.copy(), 0  # it has been read
        assert (on_host(tensor) == was).all(), nbytes
    after = commands("reads", "writes", "pinned")
    more = [now - then for now, then in zip(after, before, strict=True)]
    assert more == [len(sizes), len(sizes), 0]


@scene(**APART)
def copies_between_contexts_go_through_host_memory_in_pieces():
    from dlbridge_opencl.copies import CHUNK

    content = np.random.default_rng(0).integers(0, 256, 3 * CHUNK + 5, "u1")
    here, kinds = bridge.to_device(content, "opencl:0", copy=True), ("reads", "writes", "maps")
    before = commands(*kinds)
    context = cl.Context([own_queue().device])
    with bridge.use_stream("opencl:0", cl.CommandQueue(context)):
        there = bridge.to_device(here, "opencl:0", copy=True)
        more = [now - then for now, then in zip(commands(*kinds), before, strict=True)]
        assert more == [4, 4, 0]
        assert (on_host(there) == content).all()


@scene(**APART)
def strided_copies_between_contexts():
    """To the host, and from there: two commands for each, of short runs and of rows.

    Each is longer than a piece, which is smaller here.
    """
    from dlbridge_opencl import copies

    copies.CHUNK = 1 << 20
    most = 4  # NVIDIA's driver takes the last row of each rectangle by itself, others need 2
    kinds, rng = ("reads", "writes", "rectangles", "maps"), np.random.default_rng(0)
    context = cl.Context([own_queue().device])
    other = cl.CommandQueue(context)
    on_host(bridge.to_device(np.zeros(1 << 20, "u1"), "opencl:0", copy=True))
    for shape, view in (
        (((3 << 19) + 1,), np.s_[::2]),
        ((6 << 20,), np.s_[::8]),
        ((250, 8192), np.s_[:, :4096]),
        ((250, 32768), np.s_[:, :4096]),
    ):
        content = rng.integers(0, 256, shape, "u1")
        here = bridge.to_device(content, "opencl:0", copy=True)
        before = commands(*kinds)
        with bridge.use_stream("opencl:0", other):
            there = bridge.to_device(here[view], "opencl:0", copy=True)
            after = commands(*kinds)
            assert (on_host(there) == content[view]).all()
        assert sum(after) <= sum(before) + most, (view, before, after)

        # back, into a target with gaps
        target = bridge.to_device(np.zeros(shape, "u1"), "opencl:0", copy=True)
        before = commands(*kinds)
        bridge.copy_(target[view], there)
        after = commands(*kinds)
        assert sum(after) <= sum(before) + most, (view, before, after)
        content[:], kept = 0, content[view].copy()
        content[view] = kept
        assert (on_host(target) == content).all()


# Threads and signals --------------------------------------------------------------------


@scene(shared=True)
def host_views_of_one_tensor_in_several_threads():
    """PoCL crashes if two threads map and unmap one buffer at once."""
    from dlbridge_opencl import views as inside

    from tests.support.threads import in_threads

    sys.setswitchinterval(1e-6)
    t = bridge.to_device(np.arange(4096.0), "opencl:0", copy=True)
    views, end = [0] * 4, time.monotonic() + 1.5  # without the lock it crashed after 0.8 to 1.3

    def look(number):
        first = number % 2 * 8
        while not views[number] or time.monotonic() < end:
            with t[first:].host_view() as host:
                assert host.numpy()[0] == first
            views[number] += 1

    assert in_threads(look, 4) == []
    assert not inside._resources.all()


@scene(shared=True)
def a_ctrl_c_loses_no_imported_memory():
    from tests.support.interrupted import interrupted

    host = bridge.empty(4096, "uint8").numpy()
    sys.unraisablehook = lambda _: None  # what a handler raises in a finalizer

    def work():
        opencl().import_host(0, host.ctypes.data, 4096, False, 0)

    work()
    interrupted(work, KeyboardInterrupt, 1000)
    opencl().allocate(0, 64, 64, 0)  # its end does what was cut off
    assert opencl().live_allocations() == 0, opencl().live_allocations()


def views_while_a_handler_raises():
    """The list of what is mapped, the buffer, and a view of it that stays, in a list."""
    from dlbridge_opencl import memory, views

    from tests.support.interrupted import interrupted

    t = bridge.to_device(np.arange(3000), "opencl:0", copy=True)
    bridge.to_device(t, "cpu", like="numpy", copy=False)
    data, stream = t.operand().data, opencl().current_stream(0)
    span, buffer = Span(0, data, 0, 64), memory.live[data].buffer
    other = [opencl().host_view(span, False, stream)]
    sys.unraisablehook = lambda _: None  # what a handler raises in a finalizer
    interrupted(lambda: opencl().host_view(span, False, stream), KeyboardInterrupt, 500)
    opencl().host_view(span, False, stream)  # its end does what was cut off
    return views._resources, buffer, other, t


@scene(shared=True)
def another_view_stays_mapped_though_a_handler_raises():
    """PoCL takes a second release of one view for that of another, which has the same address."""
    mapped, buffer, other, _tensor = views_while_a_handler_raises()
    assert len(mapped.all()) == 1, mapped.all()
    assert buffer.map_count == 1, buffer.map_count
    other.clear()
    assert buffer.map_count == 0, buffer.map_count
    assert not mapped.all()


@scene(refuse_unmap=-34, shared=True)
def a_view_that_the_driver_does_not_unmap():
    """As of a lost context. pyopencl's destructor would try again, and end the process."""
    mapped, _, other, _tensor = views_while_a_handler_raises()
    other.clear()
    assert not mapped.all()
