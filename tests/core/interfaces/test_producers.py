"""The consumer's side: what `from_dlpack` asks of a producer, takes from it, and refuses.

A comment ``# C12`` names the line of docs/conformance.md that the test shows.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from peers import peer
from raw_producer import (
    OldProducer,
    Producer,
    address,
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


class Returns:
    def __init__(self, value, device=(1, 0)):
        self.value, self.device = value, device

    def __dlpack__(self, **_):
        return self.value

    def __dlpack_device__(self):
        return self.device


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


# Ownership


@pytest.fixture(params=[None, (1, 3)], ids=["legacy", "versioned"])
def version(request):
    return request.param


@pytest.fixture(params=[(2, 32, 1), (4, 16, 1)], ids=["numpy", "bfloat16"])
def dtype(request):
    return request.param


# What is refused


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


def test_copied_stays_visible():  # C29
    assert dlbridge.from_dlpack(floats(flags=FLAG_IS_COPIED)).is_copied
    assert not dlbridge.from_dlpack(floats()).is_copied


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
