"""Consumers that call a deleter twice: ours is harmless the second time."""

from __future__ import annotations

import pytest
from peers import peer
from scripts import run_script

USE = """
import gc
import numpy as np
import dlbridge as bridge
batch = np.ones((64, 3, 8, 8), "float32")
for turn in range(50):
    t = bridge.to_device(batch, "ext_dev:0")
    try:
        {use}
    except Exception as error:
        said = str(error)
    del t
    print(bridge.to_device(batch, "ext_dev:0").tolist()[0][0][0][:2]) if turn == 49 else None
gc.collect()
print(bridge.backend("ext_dev").live_allocations())
"""


@pytest.mark.parametrize(
    "use",
    ["torch.from_dlpack(t)", "bridge.to_device(t, 'ext_dev:0', like='torch')"],
    ids=["from_dlpack", "like"],
)
def test_torch_refuses_a_device_and_deletes_twice(use):
    """torch calls the deleter and leaves the capsule its name, whose destructor calls it again."""
    peer("torch")
    out = run_script("import torch\n" + USE.format(use=use))
    assert out == "[1.0, 1.0]\n0\n"


def test_torch_deletes_twice_by_itself():
    """The fault without us, so that we see when torch mends it."""
    peer("torch")
    out = run_script("""
import ctypes, torch
from raw_producer import Producer, deleted_twice
producer = Producer(device=(12, 0), dtype=(2, 32, 1))
try:
    torch.from_dlpack(producer)
except Exception:
    pass
del producer
import gc; gc.collect()
print(len(deleted_twice))
""")
    assert out == "1\n"


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_deleter_called_twice(max_version):
    out = run_script(f"""
import gc, weakref
import numpy as np
import dlbridge as bridge
from raw_producer import struct_in
t = bridge.to_device(np.ones(5, "f4"), "ext_dev:0")
capsule = t.__dlpack__(max_version={max_version})
managed = struct_in(capsule)
managed.deleter(managed)
managed.deleter(managed)
del capsule
del t
gc.collect()
print(bridge.backend("ext_dev").live_allocations())
""")
    assert out == "0\n"
