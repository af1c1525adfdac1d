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
