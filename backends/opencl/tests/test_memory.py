"""Buffers: what may be freed when, and the limits of the device."""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl
import pytest
from dlbridge_opencl import copies, devices
from scripts import run_script

import dlbridge as bridge
from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.protocol import NativeArray, Span

N = 4096


def native(opencl, memory):
    array = NativeArray(
        0, memory.data, 0, "uint32", (memory.nbytes // 4,), None, readonly=False, owner=memory
    )
    return opencl.to_native(array)


def test_what_others_hold_is_never_used_again(make, opencl):
    first = make(N)
    array = native(opencl, first)
    data = first.data
    first.free()
    assert make(N).data != data
    assert array.base_data.int_ptr == data


def test_freeing_on_the_queue_of_the_kernel_is_safe(make, opencl, kernels, turns):
    """The memory may be another tensor's at once, and the kernel still reads its own."""
    queue = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
    target = make(N * 4)
    for value in range(1, 51):
        source = make(N * 4).write(np.full(N, value, "u4"))
        kernels("late_copy", queue, source.buffer, target.buffer, N, turns)
        queue.flush()
        source.free()
        again = make(N * 4)
        again.write(np.zeros(N, "u4"))
        assert (target.read("u4") == value).all(), f"round {value}"
        again.free()


def test_one_byte_more_than_is_promised_for_one_buffer(opencl):
    """PoCL refuses it; Oclgrind and NVIDIA's driver accept it, and then the last byte is there."""
    info = opencl.device_info(0)
    limit = info["max_allocation"]
    try:
        memory = opencl.allocate(0, limit + 1, 64, 0)
    except DeviceMemoryError as exc:
        said = str(exc)
    else:
        said = ""
    if said:
        assert f"{limit + 1} bytes" in said
        assert f"up to {limit} bytes" in said
        return
    assert "Portable" not in info["platform"]
    into = bytearray(1)
    opencl.fill(Span(0, memory.data, limit, 1), 7, 0)
    opencl.copy_to_host(Span(0, memory.data, limit, len(into)), memoryview(into), 0)
    assert into == b"\x07"


@pytest.mark.parametrize("filled", [0, 7, 100, 1000])
@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1000), (50, 900), (400, 600), (999, 1), (5, 0)])
def test_a_fill_far_behind_the_beginning(opencl, monkeypatch, filled, offset, nbytes):
    """NVIDIA's driver loses its context there: the rest is copied from what is filled."""
    monkeypatch.setattr(copies, "FILLED", filled)
    monkeypatch.setattr(copies, "CHUNK", 64)
    memory, into = opencl.allocate(0, 1000, 64, 0), bytearray(1000)
    opencl.copy_from_host(Span(0, memory.data, 0, 1000), memoryview(bytes(1000)), 0)
    opencl.fill(Span(0, memory.data, offset, nbytes), 7, 0)
    opencl.copy_to_host(Span(0, memory.data, 0, 1000), memoryview(into), 0)
    assert into == bytes(offset) + b"\x07" * nbytes + bytes(1000 - offset - nbytes)


FULL = """
import resource
from dlbridge.errors import DeviceMemoryError
from dlbridge.core.plugins.registry import backend
from dlbridge.protocol import Span

opencl = backend("opencl")
first = opencl.allocate(0, 256, 64, 0)
opencl.fill(Span(0, first.data, 0, 256), 0, 0)  # threads and all are there
opencl.synchronize(0, 0)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
stream = opencl.current_stream(0)
half = opencl.allocate(0, 600 << 20, 64, stream)
half = None
half = opencl.allocate(0, 700 << 20, 64, stream)
try:
    opencl.allocate(0, 800 << 20, 64, stream)
except DeviceMemoryError as exc:
    print(exc)
half = None
opencl.allocate(0, 800 << 20, 64, stream)
print("goes on")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_no_room_is_an_error_and_not_the_end(opencl):
    if "Portable" not in opencl.device_info(0)["platform"]:
        pytest.skip("only PoCL's memory is the process's own, which can be limited")
    said = run_script(FULL)
    assert f"allocating {800 << 20} bytes" in said
    assert "has no room left" in said
    assert said.endswith("goes on\n")


def test_host_memory_is_used_in_place(opencl, kernels, shared):
    host = aligned(N * 4).view("u4")
    address = host.__array_interface__["data"][0]
    assert opencl.host_import_refusal(0, address, host.nbytes, False) == ""
    memory = opencl.import_host(0, address, host.nbytes, False, 0)
    queue = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
    kernels("late_fill", queue, cl.Buffer.from_int_ptr(memory.data, True), N, 9, 0)
    view = opencl.host_view(Span(0, memory.data, 0, host.nbytes), True, 0)
    assert (view.data, memory.offset) == (address, 0)
    assert (host == 9).all()


def test_the_end_of_an_import_waits_for_work_on_host_memory(
    opencl, kernels, context, turns, shared
):
    """Its owner may take it back right after."""
    queue = cl.CommandQueue(context, context.devices[0])
    opencl.normalize_stream(0, queue)
    host = aligned(N * 4).view("u4")
    address = host.__array_interface__["data"][0]
    memory = opencl.import_host(0, address, host.nbytes, False, 0)
    kernels("late_fill", queue, cl.Buffer.from_int_ptr(memory.data, True), N, 9, 100 * turns)
    del memory
    assert (host == 9).all()


def test_badly_aligned_host_memory_is_refused(opencl, shared):
    host = aligned(N)[16:]
    address = host.__array_interface__["data"][0]
    assert "not a multiple of 64 bytes" in opencl.host_import_refusal(0, address, 256, False)
    with pytest.raises(ExchangeError, match="multiple of 64 bytes"):
        opencl.import_host(0, address, 256, False, 0)


def test_a_device_with_memory_of_its_own_refuses(opencl):
    info = opencl.device_info(0)
    if info["host_memory_shared"]:
        pytest.skip("it shares the host's")
    host = aligned(N, 4096)  # as GPUs need it
    address = host.__array_interface__["data"][0]
    assert "memory of its own" in opencl.host_import_refusal(0, address, N, False)
    refusal = opencl.host_import_refusal(0, address, N, True)
    assert refusal == "" or "keeps a copy of host memory" in refusal
    memory = opencl.allocate(0, N, 64, 0)
    assert "memory of its own" in opencl.host_view_refusal(0, memory.data)


def test_read_only_host_memory_cannot_be_written(opencl, shared):
    host = aligned(N)
    address = host.__array_interface__["data"][0]
    memory = opencl.import_host(0, address, N, True, 0)
    with pytest.raises(ExchangeError, match="flags"):
        opencl.copy_from_host(Span(0, memory.data, 0, 1), memoryview(b"x"), 0)
    with pytest.raises(ExchangeError, match="flags"):
        opencl.host_view(Span(0, memory.data, 0, N), True, 0)
    assert opencl.host_view(Span(0, memory.data, 0, N), False, 0).data == address


def aligned(nbytes, alignment=64):
    raw = np.zeros(nbytes + alignment, "u1")
    start = -raw.__array_interface__["data"][0] % alignment
    return raw[start : start + nbytes]


# Made with its content -----------------------------------------------------------------


@pytest.fixture
def limit(opencl):
    """Up to how many bytes; skips where the device makes no memory in this way."""
    if not devices.device(0).copies_at_once:
        pytest.skip("it is for drivers of CPUs that take several threads")
    return opencl.content_limit


def test_a_small_upload_is_no_command(opencl, layer, limit):
    array = np.arange(limit + 4, dtype="u1")[3 : 3 + limit]  # not aligned for a use in place
    kinds = ("reads", "writes", "copies", "fills", "maps")
    before = [layer[kind] for kind in kinds]
    moved = [bridge.to_device(array, "opencl:0") for _ in range(3)]
    assert [layer[kind] for kind in kinds] == before
    for tensor in moved:
        assert (bridge.to_device(tensor, "cpu", copy=True).numpy() == array).all()


@pytest.mark.parametrize("with_content", [False, True])
def test_dropped_memory_is_released(opencl, with_content):
    content = memoryview(bytes(100)) if with_content else None
    stream = opencl.current_stream(0)
    for _ in range(3):
        memory = opencl.allocate(0, 100, 64, stream, content)
        buffer = cl.Buffer.from_int_ptr(memory.data, True)
        before = buffer.reference_count
        del memory
        if not devices.device(0).thread_safe:  # the next one releases what was dropped
            opencl.allocate(0, 100, 64, stream)
        assert buffer.reference_count == before - 1


def test_a_kernel_sees_memory_made_with_its_content(opencl, kernels, limit):
    source = np.arange(N, dtype="u4")[:1000]
    first = bridge.to_device(source, "opencl:0", copy=True)
    second = bridge.zeros(1000, "uint32", "opencl:0")
    into, taken = second.to_native(), first.to_native()
    kernels("late_copy", into.queue, taken.base_data, into.base_data, 1000, 0)
    assert (bridge.to_device(second, "cpu", copy=True).numpy() == source).all()
