"""The parts that need no StreamDriver: devices, host views, and what a child keeps."""

import pytest

from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.kit.devices import Devices, HostViews
from dlbridge.kit.order import EventPool
from dlbridge.protocol import Span, SupportsDeviceInfo, SupportsHostView
from tests.support.scripts import run_script


class Two(Devices, HostViews):
    """Some devices, of whose memory the host addresses what begins below 1000."""

    name = "two"
    infos = (
        {"name": "First GPU", "kind": "other", "pci": "0:1"},
        {"name": "Second", "kind": "gpu", "uuid": "GPU-ab"},
        {"name": "Second one", "kind": "gpu"},
        {"name": "Twin"},
        {"name": "Twin"},
    )

    def __init__(self):
        self.waited = []

    def device_count(self):
        return 5

    def device_info(self, device_id):
        return self.infos[device_id]

    def synchronize(self, device_id, stream):
        self.waited.append((device_id, stream))

    def host_view_refusal(self, device_id, data):
        return "" if data < 1000 else f"{data} is out of reach"


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("gpu", 1),
        ("first", 0),
        ("first gpu", 0),
        ("0:1", 0),
        ("gpu-AB", 1),
        ("gpuab", 1),
        ("second", 1),
        ("one", 2),
    ],
)
def test_devices_are_found_by_what_is_known_of_them(word, number):
    assert isinstance(Two(), SupportsDeviceInfo)
    assert Two().find_device(word) == number


def test_a_name_that_no_device_has():
    with pytest.raises(LookupError, match=r"no two device is called 'x'; .*0: First GPU 0:1; 1: S"):
        Two().find_device("x")
    for word in ("", " ", "Seco", "irst", "f", "GPU-a"):
        with pytest.raises(LookupError, match=f"no two device is called '{word}'"):
            Two().find_device(word)


def test_a_name_that_two_devices_have():
    with pytest.raises(LookupError, match=r"2 two devices are called 'twin'.*: 3: Twin; 4: Twin"):
        Two().find_device("twin")


@pytest.mark.parametrize("device_id", [-1, 5, 1 << 40])
def test_a_number_that_no_device_has(device_id):
    Two().check_device(1)
    with pytest.raises(ExchangeError, match=rf"there is no two:{device_id}: 5 devices here"):
        Two().check_device(device_id)


def test_a_host_view_is_the_address_after_a_wait():
    two = Two()
    assert isinstance(two, SupportsHostView)
    view = two.host_view(Span(1, 500, 20, 4), True, 7)
    assert (view.data, view.nbytes) == (520, 4)
    assert two.waited == [(1, 7)]


def test_a_host_view_that_is_refused_waits_for_nothing():
    two = Two()
    with pytest.raises(ExchangeError, match="2000 is out of reach"):
        two.host_view(Span(1, 2000, 20, 4), True, 7)
    assert two.waited == []


def test_a_child_never_releases_what_is_kept():
    """Not even at its end, where Python clears all modules; the parent does."""
    said = run_script("""
        import os, sys
        from dlbridge.kit.gate import Gate

        class Handle:
            def __del__(self):
                os.write(1, b"released by the " + (b"child" if gate.in_child else b"parent"))

        class Owner:
            pass

        owner = Owner()
        owner.handle = Handle()
        gate = Gate("X", owner, {})
        if not (child := os.fork()):
            try:
                gate.run("entering", print)
            except RuntimeError as exc:
                assert "X does not survive fork()" in str(exc)
            del owner
            sys.exit()
        os.waitpid(child, 0)
        del owner.handle
    """)
    assert said == "released by the parent"


def test_an_event_of_a_place_that_was_destroyed():
    """The error of giving it back stopped the allocation that had waited for it."""

    class Gone:
        def run(self, context, work, *arguments):
            raise DeviceError(f"{context} was destroyed")

    EventPool(Gone()).give_back("a context", "an event")
