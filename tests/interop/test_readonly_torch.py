"""ReadOnlyTensorWrapper of torch.utils.dlpack (torch 2.14.1): read-only memory, in and out."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.peers import peer, readonly_torch

torch = peer("torch")
ReadOnlyTensorWrapper = readonly_torch()


@pytest.fixture
def x():
    return torch.arange(6.0)


@pytest.fixture
def frozen():
    array = np.arange(6.0)
    array.flags.writeable = False
    return array


IN = {
    "from_dlpack": bridge.from_dlpack,
    "from_dlpack, copy=False": lambda x: bridge.from_dlpack(x, copy=False),
    "from_dlpack, device": lambda x: bridge.from_dlpack(x, device="cpu", copy=False),
    "asarray": bridge.asarray,
    "asarray, copy=False": lambda x: bridge.asarray(x, copy=False),
    "to_device": lambda x: bridge.to_device(x, "cpu"),
    "to_device, copy=False": lambda x: bridge.to_device(x, "cpu", copy=False),
    "like": lambda x: bridge.from_dlpack(x, like="dlbridge"),
    "a capsule": lambda x: bridge.from_dlpack(x.__dlpack__()),
}


@pytest.mark.parametrize("way", IN)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_it_comes_in_read_only_and_without_a_copy(way, dtype):  # P25
    x = torch.arange(6).to(getattr(torch, dtype))[::2]
    t = IN[way](ReadOnlyTensorWrapper(x))
    assert t.readonly
    assert t.data_ptr() == x.data_ptr()
    assert bridge.astype(t, "complex64").tolist() == [0, 2, 4]


COPIES = {
    "from_dlpack": lambda x: bridge.from_dlpack(x, copy=True),
    "asarray": lambda x: bridge.asarray(x, copy=True),
    "a list": lambda x: bridge.asarray([x, x])[1],
    "a device": lambda x: bridge.to_device(x, "ext_dev:0"),
    "a Tensor's memory": lambda x: copied(bridge.zeros(6, "float32"), x),
}


def copied(target, source):
    bridge.copy_(target, source)
    return target


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_it_may_be_written(way, x):
    t = COPIES[way](ReadOnlyTensorWrapper(x))
    assert not t.readonly
    assert bridge.to_device(t, "cpu").tolist() == [0, 1, 2, 3, 4, 5]


def test_it_is_no_target(x):
    with pytest.raises(BufferError, match="read-only"):
        bridge.copy_(ReadOnlyTensorWrapper(x), torch.ones(6))
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_questions_about_it(x):
    read_only = ReadOnlyTensorWrapper(x)
    assert bridge.device_of(read_only) == bridge.device("cpu")
    assert bridge.plan(read_only, "cpu").nbytes == 0
    assert "no copy" in str(bridge.explain(read_only, "cpu"))


def test_its_elements_are_packed():
    codes = torch.tensor([1, 2, 3], dtype=torch.uint8)
    assert bridge.pack_bits(ReadOnlyTensorWrapper(codes), "uint4") == b"!\x03"


def test_memory_that_is_copied_on_write_is_not_copied(x):
    lazy = torch._lazy_clone(x)
    assert bridge.from_dlpack(ReadOnlyTensorWrapper(lazy)).tolist() == x.tolist()
    assert torch._C._is_cow_tensor(lazy)


HIDDEN = {
    "a gradient": (lambda: torch.ones(2, requires_grad=True), "x.detach"),
    "conjugated": (lambda: torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
    "negated": (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, "resolve_neg"),
    "meta": (lambda: torch.empty(2, device="meta"), "meta"),
}


@pytest.mark.parametrize("state", HIDDEN)
@pytest.mark.parametrize("way", ["from_dlpack", "asarray", "to_device"])
def test_what_dlpack_cannot_say_is_refused(state, way):
    make, match = HIDDEN[state]
    with pytest.raises(BufferError, match=match):
        IN[way](ReadOnlyTensorWrapper(make()))


def test_a_tensor_that_is_being_transformed_is_refused():
    def function(x):
        with pytest.raises(BufferError, match=r"vmap"):
            bridge.from_dlpack(ReadOnlyTensorWrapper(x))
        return x

    torch.vmap(function)(torch.ones(2, 2))


def plain(x):
    """What torch has in a wrapper."""
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(torch.Tensor)


OUT = {
    "from_dlpack": lambda x, like: bridge.from_dlpack(x, like=like, copy=False),
    "to_device": lambda x, like: bridge.to_device(x, "cpu", like=like, copy=False),
    "a Tensor's": lambda x, like: bridge.from_dlpack(x).to_device("cpu", like=like, copy=False),
}


@pytest.mark.parametrize("way", OUT)
@pytest.mark.parametrize("named_by", ["class", "instance"])
def test_read_only_memory_goes_out_as_it_without_a_copy(frozen, way, named_by):
    like = ReadOnlyTensorWrapper if named_by == "class" else ReadOnlyTensorWrapper(torch.ones(1))
    made = OUT[way](frozen, like)
    assert type(made) is ReadOnlyTensorWrapper
    assert plain(made).data_ptr() == frozen.ctypes.data
    back = np.from_dlpack(made)
    assert not back.flags.writeable
    assert back.tolist() == frozen.tolist()


def test_it_keeps_the_memory():
    array = np.arange(1000.0)
    array.flags.writeable = False
    made = bridge.from_dlpack(array, like=ReadOnlyTensorWrapper)
    del array
    assert np.from_dlpack(made).tolist() == list(range(1000))


def test_a_plain_tensor_of_read_only_memory_is_a_copy(frozen, x):
    for readonly in (frozen, ReadOnlyTensorWrapper(x)):
        for like in ("torch", torch, torch.Tensor):
            made = bridge.from_dlpack(readonly, like=like)
            assert type(made) is torch.Tensor
            made += 1
            with pytest.raises(BufferError, match="read-only"):
                bridge.from_dlpack(readonly, like=like, copy=False)
    assert frozen.tolist() == x.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_reasons(frozen):
    assert "wrap as torch.utils.dlpack.ReadOnlyTensorWrapper (no copy)" in str(
        bridge.explain(frozen, "cpu", like=ReadOnlyTensorWrapper)
    )
    with pytest.raises(BufferError, match="negative strides"):
        bridge.from_dlpack(frozen[::-1], like=ReadOnlyTensorWrapper, copy=False)
    reverse = bridge.from_dlpack(frozen[::-1], like=ReadOnlyTensorWrapper)
    assert np.from_dlpack(reverse).tolist() == [5, 4, 3, 2, 1, 0]


def test_functions_for_torch_get_a_tensor_that_they_can_use(x):
    @bridge.accepts("torch")
    def add_one(x):
        x += 1
        return x

    made = add_one(ReadOnlyTensorWrapper(x))
    assert type(made) is torch.Tensor
    assert made.tolist() == [1, 2, 3, 4, 5, 6]
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_functions_for_it_get_it(x):
    @bridge.accepts(ReadOnlyTensorWrapper)
    def read(x):
        assert type(x) is ReadOnlyTensorWrapper
        return np.from_dlpack(x).sum()

    assert float(read(x)) == float(read(ReadOnlyTensorWrapper(x))) == 15
