"""The core waits for copies from and to the host, unless the backend says that they block."""

import numpy as np
import pytest
from dlbridge_fake import Fake

import dlbridge as bridge

NAME = "waits_of_a_test"


class Waits(Fake):
    """Notes its copies, and when it is waited for."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def copy_from_host(self, target, source, stream):
        self.noted.append(("from host", target.nbytes))
        super().copy_from_host(target, source, stream)

    def copy_to_host(self, source, into, stream):
        self.noted.append(("to host", source.nbytes))
        super().copy_to_host(source, into, stream)

    def copy_strided_from_host(self, target, *arguments):
        self.noted.append(("strided from host", target.nbytes))
        super().copy_strided_from_host(target, *arguments)

    def copy_strided_to_host(self, source, *arguments):
        self.noted.append(("strided to host", source.nbytes))
        super().copy_strided_to_host(source, *arguments)

    def synchronize(self, device_id, stream):
        self.noted.append(("wait", 0))
        super().synchronize(device_id, stream)


@pytest.mark.parametrize("blocks", [False, True])
def test_the_core_waits_for_copies_that_do_not_block(monkeypatch, register, blocks):
    """From and to the host, strided ones too: what has been read is there when it is used."""
    monkeypatch.setattr(Waits, "host_copies_block", blocks, raising=False)
    plugin = register(NAME, Waits)
    array = np.arange(600, dtype="u1").reshape(20, 30)
    there = bridge.to_device(array, f"{NAME}:0")
    waits = [] if blocks else [("wait", 0)]
    assert plugin.noted == [("from host", 600), *waits]
    moves = {
        ("from host", 600): lambda: bridge.copy_(there, array),
        ("strided from host", 580): lambda: bridge.copy_(there[:, :10], array[:, :10]),
        ("to host", 600): lambda: bridge.to_device(there, "cpu", copy=True),
        ("strided to host", 580): lambda: bridge.to_device(there[:, :10], "cpu", copy=True),
    }
    for move, call in moves.items():
        plugin.noted.clear()
        call()
        assert plugin.noted == [move, *waits]
