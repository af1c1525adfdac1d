"""Copies and whole backends of dlbridge.kit, on a driver in Python."""

import ctypes

import pytest

from dlbridge.errors import ExchangeError
from dlbridge.kit.device_backend import DeviceBackend
from dlbridge.kit.driver import StreamState
from dlbridge.kit.host_backend import HostBackend
from dlbridge.kit.host_copies import DIRECT, HostCopies, StagedCopies
from dlbridge.kit.pool import PoolMemory
from dlbridge.kit.staging import Plan, Stager
from dlbridge.kit.streams import StreamRules
from dlbridge.protocol import Span
from dlbridge.testing import side

RULES = StreamRules("SIM", default=1)


class Sim(DeviceBackend):
    device_type, name = 12, "sim"


class SimHost(HostBackend):
    device_type, name = 1, "sim_host"


@pytest.fixture
def sim(driver, events):
    return Sim(driver, RULES, PoolMemory(driver, events, "sim"), events, HostCopies(driver))


@pytest.fixture
def sim_host(driver, events):
    return SimHost(driver, RULES, events)


def address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("nbytes", [1, 4096, 4097, 50_000])
def test_a_ring_copies_to_the_device(driver, nbytes, threads):
    content = bytes(index * 7 % 251 for index in range(nbytes))
    source, target = bytearray(content), bytearray(nbytes)
    stager = Stager(driver, 0, Plan(4096, threads))
    stager.to_device(address(target), address(source), nbytes, 1)
    assert target == content
    stager.close()
    assert not driver.live


def test_what_is_staged(driver):
    staged = StagedCopies(driver)
    assert not staged.is_staged(0, 64, DIRECT)
    assert staged.is_staged(0, 64, DIRECT + 1)
    driver.kinds[64] = "host"
    assert not staged.is_staged(0, 64, DIRECT + 1)


def test_the_members_of_a_device_backend(driver, sim):
    memory = sim.allocate(0, 64, 256, 0)
    data = memory.data
    sim.fill(Span(0, data, 4, 8), 7, 0)
    sim.copy(Span(1, data, 0, 8), Span(0, data, 32, 8), 0)
    assert driver.log[-2:] == [("fill", data + 4, 7, 8), ("peer", data, data + 32, 8)]
    sim.copy_strided(*side(0, data, 0, [2], [16], 4), *side(0, data, 8, [2], [16], 4), 0)
    assert driver.log[-1] == ("rectangle", 2, 4)
    del memory
    assert not driver.live
    assert sim.current_stream(0) == sim.normalize_stream(0, None) == 1
    assert sim.find_device("sim 1") == 1
    with pytest.raises(LookupError, match="no sim device is called 'x'; there are 0: Sim 0"):
        sim.find_device("x")
    with pytest.raises(ExchangeError, match="there is no sim:2: 2 devices here"):
        sim.allocate(2, 64, 256, 0)
    driver.kinds[64] = "device"
    assert sim.import_data(1, 64, "test") == (1, 64)


def test_waits_are_events(driver, sim, events):
    other = driver.stream()
    sim.wait(0, 1, 0)
    assert driver.log == []
    sim.wait(0, 1, other)
    assert driver.log == [("event",), ("wait", 1)]
    assert events.count(0) == 1
    sim.synchronize(0, other)
    assert driver.log[-1] == ("wait for stream", other)
    driver.streams[other].state = StreamState.CAPTURED
    with pytest.raises(ExchangeError, match="waited for now"):
        sim.synchronize(0, other)


def test_waits_are_noted_for_frees(driver, sim):
    theirs = driver.stream()
    memory = sim.allocate(0, 64, 256, 0)
    sim.wait(0, theirs, 0)
    driver.work(theirs)
    del memory
    assert driver.live


def test_the_members_of_a_host_backend(driver, sim_host):
    assert sim_host.device_count() == 1
    memory = sim_host.allocate(0, 64, 1, 0)
    data = memory.data
    source, into = bytearray(b"abcd"), bytearray(4)
    sim_host.copy_from_host(Span(0, data, 2, len(source)), memoryview(source), 0)
    sim_host.copy(Span(0, data, 8, 4), Span(0, data, 2, 4), 0)
    sim_host.copy_to_host(Span(0, data, 8, len(into)), memoryview(into), 0)
    assert into == b"abcd"
    assert sim_host.host_view(Span(0, data, 3, 4), True, 0).data == data + 3
    assert driver.log.count(("wait for stream", 1)) == 4
    del memory
    assert not driver.live
