"""The CPU backend: the conformance kit, and what only the CPU has."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from dlbridge.protocol import Span
from dlbridge.testing import BackendTests
from dlbridge.testing.backend_leaks import resident_bytes
from tests.support.scripts import run_script
from tests.support.threads import others_run_during


class TestCPU(BackendTests):
    name = "cpu"
    refuses_writes = False  # it gets addresses, and knows of no right


@pytest.fixture
def cpu():
    return bridge.backend("cpu")


@pytest.mark.parametrize("alignment", [1, 8, 64, 256])
@pytest.mark.parametrize("nbytes", [1, 100, 1 << 20])
def test_memory_is_aligned_to_256_bytes_at_least(cpu, nbytes, alignment):
    held = [cpu.allocate(0, nbytes, alignment, 0) for _ in range(20)]
    assert [each.data % 256 for each in held] == [0] * 20


def test_data_is_an_address(cpu):
    memory = cpu.allocate(0, 10, 1, 0)
    data = memory.data
    cpu.copy_from_host(Span(0, data, 3, 4), memoryview(b"here"), 0)
    assert ctypes.string_at(data + 3, 4) == b"here"
    assert cpu.host_view(Span(0, data, 3, 4), True, 0).data == data + 3


def test_large_memory_goes_back_to_the_system_at_once(cpu):
    before = resident_bytes()
    memory = cpu.allocate(0, 64 << 20, 256, 0)
    cpu.fill(Span(0, memory.data, 0, 64 << 20), 1, 0)
    assert resident_bytes() - before > 60 << 20
    del memory
    assert resident_bytes() - before < 8 << 20


def test_memory_of_others_is_copied_without_bounds(cpu):
    """An address that we did not give out: its owner alone knows where it ends."""
    array = np.arange(10, dtype="u1")
    into = bytearray(3)
    cpu.copy_to_host(Span(0, array.ctypes.data, 4, len(into)), memoryview(into), 0)
    assert into == bytes([4, 5, 6])


def test_own_memory_cannot_be_imported(cpu):
    """Else freeing the import would free the allocation under its owner."""
    memory = cpu.allocate(0, 100, 1, 0)
    assert "allocated it" in cpu.host_import_refusal(0, memory.data, 100, True)
    with pytest.raises(ExchangeError, match="allocated it, use it as it is"):
        cpu.import_host(0, memory.data, 100, False, 0)


def test_overlapping_copy(cpu):
    memory = cpu.allocate(0, 10, 1, 0)
    data = memory.data
    cpu.copy_from_host(Span(0, data, 0, 10), memoryview(b"0123456789"), 0)
    cpu.copy(Span(0, data, 2, 8), Span(0, data, 0, 8), 0)
    assert ctypes.string_at(data, 10) == b"0101234567"


@pytest.mark.parametrize("call", ["copy_from_host", "copy_to_host", "copy", "fill"])
def test_copies_release_the_gil(cpu, call):
    nbytes = 64 << 20
    host = memoryview(bytearray(nbytes))
    memories = [cpu.allocate(0, nbytes, 256, 0) for _ in range(2)]
    target, source = (Span(0, memory.data, 0, nbytes) for memory in memories)
    arguments = {
        "copy_from_host": (target, host, 0),
        "copy_to_host": (target, host, 0),
        "copy": (target, source, 0),
        "fill": (target, 1, 0),
    }[call]
    assert others_run_during(lambda: getattr(cpu, call)(*arguments))


def test_module_imports_no_numpy():
    run_script("import sys, dlbridge.core.plugins.cpu; assert 'numpy' not in sys.modules")


def test_device_info(cpu):
    info = cpu.device_info(0)
    assert info["name"] == info["name"].strip() != ""
    assert info["host_memory_shared"] is True
    assert info["cores"] >= 1
    assert info["driver"] == f"numpy {np.__version__}"
    assert info.get("memory", 1 << 30) > 1 << 28
