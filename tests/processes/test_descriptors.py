"""from_fd and to_fd: memory that a file descriptor names, of other programs and for them.

A dma-buf is a real one where the kernel makes some (``/dev/udmabuf``). Elsewhere a memfd stands for
it whose ioctl is answered here: that shows when the host's access begins and ends, and not what a
device sees of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from dlbridge.extending import export_memory, export_refusal, new_exportable, tensor_on
from dlbridge.processes import descriptors
from tests.support.expected_parts import backend_or_skip
from tests.support.scripts import environment, run_scene

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memfd")

SHAPE = (4, 2048)  # two pages
VALUES = np.arange(8192, dtype="u1").reshape(SHAPE)


def held():
    """The memfds that this process has open; drivers have files of their own."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this loop
            names.append(str(entry.readlink()))
    return sorted(name for name in names if name.startswith(("/memfd:frame", "/memfd:dlbridge")))


@pytest.fixture(autouse=True)
def no_descriptor_stays():
    gc.collect()
    before = held()
    yield
    gc.collect()
    assert held() == before


@pytest.fixture
def memory():
    """A memfd with `VALUES`, as another program has made it; the test closes nothing."""
    fd = os.memfd_create("frame", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, VALUES.tobytes())
    yield fd
    os.close(fd)


def seal(fd, *seals):
    for each in seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, each)


def bytes_of(fd):
    return os.pread(fd, os.fstat(fd).st_size, 0)


# In ------------------------------------------------------------------------------------


def test_it_is_the_memory_itself(memory):
    t = bridge.from_fd(memory, SHAPE, "uint8")
    assert (t.numpy() == VALUES).all()
    t.numpy()[1, 2] = 99
    assert bytes_of(memory)[2050] == 99
    os.pwrite(memory, b"\x07", 0)
    assert t[0, 0].item() == 7


def test_the_descriptor_is_duplicated(memory):
    fd = os.dup(memory)
    t = bridge.from_fd(fd, SHAPE, "uint8")
    os.close(fd)
    other = os.open(os.devnull, os.O_RDONLY)  # it takes the number
    assert other == fd
    assert (t.numpy() == VALUES).all()
    array = np.from_dlpack(t)
    del t
    gc.collect()
    assert (array == VALUES).all()  # a consumer keeps the mapping
    os.close(other)


def test_shared_memory_with_a_name_and_a_file(tmp_path):
    path = tmp_path / "frame"
    path.write_bytes(VALUES.tobytes())
    shm = Path("/dev/shm")
    places = [path]
    if shm.is_dir():
        named = shm / f"dlbridge-{os.getpid()}"
        named.write_bytes(VALUES.tobytes())
        places.append(named)
    for place in places:
        with place.open("r+b") as file:
            t = bridge.from_fd(file, SHAPE, "uint8")
        t.numpy()[0, 0] = 5
        assert place.read_bytes()[0] == 5
        sent = bridge.share(t)  # it goes on to other processes without a copy
        assert sent is t
        place.unlink()


def test_part_of_it(memory):
    t = bridge.from_fd(memory, (3, 5), "int16", offset=4, strides=(1024, 2))
    assert (t.numpy() == VALUES.view("i2")[:3, 2:12:2]).all()
    backwards = bridge.from_fd(memory, 4, "uint8", offset=9, strides=[-3])
    assert backwards.tolist() == [9, 6, 3, 0]
    assert bridge.from_fd(memory, (0, 3), "float32").shape == (0, 3)


@pytest.mark.parametrize("how", ["descriptor", "F_SEAL_WRITE", "F_SEAL_FUTURE_WRITE"])
def test_what_cannot_be_written_is_read_only(memory, how):
    fd = memory
    if how == "descriptor":
        fd = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    else:
        seal(memory, fcntl.F_SEAL_WRITE if how == "F_SEAL_WRITE" else 0x10)
    t = bridge.from_fd(fd, SHAPE, "uint8")
    assert t.readonly
    assert (t.numpy() == VALUES).all()
    if fd != memory:
        os.close(fd)


def write_only(memory):
    return os.open(f"/proc/self/fd/{memory}", os.O_WRONLY)


@pytest.mark.parametrize(
    ("make", "arguments", "error", "words"),
    [
        (lambda _: 99999, {}, ValueError, "fd 99999 cannot be duplicated.*is it open"),
        (lambda _: -1, {}, ValueError, "fd -1 cannot be duplicated"),
        (lambda _: "frame", {}, TypeError, "no file descriptor: pass its number"),
        (lambda _: True, {}, TypeError, "no file descriptor"),
        (write_only, {}, BufferError, "open for writing only.*O_RDWR"),
        (lambda _: os.open("/", os.O_RDONLY), {}, BufferError, "names no memory"),
        (lambda _: os.open(os.devnull, os.O_RDWR), {}, BufferError, "names no memory"),
        (lambda _: os.memfd_create("x"), {}, BufferError, "0 bytes.*ftruncate"),
        (os.dup, {"shape": (5, 2048)}, BufferError, "bytes 0 to 10240 of memory that has 8192"),
        (os.dup, {"offset": 1}, BufferError, "bytes 1 to 8193"),
        (os.dup, {"offset": -1, "shape": 1}, BufferError, "bytes -1 to 0"),
        (os.dup, {"shape": 2, "strides": [-1]}, BufferError, "bytes -1 to 1"),
        (os.dup, {"shape": (1 << 62, 1 << 62)}, BufferError, "of memory that has 8192"),
        (os.dup, {"shape": 2, "offset": 2, "dtype": "float32"}, BufferError, "multiple of 4"),
        (os.dup, {"shape": (-1, 2)}, ValueError, "negative extent"),
        (os.dup, {"strides": [1]}, ValueError, "1 strides for 2 dimensions"),
        (os.dup, {"kind": "mem"}, ValueError, "'memory', 'dma-buf', 'opaque'"),
        (os.dup, {"kind": "dma-buf"}, BufferError, "no dma-buf.*kind 'memory'"),
        (os.dup, {"kind": "opaque"}, BufferError, "device='vulkan:0'"),
    ],
)
def test_what_is_refused(memory, make, arguments, error, words):
    fd = make(memory)
    given = {"shape": SHAPE, "dtype": "uint8", **arguments}
    with pytest.raises(error, match=words):
        bridge.from_fd(fd, **given)
    if type(fd) is int and 0 < fd < 9999:
        os.close(fd)


def test_memory_that_can_be_cut_off_is_not_passed_on_as_a_block(memory):
    """A receiver that reads a mapping beyond its end is ended."""
    t = bridge.from_fd(memory, SHAPE, "uint8")
    assert bridge.share(t) is not t
    seal(memory, fcntl.F_SEAL_SHRINK)
    sealed = bridge.from_fd(memory, SHAPE, "uint8")
    assert bridge.share(sealed) is sealed


# On devices ----------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["opencl:0", "vulkan:0"])
def test_a_device_works_in_it(memory, device):
    backend = backend_or_skip(device.partition(":")[0])
    page = bridge.empty(mmap.PAGESIZE, "uint8", alignment=mmap.PAGESIZE)
    if backend.host_import_refusal(0, page.data_ptr(), page.nbytes, False):
        pytest.skip("it has memory of its own")
    t = bridge.from_fd(memory, (2, 2048), "uint8", offset=2048, device=device, copy=False)
    assert t.device == bridge.device(device)
    bridge.copy_(t, np.full((2, 2048), 42, "u1"))
    bridge.synchronize(t.device)
    assert bytes_of(memory)[2047:6145] == b"\xff" + b"\x2a" * 4096 + b"\x00"
    fd, layout = t.to_fd()  # the device's tensor has the descriptor, too
    assert bridge.from_fd(fd, **layout).tolist() == t.tolist()
    os.close(fd)


def test_a_device_that_cannot_gets_a_copy_and_says_why(memory):
    with bridge.trace() as trace:
        t = bridge.from_fd(memory, SHAPE, "uint8", device="ext_dev:0")
    assert (t.tolist() == VALUES).all()
    assert "cannot reach host memory" in str(trace)
    assert trace.nbytes == 8192
    with pytest.raises(BufferError, match=r"copy=False.*cannot reach host memory"):
        bridge.from_fd(memory, SHAPE, "uint8", device="ext_dev:0", copy=False)
    copied = bridge.from_fd(memory, SHAPE, "uint8", copy=True)
    copied.numpy()[:] = 0
    assert bytes_of(memory) == VALUES.tobytes()


def test_memory_that_a_driver_has_exported():
    """As another program would have it of Vulkan: lavapipe's descriptors are memfds."""
    backend_or_skip("vulkan")
    device = bridge.device("vulkan:0")
    if refusal := export_refusal(device) or export_refusal(device, importing=True):
        pytest.skip(refusal)
    own = new_exportable(device, 8192, "a test")
    theirs = tensor_on(own, bridge.dtype("uint8"), SHAPE)
    bridge.copy_(theirs, VALUES)
    bridge.synchronize(device)
    exported = export_memory(own)
    with pytest.raises(BufferError, match=r"pass nbytes="):
        bridge.from_fd(exported.fd, SHAPE, "uint8", device=device, kind="opaque")
    place = {"device": device, "kind": "opaque", "nbytes": exported.nbytes}
    t = bridge.from_fd(exported.fd, (2, 2048), "uint8", offset=2048, **place)
    assert (bridge.to_device(t, "cpu", like="numpy") == VALUES[1:3]).all()
    bridge.copy_(t, np.zeros((2, 2048), "u1"))
    bridge.synchronize(device)
    assert theirs.tolist()[1][:4] == [0, 0, 0, 0]


# dma-bufs ------------------------------------------------------------------------------


class Exporter:
    """What the kernel would do for a dma-buf, on a memfd: *log* has the flags of each access."""

    def __init__(self):
        self.log = []
        self.refusals = []

    def ioctl(self, fd, request, argument):
        assert request == descriptors.SYNC
        os.fstat(fd)  # it is open still
        if self.refusals:
            raise OSError(self.refusals.pop(), "refused by the test")
        (flags,) = struct.unpack("=Q", argument)
        self.log.append(flags)


@pytest.fixture
def exporter(monkeypatch):
    made = Exporter()
    monkeypatch.setattr(fcntl, "ioctl", made.ioctl)
    return made


READ, WRITE, END = 1, 2, 4


def test_the_access_to_a_dma_buf_lasts_as_long_as_its_tensor(memory, exporter):
    t = bridge.from_fd(memory, SHAPE, "uint8", kind="dma-buf")
    assert exporter.log == [READ | WRITE]
    array = t.numpy()
    del t
    gc.collect()
    assert exporter.log == [READ | WRITE]
    assert (array == VALUES).all()
    del array
    gc.collect()
    assert exporter.log == [READ | WRITE, READ | WRITE | END]


def test_a_read_only_dma_buf_is_accessed_to_read(memory, exporter):
    fd = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    t = bridge.from_fd(fd, SHAPE, "uint8", kind="dma-buf")
    os.close(fd)
    assert t.readonly
    assert bridge.share(t) is not t  # other processes begin an access of their own
    del t
    gc.collect()
    assert exporter.log == [READ, READ | END]


def test_a_dma_buf_is_copied_to_a_device_inside_the_access(memory, exporter):
    t = bridge.from_fd(memory, SHAPE, "uint8", kind="dma-buf", device="ext_dev:0")
    gc.collect()
    assert exporter.log == [READ | WRITE, READ | WRITE | END]
    assert (t.tolist() == VALUES).all()


def test_an_access_that_was_interrupted_is_asked_for_again(memory, exporter):
    exporter.refusals = [errno.EINTR, errno.EAGAIN]
    bridge.from_fd(memory, SHAPE, "uint8", kind="dma-buf")
    gc.collect()
    assert exporter.log == [READ | WRITE, READ | WRITE | END]


def test_an_access_that_is_refused_ends_nothing(memory, exporter):
    exporter.refusals = [errno.ENOTTY]
    with pytest.raises(ExchangeError, match="DMA_BUF_IOCTL_SYNC") as caught:
        bridge.from_fd(memory, SHAPE, "uint8", kind="dma-buf")
    assert isinstance(caught.value.__cause__, OSError)
    del caught
    gc.collect()
    assert exporter.log == []


@pytest.mark.skipif(not Path("/dev/udmabuf").exists(), reason="the kernel makes no dma-bufs here")
def test_a_real_dma_buf(memory):
    seal(memory, fcntl.F_SEAL_SHRINK)
    with Path("/dev/udmabuf").open("r+b", buffering=0) as device:
        # linux/udmabuf.h: struct udmabuf_create {memfd, flags, offset, size}; UDMABUF_CREATE.
        request = struct.pack("=IIQQ", memory, 1, 0, 8192)
        fd = fcntl.ioctl(device, 0x4018_7542, request)
    t = bridge.from_fd(fd, SHAPE, "uint8")
    os.close(fd)
    assert (t.numpy() == VALUES).all()
    t.numpy()[0, 0] = 77
    assert bytes_of(memory)[0] == 77


# Out -----------------------------------------------------------------------------------

RECEIVER = """
import json, os, socket, sys
import dlbridge as bridge

with socket.socket(fileno=int(sys.argv[1])) as connection:
    message, (fd,), _, _ = socket.recv_fds(connection, 4096, 1)
    t = bridge.from_fd(fd, **json.loads(message))
    os.close(fd)
    if not t.readonly:
        t.numpy()[...] += 1
    connection.send(json.dumps([t.readonly, t.tolist()]).encode())
"""


@pytest.mark.parametrize("readonly", [False, True])
def test_another_process_has_the_memory_by_a_message(readonly):
    t = bridge.share(VALUES[:, :6])[1:, ::2]
    if readonly:
        array = t.numpy()
        array.flags.writeable = False
        t = bridge.asarray(array)
    before = t.tolist()
    ours, theirs = socket.socketpair()
    arguments = [sys.executable, "-c", RECEIVER, str(theirs.fileno())]
    process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()], env=environment())
    theirs.close()
    fd, layout = t.to_fd()
    socket.send_fds(ours, [json.dumps(layout).encode()], [fd])
    os.close(fd)
    there, found = json.loads(ours.recv(4096))
    assert process.wait() == 0
    ours.close()
    assert (there, found) == (readonly, t.tolist())
    assert (t.tolist() == before) is readonly


def test_the_descriptor_of_a_read_only_tensor_cannot_be_written(memory):
    fd = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    t = bridge.from_fd(fd, SHAPE, "uint8")
    os.close(fd)
    fd, _ = t.to_fd()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize(
    "make",
    [lambda: bridge.zeros(3), lambda: bridge.zeros(3, device="ext_dev:0")],
    ids=["host", "device"],
)
def test_other_memory_has_no_descriptor(make):
    with pytest.raises(BufferError, match=r"no memory that a file descriptor names.*share\(t"):
        make().to_fd()


# Beside a process that is killed ----------------------------------------------------------


@pytest.mark.parametrize("killed", ["producer", "consumer"])
def test_a_ring_of_frames_beside_a_process_that_is_killed(killed):
    run_scene(f"descriptors.{killed}_is_killed")


def test_a_tensor_without_dimensions_there_and_back():
    fd, layout = bridge.share(np.array(7.0)).to_fd()
    try:
        assert bridge.from_fd(fd, **layout).item() == 7.0
    finally:
        os.close(fd)


@pytest.mark.parametrize("nbytes", [0, -1, 2**63, "x", 1.5])
def test_a_length_that_no_memory_has(nbytes):
    backend_or_skip("vulkan")
    fd = os.memfd_create("none")
    try:
        with pytest.raises((bridge.ExchangeError, TypeError), match="nbytes"):
            bridge.from_fd(fd, (0,), "uint8", kind="opaque", device="vulkan:0", nbytes=nbytes)
    finally:
        os.close(fd)


@pytest.mark.parametrize("shape", [None, "12", (1.5,), np.array([2.5])])
def test_a_shape_that_is_none(shape):
    fd = os.memfd_create("none")
    try:
        with pytest.raises(TypeError, match="shape"):
            bridge.from_fd(fd, shape, "uint8")
    finally:
        os.close(fd)


def test_a_tensor_without_elements_has_no_descriptor():
    with pytest.raises(ExchangeError, match="it has no elements"):
        bridge.share(np.zeros(3))[:0].to_fd()


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="a descriptor without access is Linux's")
def test_a_descriptor_that_gives_no_access(tmp_path):
    (tmp_path / "a").write_bytes(bytes(8))
    fd = os.open(tmp_path / "a", os.O_PATH)
    try:
        with pytest.raises(ExchangeError, match="cannot map"):
            bridge.from_fd(fd, (8,), "uint8")
    finally:
        os.close(fd)
