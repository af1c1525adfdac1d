"""The producer's side: what `__dlpack__` and `__dlpack_device__` accept, and what they export.

A comment ``# P12`` names the line of docs/conformance.md that the test shows.
Each rule is shown on the three kinds of export that there are: an
`ArrayTensor`, whose `__dlpack__` is numpy's own; a `Tensor` whose capsule numpy
makes and we overwrite; and a tensor on a plugin's device.
"""

from __future__ import annotations

import gc
import inspect

import numpy as np
import pytest

import dlbridge
import dlbridge as bridge
from dlbridge.abi import FLAG_IS_COPIED, FLAG_SUBBYTE_PADDED, own_export_of
from dlbridge.conformance.producer import elements, shape_of
from dlbridge.core.values.layout import compact_strides
from dlbridge.extending import Memory, tensor_on
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer
from tests.support.raw_producer import (
    Producer,
    address,
    struct_in,
)
from tests.support.stream_backend import Pinned, installed

VERSION = (1, 3)


def cpu_float():
    return dlbridge.from_dlpack(np.arange(6, dtype="float32").reshape(2, 3))


def cpu_bfloat():
    return dlbridge.from_dlpack(np.arange(6, dtype="uint16").reshape(2, 3)).view("bfloat16")


def ext_dev_float():
    peer("dlbridge_fake")
    return dlbridge.to_device(np.arange(6, dtype="float32").reshape(2, 3), "ext_dev:1")


@pytest.fixture(params=[cpu_float, cpu_bfloat, ext_dev_float], ids=lambda make: make.__name__)
def tensor(request):
    return request.param()


def exported(tensor, **keywords):
    """The struct of an export."""
    return struct_in(tensor.__dlpack__(max_version=VERSION, **keywords))


def strides_of(managed):
    """In elements. NULL, as numpy 2.2 leaves them, means compact, and no 1.2 or later may say so."""
    if not managed.dl_tensor.strides:
        assert not hasattr(managed, "version") or managed.version.minor < 2
        return compact_strides(shape_of(managed))
    return tuple(managed.dl_tensor.strides[axis] for axis in range(managed.dl_tensor.ndim))


# Signature and arguments


def test_the_methods_are_found_on_the_type(tensor):  # P1
    """MLX looks in the dicts of the type and its bases, and takes only what can be called."""
    for name in ("__dlpack__", "__dlpack_device__"):
        assert callable(inspect.getattr_static(type(tensor), name))
    capsule = type(tensor).__dlpack__(tensor, max_version=VERSION)
    assert address(struct_in(capsule).dl_tensor.data) == address(exported(tensor).dl_tensor.data)
    assert type(tensor).__dlpack_device__(tensor) == tensor.__dlpack_device__()
    assert not hasattr(tensor, "__dict__")


def padded():
    return dlbridge.from_dlpack(Producer((4,), dtype=(17, 4, 1), flags=FLAG_SUBBYTE_PADDED))


def test_no_type_error_for_what_is_wrong_with_the_data():  # P12
    """Consumers take a TypeError for a missing keyword and ask again."""
    readonly = np.zeros(2)
    readonly.setflags(write=False)
    backwards = dlbridge.from_dlpack(np.arange(4.0)[::-1])
    cases = [
        (dlbridge.from_dlpack(readonly), {}),
        (padded(), {}),
        (backwards, {"copy": False}),
        (cpu_float(), {"dl_device": (2, 0)}),
        (cpu_bfloat(), {"dl_device": (2, 0)}),
        (ext_dev_float(), {"dl_device": (2, 0)}),
        (ext_dev_float(), {"dl_device": (1, 0), "copy": False}),
    ]
    for tensor, keywords in cases:
        with pytest.raises((BufferError, ValueError)):
            tensor.__dlpack__(**keywords)


def test_pinned_memory_is_cpu_memory_already():  # P19
    raw = Producer((3,), device=(3, 0), content=np.arange(3, dtype="f4").tobytes())
    tensor = dlbridge.from_dlpack(raw)
    with installed("cuda_host", Pinned()):
        for copy in (None, False):
            managed = exported(tensor, dl_device=(1, 0), copy=copy)
            assert managed.dl_tensor.device.device_type == 1
            assert address(managed.dl_tensor.data) == raw.data
            assert managed.flags == 0
            assert elements(managed).tolist() == [0, 1, 2]


# Struct contents


@pytest.mark.parametrize("device", ["cpu", "ext_dev:0"])
def test_negative_strides_are_exported_as_a_copy(device):  # P41
    if device != "cpu":
        peer("dlbridge_fake")
    tensor = dlbridge.to_device(np.arange(4, dtype="float32"), device)[::-1]
    assert tensor.strides == (-1,)
    managed = exported(tensor)
    assert managed.flags == FLAG_IS_COPIED
    assert strides_of(managed) == (1,)
    with pytest.raises(BufferError, match="negative strides"):
        tensor.__dlpack__(max_version=VERSION, copy=False)
    assert elements(exported(tensor, dl_device=(1, 0))).tolist() == [3, 2, 1, 0]


STRANGE = {  # shape, strides, and those that a strict consumer expects
    "outside": ((1, 3, 4), (0, 4, 1), (12, 4, 1)),
    "between": ((3, 1, 4), (4, 999, 1), (4, 4, 1)),
    "inside": ((3, 4, 1), (4, 1, 77), (4, 1, 1)),
    "all": ((1, 1), (5, -7), (1, 1)),
    "with gaps": ((3, 1, 4), (8, 0, 1), (8, 4, 1)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "ext_dev:0"])
@pytest.mark.parametrize("name", STRANGE)
def test_strides_of_dimensions_of_size_1_are_row_major(name, device, dtype):  # P28
    """Consumers that compare them find compact memory compact."""
    shape, strides, expected = STRANGE[name]
    if device != "cpu":
        peer("dlbridge_fake")
    whole = dlbridge.zeros(64, dtype, device)
    memory = Memory(whole.device, whole.operand().data, "a test", whole)
    tensor = tensor_on(memory, whole.dtype, shape, strides, byte_offset=whole.operand().byte_offset)
    assert strides_of(exported(tensor)) == expected
    own = own_export_of(tensor)  # of the exchange table
    assert strides_of(own.pointer) == expected


def test_views_by_a_new_dimension_have_row_major_strides():  # P28
    own = own_export_of(dlbridge.from_dlpack(np.zeros((3, 4))[None]))
    assert strides_of(own.pointer) == (12, 4, 1)
    t = dlbridge.asarray(np.zeros((3, 4), "f4"))
    for index, expected in (
        ((None,), (12, 4, 1)),
        ((slice(None), None), (4, 4, 1)),
        ((Ellipsis, None), (4, 1, 1)),
        ((slice(1), slice(None, None, 2)), (4, 2)),
    ):
        assert strides_of(exported(t[index])) == expected


# Capsule and lifetime


class Owned:
    """Memory of ours whose life can be watched: a capsule that a `Producer` made."""

    def __init__(self, dtype=(2, 32, 1), device=(1, 0)):
        self.raw = Producer((2, 3), dtype=dtype, device=device)
        self.tensor = dlbridge.from_dlpack(self.raw)

    def forget(self):
        self.tensor = None

    @property
    def alive(self):
        return self.raw.alive == 1


def test_a_failed_export_leaks_nothing(monkeypatch):  # P55
    owned = Owned(dtype=(4, 16, 1))
    from dlbridge.core.dlpack import exports as module

    def fail(*_args, **_keywords):
        raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(module, "describe", fail)
        with pytest.raises(MemoryError, match="injected"):
            owned.tensor.__dlpack__(max_version=VERSION)
        with pytest.raises(MemoryError, match="injected"):
            own_export_of(owned.tensor).release()
    owned.forget()
    gc.collect()
    assert not owned.alive


@pytest.mark.parametrize("device", ["opencl:0", "vulkan:0"])
def test_torch_is_told_that_it_has_no_tensors_on_the_device(device):
    """By itself torch says INTERNAL ASSERT FAILED, and asks for a report."""
    torch = peer("torch")
    backend_or_skip(device.partition(":")[0])
    tensor = bridge.ones(3, device=device)
    with pytest.raises(BufferError, match=rf"torch has no tensors on {device}; .*like='torch'"):
        torch.from_dlpack(tensor)
    assert bridge.to_device(tensor, "cpu", like="torch").tolist() == [1, 1, 1]
    assert bridge.from_dlpack(tensor) is tensor
    assert type(tensor.__dlpack__(max_version=(1, 0))).__name__ == "PyCapsule"
