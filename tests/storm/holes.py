"""Faults that were in the package once, and how to put each back.

Each is a change of source text, made when the module is imported. `test_storm.py`
shows that a storm finds every one. If the text of a module changes, `put_back` says
which fault can no longer be put back: adapt it here.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from mutate import Changed

__all__ = ["HOLES", "Hole", "put_back"]


class Hole(NamedTuple):
    """A fault: in which module, the text that mends it, the text before that."""

    module: str
    changes: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    """The storm that finds it soon: operations, devices, threads."""
    finding: str
    """What the findings then say (a regular expression)."""
    seconds: float = 20
    patience: float = 15


def _waiting(text: str) -> tuple[str, str]:
    """`with self.lock:` around *text* as a bare acquire()."""
    inner = text.replace("\n", "\n    ")
    return (
        f"        with self.lock:\n{inner}",
        (
            f"        self.lock.acquire()\n        try:\n{inner}\n"
            "        finally:\n            self.lock.release()"
        ),
    )


# Point by point the first nine holes of an hour of attacks, the second deletion of torch,
# and a leak that storms found. All can be put back by a few words.
HOLES = {
    "two threads share a new tensor": Hole(
        "dlbridge.core.interfaces.own_table",
        (
            (
                "    with _sharing:\n        known = getattr(tensor",
                "    if True:\n        known = getattr(tensor",
            ),
        ),
        ("--only=first_exports_together,collections", "--devices=cpu", "--threads=5"),
        finding=r"Wrong|SIGSEGV|SIGABRT",
    ),
    "one struct is lent twice": Hole(
        "dlbridge.core.interfaces.own_table",
        (
            (
                "if _lent.setdefault(address, loan) is loan:",
                "if address not in _lent and not _lent.__setitem__(address, _new_handle(tensor)):",
            ),
            (
                "if _claim(address, loan) is loan:",
                "if address not in _lent and not _lent.__setitem__(address, _new_handle(tensor)):",
            ),
            # A second deletion was an error then.
            (", onerror=immortal(_ignore_second_deletion)", ""),
        ),
        ("--only=one_tensor_lent_often", "--devices=cpu", "--threads=4", "--switching=1e-6"),
        finding=r"KeyError|SIGSEGV|SIGABRT",
        seconds=30,
    ),
    "an interrupted import deletes twice": Hole(
        "dlbridge.core.dlpack.capsules",
        (
            (
                "        self._owned.extend(zip(*steps, owner, strict=True))\n",
                (
                    "        kind = LEGACY_POINTER if self.legacy else VERSIONED_POINTER\n"
                    "        pointer, owned = ffi.cast(kind, self.address), None\n"
                    "        try:\n"
                    "            owned = ffi.gc(pointer, pointer.deleter)\n"
                    "            next(zip(*steps))\n"
                    "            self._owned.append((0, owned))\n"
                    "        except BaseException:\n"
                    "            pointer.deleter(pointer)\n"
                    "            raise\n"
                ),
            ),
        ),
        ("--only=structs_made_by_hand,structs_of_torch", "--devices=cpu", "--threads=1"),
        finding=r"SIGSEGV|SIGABRT|deleted twice",
    ),
    "a Ctrl-C between acquire and try": Hole(
        "dlbridge_vulkan.queue",
        (_waiting("            return self._submit(self._nothing, ())"),),
        (
            "--only=finalizers,to_a_device_and_back,objects_of_the_device",
            "--devices=vulkan:0",
            "--threads=2",
        ),
        finding=r"a thread hangs|does not end",
        seconds=40,
    ),
    "a finalizer submits under a plain lock": Hole(
        "dlbridge_vulkan.devices",
        (("self._lock = shared_lock()", "self._lock = threading.Lock()"),),
        (
            "--only=finalizers,to_a_device_and_back,collections",
            "--devices=vulkan:0",
            "--threads=2",
            "--threshold=7",
        ),
        finding=r"a thread hangs|does not end",
        seconds=30,
    ),
    "two threads map one buffer": Hole(
        "dlbridge_opencl.views",
        (("with _lock:", "with shared_lock():"),),
        ("--only=host_view_of_a_shared_tensor", "--devices=opencl:0", "--threads=4"),
        finding=r"SIGSEGV|SIGABRT",
        seconds=30,
    ),
    "a copy between views of one array": Hole(
        "dlbridge.core.moves.within_host",
        (
            (
                "if target.strides != source.strides and np.may_share_memory",
                "if False and np.may_share_memory",
            ),
        ),
        ("--only=overlapping_copy", "--devices=cpu", "--threads=2"),
        finding=r"Wrong: wrong result",
    ),
    "a struct is deleted inside a C++ destructor": Hole(
        "dlbridge.core.interfaces.own_table",
        (
            (
                "self.template = self.owner.pointer",
                (
                    "self.template = ffi.cast(_MANAGED, self.owner.release())\n"
                    "        self.owner = ffi.gc(self.template, self.template.deleter)"
                ),
            ),
        ),
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
        (("    try:\n        _loans.add(loan)\n", "    _loans.add(loan)\n    try:\n"),),
        ("--only=capsules,numpy_and_back", "--devices=cpu,ext_dev:0", "--threads=1"),
        finding=r"structs in capsules: 0 before",
    ),
    "torch deletes twice": Hole(
        "dlbridge.core.dlpack.exports",
        (("deque(maxlen=4096)", "deque(maxlen=0)"),),
        ("--only=torch_asks_for_another_device", "--devices=cpu,opencl:0", "--threads=2"),
        finding=r"SIGSEGV|SIGABRT|the struct of another",
    ),
}


def put_back(name: str) -> None:
    """Have the module of the hole *name* loaded with its fault."""
    hole = HOLES[name]

    def with_fault(source: str) -> str:
        for mended, fault in hole.changes:
            if mended not in source:
                raise SystemExit(f"{hole.module} has no {mended!r} any more: adapt holes.py")
            source = source.replace(mended, fault)
        return source

    sys.meta_path.insert(0, Changed(hole.module, with_fault))
