"""Faults that were in the package once, one for each kind of finding, and how to put each back.

Each is a change of source text, made when the module is imported. `test_storm.py`
shows that a storm finds every one; other tests ask for each of them by itself. If the text of a
module changes, `put_back` says which fault can no longer be put back: adapt it here.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from tests.support.without_a_wait import Changed

__all__ = ["HOLES", "Hole", "put_back"]


class Hole(NamedTuple):
    """A fault: in which module, the text that mends it, the text before that."""

    module: str
    mended: str
    fault: str
    options: tuple[str, ...]
    """The storm that finds it soon: operations, devices, threads."""
    finding: str
    """What the findings then say (a regular expression)."""
    seconds: float = 20
    patience: float = 15


# One for each kind of finding: a crash of threads, a hang, a wrong result, an end that is none, and
# what is left behind.
HOLES = {
    "two threads share a new tensor": Hole(
        "dlbridge.core.interfaces.own_table",
        "    with _sharing:\n        known = getattr(tensor",
        "    if True:\n        known = getattr(tensor",
        ("--only=first_exports_together,collections", "--devices=cpu", "--threads=5"),
        finding=r"Wrong|SIGSEGV|SIGABRT",
    ),
    "a finalizer submits under a plain lock": Hole(
        "dlbridge_vulkan.devices",
        "self._lock = shared_lock()",
        "self._lock = threading.Lock()",
        (
            "--only=finalizers,to_a_device_and_back,collections",
            "--devices=vulkan:0",
            "--threads=2",
            "--threshold=7",
        ),
        finding=r"a thread hangs|does not end",
        seconds=30,
    ),
    "a copy between views of one array": Hole(
        "dlbridge.core.moves.within_host",
        "if target.strides != source.strides and np.may_share_memory",
        "if False and np.may_share_memory",
        ("--only=tensors_beside_a_model", "--devices=cpu", "--threads=2"),
        finding=r"AssertionError: .* has b.*, not b",
    ),
    "a struct is deleted inside a C++ destructor": Hole(
        "dlbridge.core.interfaces.own_table",
        "self.template = self.owner.pointer",
        "self.template = ffi.cast(_MANAGED, self.owner.release())\n"
        "        self.owner = ffi.gc(self.template, self.template.deleter)",
        (
            "--only=consumers_outlive_tensors",
            "--devices=cpu",
            "--threads=6",
            "--switching=0.005",  # then most threads wait in the destructor when Python ends
            "--end=working",
        ),
        finding=r"SIGABRT",
        seconds=1,
    ),
    "an interrupted export keeps its struct": Hole(
        "dlbridge.core.dlpack.exports",
        "    try:\n        _loans.add(loan)\n",
        "    _loans.add(loan)\n    try:\n",
        ("--only=capsules", "--devices=cpu,ext_dev:0", "--threads=1"),
        finding=r"structs in capsules: 0 before",
    ),
}


def put_back(name: str) -> None:
    """Have the module of the hole *name* loaded with its fault."""
    hole = HOLES[name]

    def with_fault(source: str) -> str:
        if hole.mended not in source:
            raise SystemExit(f"{hole.module} has no {hole.mended!r} any more: adapt holes.py")
        return source.replace(hole.mended, hole.fault)

    sys.meta_path.insert(0, Changed(hole.module, with_fault))
