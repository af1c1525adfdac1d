"""Parts for a library in Python over a driver: copies through the host, arrays in buffers."""

import pytest

import dlbridge.kit.devices as through_host
from dlbridge.errors import DeviceMemoryError
from dlbridge.kit.devices import ThroughHost
from dlbridge.protocol import Span, SupportsCopy


class TwoDevices(ThroughHost):
    """Device memory is bytearrays; what is called is written down."""

    def __init__(self):
        self.memory = {1: bytearray(b"abcdefgh"), 2: bytearray(8)}
        self.log = []
        self.late = []

    def copy_inside(self, target, source, stream):
        self.log.append(("inside", target, source, stream))

    def copy_from_host(self, target, source, stream):
        self.log.append(("from the host", target.device_id, stream))
        into = memoryview(self.memory[target.data])[target.offset :][: target.nbytes]
        into[:] = source

    def copy_to_host(self, source, into, stream):
        self.log.append(("to the host", source.device_id, stream))
        taken = memoryview(self.memory[source.data])[source.offset :][: source.nbytes]
        self.late.append((into, taken))
        if self.host_copies_block:
            self.synchronize(None, None)
            self.log.pop()

    def synchronize(self, device_id, stream):
        for into, taken in self.late:
            into[:] = taken
        self.late.clear()
        self.log.append(("wait", device_id, stream))


class Blocking(TwoDevices):
    host_copies_block = True


TARGET, SOURCE = Span(1, 2, 3, 4), Span(0, 1, 2, 4)


def test_a_copy_between_devices_goes_through_the_host():
    """The stream is the target's; dlbridge has synchronised the source's device."""
    two = TwoDevices()
    assert isinstance(two, SupportsCopy)
    two.copy(TARGET, SOURCE, 7)
    assert two.memory[2] == b"\0\0\0cdef\0"
    assert two.log == [
        ("to the host", 0, 0),
        ("wait", 0, 0),
        ("from the host", 1, 7),
        ("wait", 1, 7),
    ]


def test_copies_that_block_are_not_waited_for():
    """`host_copies_block`: the library has finished with the host's memory."""
    two = Blocking()
    two.copy(TARGET, SOURCE, 7)
    assert two.memory[2] == b"\0\0\0cdef\0"
    assert two.log == [("to the host", 0, 0), ("from the host", 1, 7)]


def test_a_copy_in_one_device_is_the_backends():
    """Offsets, order and stream arrive as they are."""
    two = TwoDevices()
    inside = Span(1, 2, 3, 4), Span(1, 1, 2, 4)
    two.copy(*inside, 7)
    assert two.log == [("inside", *inside, 7)]


@pytest.mark.parametrize("two", [TwoDevices(), Blocking()], ids=["waited for", "blocking"])
def test_a_long_copy_goes_in_pieces(two, monkeypatch):
    """Each is there before the host's memory is used for the next one."""
    monkeypatch.setattr(through_host, "PIECE", 3)
    two.memory[1][:], two.memory[2][:] = b"abcdefgh", bytes(8)
    two.copy(Span(1, 2, 0, 8), Span(0, 1, 0, 8), 7)
    assert two.memory[2] == b"abcdefgh"
    assert [entry[0] for entry in two.log].count("from the host") == 3


def test_the_host_has_no_room(monkeypatch):
    """An error of dlbridge's, before anything is queued."""

    def full(nbytes):
        raise MemoryError

    monkeypatch.setattr(through_host, "bytearray", full, raising=False)
    two = TwoDevices()
    with pytest.raises(DeviceMemoryError, match=r"no room in host memory for the 4 bytes.*pieces"):
        two.copy(TARGET, SOURCE, 7)
    assert two.log == []
