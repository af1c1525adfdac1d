"""Consumers that call a deleter twice: ours is harmless the second time."""

from __future__ import annotations

import pytest

from tests.support.peers import peer
from tests.support.scripts import run_script


def test_torch_deletes_twice():
    """torch's fault without us, so that we see when it is mended; ours with OpenCL's tensors.

    It calls the deleter of a tensor on a device that it does not have, and leaves
    the capsule its name, so that the capsule's destructor calls the deleter again.
    """
    peer("torch")
    out = run_script("""
import torch
from tests.support.raw_producer import Producer, deleted_twice
producer = Producer(device=(4, 0))
try:
    torch.from_dlpack(producer)
except Exception as error:
    print("INTERNAL ASSERT" in str(error))
import gc; gc.collect()
print(len(deleted_twice))
""")
    assert out == "True\n1\n"


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_deleter_called_twice(max_version):
    out = run_script(
        f"""
import gc, weakref
import numpy as np
import dlbridge as bridge
from tests.support.raw_producer import struct_in
t = bridge.to_device(np.ones(5, "f4"), "ext_dev:0")
capsule = t.__dlpack__(max_version={max_version})
managed = struct_in(capsule)
managed.deleter(managed)
managed.deleter(managed)
del capsule
del t
gc.collect()
print(bridge.backend("ext_dev").live_allocations())
""",
        imported=("numpy", "dlbridge.abi", "tests.support.raw_producer"),
    )
    assert out == "0\n"


def test_structs_are_kept_for_a_limited_number_of_addresses():
    """Two generations of 32,768; without an end there would be 120,000."""
    out = run_script("""
import ctypes, gc
import dlbridge as bridge
t = bridge.zeros(1, "uint8", device="ext_dev:0")
held = [t.__dlpack__(max_version=(1, 0)) for _ in range(120_000)]
held.clear()
print(sum(issubclass(kind, ctypes.Array) for kind in map(type, gc.get_objects())))
""")
    assert 32_768 <= int(out) <= 70_000


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_second_deletion_ends_no_other_export(max_version):
    """The structs were kept until 4,096 more were made; then a new one lay at an old address.

    So many that are made and dropped cost nothing, because they share a few addresses; those
    that are held at one time are kept up to 32,768.
    """
    out = run_script(
        f"""
import dlbridge as bridge
from tests.support.raw_producer import pointer_in, struct_in

def capsule(x):
    return bridge.full(1, x, "uint8", device="ext_dev:0").__dlpack__(max_version={max_version})

refused = [capsule(0) for _ in range(100)]
for each in refused:  # as torch does, whose caller keeps the capsule in a traceback
    managed = struct_in(each)
    managed.deleter(managed)
    del managed
fake = bridge.backend("ext_dev")
for _ in range(30_000):
    capsule(1)
print(fake.live_allocations())
later = [capsule(2) for _ in range(6_000)]
print(len({{pointer_in(each) for each in refused + later}}), fake.live_allocations())
refused.clear()
print(fake.live_allocations())
later.clear()
print(fake.live_allocations())
""",
        imported=("numpy", "dlbridge.abi", "tests.support.raw_producer"),
    )
    assert out == "0\n6100 6000\n6000\n0\n"
