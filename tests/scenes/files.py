"""Files that are loaded and saved under signals, with too little memory, on a full disk."""

from __future__ import annotations

import builtins
import errno
import gc
import os
import resource
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.files import loading, saving
from tests.support import interrupted, other_process


def live(device: str) -> int:
    """What the backend of *device* has allocated and not freed."""
    return other_process.live(device.partition(":")[0])


def interrupted_loads(device: str) -> None:
    """A Ctrl-C at any moment leaks nothing."""
    loading.PIECE = 1 << 12  # it comes between pieces
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.safetensors"
        rng = np.random.default_rng(1)
        arrays = {f"t{i}": rng.integers(0, 256, 50_001 + i, "u1") for i in range(8)}
        bridge.save(path, arrays)
        turns = 0

        def work() -> None:
            nonlocal turns
            turns += 1
            file = bridge.load(path, device, names=True, copy=turns % 2 == 0 or None)
            assert file["t7"].tobytes() == arrays["t7"].tobytes(), "wrong bytes"

        work()
        work()
        before = live(device), other_process.open_files()
        interrupted.interrupted(work, KeyboardInterrupt, 200, spread=5)
        assert (live(device), other_process.open_files()) == before


def interrupted_saves(device: str) -> None:
    """A Ctrl-C at any moment leaves a whole file, the old one or the new one."""
    saving.PIECE = 1 << 12
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.safetensors"
        there = [
            {
                "x": bridge.full(30_000, number, "uint8", device),
                "y": bridge.full((50, 60), number, "int32", device).T,
            }
            for number in (1, 2)
        ]
        bridge.save(path, there[0])
        before = other_process.open_files()

        def work() -> None:
            found = bridge.load(path, names=True)
            values = {*np.unique(found["x"].numpy()), *np.unique(found["y"].numpy())}
            assert values in ({1}, {2}), values
            del found
            bridge.save(path, there[0])
            bridge.save(path, there[1])

        interrupted.interrupted(work, KeyboardInterrupt, 200, spread=5)
        gc.collect()
        assert os.listdir(folder) == ["a.safetensors"]  # noqa: PTH208 - names
        assert other_process.open_files() == before


def too_little_memory(path: str) -> None:
    bridge.load(path)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + (20 << 20), resource.RLIM_INFINITY)
    )
    with suppress(MemoryError):
        bridge.load(path)
        print("loaded")


def failed_allocations(path: str) -> None:
    """At many places, in a child each: CPython may not survive it."""
    import _testcapi  # type: ignore[import-not-found]  # of CPython's own tests

    bridge.load(path)
    bridge.load(path)
    for place in range(1, 600, 7):
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os._exit(_fails_as_a_file(path, place, _testcapi))
        assert os.waitpid(child, 0)[1] != 1 << 8, place


def _fails_as_a_file(path: str, place: int, testcapi: object) -> int:
    code = 0
    try:
        testcapi.set_nomemory(place, place + 1)  # type: ignore[attr-defined]
        bridge.load(path)
    except bridge.FileError:
        code = 1
    except BaseException:
        pass
    testcapi.remove_mem_hooks()  # type: ignore[attr-defined]
    return code


def full_disk(path: str) -> None:
    """The limit of a process on the size of files stands for it."""
    one = path.endswith(".npy")

    def save(array: np.ndarray) -> None:
        bridge.save(path, array if one else {"x": array})

    save(np.ones(3))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with pytest.raises(OSError, match=r"a\.") as caught:
        save(np.ones(1_000_000))
    assert caught.value.errno == errno.EFBIG
    assert path in str(caught.value)
    assert [each.name for each in Path(path).parent.iterdir()] == [Path(path).name]
    found = bridge.load(path)
    assert (found if one else found["x"]).tolist() == [1, 1, 1]


def used_by_a_child(path: str) -> None:
    file = bridge.load(path)
    weight = file["weight"]
    child = os.fork()
    if not child:
        os._exit(int(float(weight[0, 3])) + int(float(file["bias"][4])))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert file["bias"][4].item() == 4


def ends_with_tensors(path: str, device: str) -> None:
    builtins.kept = bridge.load(path, device, names=True)["weight"][1:]  # type: ignore[attr-defined]
