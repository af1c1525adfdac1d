"""MPI sends, receives and reduces our tensors byte for byte, or refuses them: mpich and mpi4py.

The ranks run ``mpi_matrix.py``, and check each result.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from expected import backend_or_skip
from ranks import run_ranks

PROGRAM = Path(__file__).with_name("mpi_matrix.py")
SHARED = {"DLBRIDGE_FAKE_SHARED": "1"}
"""The host can read the simulated device's memory."""

DEVICES = {"cpu": {}, "ext_dev:1": SHARED, "opencl:0": {}, "vulkan:0": {}}


def run(parts, device, ranks, env=None):
    """The checks that each rank has made."""
    backend_or_skip(device.partition(":")[0])
    made = [int(word) for word in run_ranks(ranks, PROGRAM, parts, device, env=env).split()]
    assert len(made) == ranks
    assert len(set(made)) == 1
    return made[0]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("device", DEVICES)
def test_every_type_arrives(device, ranks):
    """24 types in six shapes, by six calls (Send and Recv, and its source, Isend and Irecv, Sendrecv, Bcast, Allgather); parts of tensors; types of a byte for each element."""
    made = run("carries,parts,one_byte_each_is_carried", device, ranks, DEVICES[device])
    assert made == 24 * 6 * 6 + 4 + 3


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("device", DEVICES)
def test_numbers_are_added_up(device, ranks):
    """13 types in six shapes, twice; bool; 11 types that MPI refuses; three by an operator."""
    made = run("reduces,reduces_ml_dtypes", device, ranks, DEVICES[device])
    assert made == 13 * 6 * 2 + 1 + 11 * 2 + 3 * 4


@pytest.mark.parametrize(
    ("device", "env"),
    [("ext_dev:1", {}), ("ext_dev:1", SHARED), ("opencl:0", {}), ("vulkan:0", {})],
    ids=["ext_dev", "ext_dev-shared", "opencl", "vulkan"],
)
def test_a_handle_is_never_taken_for_an_address(device, env):
    """14 calls on tensors of 46 types, and an empty one."""
    made = run("handles_are_refused", device, 2, env)
    assert made == 24 * 15 + 1 + 23 * 14


@pytest.mark.parametrize("device", DEVICES)
def test_elements_that_mpi_would_count_wrongly(device):
    """Packed and vector types are refused, and arrive by each way that the error names."""
    assert run("elements_are_refused", device, 2, DEVICES[device]) == 23 * 19


def test_read_only_memory_is_sent_and_not_received_into():
    assert run("read_only_memory", "cpu", 2) == 4
