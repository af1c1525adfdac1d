"""Shared memory in processes that fork, end, are interrupted, or have no device."""

from __future__ import annotations

import builtins
import gc
import multiprocessing
import os
import pickle
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.processes import blocks
from tests.support import interrupted, other_process, without_devices

EXCEPTIONS = {"KeyboardInterrupt": KeyboardInterrupt, "Alarm": interrupted.Alarm}


def forks() -> None:
    t = bridge.share(np.zeros(3))
    for sent_before in (False, True):
        if sent_before:
            message = ForkingPickler.dumps(t)
        child = os.fork()
        if not child:
            t.numpy()[:] += 5
            try:
                ForkingPickler.dumps(t)
            except bridge.ExchangeError as error:
                os._exit("start processes by multiprocessing" not in str(error))
            os._exit(sent_before)
        assert os.waitpid(child, 0)[1] == 0
    assert ForkingPickler.loads(message).data_ptr() == t.data_ptr()
    assert t.tolist() == [10, 10, 10]


def no_descriptors_left() -> None:
    bridge.share(np.zeros(3))
    before = other_process.open_files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, before + 20))
    kept = []

    def fill() -> None:
        while True:
            kept.append(bridge.share(np.zeros(3)))

    with pytest.raises(MemoryError, match=r"Too many open files.*ulimit -n"):
        fill()
    assert len(kept) >= 8
    kept.clear()
    for _ in range(100):
        bridge.share(np.zeros(3))
    assert other_process.open_files() == before


def not_started_by_multiprocessing(message: str) -> None:
    with pytest.raises(BufferError, match="authkey") as caught:
        pickle.loads(bytes.fromhex(message))
    print(type(caught.value.__cause__).__name__)


def ends_while_arrays_are_there(device: str) -> None:
    t = bridge.share(np.arange(100000))
    a = t.numpy()[1:]
    others = [a, ForkingPickler.loads(ForkingPickler.dumps(t)), bridge.share(t, device)]

    class Late:
        def __del__(self) -> None:
            assert a[0] == 1

    builtins.kept = [Late(), t, *others]  # type: ignore[attr-defined]


def interrupts(exception: str) -> None:
    a = np.arange(1000)
    kept = bridge.share(a)
    before = other_process.open_files()

    def work() -> None:
        assert bridge.share(a).tobytes() == a.tobytes()

    interrupted.interrupted(work, EXCEPTIONS[exception], 500)
    gc.collect()
    assert (other_process.open_files(), len(blocks._files)) == (before, 1)
    del kept


# Memory of a Vulkan device's own ----------------------------------------------------


def own_memory_ends_while_tensors_are_there() -> None:
    other_process.prefer_own_memory()
    ones = np.ones(100000, "f4")
    t = bridge.share(ones, "vulkan:0")
    other_process.scale(t, 1.0, rounds=1000, wait=False)
    received = ForkingPickler.loads(ForkingPickler.dumps(bridge.share(ones, "vulkan:0")))
    other_process.scale(received, 1.0, rounds=1000, wait=False)
    builtins.kept = [t, received]  # type: ignore[attr-defined]


def own_memory_interrupts(exception: str) -> None:
    other_process.prefer_own_memory()
    a = np.arange(1000)
    ForkingPickler.loads(ForkingPickler.dumps(bridge.share(a, "vulkan:0")))
    gc.collect()

    def counts() -> tuple[int, int]:
        bridge.share(a, "vulkan:0")  # what was dropped goes back with the next one
        gc.collect()
        return other_process.open_files(), other_process.live("vulkan")

    before = counts()
    interrupted.interrupted(lambda: bridge.share(a, "vulkan:0"), EXCEPTIONS[exception], 300)
    gc.collect()
    assert counts() == before
    assert len(blocks._blocks) == 0


# Other processes --------------------------------------------------------------------


def receiver_without_devices(device: str, serve: str) -> None:
    """Print what *serve* of ``without_devices`` says of a tensor, and the tensor afterwards."""
    if serve == "serve_errors":
        other_process.prefer_own_memory()
    context = multiprocessing.get_context("spawn")
    t = bridge.share(np.zeros(4, "f4"), device)
    ours, theirs = context.Pipe()
    process = context.Process(target=getattr(without_devices, serve), args=(theirs,))
    process.start()
    ours.send(t)
    print(ours.recv())
    process.join()
    assert process.exitcode == 0
    print(t.tolist())


def write(t: Any, at: int, value: int) -> Any:
    t.numpy()[at] = value
    return t


def through_queue(queue: Any, t: Any, u: Any) -> None:
    assert u.data_ptr() == t.data_ptr() + 4
    t.numpy()[0] = 1
    write(queue.get(timeout=60), 1, 2)


def all_ways(method: str) -> None:
    """Arguments of a Process, a Queue, a Pool, a ProcessPoolExecutor: they write, we read."""
    context: Any = multiprocessing.get_context(method)
    t = bridge.share(np.zeros(4, "i4"))
    queue = context.Queue()
    process = context.Process(target=through_queue, args=(queue, t, t[1:]))
    process.start()
    queue.put(t)
    process.join()
    with context.Pool(1) as pool:
        again = pool.apply(write, (t, 2, 3))
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        (last,) = executor.map(write, [t], [3], [4])
    assert t.tolist() == [1, 2, 3, 4]
    assert again.data_ptr() == last.data_ptr() == t.data_ptr()


def back(t: bridge.Tensor) -> tuple[bridge.Tensor, bytes]:
    return t, t.tobytes()


def pickled_there_and_back(method: str, device: str) -> None:
    """A copy through a pool of another process."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        again, raw = pool.apply(back, (bridge.to_device(np.arange(10000), device),))
    assert str(again.device) == device
    assert again.tobytes() == raw == np.arange(10000).tobytes()
