"""share: memory that several processes have, and what is left of it."""

from __future__ import annotations

import copy
import errno
import gc
import mmap
import os
import pickle
import signal
import stat
import tempfile
import weakref
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.processes import blocks as shared_blocks
from dlbridge.processes.shared_tensors import receive, receive_block
from tests.support import other_process as other_side
from tests.support.expected_parts import backend_or_skip
from tests.support.other_process import Given, Other, holders
from tests.support.peers import peer
from tests.support.scripts import run_scene
from tests.support.threads import at_once

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the system passes no descriptors")
LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memfd")
PAGE = mmap.PAGESIZE
VALUES = np.arange(24, dtype="i4").reshape(4, 6)


@pytest.fixture(scope="module")
def other():
    process = Other()
    yield process
    process.close()


def files():
    """The number of blocks of this process, and of their mappings."""
    return len(shared_blocks._files), len(shared_blocks._mapped)


@pytest.fixture(autouse=True)
def nothing_stays(request):
    before = files()
    yield
    if "other" in request.fixturenames:
        request.getfixturevalue("other")(other_side.forget)
    if files() != before:
        gc.collect()
    assert files() == before


def sent(thing):
    """*thing* out of a message of multiprocessing, in this process."""
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


# What comes out


LAYOUTS = {
    "whole": lambda t: t,
    "part": lambda t: t[1:3],
    "rows with gaps": lambda t: t[1:, 1:5:2],
    "transposed": lambda t: t.T,
    "one element": lambda t: t[2, 3],
    "reshaped": lambda t: t.reshape(2, 12)[None, 1],
    "another dtype": lambda t: t.view("float32"),
    "numpy's view": lambda t: bridge.asarray(t.numpy()[1:]),
    "backwards": lambda t: bridge.asarray(t.numpy()[::-1, ::-2]),
    "broadcast": lambda t: bridge.asarray(np.broadcast_to(t.numpy()[1], (3, 6))),
}


@pytest.mark.parametrize("view", LAYOUTS)
def test_a_view_is_a_view_of_the_same_block(other, view):
    whole = bridge.share(VALUES)
    part = LAYOUTS[view](whole)
    assert other(other_side.described, part) == other_side.described(part)
    if not part.readonly:
        other(other_side.fill, part, 100)
        assert (part.view("i4").numpy() == 100).all()
    back = other(other_side.give_back, part)
    assert (back.shape, back.strides) == (part.shape, part.strides)
    if not part.readonly:  # else it comes back in memory that cannot be written
        assert back.data_ptr() == part.data_ptr()


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "float16", "bfloat16", "float8_e4m3fn", "complex128", "float32x4"]
)
def test_dtypes(other, dtype):
    t = bridge.empty((3, 5), dtype, shared=True)
    assert other(other_side.described, t[1:]) == other_side.described(t[1:])
    assert other(other_side.give_back, t[1:]).data_ptr() == t[1:].data_ptr()


@pytest.mark.parametrize(
    ("make", "value"),
    [(bridge.zeros, 0), (bridge.ones, 1), (lambda *a, **how: bridge.full(a[0], 7, **how), 7)],
    ids=["zeros", "ones", "full"],
)
def test_filled_memory_that_is_shared(other, make, value):
    t = make((2, 3), shared=True)
    assert t.numpy().tolist() == [[value] * 3] * 2
    assert other(other_side.give_back, t).data_ptr() == t.data_ptr()


@pytest.mark.parametrize("dtype", ["int4", "float6_e2m3fn"])
def test_packed_elements(other, dtype):
    """Of less than a byte: a view begins at a whole one."""
    ones = bridge.asarray(np.full(12, 0b10010110, "u1"))
    whole = bridge.empty((4, 4), dtype, shared=True)
    raw = np.frombuffer(whole.tobytes(), "u1")
    memory = np.frombuffer(shared_blocks.mapping_at(whole.data_ptr(), 1).array, "u1")
    memory[: raw.size] = ones.numpy()[: raw.size]
    for t in (whole, whole[2:]):
        assert other(other_side.described, t) == other_side.described(t)
        assert other(other_side.give_back, t).data_ptr() == t.data_ptr()
    assert whole.tobytes() == memory[: raw.size].tobytes()


@pytest.mark.parametrize("step", [2, -1])
def test_packed_elements_with_gaps(other, step):
    rows = bridge.share(VALUES.astype("u1")).numpy()[::step]
    t = bridge.asarray(rows).view("int4")
    back = other(other_side.give_back, t)
    assert (back.data_ptr(), back.strides) == (t.data_ptr(), t.strides)
    assert back.view("uint8").tolist() == rows.tolist()


def test_padded_elements(other):
    ml_dtypes = peer("ml_dtypes")
    t = bridge.share(np.array([1, -2, 3], ml_dtypes.int4))
    assert t.is_padded
    back = other(other_side.give_back, t[1:])
    assert (back.is_padded, back.data_ptr(), back.tobytes()) == (
        True,
        t.data_ptr() + 1,
        t.tobytes()[1:],
    )


@pytest.mark.parametrize("shape", [0, (0, 3), (2, 0)])
def test_no_elements(other, shape):
    for t in (bridge.empty(shape, shared=True), bridge.share(np.zeros(shape, "f4"))):
        assert other(other_side.described, t) == other_side.described(t)
    assert files() == (0, 0)


def test_several_tensors_in_one_message(other):
    """One descriptor for all that are in one block, and one block for both of them."""
    t = bridge.share(VALUES)
    u = bridge.share(VALUES + 1)
    message = bytes(ForkingPickler.dumps([t, t[1:], {"t": t.T}]))
    assert message.count(b"receive_block") == 1
    first, second, third = pickle.loads(message)
    assert first.data_ptr() == third["t"].data_ptr() == second.data_ptr() - 24 == t.data_ptr()
    back = other(other_side.give_back, t, u, t[1:], u.T)
    assert [each.data_ptr() for each in back] == [x.data_ptr() for x in (t, u, t[1:], u.T)]


def test_a_third_process(other):
    """The receiver sends it on; the first process may have let it go."""
    third = Other("forkserver")
    try:
        t = bridge.share(VALUES)
        other(other_side.keep, t)
        third(other_side.keep, other(other_side.give_back, t[1:]))
        third(other_side.fill, t[3:], 9)
        assert t.numpy()[3].tolist() == [9] * 6
        assert third(other_side.fds) > 0
        third(other_side.forget)
    finally:
        third.close()


def test_forks():
    """A child has the same memory. It cannot send it: nobody could receive the message."""
    run_scene("sharing.forks")


# Copies, and none


def test_a_tensor_that_is_shared_is_not_copied():
    t = bridge.share(VALUES)
    assert bridge.share(t) is t
    assert bridge.share(t, "cpu") is t
    part = bridge.share(t.numpy()[1:])
    assert part.data_ptr() == t.data_ptr() + 24
    assert sent(part).data_ptr() == part.data_ptr()


def test_empty_can_be_filled_in_place():
    t = bridge.empty((4, 6), "int32", shared=True)
    assert t.data_ptr() % PAGE == 0
    assert t.tolist() == [[0] * 6] * 4
    t.numpy()[...] = VALUES
    assert (sent(t).numpy() == VALUES).all()
    assert sent(t).data_ptr() == t.data_ptr() == bridge.share(t).data_ptr()


def test_whatever_asarray_takes():
    peer_arrays = [[[1, 2], [3, 4]], memoryview(b"abcd"), VALUES[::-1, ::2], VALUES.T]
    for x in peer_arrays:
        assert bridge.share(x).tolist() == bridge.asarray(x).tolist()
        assert bridge.share(x).is_contiguous()


def test_a_copy_may_be_written_whatever_its_source():
    a = VALUES.copy()
    a.flags.writeable = False
    assert not bridge.share(a).readonly


def test_ordinary_pickles_copy():
    t = bridge.share(VALUES)
    for again in (
        *(pickle.loads(pickle.dumps(t, protocol)) for protocol in range(6)),
        copy.deepcopy(t),
        bridge.to_device(t, "cpu", copy=True),
    ):
        assert (again.numpy() == VALUES).all()
        assert shared_blocks.mapping_at(again.data_ptr(), 1) is None


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_other_tensors_are_sent_as_before(protocol):
    """The first block of a process changes nothing for them."""
    t = bridge.share(VALUES)
    plain = bridge.asarray(VALUES)
    first, second, third = pickle.loads(ForkingPickler.dumps([plain, t, plain], protocol))
    assert first is third
    assert (first.numpy() == VALUES).all()
    assert second.data_ptr() == t.data_ptr()
    assert b"shared" not in bytes(ForkingPickler.dumps(plain, protocol))
    assert len(ForkingPickler.dumps(plain, protocol)) < VALUES.nbytes + 200


def test_an_expired_tensor_cannot_be_sent():
    with bridge.share(VALUES).host_view() as h:
        assert (sent(h).numpy() == VALUES).all()
    with pytest.raises(ExchangeError, match="expired"):
        ForkingPickler.dumps(h)


# Read-only


@LINUX
def test_read_only_memory_cannot_be_written_by_the_receiver(other):
    """Also not against the flag of the tensor: the system does not allow it."""
    t = bridge.share(VALUES)
    a = t.numpy()
    a.flags.writeable = False
    fixed = bridge.asarray(a)
    assert other(other_side.protection, t) == "rw-s"
    assert other(other_side.protection, fixed) == "r--s"
    with pytest.raises(ValueError, match="read-only"):
        other(other_side.fill, fixed, 1)
    back = other(other_side.give_back, fixed)
    assert (back.readonly, other_side.protection(back)) == (True, "r--s")
    assert sent(back[1:]).readonly
    assert (back.numpy() == VALUES).all()
    t.numpy()[0, 0] = 99
    assert back.numpy()[0, 0] == 99


# Who may have it, and what is left


@LINUX
def test_nobody_else_may_open_or_cut_it_off():
    t = bridge.share(VALUES)
    fd = shared_blocks.mapping_at(t.data_ptr(), 1).file.fileno()
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    assert not os.get_inheritable(fd)
    for size in (0, 2 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)


@pytest.fixture(params=["disk", "tmpfs"])
def folder(request, tmp_path):
    """Where temporary files are; those of a tmpfs say that they can have no seals."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs here: /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.mark.parametrize("where", ["macOS", "an old kernel"])
def test_without_memfd(monkeypatch, other, folder, where):
    """A temporary file that no folder has."""
    if where == "macOS":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    else:

        def missing(*_):
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(os, "memfd_create", missing, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    t = bridge.share(VALUES)
    fd = shared_blocks.mapping_at(t.data_ptr(), 1).file.fileno()
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    assert list(folder.iterdir()) == []
    other(other_side.fill, t, 7)
    assert (t.numpy() == 7).all()
    assert other(other_side.give_back, t).data_ptr() == t.data_ptr()


def test_no_room(monkeypatch):
    with pytest.raises(MemoryError, match="shared memory"):
        bridge.empty(1 << 61, shared=True)
    monkeypatch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(DeviceMemoryError, match=r"no room for 96 bytes.*full"):
        bridge.share(VALUES)


def test_no_descriptors_left():
    """An error, and nothing half done; it works again afterwards."""
    run_scene("sharing.no_descriptors_left")


@LINUX
def test_descriptors_and_memory_do_not_grow(other):
    """200 tensors: shared, sent, sent back, dropped."""

    def turn():
        t = bridge.share(VALUES)
        assert other(other_side.give_back, t[1:]).data_ptr() == t.data_ptr() + 24

    turn()
    before = other_side.fds(), other(other_side.fds), files()
    for _ in range(200):
        turn()
    assert (other_side.fds(), other(other_side.fds), files()) == before


@LINUX
def test_nothing_is_left_of_a_process_that_is_killed():
    """Neither of the receiver nor of the sender: the memory lives as long as somebody has it."""
    killed = Other("forkserver")
    t = bridge.share(VALUES)
    killed(other_side.keep, t)
    theirs = killed(bridge.share, VALUES)
    killed(other_side.keep, theirs)
    inodes = [
        os.fstat(shared_blocks.mapping_at(each.data_ptr(), 1).file.fileno()).st_ino
        for each in (t, theirs)
    ]
    me = os.getpid()
    assert [holders(inode, "memfd:dlbridge") for inode in inodes] == [{me, killed.process.pid}] * 2
    opened = other_side.fds()
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.join()
    assert [holders(inode, "memfd:dlbridge") for inode in inodes] == [{me}] * 2
    assert other_side.fds() == opened
    for each in (t, theirs):
        assert (each.numpy() == VALUES).all()
        each.numpy()[...] = 1
    del t, theirs, each
    gc.collect()
    assert [holders(inode, "memfd:dlbridge") for inode in inodes] == [set()] * 2


def test_a_sender_that_has_ended_before_it_was_received():
    ended = Other("forkserver")
    ended.connection.send((bridge.share, (VALUES,)))
    assert ended.connection.poll(60)
    os.kill(ended.process.pid, signal.SIGKILL)
    ended.process.join()
    with pytest.raises(
        ExchangeError, match="must live until the other one has received it"
    ) as caught:
        ended.connection.recv()
    assert caught.value.__cause__ is not None


def test_a_process_that_multiprocessing_has_not_started():
    """It cannot be told from somebody who must not have the memory."""
    message = bytes(ForkingPickler.dumps(bridge.share(VALUES)))
    said = run_scene("sharing.not_started_by_multiprocessing", message.hex())
    assert said == "AuthenticationError\n"


def test_the_message_keeps_the_memory():
    """The sender may drop its tensor as soon as it is sent."""
    message = ForkingPickler.dumps(bridge.share(VALUES))
    gc.collect()
    assert files() == (0, 0)
    assert (ForkingPickler.loads(message).numpy() == VALUES).all()


def test_views_keep_the_memory():
    t = bridge.share(VALUES)
    gone = weakref.ref(shared_blocks.mapping_at(t.data_ptr(), 1))
    a = t.numpy()[1:, ::2]
    del t
    gc.collect()
    assert (a == VALUES[1:, ::2]).all()
    del a
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("device", ["cpu", "opencl:0"])
def test_a_process_ends_while_arrays_are_there(device):
    backend_or_skip(device.partition(":")[0])
    run_scene("sharing.ends_while_arrays_are_there", device)


@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "Alarm"])
def test_interrupts_leave_nothing(exception):
    run_scene("sharing.interrupts", exception)


def test_threads():
    """Four threads share and receive one block, and blocks of their own."""
    t = bridge.share(VALUES)

    def work():
        for _ in range(50):
            message = ForkingPickler.dumps(t)
            u = bridge.share(VALUES + 1)
            again = ForkingPickler.loads(message)
            assert again.data_ptr() == t.data_ptr()
            assert (sent(u).numpy() == VALUES + 1).all()

    at_once(4, work)


# Messages that are wrong


@LINUX
def test_a_file_of_another_size_is_refused():
    for nbytes, seals, says in (
        (PAGE // 2, True, f"block of {PAGE} bytes.*has {PAGE // 2}"),
        (2 * PAGE, True, f"has {2 * PAGE}"),
        (PAGE, False, "can be cut off"),
    ):
        fd = os.memfd_create("another", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, nbytes)
        if seals:
            import fcntl

            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        before = other_side.fds()
        with pytest.raises(ExchangeError, match=says):
            receive_block(Given(fd), PAGE, b"token")
        assert other_side.fds() == before - 1  # it is closed


@pytest.mark.parametrize("error", [RuntimeError("received 0 items of ancdata"), EOFError()])
def test_a_descriptor_that_does_not_come(error):
    class Failing:
        def detach(self):
            raise error

    with pytest.raises(ExchangeError, match=r"has not come.*ulimit -n") as caught:
        receive_block(Failing(), PAGE, b"token")
    assert caught.value.__cause__ is error


def test_what_is_no_file_is_refused():
    for make in (os.pipe, lambda: (os.open(os.devnull, os.O_RDONLY),)):
        fd, *rest = make()
        with pytest.raises(ExchangeError, match="file that came with it"):
            receive_block(Given(fd), PAGE, b"token")
        for each in rest:
            os.close(each)


@pytest.mark.parametrize(
    ("offset", "dtype", "shape", "strides"),
    [
        (0, "u1", (PAGE + 1,), (1,)),
        (1, "u1", (PAGE,), (1,)),
        (-1, "u1", (1,), (1,)),
        (PAGE, "u1", (1,), (1,)),
        (0, "f4", (PAGE // 4 + 1,), (1,)),
        (0, "f4", (2,), (PAGE // 4,)),
        (0, "f4", (2,), (-1,)),
        (4, "f4", (3,), (-1,)),
        (0, "f4", (2, 2), (1,)),
        (0, "f4", (0,), (1,)),
        (0, "f4", (-1,), (1,)),
        (0, "f4", (-3, -3), (3, 1)),
        (0, "f4", (1 << 62, 1 << 62), (1 << 62, 1)),
        (0, "u1", (2, 2), (1 << 62, 1 << 62)),
        (0, "int4", (2 * PAGE + 1,), (1,)),
        (0, "int4", (2, 2), (2 * PAGE, 1)),
        (0, "f4", (1,) * 65, (1,) * 65),
        (0, "f4", (2,), None),
    ],
    ids=str,
)
def test_a_layout_outside_the_block_is_refused(offset, dtype, shape, strides):
    t = bridge.share(np.zeros(PAGE, "u1"))
    file = shared_blocks.mapping_at(t.data_ptr(), 1).file
    with pytest.raises(ExchangeError, match="are not in it"):
        receive(file, "cpu:0", (offset, dtype, shape, strides, 0, False))


def test_the_last_bytes_of_a_block():
    t = bridge.share(np.arange(PAGE, dtype="u2").astype("u1"))
    file = shared_blocks.mapping_at(t.data_ptr(), 1).file
    last = receive(file, "cpu:0", (PAGE - 1, "u1", (4,), (-1,), 0, False))
    assert last.tolist() == t.tolist()[:-5:-1]
    packed = receive(file, "cpu:0", (PAGE - 1, "int4", (2,), (1,), 0, False))
    assert packed.tobytes() == t.tobytes()[-1:]


# Devices


def test_a_device_that_cannot_use_it_says_what_to_do():
    for function in (
        lambda: bridge.share(VALUES, "ext_dev:0"),
        lambda: bridge.empty(3, device="ext_dev:0", shared=True),
    ):
        with pytest.raises(
            ExchangeError, match=r"ext_dev:0 cannot work in shared memory.*share\(x, \"cpu\"\)"
        ):
            function()


@pytest.mark.parametrize("device", ["cuda:7", "no_such_backend:0", "ext_dev:0"])
def test_a_device_that_the_receiver_does_not_have(device):
    """The tensor is on the CPU, in the same memory; or it raises, where that was asked for."""
    t = bridge.share(VALUES)
    file = shared_blocks.mapping_at(t.data_ptr(), 1).file
    message = file, device, (24, "int32", (3, 6), (6, 1), 0, False)
    with pytest.warns(
        RuntimeWarning, match=f"pickled on {device} is on the CPU.*unpickle_to"
    ) as warned:
        again = receive(*message)
    assert len(warned) == 1
    assert (str(again.device), again.data_ptr()) == ("cpu:0", t.data_ptr() + 24)
    with bridge.unpickle_to(None), pytest.raises((bridge.Error, ValueError)):
        receive(*message)
    with bridge.unpickle_to("cpu"):
        assert receive(*message).data_ptr() == t.data_ptr() + 24
    with bridge.unpickle_to("ext_dev:1"):  # its own choice: a copy
        again = receive(*message)
        assert (str(again.device), again.tolist()) == ("ext_dev:1", VALUES[1:].tolist())


def test_bad_arguments():
    with pytest.raises(ValueError, match="alignment"):
        bridge.empty(3, alignment=2 * PAGE, shared=True)
    assert bridge.empty(3, alignment=PAGE, shared=True).data_ptr() % PAGE == 0
    with pytest.raises(TypeError):
        bridge.share(object())
    with pytest.raises((bridge.Error, ValueError)):
        bridge.share(VALUES, "no_such_backend:0")
    assert files() == (0, 0)


# The ways of multiprocessing


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_all_ways(method):
    """Arguments of a Process, a Queue, a Pool, a ProcessPoolExecutor: they write, we read."""
    run_scene("sharing.all_ways", method)


# Last, as torch makes each collection slow


def test_memory_that_another_library_has_handed_on():
    torch = peer("torch")
    t = bridge.share(VALUES)
    theirs = torch.from_dlpack(t)
    address = t.data_ptr()
    del t
    assert bridge.share(theirs).data_ptr() == sent(bridge.asarray(theirs)).data_ptr() == address


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="Linux says how much memory it has")
def test_more_than_the_memory_of_the_machine():
    """A block's file may be larger; the first writes would end the process."""
    for make in (
        lambda: bridge.empty(1 << 50, "uint8", shared=True),
        lambda: bridge.share(np.broadcast_to(np.float32(1), (1 << 24, 1 << 24))),
    ):
        with pytest.raises(bridge.DeviceMemoryError, match="memory and swap together"):
            make()
