"""What `explain` says, `to_device` does: for each library that is here, each type and layout."""

from __future__ import annotations

import pytest

import dlbridge as bridge
from dlbridge.errors import BackendUnavailable
from tests.support.agreement import disagreements
from tests.support.expected_parts import expected
from tests.support.library_cells import PEERS
from tests.support.peers import peer

LIBRARIES = ["dlbridge", "numpy", "torch", "jax", "tvm_ffi", "pyarrow", "PIL", "cuda.core", "dask"]


@pytest.mark.parametrize(
    ("device", "target"),
    [("cpu:0", "cpu:0"), ("ext_dev:0", "cpu:0"), ("ext_dev:0", "ext_dev:0")],
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_explain_says_what_to_device_does(library, device, target):
    peer(PEERS[library].module or library if library in PEERS else library)
    assert disagreements(library, device, target) == []


def test_explain_says_what_to_device_does_with_opencl():
    peer("pyopencl")
    try:
        bridge.empty(1, "uint8", "opencl:0")
    except BackendUnavailable as error:
        if expected("opencl"):
            raise
        pytest.skip(str(error))
    assert disagreements("pyopencl", "opencl:0") == []
