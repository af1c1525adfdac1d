"""Makers of dlbridge's arrays on the simulated drivers of CUDA and ROCm, for the suite.

The drivers are loaded when this is imported, and used first by a case: each is a fork of
the process that has imported this.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

import dlbridge
from tests.conformance.ours import from_dlpack, to_numpy

os.environ.setdefault("FAKE_CUDA_DELAY_US", "2000")  # each piece of work ends late

from tests.drivers import build

for driver in ("cuda", "hip"):
    build.load(driver)

for name in ("cuda.bindings.driver", "dlbridge_cuda.backends", "dlbridge_cuda.native"):
    with suppress(ImportError):  # what each case would import; ROCm's tests have no cuda.bindings
        importlib.import_module(name)

__all__ = ["cuda_1", "from_dlpack", "rocm_0", "to_numpy"]


def cuda_1(array):
    """A tensor of the simulated CUDA driver, whose memory faults when the host touches it."""
    return dlbridge.to_device(array, "cuda:1")


def rocm_0(array):
    """A tensor of the simulated ROCm runtime."""
    return dlbridge.to_device(array, "rocm:0")
