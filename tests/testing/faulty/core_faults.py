"""A pytest plugin: faults in dlbridge itself, which the kit's random operations find.

    python -m pytest -p tests.testing.faulty.core_faults ...      with DLBRIDGE_TEST_CORE_FAULT

has one of `CORE_FAULTS` put in. Each is a change of source text, made when the module is imported,
so nothing of dlbridge is imported here. If the text of a module changes, adapt it here.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from tests.support.without_a_wait import Changed

VARIABLE = "DLBRIDGE_TEST_CORE_FAULT"


class CoreFault(NamedTuple):
    """A fault: in which module, the sound text, the faulty one."""

    module: str
    sound: str
    faulty: str
    base: str = "Sound"
    """The device of faults.py on which it shows."""


_COPIES = "dlbridge.core.moves.copies"

CORE_FAULTS = {
    "overlapping bytes of a device are copied in place": CoreFault(
        _COPIES, "    return low < end and begin < high", "    return False", "RefusesOverlaps"
    ),
    "a strided copy begins at the first byte of the memory": CoreFault(
        _COPIES, "Span(index, data, offset + start, nbytes)", "Span(index, data, start, nbytes)"
    ),
    "a copy reads from where it writes": CoreFault(
        _COPIES,
        "span_of((index, source.data, source.byte_offset, nbytes))",
        "span_of((index, source.data, target.byte_offset, nbytes))",
    ),
    "the first element of a reversed tensor is counted from the end": CoreFault(
        _COPIES, "span[-low:].view", "span[: len(span) + low].view"
    ),
    "overlapping arrays of the host are copied in place": CoreFault(
        "dlbridge.core.moves.within_host",
        "if target.strides != source.strides and np.may",
        "if False and np.may",
    ),
    "a fill below a byte repeats its first byte": CoreFault(
        "dlbridge.core.moves.fills",
        'np.resize(np.frombuffer(pattern, "u1")',
        'np.resize(np.frombuffer(pattern[:1], "u1")',
    ),
    "read-only memory is written": CoreFault(
        "dlbridge.core.tensor.operand",
        "operand.readonly = not flags.writeable",
        "operand.readonly = False",
    ),
    "a view as larger elements begins at the first byte of the memory": CoreFault(
        "dlbridge.core.tensor.array_tensor",
        "memory, offset, shape = old._memory, old._byte_offset, (*outer",
        "memory, offset, shape = old._memory, 0, (*outer",
    ),
    "an export begins at the first byte of the memory": CoreFault(
        "dlbridge.core.tensor.exchange", "data, offset = data + offset, 0", "data, offset = data, 0"
    ),
    "the other byte order is taken as the machine's": CoreFault(
        "dlbridge.api.anything",
        "converted.view(ours)[...] = array",
        "converted.view(ours)[...] = array.view(ours)",
    ),
}


def put_in(name: str) -> None:
    """Have the module of the fault *name* loaded with it."""
    fault = CORE_FAULTS[name]

    def with_fault(source: str) -> str:
        if source.count(fault.sound) != 1:
            raise SystemExit(f"{fault.module} has not one {fault.sound!r}: adapt core_faults.py")
        return source.replace(fault.sound, fault.faulty)

    sys.meta_path.insert(0, Changed(fault.module, with_fault))


if os.environ.get(VARIABLE):
    put_in(os.environ[VARIABLE])
    sys.modules["torch"] = None  # its import would take longer than all operations
