"""Names and values that scripts for tvm_ffi use, compared with tvm_ffi itself."""

from __future__ import annotations

import numpy as np
import pytest
from peers import peer

from dlbridge import ffi

LANES = ["float32x4", "float32xvscalex4", "boolxvscalex8", "int8xvscalex1", "float32xvscalex32768"]
REFUSED = ["float32x0", "float32xvscalex0", "float32x65536", "float32xvscalex65536"]


@pytest.mark.parametrize("name", LANES)
def test_lanes(name):
    theirs = peer("tvm_ffi").dtype(name)
    ours = ffi.dtype(name)
    assert (ours.code, ours.bits, ours.lanes) == (
        theirs.type_code,
        theirs.bits,
        theirs.lanes % 65536,
    )
    assert ours.name == name
    assert ffi.dtype(theirs) is ours


@pytest.mark.parametrize("name", REFUSED)
def test_lanes_that_are_refused(name):
    for dtype in (peer("tvm_ffi").dtype, ffi.dtype):
        with pytest.raises(ValueError, match=r"[Ll]anes"):
            dtype(name)


@pytest.mark.parametrize("name", ["cpu", "cuda", "opencl", "vulkan", "rocm", "ext_dev"])
def test_the_type_of_a_device_equals_its_name(name):
    ours, theirs = ffi.device(name).type, peer("tvm_ffi").device(name)
    assert theirs.type == name
    assert ours == name
    assert name == ours
    assert not ours != name  # noqa: SIM202 - the operator itself
    assert ours != "metal"
    assert ours == theirs.dlpack_device_type()
    assert hash(ours) == hash(int(ours))
    assert {int(ours): "found"}[ours] == "found"


def test_methods_of_tensors():
    array = np.ones((2, 3))
    for tensor in (peer("tvm_ffi").from_dlpack(array), ffi.from_dlpack(array)):
        assert tensor.numel() == 6
        assert tensor.same_as(tensor)
        assert not tensor.same_as(type(tensor))


def test_requirements():
    array = np.ones((4, 6))
    odd = np.frombuffer(bytes(17), "u1")[1:].view("u4")
    for from_dlpack in (peer("tvm_ffi").from_dlpack, ffi.from_dlpack):
        assert from_dlpack(array, require_contiguous=True).shape == (4, 6)
        assert from_dlpack(array[:, ::2]).shape == (4, 3)
        # tvm_ffi's documentation says ValueError, and 0.1.15 raises RuntimeError.
        with pytest.raises((ValueError, RuntimeError), match="contiguous"):
            from_dlpack(array[:, ::2], require_contiguous=True)
    with pytest.raises(ValueError, match="aligned to 4096"):
        ffi.from_dlpack(odd, require_alignment=4096)
