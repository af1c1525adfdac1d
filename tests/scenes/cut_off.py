"""Allocations that fail, and trace functions that raise, one by one through what the core does."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge as bridge
from tests.support.cut_off_work import each_failure
from tests.support.foreign_arrays import OneCapsule
from tests.support.held_by_c import structs_in_capsules, structs_of_the_table
from tests.support.other_process import open_files

FOLDERS = (str(Path(bridge.__file__).parent),)

memory, other = np.arange(8, dtype="f4"), np.zeros(8, "f4")
locked = memory[...]
locked.flags.writeable = False
ours, into = bridge.from_dlpack(memory), bridge.from_dlpack(other)
there = bridge.to_device(memory, "ext_dev:0")
small = bridge.zeros(5, "bfloat16")
shared = bridge.empty(8, shared=True)
_FD = shared.to_fd()[0]


WORK: dict[str, Any] = {
    "from numpy": lambda: bridge.from_dlpack(memory),
    "from numpy, read-only": lambda: bridge.from_dlpack(locked),
    "from a capsule": lambda: bridge.from_dlpack(OneCapsule(small.__dlpack__())),
    "from one of ours": lambda: bridge.from_dlpack(ours),
    "to numpy": lambda: np.from_dlpack(ours),
    "a capsule": lambda: ours.__dlpack__(max_version=(1, 3)),
    "a legacy capsule": ours.__dlpack__,
    "a struct of our own": lambda: small.__dlpack__(max_version=(1, 3)),
    "asarray": lambda: bridge.asarray(memory),
    "a list": lambda: bridge.asarray([1.0, 2.0]),
    "empty": lambda: bridge.empty(3, "bfloat16"),
    "copy": lambda: bridge.to_device(memory, "cpu", copy=True),
    "to a device": lambda: bridge.to_device(memory, "ext_dev:0"),
    "from a device": lambda: bridge.to_device(there, "cpu"),
    "as numpy": lambda: bridge.to_device(there, "cpu", like="numpy"),
    "copy into": lambda: bridge.copy_(into, ours),
    "copy into a device": lambda: bridge.copy_(there, ours),
    "a view": lambda: there[2:5],
    "values": there.tolist,
    "pickles": lambda: pickle.loads(pickle.dumps(ours)),
    "an export by the table": lambda: _lend(ours),
    "a descriptor": lambda: os.close(shared.to_fd()[0]),
    "from a descriptor": lambda: bridge.from_fd(_FD, 8, "float32"),
}


def _lend(tensor: Any) -> None:
    from dlbridge.abi import table_of

    table = table_of(bridge.Tensor)
    assert table
    table.receive(tensor)


def _living() -> list[int]:
    counts = [sys.getrefcount(each) for each in (memory, other, locked, ours, into, there, small)]
    backends: list[Any] = [bridge.backend(name) for name in ("cpu", "ext_dev")]
    plugins = [backend.live_allocations() for backend in backends]
    lent = structs_in_capsules(), structs_of_the_table()
    return [*counts, *plugins, *lent, open_files()]


def cut_off(how: str, least: str, *names: str) -> None:
    """Do the works of these names, or all, with each failure."""
    each_failure(how, {name: WORK[name] for name in names or WORK}, _living, FOLDERS, int(least))
