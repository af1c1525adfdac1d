"""Makers of dlbridge's own arrays for the suite: one for each way in which they are exported.

Each case runs in a fork of the process that has imported this.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

import dlbridge
from dlbridge import from_dlpack
from tests.support import whole_core  # noqa: F401 - which each case would import

with suppress(ImportError):
    import dlbridge_fake  # noqa: F401

__all__ = ["bfloat16", "ext_dev", "from_dlpack", "to_numpy"]


def bfloat16(array):
    """A `NumpyTensor`: numpy makes the capsule, and dlbridge completes it."""
    if array.dtype == "float32":
        bits = dlbridge.empty(array.shape, "uint16")
        dlbridge.copy_(bits, (np.ascontiguousarray(array).view("u4") >> 16).astype("u2"))
        return bits.view("bfloat16")
    return dlbridge.from_dlpack(array)


def ext_dev(array):
    """A tensor of a plugin's device, whose ``data`` is a handle."""
    return dlbridge.to_device(array, "ext_dev:1")


def to_numpy(tensor):
    """The values, by way of the host."""
    host = dlbridge.to_device(tensor, "cpu")
    if str(host.dtype) == "bfloat16":
        return (host.view("uint16").numpy().astype("u4") << 16).view("f4")
    return host.numpy()
