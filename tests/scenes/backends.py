"""Backends in a forked child, with handles where addresses must be, and what they keep."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dlbridge_fake import Fake

import dlbridge as bridge
from dlbridge.core.plugins import registry


def used_before_fork() -> None:
    """A child of ``fork()`` calls no driver that its parent has used."""
    tensor, host = bridge.to_device(np.arange(3.0), "ext_dev:0"), bridge.zeros(3)
    plugin = bridge.backend("ext_dev")
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert tensor.tolist() == [0, 1, 2]
        return
    uses: list[Callable[[], object]] = [
        lambda: bridge.empty(3, device="ext_dev:0"),
        tensor.tolist,
        lambda: bridge.copy_(tensor, np.zeros(3)),
        lambda: tensor[1:].to_device("cpu"),
        lambda: bridge.devices("ext_dev"),
        lambda: bridge.synchronize("ext_dev:0"),
        lambda: bridge.trim("ext_dev:0"),
        lambda: bridge.backend("ext_dev").device_count(),
        lambda: plugin.device_count(),  # noqa: PLW0108 - who has kept the object
    ]
    for use in uses:
        with pytest.raises(bridge.DeviceError, match=r"(?s)fork\(\).*spawn"):
            use()
    assert host.tolist() == [0, 0, 0]
    assert bridge.empty(3).device == bridge.device("cpu")


def not_used_before_fork() -> None:
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    else:
        assert bridge.zeros(3, device="ext_dev:0").tolist() == [0] * 3


def handles_for_addresses(start: str) -> None:
    """The host would read at that address, and the process would end."""
    registry._entry_points = dict  # ours may be installed

    class Handles(Fake):
        device_type = 3

        def __init__(self) -> None:
            super().__init__()
            self.handles = itertools.count(int(start), 256)

    bridge.register_backend("cuda_host", Handles)
    with pytest.raises(bridge.BackendError) as caught:
        bridge.zeros(3, "float32", "cuda_host:0").tolist()
    print(caught.value)


def kept_and_left(device: str) -> None:
    """Print how many MiB are kept of 128 that were freed, and how many after `trim`."""

    def mib() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    bridge.trim(device)  # before it was used
    bridge.to_device(np.ones(1000, "u1"), device, copy=True)
    before = mib()
    t = bridge.empty(128 << 20, "u1", device=device)
    bridge.copy_(t, np.ones(128 << 20, "u1"))
    del t
    kept = mib() - before
    bridge.trim(device)
    print(kept, mib() - before)
