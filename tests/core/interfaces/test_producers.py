"""The consumer's side: what `from_dlpack` asks of a producer, takes from it, and refuses.

A comment ``# C12`` names the line of docs/conformance.md that the test shows.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from peers import peer
from raw_producer import (
    OldProducer,
    Producer,
    address,
    capsule_name,
    immortal as immortal_name,
    new_capsule,
    set_name,
    struct_in,
)
from stream_backend import Streams, installed

import dlbridge
from dlbridge.core.dlpack.structs import FLAG_IS_COPIED, FLAG_READ_ONLY, FLAG_SUBBYTE_PADDED

FLOATS = np.arange(6, dtype="float32")


def floats(shape=(6,), kind=Producer, **keywords):
    return kind(shape, content=FLOATS.tobytes(), **keywords)


def refused(raw, match=None, error=BufferError):
    """*raw* is refused by every way in, and none leaks what it had taken."""
    for take in (dlbridge.from_dlpack, lambda raw: dlbridge.from_dlpack(raw.capsule())):
        with pytest.raises(error, match=match):
            take(raw)
        gc.collect()
        assert raw.alive == 0
    assert raw.exported == 2


# What is asked


class Recorder:
    """A producer that notes every call; *array* answers."""

    def __init__(self, array=FLOATS, refuse=()):
        self.array, self.refuse, self.log = array, list(refuse), []

    def __dlpack__(self, **keywords):
        self.log.append(keywords)
        if self.refuse:
            raise self.refuse.pop(0)
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        self.log.append("device")
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    ("keywords", "asked"),
    [
        ({}, {}),
        ({"copy": None}, {}),
        ({"copy": False}, {"copy": False}),
        ({"copy": True}, {}),  # we copy: what a producer calls a copy may be none (C34)
        ({"device": "cpu"}, {}),
        ({"device": "cpu", "copy": False}, {"copy": False}),
    ],
    ids=str,
)
def test_what_a_producer_is_asked(keywords, asked):  # C1, C36
    recorder = Recorder()
    tensor = dlbridge.from_dlpack(recorder, **keywords)
    assert recorder.log == ["device", {"max_version": (1, 3), **asked}]
    assert tensor.tolist() == FLOATS.tolist()


def test_a_producer_from_before_the_keywords():  # C2
    raw = floats(kind=OldProducer)
    tensor = dlbridge.from_dlpack(raw)
    assert raw.calls == [{}]
    assert tensor.tolist() == FLOATS.tolist()
    assert tensor.data_ptr() == raw.data


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("copy", [None, True, False])
def test_old_producers_and_copies(device, copy):  # C2, C34, C35
    raw = floats(kind=OldProducer)
    tensor = dlbridge.from_dlpack(raw, device=device, copy=copy)
    assert raw.calls == [{}]  # the call that failed with TypeError was never begun
    assert tensor.tolist() == FLOATS.tolist()
    assert (tensor.data_ptr() == raw.data) == (copy is not True)
    del tensor
    assert raw.alive == 0


def test_an_old_producer_on_a_device_and_no_copy():  # C2, C35
    raw = floats(kind=OldProducer, device=(2, 0))
    with installed("cuda", Streams()):
        with pytest.raises(BufferError, match="without a copy"):
            dlbridge.from_dlpack(raw, device="cpu", copy=False)
        assert raw.exported == 0
        # Without that wish the copy is ours to make.
        assert dlbridge.from_dlpack(raw, device="cpu").tolist() == FLOATS.tolist()
    assert raw.alive == 0


def test_two_calls_at_most():  # C2, C3
    recorder = Recorder(refuse=[TypeError("first"), TypeError("second"), TypeError("third")])
    with pytest.raises(TypeError, match="second") as caught:
        dlbridge.from_dlpack(recorder)
    assert str(caught.value.__cause__) == "first"
    assert recorder.log == ["device", {"max_version": (1, 3)}, {}]


class OwnError(Exception):
    pass


@pytest.mark.parametrize(
    "error", [OwnError, ValueError, BufferError, RuntimeError, KeyboardInterrupt]
)
def test_a_producers_own_error_passes_through(error):  # C4
    recorder = Recorder(refuse=[error("no"), error("again")])
    with pytest.raises(error, match="no"):
        dlbridge.from_dlpack(recorder)
    assert len(recorder.log) == 2


def test_a_legacy_capsule_for_a_versioned_request():  # C5
    raw = Producer((6,), version=None, content=FLOATS.tobytes())
    tensor = dlbridge.from_dlpack(raw)
    assert raw.calls == [{"max_version": (1, 3)}]
    assert tensor.tolist() == FLOATS.tolist()


class Returns:
    def __init__(self, value, device=(1, 0)):
        self.value, self.device = value, device

    def __dlpack__(self, **_):
        return self.value

    def __dlpack_device__(self):
        return self.device


class PyCapsule:
    """Not one, whatever it is called."""


@pytest.mark.parametrize(
    "value", [None, 0, 1 << 40, b"dltensor", "dltensor", object(), PyCapsule(), np.zeros(2), dict]
)
def test_what_is_returned_is_no_capsule(value):  # C6
    with pytest.raises(BufferError, match="not a capsule"):
        dlbridge.from_dlpack(Returns(value))


@pytest.mark.parametrize(
    "name",
    [
        b"used_dltensor",
        b"used_dltensor_versioned",
        b"dl",
        b"",
        b"DLTENSOR",
        b"\xff\xfe",
        b"dltensor_v2",
    ],
)
def test_capsules_of_other_names(name):  # C6
    raw = floats()
    capsule = new_capsule(raw.build(), name)
    with pytest.raises(BufferError, match=r"used|capsule named"):
        dlbridge.from_dlpack(Returns(capsule))
    with pytest.raises(BufferError, match=r"used|capsule named"):
        dlbridge.from_dlpack(capsule)
    assert raw.alive == 1  # it is not ours


def test_a_capsule_without_a_name():  # C6
    raw = floats()
    capsule = new_capsule(raw.build(), b"dltensor")
    set_name(capsule, None)
    with pytest.raises(BufferError):
        dlbridge.from_dlpack(capsule)
    assert raw.alive == 1


def test_what_is_no_producer():  # C7
    class Half:
        def __dlpack__(self):
            raise AssertionError("not to be called")

    class OtherHalf:
        def __dlpack_device__(self):
            return (1, 0)

    for thing, missing in (
        (object(), "__dlpack__"),
        (Half(), "__dlpack_device__"),
        (OtherHalf(), "__dlpack__"),
        ([1, 2], "__dlpack__"),
        (None, "__dlpack__"),
    ):
        with pytest.raises(TypeError, match=missing):
            dlbridge.from_dlpack(thing)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, TypeError),
        ((None, 0), TypeError),
        ((2, None), TypeError),
        (("cpu", 0), TypeError),
        (1, TypeError),
        ((), ValueError),
        ((1,), ValueError),
        ((1, 0, 1), ValueError),
        ((1.0, 0), TypeError),
        ((1, 0.0), TypeError),
        ((True, 0), TypeError),
        ((2, True), TypeError),
        (("1", "0"), TypeError),
        ((1, -1), ValueError),
        ((2, -1), ValueError),
        ((1 << 40, 0), ValueError),
    ],
    ids=repr,
)
def test_devices_that_are_none(answer, error):  # C8
    raw = floats()
    raw.says = answer
    with pytest.raises(error):
        dlbridge.from_dlpack(raw)
    assert raw.alive == 0


def test_bare_capsules():  # C9
    raw = floats()
    tensor = dlbridge.from_dlpack(raw.capsule())
    assert tensor.tolist() == FLOATS.tolist()
    assert dlbridge.from_dlpack(FLOATS.__dlpack__()).tolist() == FLOATS.tolist()
    del tensor
    assert raw.alive == 0


# Ownership


@pytest.fixture(params=[None, (1, 3)], ids=["legacy", "versioned"])
def version(request):
    return request.param


@pytest.fixture(params=[(2, 32, 1), (4, 16, 1)], ids=["numpy", "bfloat16"])
def dtype(request):
    return request.param


def test_a_consumed_capsule_is_renamed(version, dtype):  # C10, C11
    raw = floats(version=version, dtype=dtype)
    capsule = raw.capsule()
    tensor = dlbridge.from_dlpack(Returns(capsule))
    assert capsule_name(capsule) == (
        "used_dltensor" if version is None else "used_dltensor_versioned"
    )
    for again in (capsule, Returns(capsule)):
        with pytest.raises(BufferError, match="used"):
            dlbridge.from_dlpack(again)
    del capsule, again
    gc.collect()
    assert raw.alive == 1
    del tensor
    assert raw.alive == 0


@pytest.mark.parametrize("major", [0, 2, 77, (1 << 32) - 1])
def test_another_major_version(major):  # C12
    # Nothing past flags may be read: there is garbage.
    raw = floats(version=(major, 5), dtype=(99, 77, 0), ndim=-5, device=(-7, -7), says=(1, 0))
    for take in (dlbridge.from_dlpack, lambda raw: dlbridge.from_dlpack(raw.capsule())):
        with pytest.raises(BufferError, match=f"DLPack {major}.5"):
            take(raw)
        assert raw.alive == 0
    capsule = raw.capsule()
    with pytest.raises(BufferError):
        dlbridge.from_dlpack(capsule)
    assert capsule_name(capsule) == "used_dltensor_versioned"
    assert raw.alive == 0


def test_another_major_version_without_a_deleter():  # C12, C14
    with pytest.raises(BufferError):
        dlbridge.from_dlpack(floats(version=(2, 0), deleter=False))


@pytest.mark.parametrize("minor", [0, 4, 99, (1 << 32) - 1])
def test_any_minor_version(minor):  # C13
    assert dlbridge.from_dlpack(floats(version=(1, minor))).tolist() == FLOATS.tolist()


def test_no_deleter(version, dtype):  # C14
    raw = floats(version=version, dtype=dtype, deleter=False)
    tensor = dlbridge.from_dlpack(raw)
    assert tensor.data_ptr() == raw.data
    exported = dlbridge.from_dlpack(tensor.__dlpack__())
    del tensor, exported
    gc.collect()


def test_the_deleter_runs_once(version, dtype):  # C15
    raw = floats(version=version, dtype=dtype)
    tensor = dlbridge.from_dlpack(raw)
    view = tensor[1:]
    assert raw.alive == 1
    del tensor
    assert raw.alive == 1
    del view
    assert raw.alive == 0


def test_the_deleter_leaves_a_pending_error_alone():  # C15
    class Holder:
        pass

    raw = floats(dtype=(4, 16, 1))

    def fail():
        holder = Holder()
        holder.tensor = dlbridge.from_dlpack(raw)
        raise OwnError("mine")  # the tensor dies while this passes

    with pytest.raises(OwnError, match="mine") as caught:
        fail()
    del caught
    gc.collect()
    assert raw.alive == 0


# What is refused


@pytest.mark.parametrize(
    "numbers",
    [
        (18, 8, 1),
        (99, 32, 1),
        (255, 255, 65535),
        (17, 8, 1),  # float4 has 4 bits
        (15, 8, 1),
        (16, 4, 1),
        (6, 1, 1),
        (4, 32, 1),
        (2, 80, 1),
        (5, 16, 1),
        (10, 16, 1),
        (2, 32, 0),  # no lanes
        (0, 0, 1),
    ],
    ids=str,
)
def test_dtypes_that_are_none(numbers, version):  # C16
    refused(Producer((2,), dtype=numbers, version=version), match="DLDataType")


def test_lanes_are_kept():  # C17
    raw = Producer((2,), dtype=(2, 32, 4), content=np.arange(8, dtype="f4").tobytes())
    tensor = dlbridge.from_dlpack(raw)
    assert tensor.dtype.lanes == 4
    assert tensor.itemsize == 16
    assert tensor.nbytes == 32
    with pytest.raises((BufferError, TypeError)):
        tensor.numpy()
    raw.dtype = (1, 1, 1)


def to_cpu(tensor):
    return dlbridge.to_device(tensor, "cpu")


@pytest.mark.parametrize("device", [(5, 0), (6, 0), (0, 0), (99, 0), (-1, 0), (4242, 3)], ids=str)
def test_unknown_devices_are_opaque(device):  # C18
    raw = Producer((2, 3), device=device, data=0x1234)
    tensor = dlbridge.from_dlpack(raw)
    assert tensor.device.type == device[0]
    assert tensor.data_ptr() == 0x1234
    assert tensor[1].shape == (3,)
    assert repr(tensor)
    for use in (dlbridge.Tensor.numpy, dlbridge.Tensor.tolist, to_cpu):
        with pytest.raises((BufferError, RuntimeError)):
            use(tensor)
    del tensor
    gc.collect()
    assert raw.alive == 0


def test_the_struct_says_where_the_memory_is():  # C19
    raw = floats(device=(1, 0), says=(2, 0))
    assert dlbridge.from_dlpack(raw).tolist() == FLOATS.tolist()
    raw = Producer((2,), device=(99, 0), says=(1, 0), data=0x1234)
    assert dlbridge.from_dlpack(raw).device.type == 99


def test_a_liar_is_asked_to_move_what_is_there_already():  # C19, C33
    raw = floats(device=(1, 0), says=(2, 0))
    assert dlbridge.from_dlpack(raw, device="cpu", copy=False).tolist() == FLOATS.tolist()


def test_devices_that_there_are_not():  # C20
    raw = Producer((2,), device=(2, 7), data=0x1234)
    with installed("cuda", Streams()), pytest.raises(BufferError, match=r"no cuda:7"):
        dlbridge.to_device(dlbridge.from_dlpack(raw), "cpu")
    raw = Producer((2,), device=(2, -1), says=(2, 0), data=0x1234)
    refused(raw, match="device_id -1")
    raw = floats(device=(1, -1), says=(1, 0))
    refused(raw, match="device_id -1")


@pytest.mark.parametrize("byte_offset", [(1 << 64) - 8, 1 << 63, 1 << 60, 1 << 57])
def test_byte_offsets_that_no_memory_has(byte_offset, version, dtype):  # C24, C25
    raw = Producer((2,), byte_offset=byte_offset, version=version, dtype=dtype)
    refused(raw, match=f"byte_offset {byte_offset}")
    tensor = peer("tvm_ffi").from_dlpack(Producer((2,), byte_offset=byte_offset, version=None))
    with pytest.raises(BufferError, match=f"byte_offset {byte_offset}"):
        dlbridge.from_dlpack(tensor)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"device": (1, -1)}, "counted from 0"),
        ({"null_shape": True}, "shape is NULL"),
        ({"shape": (1 << 60,)}, "more than the memory of any machine"),
        ({"data": 0}, "data is NULL"),
    ],
    ids=str,
)
def test_strangers_structs_in_tensors_of_tvm_ffi(wrong, match):  # C8, C23, C24
    tensor = peer("tvm_ffi").from_dlpack(Producer(**{"shape": (2, 3), "version": None, **wrong}))
    with pytest.raises((BufferError, ValueError), match=match):
        dlbridge.from_dlpack(tensor)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3), (3, 0), ()])
def test_null_strides_are_compact(shape, version):  # C21
    tensor = dlbridge.from_dlpack(floats(shape, strides=None, version=version))
    assert tensor.is_contiguous()
    assert tensor.shape == shape
    assert len(tensor.strides) == len(shape)
    if tensor.size == 6:
        assert tensor.tolist() == FLOATS.reshape(shape).tolist()


def test_any_strides_are_accepted(version):  # C22
    for strides in ((0, 1), (1, 2), (3, 1), (0, 0)):
        raw = floats((2, 3), strides=strides, version=version)
        tensor = dlbridge.from_dlpack(raw)
        assert tensor.strides == strides
        expected = np.lib.stride_tricks.as_strided(FLOATS, (2, 3), [4 * step for step in strides])
        assert tensor.tolist() == expected.tolist()
    backwards = floats((6,), strides=(-1,), byte_offset=20, version=version)
    assert dlbridge.from_dlpack(backwards).tolist() == FLOATS[::-1].tolist()


@pytest.mark.parametrize("dtype", [(2, 32, 1), (4, 16, 1)])
@pytest.mark.parametrize(
    ("shape", "strides", "contiguous"),
    [
        ((1, 3), (77, 1), True),
        ((3, 1), (1, -5), True),
        ((0, 3), (9, 9), True),
        ((1,), (1 << 62,), True),
        ((1, 2), (-(1 << 63), 1), True),
        ((0, 2), (1 << 62, 1 << 62), True),
        ((2, 2), (3, 1), False),
    ],
    ids=str,
)
def test_contiguity_ignores_steps_that_nobody_takes(shape, strides, contiguous, dtype):  # C22, P30
    raw = floats(shape, strides=strides, dtype=dtype)
    tensor = dlbridge.from_dlpack(raw)
    assert tensor.shape == shape
    assert tensor.is_contiguous() == contiguous


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"ndim": -1}, "ndim -1"),
        ({"ndim": 65}, "ndim 65"),
        ({"ndim": 1 << 30}, "ndim"),
        ({"null_shape": True}, "shape is NULL"),
        ({"shape": (-1, 3)}, "negative"),
        ({"shape": (2, -(1 << 63))}, "negative"),
        ({"data": 0}, "NULL"),
    ],
    ids=str,
)
def test_corrupt_structs(wrong, match, version, dtype):  # C23
    wrong = {"shape": (2, 3), **wrong}
    refused(Producer(**wrong, version=version, dtype=dtype), match=match)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((1 << 62, 4), None),
        ((1 << 62,), None),
        ((1 << 32, 1 << 32), None),
        ((1 << 21, 1 << 21, 1 << 21), (0, 0, 0)),
        ((3,), (1 << 62,)),
        ((2, 2), (1 << 61, -(1 << 61))),
        ((2,), (1 << 57,)),
        ((1 << 57,), None),
    ],
    ids=str,
)
def test_more_than_memory_can_hold(shape, strides, version, dtype):  # C24
    raw = Producer(shape, strides=strides, version=version, dtype=dtype)
    with pytest.raises(BufferError):
        dlbridge.from_dlpack(raw)
    assert raw.alive == 0


def test_no_elements_in_an_overflowing_shape(version, dtype):  # C24, C26
    """Nothing is reached; whether numpy can carry the shape is another question."""
    raw = Producer((0, 1 << 62, 1 << 62), version=version, dtype=dtype, strides=None)
    try:
        tensor = dlbridge.from_dlpack(raw)
    except BufferError:
        pass
    else:
        assert tensor.size == 0
        del tensor
    assert raw.alive == 0


def test_byte_offset_on_the_host(version, dtype):  # C25
    raw = floats((2,), byte_offset=8, version=version, dtype=dtype)
    tensor = dlbridge.from_dlpack(raw)
    assert tensor.data_ptr() == raw.data + 8
    assert tensor.byte_offset == 0
    if dtype == (2, 32, 1):
        assert tensor.tolist() == [2, 3]
    capsule = tensor.__dlpack__()
    again = struct_in(capsule).dl_tensor
    assert address(again.data) + again.byte_offset == raw.data + 8


def test_byte_offset_of_a_device_address():  # C25
    tensor = dlbridge.from_dlpack(Producer((4,), device=(2, 0), data=0x10000, byte_offset=64))
    assert tensor.data_ptr() == 0x10040
    assert tensor[2:].data_ptr() == 0x10048


def test_byte_offset_of_a_handle():  # C25
    tensor = dlbridge.from_dlpack(Producer((4,), device=(8, 0), data=0x777, byte_offset=64))
    assert tensor.data_ptr() == 0x777
    assert tensor.byte_offset == 64
    capsule = tensor[2:].__dlpack__(max_version=(1, 3), stream=-1)
    again = struct_in(capsule).dl_tensor
    assert address(again.data) == 0x777
    assert again.byte_offset == 72


@pytest.mark.parametrize("data", [0, None, 0xDEAD0000])
def test_no_elements(data, version, dtype):  # C26
    raw = Producer((0, 3), data=data, version=version, dtype=dtype)
    tensor = dlbridge.from_dlpack(raw)
    assert tensor.shape == (0, 3)
    assert tensor.tolist() == [] if dtype == (2, 32, 1) else tensor.size == 0
    assert tensor.data_ptr() == 0


def test_readonly_stays_readonly(dtype):  # C27
    raw = floats((2, 3), flags=FLAG_READ_ONLY, dtype=dtype)
    for tensor in (
        dlbridge.from_dlpack(raw),
        dlbridge.from_dlpack(raw)[0],
        dlbridge.from_dlpack(raw).T,
    ):
        assert tensor.readonly
        assert "readonly" in repr(tensor)
        capsule = tensor.__dlpack__(max_version=(1, 0))
        assert struct_in(capsule).flags == FLAG_READ_ONLY
        if dtype == (2, 32, 1):
            assert not tensor.numpy().flags.writeable
            assert memoryview(tensor.numpy()).readonly
        with pytest.raises(BufferError, match="read-only"):
            dlbridge.copy_(tensor, tensor)


def test_legacy_capsules_are_writable(dtype):  # C28
    raw = floats(version=None, dtype=dtype)
    assert not dlbridge.from_dlpack(raw).readonly


def test_copied_stays_visible():  # C29
    assert dlbridge.from_dlpack(floats(flags=FLAG_IS_COPIED)).is_copied
    assert not dlbridge.from_dlpack(floats()).is_copied


def test_unknown_flags_are_ignored(dtype):  # C30
    tensor = dlbridge.from_dlpack(floats((2,), flags=0xFFFF_FFFF_FFFF_FFF8, dtype=dtype))
    assert tensor.shape == (2,)
    capsule = tensor.__dlpack__(max_version=(1, 0))
    assert struct_in(capsule).flags == 0


def test_padded_and_packed_elements():  # C31
    padded = dlbridge.from_dlpack(Producer((2, 3), dtype=(17, 4, 1), flags=FLAG_SUBBYTE_PADDED))
    assert padded.is_padded
    assert padded.nbytes == 6
    packed = dlbridge.from_dlpack(Producer((2, 3), dtype=(17, 4, 1)))
    assert not packed.is_padded
    assert packed.nbytes == 3
    assert dlbridge.from_dlpack(Producer((3,), dtype=(15, 6, 1))).nbytes == 3
    for use in (
        packed.numpy,
        lambda: packed[1],  # begins in the middle of a byte
        lambda: dlbridge.to_device(packed[:, ::2], "cpu", copy=True),
    ):
        with pytest.raises(BufferError):
            use()


# device= and copy=


@pytest.mark.parametrize("device", ["cpu", "cpu:0", (1, 0), dlbridge.device("cpu"), FLOATS, 1])
def test_devices_by_every_name(device):  # C32
    assert dlbridge.from_dlpack(FLOATS, device=device).data_ptr() == FLOATS.ctypes.data


@pytest.mark.parametrize("device", ["gpu:0", "cuda:x", "cpu:1", (1, 1), (99, 0), "ext_dev:9"])
def test_devices_that_are_not_to_be_had(device):  # C32
    with pytest.raises((ValueError, BufferError, RuntimeError)):
        dlbridge.from_dlpack(FLOATS, device=device)


def test_devices_that_are_no_devices():  # C32
    with pytest.raises(TypeError):
        dlbridge.from_dlpack(FLOATS, device=3.5)
    with pytest.raises(TypeError, match="copy must be"):
        dlbridge.from_dlpack(FLOATS, copy="yes")


class OnDevice(Producer):
    """On ``cuda:0`` as `Streams` has it, and able to bring its memory to the CPU or not."""

    def __init__(self, can, **keywords):
        super().__init__((6,), content=FLOATS.tobytes(), device=(2, 0), **keywords)
        self.can = can

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        if "dl_device" in keywords and self.can is not True:
            raise self.can("no")
        self.device = (1, 0) if "dl_device" in keywords else (2, 0)
        self.flags = FLAG_IS_COPIED if "dl_device" in keywords else 0
        return self.capsule()

    def __dlpack_device__(self):
        return (2, 0)


def test_the_producer_moves_it_where_it_can():  # C33, S12
    raw = OnDevice(can=True)
    with installed("cuda", Streams()) as plugin:
        tensor = dlbridge.from_dlpack(raw, device="cpu")
        assert raw.calls == [{"max_version": (1, 3), "dl_device": (1, 0)}]
        assert plugin.log == []
    assert tensor.tolist() == FLOATS.tolist()


@pytest.mark.parametrize("error", [BufferError, ValueError])
def test_the_backend_moves_it_where_the_producer_will_not(error):  # C33
    raw = OnDevice(can=error)
    with installed("cuda", Streams()) as plugin:
        tensor = dlbridge.from_dlpack(raw, device="cpu")
        assert raw.calls == [
            {"max_version": (1, 3), "dl_device": (1, 0)},
            {"max_version": (1, 3), "stream": 1},
        ]
        assert ("download", 0) in plugin.log
    assert tensor.tolist() == FLOATS.tolist()
    assert raw.alive == 0


def test_no_copy_across_devices():  # C35
    raw = OnDevice(can=BufferError)
    with installed("cuda", Streams()), pytest.raises(BufferError):
        dlbridge.from_dlpack(raw, device="cpu", copy=False)
    raw = OnDevice(can=True)
    with installed("cuda", Streams()), pytest.raises(BufferError, match="exported a copy"):
        dlbridge.from_dlpack(raw, device="cpu", copy=False)
    assert raw.alive == 0


def test_copy_false_and_a_producer_that_copied():  # C35
    raw = floats(flags=FLAG_IS_COPIED)
    with pytest.raises(BufferError, match="exported a copy"):
        dlbridge.from_dlpack(raw, copy=False)
    assert raw.alive == 0


@pytest.mark.parametrize(
    "make",
    [
        FLOATS.copy,
        floats,
        lambda: floats(kind=OldProducer),
        lambda: floats(flags=FLAG_IS_COPIED),  # says so, and it is its own memory
        lambda: dlbridge.from_dlpack(FLOATS),
        lambda: peer("torch").arange(6.0),
        lambda: peer("jax.numpy").arange(6.0),
        lambda: peer("tvm_ffi").from_dlpack(FLOATS),
    ],
    ids=["numpy", "raw", "old", "says copied", "ours", "torch", "jax", "tvm_ffi"],
)
def test_a_copy_is_a_copy(make):  # C34
    source = make()
    shared = dlbridge.from_dlpack(source)
    copy = dlbridge.from_dlpack(source, copy=True)
    assert copy.data_ptr() != shared.data_ptr()
    assert copy.tolist() == shared.tolist() == FLOATS.tolist()
    assert not copy.readonly
    if not shared.is_copied:
        assert dlbridge.from_dlpack(source, copy=False).data_ptr() == shared.data_ptr()


def test_a_device_of_ours_as_the_target():  # C33
    peer("dlbridge_fake")
    for source in (FLOATS, floats(), floats(kind=OldProducer)):
        tensor = dlbridge.from_dlpack(source, device="ext_dev:1")
        assert str(tensor.device) == "ext_dev:1"
        assert tensor.tolist() == FLOATS.tolist()
        with pytest.raises(BufferError, match="copy=False"):
            dlbridge.from_dlpack(source, device="ext_dev:1", copy=False)


# Life


def test_the_struct_is_kept_and_not_the_object():  # C37
    raw = floats()

    class Passing:
        def __dlpack__(self, **keywords):
            return raw.capsule()

        def __dlpack_device__(self):
            return (1, 0)

    passing = Passing()
    references = sys.getrefcount(passing)
    tensor = dlbridge.from_dlpack(passing)
    assert sys.getrefcount(passing) == references
    del passing
    assert tensor.tolist() == FLOATS.tolist()
    assert raw.alive == 1


def test_what_happens_to_the_source_later():  # C38
    array = np.arange(6.0)
    tensor = dlbridge.from_dlpack(array)
    array[2] = 42
    assert tensor.tolist()[2] == 42
    array.resize((2, 3), refcheck=False)  # its metadata, not ours
    assert tensor.shape == (6,)
    del array
    gc.collect()
    assert tensor.tolist() == [0, 1, 42, 3, 4, 5]


def test_torch_storage_that_is_resized_later():  # C38
    torch = peer("torch")
    source = torch.arange(6.0)
    tensor = dlbridge.from_dlpack(source)
    try:
        source.resize_(1 << 20)
    except RuntimeError:
        pass  # torch refuses while others look at the memory
    else:
        source.fill_(7)
    del source
    gc.collect()
    assert tensor.tolist() == FLOATS.tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(6, dtype="float32"),
        floats,
        lambda: dlbridge.empty(6),
        lambda: peer("torch").arange(6.0),
        lambda: peer("tvm_ffi").from_dlpack(np.arange(6, dtype="float32")),
    ],
    ids=["numpy", "raw", "ours", "torch", "tvm_ffi"],
)
def test_out_again_to_the_same_memory(make):  # C39
    torch, tvm_ffi, jax = peer("torch"), peer("tvm_ffi"), peer("jax")
    tensor = dlbridge.from_dlpack(make())
    at = tensor.data_ptr()
    assert np.from_dlpack(tensor).ctypes.data == at
    assert torch.from_dlpack(tensor).data_ptr() == at
    theirs = tvm_ffi.from_dlpack(tensor)
    assert np.from_dlpack(theirs).ctypes.data == at
    if at % 64 == 0:  # jax copies what lies otherwise
        assert jax.dlpack.from_dlpack(tensor).unsafe_buffer_pointer() == at


def test_into_cuda_core_and_mpi():  # C39
    view = peer("cuda.core.utils").StridedMemoryView
    mpi = peer("mpi4py.MPI")
    tensor = dlbridge.from_dlpack(FLOATS.copy())
    assert view.from_dlpack(tensor, stream_ptr=-1).ptr == tensor.data_ptr()
    assert mpi.buffer.frombuffer(tensor).address == tensor.data_ptr()
    again = dlbridge.from_dlpack(view.from_dlpack(tensor, stream_ptr=-1))
    assert again.data_ptr() == tensor.data_ptr()


def test_arrow_and_ml_dtypes_arrays():  # C39
    arrow, ml_dtypes = peer("pyarrow"), peer("ml_dtypes")
    array = arrow.array([1.0, 2.0, 3.0])
    tensor = dlbridge.from_dlpack(array)
    assert tensor.tolist() == [1, 2, 3]
    assert tensor.data_ptr() == array.buffers()[1].address
    theirs = np.arange(4).astype(ml_dtypes.bfloat16)
    ours = dlbridge.from_dlpack(theirs)
    assert ours.dtype == dlbridge.dtype("bfloat16")
    assert ours.data_ptr() == theirs.ctypes.data
    assert ours.numpy().dtype == ml_dtypes.bfloat16
    assert peer("torch").from_dlpack(ours).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [(2, 32, 1), (4, 16, 1)])
def test_many_threads_import_and_drop(dtype):  # C40
    raw = floats(dtype=dtype)
    failures, tensors = [], []

    def work():
        try:
            for _ in range(200):
                tensors.append(dlbridge.from_dlpack(raw))
                tensors.pop()  # most likely another thread's
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    tensors.clear()
    gc.collect()
    assert raw.exported == 800
    assert raw.alive == 0


def test_pinned_memory_needs_no_backend_to_be_read():  # C18
    raw = floats(device=(3, 0))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import dlbridge\n"
        "from raw_producer import Producer\n"
        "raw = Producer((4,), device=(3, 0), content=bytes(16))\n"
        "assert dlbridge.from_dlpack(raw).tolist() == [0, 0, 0, 0]\n"
        "assert dlbridge.from_dlpack(Producer((4,), device=(2, 1), data=64)).data_ptr() == 64\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parents[2] / "support")],
        env={**os.environ, "DLBRIDGE_BACKENDS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert raw.alive == 0


@pytest.mark.parametrize("version", [None, (1, 3)])
@pytest.mark.parametrize("wrong", [{"ndim": -1}, {"data": 0}, {"null_shape": True}], ids=str)
def test_a_corrupt_struct_is_told_with_the_producers_name(wrong, version):  # C23
    with pytest.raises(dlbridge.ExchangeError, match=r"raw_producer\.Producer: a DLTensor") as told:
        dlbridge.from_dlpack(Producer((4,), version=version, **wrong))
    assert isinstance(told.value.__cause__, dlbridge.ExchangeError)


def test_the_name_in_the_capsule_is_not_ours_to_free():  # C10
    """The used name is static memory: the capsule may outlive everything of ours."""
    raw = floats()
    capsule = raw.capsule()
    del capsule
    capsule = raw.capsule()
    tensor = dlbridge.from_dlpack(capsule)
    set_name(capsule, immortal_name(b"used_dltensor_versioned"))
    del tensor
    assert raw.alive == 0
