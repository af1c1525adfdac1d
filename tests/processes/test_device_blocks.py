"""share on a device that has memory of its own for other processes; here a simulated one.

The other process is this one, by messages of multiprocessing. Real devices in two processes:
test_sharing_devices.py, and backends/cuda/tests/test_shared_memory.py.
"""

from __future__ import annotations

import errno
import gc
import os
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.errors import BackendError, DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.resources import Descriptor
from dlbridge.processes import blocks as shared_blocks
from dlbridge.processes.shared_tensors import receive_memory, receive_on_device
from dlbridge.protocol import ExportedMemory
from tests.support.known_backends import forget_identities
from tests.support.other_process import Given, fds
from tests.support.stream_backend import installed

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memfd")
exporting_backend = pytest.importorskip("tests.support.exporting_backend")
VALUES = np.arange(24, dtype="i4").reshape(4, 6)
DEVICE = "ext_dev:1"


@pytest.fixture
def exporting(monkeypatch):
    monkeypatch.delenv("DLBRIDGE_FAKE_SHARED", raising=False)
    sent(bridge.share(VALUES))  # with the first message multiprocessing opens a socket
    gc.collect()
    before = fds()
    with installed("ext_dev", exporting_backend.Exporting()) as backend:
        yield backend
        backend.error = None
        gc.collect()
        assert backend.live_allocations() == 0
    assert len(shared_blocks._blocks) == 0
    assert fds() == before


def values(t):
    return bridge.to_device(t, "cpu", copy=True).numpy()


def sent(thing):
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def block_of(t):
    return shared_blocks.find_on_device(t.operand())[0]


def message(t, **changes):
    """What another process would get of *t*, with *changes*."""
    block = block_of(t)
    described = {
        "fd": block.fileno(),
        "uuid": block.uuid,
        "nbytes": block.exported.nbytes,
        "offset": block.exported.offset,
        "driver": block.exported.driver,
        "token": b"another process's",
    }
    fd, *rest = (described | changes).values()
    return receive_memory(Given(os.dup(fd)), *rest)


def received(block, device=DEVICE, shape=(4, 6), strides=(6, 1), offset=0, dtype="int32"):
    return receive_on_device(block, device, (offset, dtype, shape, strides, 0, False))


# What comes out


def test_the_memory_is_the_devices_own(exporting):
    """One copy into it; none after that."""
    t = bridge.share(VALUES, DEVICE)
    assert (str(t.device), t.shape, t.origin) == (DEVICE, (4, 6), "shared device memory")
    assert (values(t) == VALUES).all()
    assert bridge.share(t) is t
    assert bridge.share(t, DEVICE) is t
    with bridge.trace() as trace:
        again = received(message(t))
    assert trace.plans == []
    assert again.data_ptr() != t.data_ptr()
    bridge.copy_(again, VALUES * 2)
    assert (values(t) == VALUES * 2).all()
    bridge.copy_(t, VALUES * 3)
    assert (values(again) == VALUES * 3).all()


@pytest.mark.parametrize(
    "view",
    [np.s_[:], np.s_[1:3], np.s_[1:, 1:5:2], np.s_[2, 3], np.s_[3:, 5:]],
    ids=str,
)
def test_a_view_is_a_view_of_the_same_block(exporting, view):
    t = bridge.share(VALUES, DEVICE)
    back = sent(t[view])
    assert (back.data_ptr(), back.byte_offset) == (t[view].data_ptr(), t[view].byte_offset)
    assert (back.shape, back.strides) == (t[view].shape, t[view].strides)
    block, offset = shared_blocks.find_on_device(t[view].operand())
    part = received(message(t), shape=t[view].shape, strides=t[view].strides, offset=offset)
    assert (values(part) == VALUES[view]).all()
    assert block is block_of(t)


def test_several_tensors_in_one_message(exporting):
    """One descriptor for all that are in one block, and one block for all of them."""
    t = bridge.share(VALUES, DEVICE)
    sending = bytes(ForkingPickler.dumps([t, t[1:], {"t": t.T}]))
    assert sending.count(b"receive_memory") == 1
    del t
    gc.collect()
    first, second, third = pickle.loads(sending)
    assert first.data_ptr() == second.data_ptr() == third["t"].data_ptr()
    assert (values(second) == VALUES[1:]).all()
    assert exporting.live_allocations() == 1


def test_the_message_keeps_the_memory(exporting):
    """The sender may drop its tensor as soon as it is sent; it is imported again."""
    sending = ForkingPickler.dumps(bridge.share(VALUES, DEVICE))
    gc.collect()
    assert exporting.live_allocations() == 0
    again = ForkingPickler.loads(sending)
    assert (values(again) == VALUES).all()
    assert sent(again[1:]).data_ptr() == again.data_ptr()  # a receiver sends it on


def test_memory_that_another_library_has_handed_on(exporting):
    t = bridge.share(VALUES, DEVICE)
    theirs = bridge.from_dlpack(t[1:].__dlpack__())
    assert bridge.share(theirs).data_ptr() == sent(theirs).data_ptr() == t.data_ptr()
    assert sent(theirs).byte_offset == 24


def test_empty_can_be_filled_in_place(exporting):
    """Its bytes are zero, as those of shared memory elsewhere."""
    t = bridge.empty((4, 6), "int32", DEVICE, shared=True)
    assert not values(t).any()
    bridge.copy_(t, VALUES)
    assert (values(received(message(t))) == VALUES).all()
    assert bridge.empty((0, 3), "int4", DEVICE, shared=True).shape == (0, 3)
    assert bridge.empty(5, "int4", DEVICE, shared=True).tobytes() == bytes(3)


def test_a_copy_in_host_memory_is_asked_for_by_name(exporting):
    t = bridge.share(VALUES, DEVICE)
    here = bridge.share(t, "cpu")
    assert shared_blocks.mapping_at(here.data_ptr(), 1) is not None
    assert (here.numpy() == VALUES).all()
    again = bridge.share(here, DEVICE)
    assert again.data_ptr() != t.data_ptr()
    assert (values(again) == VALUES).all()


def test_host_memory_in_place_comes_first(exporting, monkeypatch):
    """Where the device uses it without a drawback; with one, its own memory does."""
    monkeypatch.setattr(exporting, "shared", True)
    assert bridge.share(VALUES, DEVICE).origin != "shared device memory"
    cls = type(exporting)

    def refusal(self, device_id, address, nbytes, demanded):
        return "" if demanded else "it is slow"

    with installed("ext_dev", type("Slow", (cls,), {"host_import_refusal": refusal})()) as slow:
        slow.shared = True
        assert bridge.share(VALUES, DEVICE).origin == "shared device memory"
        slow.refusal = "it exports nothing"
        assert bridge.share(VALUES, DEVICE).origin != "shared device memory"
        slow.refusal = ""
        asked = bridge.to_device(bridge.share(VALUES), DEVICE, copy=False)  # by the user
        assert bridge.share(asked) is asked
        assert sent(asked).origin != "shared device memory"
        del asked
        gc.collect()


# Elsewhere


@pytest.mark.parametrize("place", ["cpu", "ext_dev:0", {"ext_dev": "cpu"}])
def test_the_receiver_chooses_a_place(exporting, place):
    """A copy: only the device itself has the memory."""
    t = bridge.share(VALUES, DEVICE)
    with bridge.unpickle_to(place):
        there = received(message(t))
    where = place if isinstance(place, str) else "cpu"
    assert there.device == bridge.device(where)
    assert (values(there) == VALUES).all()
    assert shared_blocks.find_on_device(there.operand()) is None


def test_the_device_has_another_number(exporting):
    """It is found by its UUID."""
    t = bridge.share(VALUES, DEVICE)
    again = received(message(t), "ext_dev:0")
    assert str(again.device) == DEVICE
    assert (values(again) == VALUES).all()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("device", "says"),
    [
        (DEVICE, "no device of 'ext_dev' here has the UUID 00"),
        ("no_such_backend:0", "no_such_backend"),
    ],
)
def test_a_receiver_without_the_device(exporting, device, says, strict):
    """Nobody there can read the memory: an error, whatever the policy for pickles is."""
    t = bridge.share(VALUES, DEVICE)
    block = message(t, uuid="00000000-0000-0000-0000-000000000000")
    with bridge.unpickle_to(None if strict else "cpu"), pytest.raises(ExchangeError) as caught:
        received(block, device)
    assert says in str(caught.value)
    assert 'dlbridge.share(x, "cpu")' in str(caught.value)
    assert "to_device(t, t.device, copy=True)" in str(caught.value)


def test_a_driver_that_refuses_the_memory(exporting):
    t = bridge.share(VALUES, DEVICE)
    exporting.error = DeviceError("not by this driver")
    with pytest.raises(
        ExchangeError, match=r"ext_dev:1 that another.*not by this driver"
    ) as caught:
        received(message(t))
    assert isinstance(caught.value.__cause__, DeviceError)


# Messages that are wrong


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nbytes": 0, "offset": 0}, "names byte 0 of 0 bytes"),
        ({"nbytes": -1}, "names byte 256 of -1 bytes"),
        ({"nbytes": 1 << 63}, "which cannot be"),
        ({"offset": -1}, "names byte -1"),
        ({"offset": 1 << 20}, "which cannot be"),
        ({"nbytes": 4096}, "has not 4096 bytes"),
        ({"offset": 300}, "are not in it"),
    ],
    ids=str,
)
def test_a_size_that_is_not_so_is_refused(exporting, changes, says):
    """By the message itself, or by the driver, which knows the memory."""
    t = bridge.share(VALUES, DEVICE)
    before = fds()
    with pytest.raises(ExchangeError, match=says):
        received(message(t, **changes))
    gc.collect()
    assert (fds(), exporting.live_allocations()) == (before, 1)


def test_a_layout_outside_the_block_is_refused(exporting):
    """All such: test_sharing.py."""
    t = bridge.share(VALUES, DEVICE)
    with pytest.raises(ExchangeError, match="are not in it"):
        received(message(t), offset=4)


def test_a_descriptor_that_does_not_come(exporting):
    class Failing:
        def detach(self):
            raise EOFError

    with pytest.raises(ExchangeError, match=r"memory of a device, 352 bytes, has not come"):
        receive_memory(Failing(), "", 352, 256, "", b"token")


# Devices that have no such memory, and what fails


def test_a_device_that_has_none_says_why(exporting, monkeypatch):
    """Both reasons: why not in host memory, and why not in its own."""
    exporting.refusal = "it exports nothing"
    for function in (
        lambda: bridge.share(VALUES, DEVICE),
        lambda: bridge.empty(3, device=DEVICE, shared=True),
        lambda: bridge.share(bridge.share(VALUES), DEVICE),
    ):
        with pytest.raises(ExchangeError, match=r"cannot work in shared.*, and it exports nothing"):
            function()
    exporting.refusal = ""
    monkeypatch.setattr(exporting, "device_info", lambda _: {"name": "nobody"})
    forget_identities(monkeypatch)
    with pytest.raises(ExchangeError, match="ext_dev:1 says no UUID"):
        bridge.share(VALUES, DEVICE)


def test_no_room(exporting):
    exporting.error = DeviceMemoryError("it is full")
    with pytest.raises(MemoryError, match="it is full"):
        bridge.share(VALUES, DEVICE)


@pytest.mark.parametrize(
    "member",
    ["memory_export_refusal", "allocate_exportable", "export_memory", "memory_import_refusal"],
)
def test_a_backend_that_fails(exporting, monkeypatch, member):
    """The error names the backend and the member, and nothing is left."""
    monkeypatch.setattr(type(exporting), member, lambda *_: 1 / 0)
    with pytest.raises(BackendError, match=f"'ext_dev' failed in {member}: ZeroDivisionError"):
        bridge.share(VALUES, DEVICE)


def test_a_backend_that_returns_no_handle(exporting, monkeypatch):
    monkeypatch.setattr(type(exporting), "allocate_exportable", lambda *_: "x")
    with pytest.raises(BackendError, match="returned 'x' from allocate_exportable"):
        bridge.share(VALUES, DEVICE)


def test_no_descriptors_left(exporting, monkeypatch):
    """An error that says what to do; what was exported is closed."""

    def full(_):
        raise OSError(errno.EMFILE, "Too many open files")

    opened = []

    def export(*_):
        file = Descriptor([os.open(os.devnull, os.O_RDONLY)])
        opened.append(file[0])
        return ExportedMemory(file[0], 352, 256, owner=file)

    monkeypatch.setattr(exporting, "export_memory", export)
    monkeypatch.setattr(os, "dup", full)
    with pytest.raises(DeviceMemoryError, match=r"Too many open files.*ulimit -n"):
        bridge.share(VALUES, DEVICE)
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_work_is_done_when_it_is_sent(exporting, monkeypatch):
    """The receiver's driver knows nothing of the sender's streams."""
    t = bridge.share(VALUES, DEVICE)
    waited = []
    monkeypatch.setattr(exporting, "synchronize", lambda *given: waited.append(given))
    sent(t)
    assert waited == [(1, 0)]
