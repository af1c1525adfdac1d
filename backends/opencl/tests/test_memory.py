"""Buffers: what may be freed when, and the limits of the device."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from dlbridge_opencl import copies, devices

import dlbridge as bridge
from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.protocol import Span
from tests.support.scripts import run_script

N = 4096


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
from dlbridge import backend
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


def test_badly_aligned_host_memory_is_refused(opencl, shared):
    host = aligned(N)[16:]
    address = host.__array_interface__["data"][0]
    assert "not a multiple of 64 bytes" in opencl.host_import_refusal(0, address, 256, False)
    with pytest.raises(ExchangeError, match="multiple of 64 bytes"):
        opencl.import_host(0, address, 256, False, 0)


def test_read_only_host_memory_cannot_be_written(opencl, shared):
    host = aligned(N)
    address = host.__array_interface__["data"][0]
    memory = opencl.import_host(0, address, N, True, 0)
    with pytest.raises(ExchangeError, match="flags"):
        opencl.copy_from_host(Span(0, memory.data, 0, 1), memoryview(b"x"), 0)
    with pytest.raises(ExchangeError, match="HOST_READ_ONLY"):
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
