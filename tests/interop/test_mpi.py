"""MPI sends, receives and reduces our tensors byte for byte, or refuses them: mpich and mpi4py.

The ranks run ``mpi_matrix.py``, and check each result.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.expected_parts import backend_or_skip
from tests.support.mpi_ranks import run_ranks

PROGRAM = Path(__file__).with_name("mpi_matrix.py")

CHECKS = {
    # 24 types in six shapes: what arrives by two calls, and the source.
    "carries": 24 * 6 * 3,
    "parts": 4,
    "one_byte_each_is_carried": 3,
    # 13 types in six shapes; bool; 11 types that MPI refuses.
    "reduces": 13 * 6 + 1 + 11 * 2,
    # Packed and vector types are refused, and arrive by each way that the error names.
    "elements_are_refused": 23 * 12,
    # 7 calls on tensors of 47 types, and an empty one: a handle is never taken for an address.
    "handles_are_refused": 24 * 8 + 1 + 23 * 7,
    "read_only_memory": 4,
}
HOST = [name for name in CHECKS if name not in ("handles_are_refused", "read_only_memory")]
DEVICE = [*HOST, "handles_are_refused"]
SHARED = {"DLBRIDGE_FAKE_SHARED": "1"}
"""The host can read the simulated device's memory."""


@pytest.mark.parametrize(
    ("device", "ranks", "env", "parts"),
    [
        ("cpu", 2, {}, [*HOST, "read_only_memory"]),
        ("cpu", 4, {}, HOST),
        ("ext_dev:1", 2, SHARED, DEVICE),
        ("ext_dev:1", 2, {}, ["handles_are_refused"]),
        ("opencl:0", 2, {}, DEVICE),
        ("vulkan:0", 2, {}, DEVICE),
    ],
    ids=["cpu", "cpu-4 ranks", "ext_dev-shared", "ext_dev", "opencl", "vulkan"],
)
def test_every_rank_has_made_every_check(device, ranks, env, parts):
    backend_or_skip(device.partition(":")[0])
    made = run_ranks(ranks, PROGRAM, ",".join(parts), device, env=env).split()
    assert made == [str(sum(CHECKS[part] for part in parts))] * ranks
