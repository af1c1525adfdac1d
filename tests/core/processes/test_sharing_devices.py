"""share: memory that devices of several processes work in, in place."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler

import numpy as np
import other_process as other_side
import pytest
from expected import backend_or_skip
from other_process import Other
from scripts import run_script

import dlbridge as bridge
from dlbridge.core.processes import host_blocks as shared_blocks, shared_tensors as shared_places
from dlbridge.core.processes.shared_tensors import receive
from dlbridge.errors import ExchangeError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the system passes no descriptors")
VALUES = np.arange(1024, dtype="f4").reshape(4, 256)


@pytest.fixture(scope="module")
def other():
    process = Other()
    yield process
    process.close()


@pytest.fixture(params=["opencl:0", "vulkan:0"])
def device(request):
    backend = backend_or_skip(request.param.partition(":")[0])
    page = bridge.empty(mmap.PAGESIZE, "uint8", alignment=mmap.PAGESIZE)
    if backend.host_import_refusal(0, page.data_ptr(), page.nbytes, False):
        pytest.skip("it shares memory of its own: test_sharing_device_memory.py")
    return request.param


@pytest.fixture(autouse=True)
def nothing_stays(request):
    def files():
        return len(shared_blocks._files), len(shared_blocks._mapped)

    before = files()
    yield
    if "other" in request.fixturenames:
        request.getfixturevalue("other")(other_side.forget)
    if files() != before:
        gc.collect()
    assert files() == before


def values(t):
    return bridge.to_device(t, "cpu", copy=True).numpy()


def test_kernels_of_two_processes_work_in_one_memory(device, other):
    """Written by the kernel of one and read by the other's, and back; no byte is copied."""
    t = bridge.share(VALUES, device)
    other_side.scale(t, 2)
    other(other_side.scale, t, 3)
    assert other(other_side.last_moves) == [("host import", 0)]
    assert (values(t) == 6 * VALUES).all()
    other_side.scale(t, 5)
    assert other(other_side.described, t)[-1] == (30 * VALUES).tobytes()


def test_a_view_is_a_view_of_one_import(device, other):
    """All tensors of a block are in one buffer, also those that begin anywhere."""
    t = bridge.share(VALUES, device)
    other(other_side.keep, t)
    other_side.check_views(other, t)
    want = VALUES.copy()
    want[2, 64:128] *= 2
    assert (values(t) == want).all()


def test_the_work_is_done_when_it_is_sent(device, other):
    """A kernel that takes long, and no wait of the user before the message."""
    t = bridge.share(np.ones(1 << 21, "f4"), device)
    other(other_side.keep, t)
    other_side.scale(t, 1.0, rounds=300, wait=False)
    other_side.scale(t, 2.0, wait=False)
    assert set(np.frombuffer(other(other_side.described, t)[-1], "f4")) == {2.0}


def test_from_a_device_and_to_another(device):
    """One copy from a device's own memory; none between the CPU and the device of one block."""
    t = bridge.share(bridge.to_device(VALUES, device, copy=True))
    assert str(t.device) == device
    here = bridge.share(t, "cpu")
    assert (here.numpy() == VALUES).all()
    here.numpy()[0] = 7
    again = bridge.share(here[1:], device)
    assert (again.data_ptr(), again.byte_offset) == (t.data_ptr(), t.byte_offset + 1024)
    assert (values(t)[0] == 7).all()


def test_two_threads_import_a_block_once(device, monkeypatch):
    """The second waits for the first: two imports of the same bytes would be undefined."""
    real, imports, both = shared_places.move, [], threading.Event()

    def slow_move(*arguments):
        imports.append(arguments)
        if len(imports) == 2:
            both.set()
        both.wait(1)  # no verdict: who does not wait may come later, unseen
        return real(*arguments)

    monkeypatch.setattr(shared_places, "move", slow_move)
    t = bridge.share(VALUES, "cpu")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(bridge.share, [t, t], [device, device])
    assert len(imports) == 1
    assert first.data_ptr() == second.data_ptr()
    imports.clear()


def test_what_to_device_makes_of_shared_memory(device, other):
    """In place as well: the other process gets the same memory."""
    t = bridge.share(VALUES)
    there = bridge.to_device(t, device, copy=False)
    other(other_side.scale, there, 3)
    assert (t.numpy() == 3 * VALUES).all()
    with there.host_view() as h:
        assert other(other_side.give_back, h).data_ptr() == t.data_ptr()
        del h


def test_read_only(device, other):
    a = bridge.share(VALUES).numpy()
    a.flags.writeable = False
    t = bridge.share(a, device)
    assert t.readonly
    assert other(other_side.described, t) == other_side.described(t)


def test_filled_in_place(device, other):
    t = bridge.empty((4, 256), "f4", device, shared=True)
    assert (values(t) == 0).all()
    bridge.copy_(t, VALUES)
    other(other_side.scale, t, 3)
    assert (values(t) == 3 * VALUES).all()
    assert bridge.share(t) is t


def test_odd_sizes(device, other):
    """Blocks are whole pages, so a device can use what it could not by itself."""
    for n in (1, 3, 1023, 4097):
        t = bridge.share(np.arange(n).astype("u1"), device)
        assert other(other_side.described, t) == other_side.described(t)
        other(other_side.described, t[n // 2 :])


def test_nothing_grows(device, other):
    """50 tensors with an import in each process: descriptors, and the backends' memory."""
    name = device.partition(":")[0]

    def turn():
        t = bridge.share(VALUES, device)
        assert other(other_side.give_back, t[1:]).data_ptr() == t.data_ptr()

    def counts():
        gc.collect()
        return other_side.fds(), other(other_side.fds), bridge.backend(name).live_allocations()

    turn()
    before = counts()
    for _ in range(50):
        turn()
    assert counts() == before


def test_a_receiver_without_the_device(device):
    """It has the same memory on its CPU; what it writes is seen here."""
    out = run_script(
        f"""
        import multiprocessing, os, warnings, numpy as np, dlbridge as bridge
        import without_devices
        context = multiprocessing.get_context("spawn")
        t = bridge.share(np.zeros(4, "f4"), {device!r})
        ours, theirs = context.Pipe()
        process = context.Process(target=without_devices.serve, args=(theirs,))
        process.start()
        ours.send(t)
        print(ours.recv())
        process.join()
        print(t.tolist())
        """
    )
    assert out == "['cpu:0', 'RuntimeWarning']\n[1.0, 2.0, 3.0, 4.0]\n"


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


def test_unpickle_to(device):
    """The receiver's choice, in place where that can be."""
    message = ForkingPickler.dumps([t := bridge.share(VALUES)])
    with bridge.unpickle_to(device):
        (there,) = ForkingPickler.loads(message)
    assert str(there.device) == device
    bridge.copy_(there, VALUES + 1)
    bridge.synchronize(device)
    assert (t.numpy() == VALUES + 1).all()
