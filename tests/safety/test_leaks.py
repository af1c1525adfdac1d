"""A million exports and drops: memory flat, owners' reference counts exact.

The cheap kinds run their million every time; the others run a tenth or less of
it here and the whole million by ``make stress``.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.abi import table_of
from tests.support.peers import peer
from tests.support.raw_producer import OldProducer, Producer
from tests.support.table_calls import delete_managed

MILLION = 1_000_000
ALLOWED = (
    4 << 20
)  # bytes that the allocators may still settle; a leak of a million is 16 MB or more


def resident():
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="needs Linux's /proc to count resident memory"
)


def flat(cycle, times, *owners):
    """Run *cycle* so often; what it leaves behind would show."""
    for _ in range(5000):  # caches, free lists, first uses, the 4,096 latest structs
        cycle()
    gc.collect()
    counts = [sys.getrefcount(owner) for owner in owners]
    blocks, before = sys.getallocatedblocks(), resident()
    for _ in range(times):
        cycle()
    gc.collect()
    grown, blocks = resident() - before, sys.getallocatedblocks() - blocks
    assert [sys.getrefcount(owner) for owner in owners] == counts
    # A few blocks more are caches that something else filled.
    assert blocks < 500, f"{blocks} more blocks after {times} cycles"
    assert grown < ALLOWED, f"{grown} more bytes after {times} cycles"


FLOATS = np.arange(8, dtype="float32")
TABLE = table_of(bridge.Tensor)


def native():
    """A CPU tensor that numpy exports as it is."""
    return bridge.from_dlpack(FLOATS)


def bfloat16():
    """One whose export is patched."""
    return bridge.asarray(np.arange(8, dtype="uint16")).view("bfloat16")


def on_device():
    return bridge.to_device(FLOATS, "ext_dev:1")


def legacy(tensor):
    return tensor.__dlpack__


def versioned(tensor):
    return lambda: tensor.__dlpack__(max_version=(1, 3))


def to_numpy(tensor):
    return lambda: np.from_dlpack(tensor)


def by_table(tensor):
    return lambda: delete_managed(TABLE.receive(tensor).release())


def imported_again(tensor):
    return lambda: bridge.from_dlpack(tensor.__dlpack__(max_version=(1, 3)))


def copied(tensor):
    return lambda: tensor.__dlpack__(max_version=(1, 3), copy=True)


# (kind of tensor, what is done with it, how often in the normal run)
EXPORTS = [
    (native, legacy, MILLION),
    (native, versioned, MILLION),
    (native, to_numpy, MILLION),
    (bfloat16, versioned, 100_000),
    (bfloat16, legacy, 50_000),
    (on_device, versioned, 100_000),
    (on_device, legacy, 50_000),
    (on_device, imported_again, 10_000),
    (native, imported_again, 20_000),
    (native, by_table, 200_000),
    (on_device, by_table, 100_000),
    (native, copied, 20_000),
]
NAMES = [f"{make.__name__}-{act.__name__}" for make, act, _ in EXPORTS]


@pytest.mark.parametrize(("make", "act", "times"), EXPORTS, ids=NAMES)
def test_exports(make, act, times):  # P42, P47
    tensor = make()
    flat(act(tensor), times, tensor, tensor._array, tensor._memory)


@pytest.mark.stress
@pytest.mark.parametrize(
    ("make", "act"),
    [(make, act) for make, act, times in EXPORTS if times < MILLION],
    ids=[name for name, (_, _, times) in zip(NAMES, EXPORTS, strict=True) if times < MILLION],
)
def test_a_million_exports(make, act):  # P42, P47
    tensor = make()
    flat(act(tensor), MILLION, tensor, tensor._array, tensor._memory)


# Imports


class Interface:
    """Memory by ``__array_interface__`` only."""

    __array_interface__ = FLOATS.__array_interface__


def torch_tensor():
    return peer("torch").arange(8.0)


def torch_bfloat16():
    torch = peer("torch")
    return torch.arange(8).to(torch.bfloat16)


def jax_array():
    return peer("jax.numpy").arange(8.0)


def tvm_ffi_tensor():
    return peer("tvm_ffi").from_dlpack(FLOATS)


IMPORTS = [
    (lambda: FLOATS, 50_000, "numpy"),
    (lambda: FLOATS[::-1], 50_000, "numpy, negative"),
    (lambda: FLOATS[:0], 50_000, "numpy, empty"),
    (torch_tensor, 50_000, "torch"),
    (torch_bfloat16, 50_000, "torch, bfloat16"),
    (jax_array, 50_000, "jax"),
    (tvm_ffi_tensor, 50_000, "tvm_ffi"),
    (bfloat16, 50_000, "dlbridge"),
    (Interface, 50_000, "array interface"),
    (lambda: bytearray(32), 50_000, "buffer"),
    (lambda: [1.0, 2.0], 20_000, "list"),
]


@pytest.mark.parametrize(
    ("make", "times"),
    [(make, times) for make, times, _ in IMPORTS],
    ids=[name for _, _, name in IMPORTS],
)
def test_imports(make, times):  # C15, C37
    source = make()
    flat(lambda: bridge.asarray(source), times, source)


@pytest.mark.parametrize("kind", [Producer, OldProducer])
@pytest.mark.parametrize("dtype", [(2, 32, 1), (4, 16, 1)], ids=["native", "bfloat16"])
def test_imports_of_structs_made_by_hand(kind, dtype):  # C15
    def cycle():
        raw = kind((4,), dtype=dtype)
        bridge.from_dlpack(raw)
        assert raw.alive == 0

    flat(cycle, 10_000)


def test_imports_by_a_foreign_table():  # C15, X-rows
    torch = peer("torch")
    source, table = torch.arange(8.0), table_of(torch.Tensor)
    flat(lambda: table.export(source), 50_000, source)


def test_refusals():  # C10, P55
    """What is refused is not kept either."""
    wrong, readonly = Producer((4,), dtype=(99, 32, 1)), FLOATS.copy()
    readonly.flags.writeable = False
    tensor = bridge.from_dlpack(readonly)

    def cycle():
        for act in (
            lambda: bridge.from_dlpack(wrong),
            tensor.__dlpack__,
            lambda: bridge.to_device(tensor, "ext_dev:0", copy=False),
            lambda: bridge.from_dlpack(object()),
        ):
            try:
                act()
            except (BufferError, TypeError):
                continue
            raise AssertionError("not refused")
        wrong.structs.clear()  # its own notes
        wrong.calls.clear()

    flat(cycle, 5_000, tensor)


# Moves


@pytest.mark.parametrize("route", [("ext_dev:0", "cpu"), ("ext_dev:0", "ext_dev:1")], ids="->".join)
def test_moves(route):  # P47
    fake = bridge.backend("ext_dev")
    before = fake.live_allocations()

    def cycle():
        moved = FLOATS
        for device in route:
            moved = bridge.to_device(moved, device)

    flat(cycle, 10_000)
    assert fake.live_allocations() == before
