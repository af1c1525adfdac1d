"""The core waits for copies from and to the host, unless the backend says that they block."""

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.counting_backend import NAME, Counting, counting


class Waits(Counting):
    """Notes when it is waited for, too."""

    def synchronize(self, device_id, stream):
        self.log.append(("wait", 0))
        super().synchronize(device_id, stream)


@pytest.mark.parametrize("blocks", [False, True])
def test_the_core_waits_for_copies_that_do_not_block(monkeypatch, blocks):
    """From and to the host, strided ones too: what has been read is there when it is used."""
    monkeypatch.setattr(Waits, "host_copies_block", blocks, raising=False)
    array = np.arange(600, dtype="u1").reshape(20, 30)
    waits = [] if blocks else [("wait", 0)]
    with counting(Waits) as plugin:
        there = bridge.to_device(array, f"{NAME}:0")
        assert plugin.log == [("upload", 600), *waits]
        moves = {
            ("upload", 600): lambda: bridge.copy_(there, array),
            ("upload", 200): lambda: bridge.copy_(there[:, :10], array[:, :10]),
            ("download", 600): lambda: bridge.to_device(there, "cpu", copy=True),
            ("download", 200): lambda: bridge.to_device(there[:, :10], "cpu", copy=True),
        }
        for move, call in moves.items():
            plugin.log.clear()
            call()
            assert plugin.log == [move, *waits]
