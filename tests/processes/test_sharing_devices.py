"""share: memory that devices of several processes work in, with kernels of two of them.

The memory is the host's, used in place, or a device's own. lavapipe could use the host's, so for
its own it is told that this has a drawback, as on a discrete GPU.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from dlbridge.processes import blocks as shared_blocks
from dlbridge.processes.shared_tensors import receive, receive_memory, receive_on_device
from tests.support import other_process as other_side
from tests.support.expected_parts import backend_or_skip
from tests.support.other_process import Given, Other, holders
from tests.support.scripts import run_scene

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the system passes no descriptors")
VALUES = np.arange(1024, dtype="f4").reshape(4, 256)
OWN = "vulkan:0 with memory of its own"
HOST = ["opencl:0", "vulkan:0"]
in_host_memory = pytest.mark.parametrize("place", HOST, indirect=True)
in_own_memory = pytest.mark.parametrize("place", [OWN], indirect=True)


@pytest.fixture(scope="module", params=[*HOST, OWN])
def place(request):
    backend = backend_or_skip(request.param.partition(":")[0])
    if request.param == OWN:
        if refusal := backend.memory_export_refusal(0, 0):
            pytest.skip(refusal)
        return request.param
    page = bridge.empty(mmap.PAGESIZE, "uint8", alignment=mmap.PAGESIZE)
    if backend.host_import_refusal(0, page.data_ptr(), page.nbytes, False):
        pytest.skip("it shares memory of its own only")
    return request.param


@pytest.fixture(scope="module")
def other(place):
    process = Other()
    if place == OWN:
        process(other_side.prefer_own_memory)
    yield process
    process.close()


@pytest.fixture
def device(place, monkeypatch):
    if place == OWN:
        cls = type(bridge.backend("vulkan"))
        monkeypatch.setattr(cls, "host_import_refusal", cls.host_import_refusal)  # and back
        other_side.prefer_own_memory()
    return place.partition(" ")[0]


@pytest.fixture(autouse=True)
def nothing_stays(request):
    before = blocks()
    yield
    if "other" in request.fixturenames:
        request.getfixturevalue("other")(other_side.forget)
    if blocks() != before:
        gc.collect()
    assert blocks() == before


def blocks():
    return len(shared_blocks._files), len(shared_blocks._mapped), len(shared_blocks._blocks)


def values(t):
    return bridge.to_device(t, "cpu", copy=True).numpy()


def test_kernels_of_two_processes_work_in_one_memory(place, device, other):
    """Written by the kernel of one and read by the other's, and back; no byte is copied."""
    t = bridge.share(VALUES, device)
    assert (t.origin == "shared device memory") == (place == OWN)
    other_side.scale(t, 2)
    other(other_side.scale, t, 3)
    assert other(other_side.last_moves) == ([] if place == OWN else [("host import", 0)])
    assert (values(t) == 6 * VALUES).all()
    other_side.scale(t, 5)
    assert other(other_side.described, t)[-1] == (30 * VALUES).tobytes()


def test_the_other_process_shares(device, other):
    """The other direction: its memory, our kernel."""
    t = other(other_side.share_and_keep, VALUES, device)
    assert str(t.device) == device
    other_side.scale(t, 2)
    other(other_side.scale, t, 5)
    assert (values(t) == 10 * VALUES).all()


def test_a_view_is_a_view_of_one_import(device, other):
    """All tensors of a block are in one buffer, also those that begin anywhere."""
    t = bridge.share(VALUES, device)
    other(other_side.keep, t)
    other_side.check_views(other, t)
    want = VALUES.copy()
    want[2, 64:128] *= 2
    assert (values(t) == want).all()


def test_odd_sizes(device, other):
    """Blocks are whole pages, so a device can use what it could not by itself."""
    for n in (1, 3, 1023, 4096, 4097, (3 << 20) + 1):
        t = bridge.share(np.arange(n).astype("u1"), device)
        assert other(other_side.described, t) == other_side.described(t)
        part = t[n // 2 :]
        assert other(other_side.described, part) == other_side.described(part)


def test_nothing_grows(device, other):
    """50 tensors that go there and back: descriptors, and the backends' memory."""
    name = device.partition(":")[0]

    def turn():
        t = bridge.share(VALUES, device)
        assert other(other_side.give_back, t[1:]).data_ptr() == t.data_ptr()

    def counts():
        live = other_side.live(name), other(other_side.live, name)
        return other_side.fds(), other(other_side.fds), live

    turn()
    before = counts()
    for _ in range(50):
        turn()
    assert counts() == before


# In the host's memory ------------------------------------------------------------------


@in_host_memory
def test_none_is_copied_between_the_cpu_and_the_device_of_one_block(device):
    t = bridge.share(bridge.to_device(VALUES, device, copy=True))
    here = bridge.share(t, "cpu")
    assert (here.numpy() == VALUES).all()
    here.numpy()[0] = 7
    again = bridge.share(here[1:], device)
    assert (again.data_ptr(), again.byte_offset) == (t.data_ptr(), t.byte_offset + 1024)
    assert (values(t)[0] == 7).all()


@in_host_memory
def test_two_threads_import_a_block_once(device, monkeypatch):
    """The second waits for the first: two imports of the same bytes would be undefined."""
    real, imports, both = bridge.to_device, [], threading.Event()

    def slow_import(*arguments, **keywords):
        imports.append(arguments)
        if len(imports) == 2:
            both.set()
        both.wait(1)  # no verdict: who does not wait may come later, unseen
        return real(*arguments, **keywords)

    monkeypatch.setattr(bridge, "to_device", slow_import)
    t = bridge.share(VALUES, "cpu")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(bridge.share, [t, t], [device, device])
    assert len(imports) == 1
    assert first.data_ptr() == second.data_ptr()
    imports.clear()


@in_host_memory
def test_what_to_device_makes_of_shared_memory(device, other):
    """In place as well: the other process gets the same memory."""
    t = bridge.share(VALUES)
    there = bridge.to_device(t, device, copy=False)
    other(other_side.scale, there, 3)
    assert (t.numpy() == 3 * VALUES).all()
    with there.host_view() as h:
        assert other(other_side.give_back, h).data_ptr() == t.data_ptr()
        del h


@in_host_memory
def test_read_only(device, other):
    a = bridge.share(VALUES).numpy()
    a.flags.writeable = False
    t = bridge.share(a, device)
    assert t.readonly
    assert other(other_side.described, t) == other_side.described(t)


@in_host_memory
def test_a_receiver_without_the_device(device):
    """It has the same memory on its CPU; what it writes is seen here."""
    said = run_scene("sharing.receiver_without_devices", device, "serve")
    assert said == "['cpu:0', 'RuntimeWarning']\n[1.0, 2.0, 3.0, 4.0]\n"


@in_host_memory
def test_a_device_that_refuses_the_block(device, monkeypatch):
    """Another driver than the sender's: the CPU has it, or it raises where that was asked for."""
    t = bridge.share(VALUES)
    backend = bridge.backend(device.partition(":")[0])
    monkeypatch.setattr(type(backend), "host_import_refusal", lambda *_: "not by this driver")
    if hasattr(backend, "memory_export_refusal"):
        monkeypatch.setattr(type(backend), "memory_export_refusal", lambda *_: "nor in its own")
    with pytest.raises(ExchangeError, match=r"cannot work in shared memory.*not by this driver"):
        bridge.share(t, device)
    file = shared_blocks.mapping_at(t.data_ptr(), 1).file
    message = file, device, (0, "float32", (4, 256), (256, 1), 0, False)
    with pytest.warns(RuntimeWarning, match=r"used in place there.*not by this driver"):
        assert receive(*message).data_ptr() == t.data_ptr()
    with bridge.unpickle_to(None), pytest.raises(ExchangeError, match="not by this driver"):
        receive(*message)
    with bridge.unpickle_to(device):  # the receiver's own choice: a copy
        assert (values(receive(*message)) == VALUES).all()


@in_host_memory
def test_unpickle_to(device):
    """The receiver's choice, in place where that can be."""
    message = ForkingPickler.dumps([t := bridge.share(VALUES)])
    with bridge.unpickle_to(device):
        (there,) = ForkingPickler.loads(message)
    assert str(there.device) == device
    bridge.copy_(there, VALUES + 1)
    bridge.synchronize(device)
    assert (t.numpy() == VALUES + 1).all()


# In a device's own memory ----------------------------------------------------------------


def inode_of(t):
    return os.fstat(shared_blocks.find_on_device(t.operand())[0].fileno()).st_ino


@in_own_memory
def test_nothing_is_left_of_a_process_that_is_killed(device):
    """Neither of the receiver nor of the maker: the memory lives as long as somebody has it."""
    vulkan = bridge.backend("vulkan")
    if "llvmpipe" not in vulkan.device_info(0)["name"]:
        pytest.skip("other drivers' descriptors do not say which memory they are")
    killed = Other("forkserver")
    killed(other_side.prefer_own_memory)
    ours = bridge.share(VALUES, device)
    killed(other_side.keep, ours)
    theirs = killed(other_side.share_and_keep, VALUES, device)
    inodes, me = [inode_of(ours), inode_of(theirs)], os.getpid()
    assert [holders(inode, "llvmpipe") for inode in inodes] == [{me, killed.process.pid}] * 2
    opened, live = other_side.fds(), vulkan.live_allocations()
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.join()
    assert [holders(inode, "llvmpipe") for inode in inodes] == [{me}] * 2
    assert (other_side.fds(), vulkan.live_allocations()) == (opened, live)
    for each in (ours, theirs):
        other_side.scale(each, 2)
        assert (values(each) == 2 * VALUES).all()
    del ours, theirs, each
    gc.collect()
    assert [holders(inode, "llvmpipe") for inode in inodes] == [set()] * 2


@in_own_memory
@pytest.mark.parametrize("lie", ["longer", "much longer", "another file"])
def test_what_the_driver_does_not_know_is_refused(device, lie):
    """The memory is as long as the driver says, whatever the message names."""
    vulkan = bridge.backend("vulkan")
    t = bridge.share(VALUES, device)
    block, _ = shared_blocks.find_on_device(t.operand())
    nbytes, fd = block.exported.nbytes, block.fileno()
    before = other_side.fds(), vulkan.live_allocations(), vulkan.devices[0].allocations
    with Path(os.devnull).open("rb") as file:
        given = os.dup(file.fileno() if lie == "another file" else fd)
        nbytes += {"longer": 4096, "much longer": 1 << 40}.get(lie, 0)
        received = receive_memory(Given(given), block.uuid, nbytes, 0, "", b"another")
        with pytest.raises(ExchangeError, match="cannot be used here: vk") as caught:
            receive_on_device(received, device, (0, "float32", (4, 256), (256, 1), 0, False))
    assert caught.value.__cause__ is not None
    del received, caught
    gc.collect()
    after = other_side.fds(), vulkan.live_allocations(), vulkan.devices[0].allocations
    assert after == before
    assert (values(t) == VALUES).all()


@in_own_memory
def test_a_receiver_without_vulkan(device):
    """An error that says what to do: nobody there can read the memory."""
    said = run_scene("sharing.receiver_without_devices", device, "serve_errors")
    assert said.startswith("ExchangeError memory of vulkan:0 that another process shares cannot be")
    assert said.endswith("\n[0.0, 0.0, 0.0, 0.0]\n")


@in_own_memory
def test_a_process_ends_while_tensors_are_there(device):
    run_scene("sharing.own_memory_ends_while_tensors_are_there")


@in_own_memory
@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "Alarm"])
def test_interrupts_leave_nothing(device, exception):
    run_scene("sharing.own_memory_interrupts", exception)
