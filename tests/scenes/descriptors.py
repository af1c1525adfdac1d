"""Two processes with a ring of memfds: one fills frames, the other reads them, and one is killed."""

from __future__ import annotations

import gc
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys

import numpy as np

import dlbridge as bridge
from tests.support import other_process

FRAMES = 10_000
DEPTH = 3
NBYTES = 2 * mmap.PAGESIZE

# As a camera's program has it, without dlbridge: it fills the frame that it is told, and says so.
CAMERA = """
import mmap, socket, sys
with socket.socket(fileno=int(sys.argv[1])) as s:
    _, fds, _, _ = socket.recv_fds(s, 1, 8)
    frames = [mmap.mmap(fd, 0) for fd in fds]
    number = int(sys.argv[2])
    while order := s.recv(1):
        frame = frames[order[0]]
        frame[:] = bytes([number & 255]) * len(frame)
        number += 1
        if not s.send(order):
            break
"""

# The other side: a program that reads with dlbridge what this process fills.
READER = """
import os, socket, sys
import dlbridge as bridge
with socket.socket(fileno=int(sys.argv[1])) as s:
    _, fds, _, _ = socket.recv_fds(s, 1, 8)
    while order := s.recv(1):
        t = bridge.from_fd(fds[order[0]], int(sys.argv[2]), "uint8")
        array = t.numpy()
        assert array[0] == array[-1], array
        s.send(order)
"""


def _start(
    program: str, ring: list[int], argument: int
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-c", program, str(theirs.fileno()), str(argument)]
    process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
    theirs.close()
    socket.send_fds(ours, [b"x"], ring)
    return ours, process


def _new_ring() -> tuple[list[bridge.Tensor], list[int]]:
    tensors = [bridge.empty(NBYTES, "uint8", shared=True) for _ in range(DEPTH)]
    return tensors, [tensor.to_fd()[0] for tensor in tensors]


def _lifetimes(seed: int, ends: int) -> list[int]:
    """The frames that each of *ends* processes lives for; the last has what is left."""
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(1, FRAMES), ends - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, FRAMES], strict=True)]


def producer_is_killed() -> None:
    """10,000 frames of twelve cameras, each of which is killed while it fills the next one."""
    before = other_process.open_files()
    ring, fds = _new_ring()
    done = 0
    for lifetime in _lifetimes(1, 12):
        camera, process = _start(CAMERA, fds, done)
        for _ in range(lifetime):
            slot = done % DEPTH
            camera.send(bytes([slot]))
            assert camera.recv(1) == bytes([slot])
            t = bridge.from_fd(fds[slot], NBYTES, "uint8")  # anew for each frame
            values = t.numpy()
            assert values[0] == values[-1] == done & 255
            done += 1
        camera.send(bytes([done % DEPTH]))
        process.send_signal(signal.SIGKILL)
        process.wait()
        camera.close()
        assert ring[0].numpy().size == NBYTES  # the memory is here as before
    assert done == FRAMES
    for fd in fds:
        os.close(fd)
    del ring, t, values
    gc.collect()
    assert other_process.open_files() == before, (before, other_process.open_files())


def consumer_is_killed() -> None:
    """10,000 frames to eight readers, each of which is killed while it reads the next one."""
    before = other_process.open_files()
    ring, fds = _new_ring()
    done = 0
    for lifetime in _lifetimes(2, 8):
        reader, process = _start(READER, fds, NBYTES)
        for _ in range(lifetime):
            slot = done % DEPTH
            np.asarray(ring[slot].numpy())[:] = done & 255
            reader.send(bytes([slot]))
            assert reader.recv(1) == bytes([slot])
            done += 1
        reader.send(bytes([done % DEPTH]))
        process.send_signal(signal.SIGKILL)
        process.wait()
        reader.close()
    assert done == FRAMES
    fd, layout = ring[0].to_fd()
    assert json.loads(json.dumps(layout)) == layout
    for each in [fd, *fds]:
        os.close(each)
    del ring
    gc.collect()
    assert other_process.open_files() == before, (before, other_process.open_files())
