"""Tensors of torch in and out; compiled functions."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import dlbridge as bridge
from dlbridge import ffi
from dlbridge.errors import ExchangeError
from tests.support.agreement import disagreements
from tests.support.peers import peer

ONE = "torch-late:1"
HOST = np.random.default_rng(4).random((3, 5), "f4")


def on_host(x):
    return bridge.to_device(x, "cpu", copy=True)


# torch's own tensors --------------------------------------------------------------------


def test_like_torch_is_a_tensor_of_the_device(backend):
    array = bridge.to_device(HOST, ONE, like="torch")
    assert type(array) is torch.Tensor
    assert (array.device, array.dtype) == (torch.device("late:1"), torch.float32)
    there = bridge.from_dlpack(array)
    assert (str(there.device), there.data_ptr()) == (ONE, array.data_ptr())
    array.fill_(2)
    assert (on_host(there).numpy() == 2).all()
    assert bridge.device_of(array) == ONE


WAYS = [bridge.from_dlpack, bridge.asarray, lambda x: bridge.asarray(x, copy=False)]


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_of_torch_comes_in_without_a_copy(late, backend, way):
    whole = torch.arange(24, dtype=torch.int32).reshape(4, 6).to("late:1")
    copies = late.COUNTS.copies
    for x in (whole, whole[1:, 2:], whole[::2], whole.T):
        t = way(x)
        assert late.COUNTS.copies == copies
        operand = t.operand()
        assert (t.shape, str(t.device)) == (tuple(x.shape), ONE)
        assert operand.data + operand.byte_offset == x.data_ptr()
        assert on_host(t).tolist() == x.cpu().tolist()
        copies = late.COUNTS.copies


def test_memory_of_torch_stays_while_a_tensor_has_it(backend):
    tensor = bridge.from_dlpack(torch.arange(6, dtype=torch.int32).to("late:0"))
    native = tensor.to_native()
    again = bridge.from_dlpack(native[2:])
    del tensor, native
    gc.collect()
    assert on_host(again).tolist() == [2, 3, 4, 5]


def test_what_torch_hides_is_refused(backend):
    x = torch.zeros(3).to("late:0").requires_grad_()
    with pytest.raises(ExchangeError, match=r"requires grad; pass x\.detach"):
        bridge.from_dlpack(x)
    with pytest.raises(ExchangeError, match="uint4 elements are packed"):
        bridge.to_device(np.zeros(4, "u1"), ONE).view("uint4").to_native()


def test_explain_says_whose_allocator_it_is(backend):
    assert "by torch's allocator" in str(bridge.plan(np.zeros(3), ONE))
    assert disagreements("torch", "torch-late:0") == []


def test_torch_takes_no_memory_of_others_for_its_own(backend):
    """Of one device type are both, and `torch.from_dlpack` would take the handle for an address."""
    other = bridge.zeros(3, device="ext_dev:0")
    with pytest.raises(ExchangeError, match="torch has no arrays on ext_dev:0: no package here"):
        torch.from_dlpack(other)
    ours = bridge.to_device(HOST, "torch-late:0")
    assert torch.from_dlpack(ours).data_ptr() == ours.data_ptr()


# Functions of TVM-FFI ---------------------------------------------------------------------


def test_a_compiled_function_gets_the_current_stream(late, backend):
    peer("tvm_ffi")
    seen = []
    function = ffi.convert_func(lambda _x: seen.append(ffi.get_raw_stream((12, 0))))
    t = bridge.to_device(HOST, "torch-late:0")
    function(t)
    stream = late.Stream(0)
    with bridge.use_stream("torch-late:0", stream):
        function(t)
    with late.stream(stream):
        function(t)
    own = late.default_stream(0).native_handle
    assert seen == [own, stream.native_handle, stream.native_handle]
