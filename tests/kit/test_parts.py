"""The small parts of dlbridge.kit: status, fork, capture, events, pointers, regions, streams."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dlbridge.kit
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.capture import has_nothing_to_wait_for, refuse_capture, refuse_disturbing
from dlbridge.kit.driver import Location, StreamState
from dlbridge.kit.fork import ForkGuard
from dlbridge.kit.pointers import checked
from dlbridge.kit.regions import Side, copy_region
from dlbridge.kit.status import StatusTable
from dlbridge.kit.streams import StreamOrder, StreamRules

RUNS, CAPTURED, BLOCKED = StreamState.RUNS, StreamState.CAPTURED, StreamState.BLOCKED


def test_the_list_of_parts_is_complete():
    modules = {path.stem for path in Path(dlbridge.kit.__file__).parent.glob("*.py")}
    listed = re.findall(r"^`(\w+)`", dlbridge.kit.__doc__, re.MULTILINE)
    assert set(listed) == modules - {"__init__"}


# status ------------------------------------------------------------------------------


def test_codes_become_exceptions():
    table = StatusTable({2: (DeviceMemoryError, "free some")}, lambda code: f"E{code}")
    table.check("call", 0)
    with pytest.raises(DeviceMemoryError, match=r"^call: E2; free some$"):
        table.check("call", 2)
    with pytest.raises(DeviceError, match=r"^call: E9$"):
        table.check("call", 9)


def test_the_first_fatal_error_is_kept():
    table = StatusTable({}, str, fatal=frozenset({7, 8}))
    for code in (1, 7, 8):
        with pytest.raises(DeviceError):
            table.check("call", code)
    assert table.lost == "call: 7"


# fork --------------------------------------------------------------------------------


def test_a_child_is_refused():
    code = """
import os
from dlbridge.kit.fork import ForkGuard
guard = ForkGuard("SIM")
guard.check()
if os.fork() == 0:
    try:
        guard.check()
    except RuntimeError as exc:
        print(exc, flush=True)
    os._exit(0)
os.wait()
guard.check()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "SIM does not survive fork()" in done.stdout
    assert not ForkGuard("SIM").in_child


# capture -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", [CAPTURED, BLOCKED])
def test_what_a_capture_forbids(driver, state):
    refuse_capture(driver, 1, "allocated")
    driver.streams[1].state = state
    with pytest.raises(ExchangeError, match=r"capturing a SIM graph.*cannot be allocated now"):
        refuse_capture(driver, 1, "allocated")
    if state is BLOCKED:
        with pytest.raises(ExchangeError, match="a blocking stream is capturing"):
            refuse_disturbing(driver, 1)
    else:
        refuse_disturbing(driver, 1)


@pytest.mark.parametrize(
    ("waiting", "working", "idle", "want"),
    [
        (RUNS, RUNS, False, False),
        (CAPTURED, CAPTURED, False, False),
        (RUNS, CAPTURED, False, True),
        (CAPTURED, RUNS, True, True),
        (CAPTURED, RUNS, False, None),
        (BLOCKED, BLOCKED, True, None),
        (RUNS, BLOCKED, True, None),
    ],
)
def test_order_beside_a_capture(driver, waiting, working, idle, want):
    """None: refused."""
    other = driver.stream()
    driver.streams[1].state, driver.streams[other].state = waiting, working
    if not idle:
        driver.work(other)
    if want is None:
        with pytest.raises(ExchangeError, match="cannot wait for work outside it"):
            has_nothing_to_wait_for(driver, 1, other)
    else:
        assert has_nothing_to_wait_for(driver, 1, other) is want


# events ------------------------------------------------------------------------------


def test_events_are_used_again(driver, events):
    first = events.record(0, 1)
    events.give_back(0, first)
    assert events.count(0) == 1
    assert events.record(0, 1) is first
    assert events.count(0) == 0
    assert events.record(1, 1) is not first
    events.give_back(0, first)
    events.clear()
    assert ("destroy event",) in driver.log


def test_an_event_that_cannot_be_recorded_is_kept(driver, events):
    with pytest.raises(DeviceError):
        events.record(0, 0xBAD)
    assert events.count(0) == 1


def test_events_of_a_place_that_may_go_are_destroyed(driver, events, monkeypatch):
    monkeypatch.setattr(driver, "is_lasting", lambda place: False)
    events.give_back(0, events.record(0, 1))
    assert events.count(0) == 0
    assert driver.log[-1] == ("destroy event",)


# pointers ----------------------------------------------------------------------------


def test_labels_are_checked(driver):
    driver.kinds[64] = "device"
    assert checked(driver, 64, 0, "sim", ("device",)) == Location("device", 0)
    with pytest.raises(ExchangeError, match="0x40 is sim_host memory, the SIM driver says"):
        checked(driver, 64, 0, "sim_host", ("host",))
    with pytest.raises(ExchangeError, match="must be exported as CPU memory"):
        checked(driver, 65, 0, "sim", ("device",))


def test_memory_that_cannot_be_reached(driver, monkeypatch):
    found = Location("device", 0, "belongs to somebody")
    monkeypatch.setattr(driver, "locate", lambda *_: found)
    with pytest.raises(ExchangeError, match="0x40 belongs to somebody"):
        checked(driver, 64, 0, "sim", ("device",))


# regions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "target", "source", "want"),
    [
        ((5,), (10,), (16,), [("rectangle", 5, 8)]),
        ((3, 5), (50, 10), (160, 16), [("box", 3, 5, 8)]),
        ((3, 5), (55, 10), (160, 16), [("rectangle", 5, 8)] * 3),
        ((1, 1), (7, 7), (3, 3), [("copy", 0, 0, 8)]),
        ((2,), (8,), (3,), [("copy", 0, 0, 8), ("copy", 8, 3, 8)]),
        ((2,), (2000,), (8,), [("copy", 0, 0, 8), ("copy", 2000, 8, 8)]),
    ],
)
def test_regions_are_the_fewest_calls(driver, shape, target, source, want):
    copy_region(driver, Side(0, target), Side(0, source), shape, 8, 1, 1000)
    assert driver.log == want


# streams -----------------------------------------------------------------------------


RULES = StreamRules(
    "SIM",
    default=1,
    forbidden={0: "is ambiguous: pass 1"},
    libraries={"builtins": lambda stream: stream.handle},
    protocol="__sim_stream__",
)


def test_what_may_be_passed():
    class WithProtocol:
        def __sim_stream__(self):
            return 0, 7

    class Zero:
        __sim_stream__ = (0, 0)

    assert [RULES.normalize(value) for value in (None, 5, -1, WithProtocol(), Zero())] == (
        [1, 5, -1, 7, 1]
    )
    for bad, error in (
        (0, ValueError),
        (-2, ValueError),
        (1 << 64, ValueError),
        (True, TypeError),
        ("1", TypeError),
        (object(), TypeError),
    ):
        with pytest.raises(error):
            RULES.normalize(bad)


def test_waits_are_events(driver, events):
    order, other = StreamOrder(driver, events), driver.stream()
    order.wait(0, 1, 1)
    assert driver.log == []
    order.wait(0, 1, other)
    assert driver.log == [("event",), ("wait", 1)]
    assert events.count(0) == 1
    order.synchronize(0, other)
    assert driver.log[-1] == ("wait for stream", other)
    driver.streams[other].state = CAPTURED
    with pytest.raises(ExchangeError, match="waited for now"):
        order.synchronize(0, other)
