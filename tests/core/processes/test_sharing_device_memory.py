"""share: memory of a Vulkan device's own, with kernels of two processes in it.

lavapipe could use host memory in place, so it is told that this has a drawback, as on a
discrete GPU.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import numpy as np
import other_process as other_side
import pytest
from expected import backend_or_skip
from other_process import Other
from scripts import run_script

import dlbridge as bridge
from dlbridge.core.processes import device_blocks
from dlbridge.core.processes.shared_tensors import receive_memory, receive_on_device
from dlbridge.errors import ExchangeError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the system passes no descriptors")
VALUES = np.arange(1024, dtype="f4").reshape(4, 256)
DEVICE = "vulkan:0"


@pytest.fixture(scope="module")
def vulkan():
    backend = backend_or_skip("vulkan")
    refusal = backend.memory_export_refusal(0, 0)
    if refusal:
        pytest.skip(refusal)
    return backend


@pytest.fixture(scope="module")
def other(vulkan):
    process = Other()
    process(other_side.prefer_own_memory)
    yield process
    process.close()


@pytest.fixture(autouse=True)
def own_memory(vulkan, monkeypatch, request):
    """Of this process, too; and nothing stays."""
    refusal = type(vulkan).host_import_refusal
    monkeypatch.setattr(
        type(vulkan),
        "host_import_refusal",
        lambda *given: refusal(*given) or ("" if given[-1] else "as on a discrete GPU"),
    )
    yield
    if "other" in request.fixturenames:
        request.getfixturevalue("other")(other_side.forget)
    gc.collect()
    assert len(device_blocks._blocks) == 0


def values(t):
    return bridge.to_device(t, "cpu", copy=True).numpy()


def shared(array=VALUES):
    t = bridge.share(array, DEVICE)
    assert t.origin == "shared device memory"
    return t


def test_kernels_of_two_processes_work_in_one_memory(other):
    """Written by the kernel of one and read by the other's, and back; no byte is copied."""
    t = shared()
    other_side.scale(t, 2)
    other(other_side.scale, t, 3)
    assert other(other_side.last_moves) == []
    assert (values(t) == 6 * VALUES).all()
    other_side.scale(t, 5)
    assert other(other_side.described, t)[-1] == (30 * VALUES).tobytes()


def test_the_other_process_shares(other):
    """The other direction: its memory, our kernel."""
    t = other(other_side.share_and_keep, VALUES, DEVICE)
    assert (str(t.device), t.origin) == (DEVICE, "shared device memory")
    other_side.scale(t, 2)
    other(other_side.scale, t, 5)
    assert (values(t) == 10 * VALUES).all()


def test_a_view_is_a_view_of_one_import(other):
    t = shared()
    other(other_side.keep, t)
    other_side.check_views(other, t)
    want = VALUES.copy()
    want[2, 64:128] *= 2
    assert (values(t) == want).all()


def test_the_work_is_done_when_it_is_sent(other):
    """A kernel that takes long, and no wait of the user before the message."""
    t = shared(np.ones(1 << 21, "f4"))
    other(other_side.keep, t)
    other_side.scale(t, 1.0, rounds=300, wait=False)
    other_side.scale(t, 2.0, wait=False)
    assert set(np.frombuffer(other(other_side.described, t)[-1], "f4")) == {2.0}


@pytest.mark.parametrize("nbytes", [1, 3, 1023, 4096, 4097, (3 << 20) + 1])
def test_odd_sizes(other, nbytes):
    t = shared(np.arange(nbytes).astype("u1"))
    assert other(other_side.described, t) == other_side.described(t)
    assert other(other_side.described, t[nbytes // 2 :]) == other_side.described(t[nbytes // 2 :])


def test_from_the_devices_other_memory(other):
    """One copy, by the device."""
    t = bridge.share(bridge.to_device(VALUES, DEVICE, copy=True))
    assert t.origin == "shared device memory"
    other(other_side.scale, t, 3)
    assert (values(t) == 3 * VALUES).all()


def test_the_maker_drops_it_first(other):
    """The other process has the memory as long as it wants."""
    t = shared()
    other(other_side.keep, t)
    del t
    gc.collect()
    again = bridge.share(np.zeros((4, 256), "f4"), DEVICE)  # would be the same, if it were free
    (kept,) = other(other_side.kept)
    assert (values(kept) == VALUES).all()
    other_side.scale(kept, 2)
    assert other(other_side.described, kept)[-1] == (2 * VALUES).tobytes()
    assert not values(again).any()


def holders(inode):
    """The processes that have lavapipe's file of the memory open."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if path.stat().st_ino == inode and "llvmpipe" in str(path.readlink()):
                found.add(int(path.parts[2]))
        except OSError:  # it has ended or closed it, or is another user's
            continue
    return found


def inode_of(t):
    return os.fstat(device_blocks.find(t.operand())[0].fileno()).st_ino


def test_nothing_is_left_of_a_process_that_is_killed(vulkan):
    """Neither of the receiver nor of the maker: the memory lives as long as somebody has it."""
    if "llvmpipe" not in vulkan.device_info(0)["name"]:
        pytest.skip("other drivers' descriptors do not say which memory they are")
    killed = Other("forkserver")
    killed(other_side.prefer_own_memory)
    ours = shared()
    killed(other_side.keep, ours)
    theirs = killed(other_side.share_and_keep, VALUES, DEVICE)
    inodes, me = [inode_of(ours), inode_of(theirs)], os.getpid()
    assert [holders(inode) for inode in inodes] == [{me, killed.process.pid}] * 2
    opened, live = other_side.fds(), vulkan.live_allocations()
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.join()
    assert [holders(inode) for inode in inodes] == [{me}] * 2
    assert (other_side.fds(), vulkan.live_allocations()) == (opened, live)
    for each in (ours, theirs):
        other_side.scale(each, 2)
        assert (values(each) == 2 * VALUES).all()
    del ours, theirs, each
    gc.collect()
    assert [holders(inode) for inode in inodes] == [set()] * 2


def test_nothing_grows(other):
    """50 tensors that go there and back: descriptors, and the backends' memory."""

    def turn():
        t = shared()
        assert other(other_side.give_back, t[1:]).data_ptr() == t.data_ptr()

    def counts():
        live = other_side.live("vulkan"), other(other_side.live, "vulkan")
        return other_side.fds(), other(other_side.fds), live

    turn()
    before = counts()
    for _ in range(50):
        turn()
    assert counts() == before


class Given:
    """In the place of multiprocessing's DupFd."""

    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return os.dup(self.fd)


@pytest.mark.parametrize("lie", ["longer", "much longer", "another file"])
def test_what_the_driver_does_not_know_is_refused(vulkan, lie):
    """The memory is as long as the driver says, whatever the message names."""
    t = shared()
    block, _ = device_blocks.find(t.operand())
    nbytes, fd = block.exported.nbytes, block.fileno()
    before = other_side.fds(), vulkan.live_allocations(), vulkan.devices[0].allocations
    with Path(os.devnull).open("rb") as file:
        given = file.fileno() if lie == "another file" else fd
        nbytes += {"longer": 4096, "much longer": 1 << 40}.get(lie, 0)
        received = receive_memory(Given(given), block.uuid, nbytes, 0, "", b"another")
        with pytest.raises(ExchangeError, match="cannot be used here: vk") as caught:
            receive_on_device(received, DEVICE, (0, "float32", (4, 256), (256, 1), 0, False))
    assert caught.value.__cause__ is not None
    del received, caught
    gc.collect()
    after = other_side.fds(), vulkan.live_allocations(), vulkan.devices[0].allocations
    assert after == before
    assert (values(t) == VALUES).all()


def test_a_receiver_without_vulkan(vulkan):
    """An error that says what to do: nobody there can read the memory."""
    out = run_script(
        f"""
        import multiprocessing, numpy as np, dlbridge as bridge
        import other_process as other_side, without_devices
        other_side.prefer_own_memory()
        context = multiprocessing.get_context("spawn")
        t = bridge.share(np.zeros(4, "f4"), {DEVICE!r})
        ours, theirs = context.Pipe()
        process = context.Process(target=without_devices.serve_errors, args=(theirs,))
        process.start()
        ours.send(t)
        print(ours.recv())
        process.join()
        print(process.exitcode, t.tolist())
        """
    )
    assert out.startswith("ExchangeError memory of vulkan:0 that another process shares cannot be")
    assert out.endswith("\n0 [0.0, 0.0, 0.0, 0.0]\n")


def test_a_process_ends_while_tensors_are_there(vulkan):
    run_script(
        f"""
        import builtins, numpy as np, dlbridge as bridge
        import other_process as other_side
        from multiprocessing.reduction import ForkingPickler
        other_side.prefer_own_memory()
        builtins.kept = t = bridge.share(np.ones(100000, "f4"), {DEVICE!r})
        other_side.scale(t, 1.0, rounds=1000, wait=False)
        message = ForkingPickler.dumps(bridge.share(np.ones(100000, "f4"), {DEVICE!r}))
        builtins.received = ForkingPickler.loads(message)
        other_side.scale(builtins.received, 1.0, rounds=1000, wait=False)
        """
    )


@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "Alarm"])
def test_interrupts_leave_nothing(vulkan, exception):
    out = run_script(
        f"""
        import gc, os, numpy as np, dlbridge as bridge
        import other_process as other_side
        from interrupted import Alarm, interrupted
        from multiprocessing.reduction import ForkingPickler
        from dlbridge.core.processes import device_blocks
        other_side.prefer_own_memory()
        a = np.arange(1000)
        ForkingPickler.loads(ForkingPickler.dumps(bridge.share(a, {DEVICE!r})))
        gc.collect()
        vulkan = bridge.backend("vulkan")
        def counts():
            bridge.share(a, {DEVICE!r})  # what was dropped goes back with the next one
            gc.collect()
            return len(os.listdir("/proc/self/fd")), vulkan.live_allocations()
        before = counts()
        interrupted(lambda: bridge.share(a, {DEVICE!r}), {exception}, 300)
        gc.collect()
        print(counts() == before, counts(), before, len(device_blocks._blocks))
        """
    )
    assert out.startswith("True ")
    assert out.endswith(" 0\n")
