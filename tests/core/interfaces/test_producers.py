"""The consumer's side: what `from_dlpack` asks of a producer, takes from it, and refuses.

A comment ``# C12`` names the line of docs/conformance.md that the test shows.
"""

from __future__ import annotations

import gc
import sys
from math import prod

import numpy as np
import pytest

import dlbridge
from dlbridge.abi import FLAG_IS_COPIED, FLAG_READ_ONLY, table_of
from dlbridge.conformance.cases import drop_with_error
from tests.support.peers import peer
from tests.support.raw_producer import (
    OldProducer,
    Producer,
    address,
    live,
    struct_in,
)
from tests.support.scripts import run_script
from tests.support.stream_backend import Streams, installed

FLOATS = np.arange(6, dtype="float32")


def floats(shape=(6,), kind=Producer, **keywords):
    return kind(shape, content=FLOATS.tobytes(), **keywords)


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


def test_a_class_that_becomes_a_producer_later(monkeypatch):
    """What a class lacks is asked for again, where it lives for ever, too; X11 is of its table."""

    class Later:
        pass

    Later.__qualname__ = "Later"
    monkeypatch.setattr(sys.modules[__name__], "Later", Later, raising=False)
    x, seen = Later(), []
    function = dlbridge.ffi.convert(lambda t: seen.append(type(t)))
    with pytest.raises(TypeError, match="no __dlpack__"):
        dlbridge.from_dlpack(x)
    assert table_of(Later) is None
    function(x)
    function(x)
    Later.__dlpack__ = lambda _self, **keywords: FLOATS.__dlpack__(**keywords)
    Later.__dlpack_device__ = lambda _self: (1, 0)
    for _ in range(2):
        assert dlbridge.from_dlpack(x).tolist() == FLOATS.tolist()
        function(x)
    Later.__dlpack_c_exchange_api__ = dlbridge.Tensor.__dlpack_c_exchange_api__
    assert table_of(Later) is not None
    assert seen == [Later, Later, *[type(dlbridge.from_dlpack(FLOATS))] * 2]


def test_a_class_whose_metaclass_has_the_method_is_none():
    class Meta(type):
        def __dlpack__(cls):
            raise AssertionError

    seen = []
    function = dlbridge.ffi.convert(lambda t: seen.append(type(t)))
    x = Meta("Instance", (), {})()
    function(x)
    function(x)
    assert seen == [type(x)] * 2


def test_a_device_of_numpys_integers():  # P2
    raw = floats()
    for raw.says in ((np.int64(1), np.uint8(0)), (1, np.int32(0)), (np.int8(1), None)):
        assert dlbridge.from_dlpack(raw).device == dlbridge.device_of(raw) == dlbridge.device("cpu")


# What is refused


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


def test_the_struct_says_where_the_memory_is():  # C19, C33
    raw = floats(device=(1, 0), says=(2, 0))
    for keywords in ({}, {"device": "cpu", "copy": False}):
        assert dlbridge.from_dlpack(raw, **keywords).tolist() == FLOATS.tolist()
    raw = Producer((2,), device=(99, 0), says=(1, 0), data=0x1234)
    assert dlbridge.from_dlpack(raw).device.type == 99


WAYS = {
    "producer": dlbridge.from_dlpack,
    "capsule": lambda raw: dlbridge.from_dlpack(raw.capsule()),
    "tvm_ffi": lambda raw: dlbridge.from_dlpack(peer("tvm_ffi").from_dlpack(raw)),
}
CORRUPT = [
    *(({"byte_offset": at}, f"byte_offset {at}") for at in ((1 << 64) - 8, 1 << 63, 1 << 57)),
    *(
        ({"device": (kind, -1), "says": (kind, 0)}, "device_id -1|counted from 0")
        for kind in (1, 2)
    ),
    ({"null_shape": True}, "shape is NULL"),
    ({"shape": (1 << 60,)}, "more than the memory of any machine"),
    ({"data": 0}, "data is NULL"),
    ({"ndim": -1}, "ndim"),
]


@pytest.mark.parametrize("version", [None, (1, 3)], ids=["legacy", "versioned"])
@pytest.mark.parametrize("dtype", [(2, 32, 1), (4, 16, 1)], ids=["numpy", "bfloat16"])
@pytest.mark.parametrize(("wrong", "match"), CORRUPT, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_corrupt_structs(way, wrong, match, dtype, version):  # C20, C23, C24, C25
    """The error tells the producer's class, and nothing leaks."""
    if way == "tvm_ffi" and (version or "ndim" in wrong):
        return  # it takes legacy structs, and reads ndim itself
    raw = Producer(**{"shape": (2, 3), "version": version, "dtype": dtype, **wrong})
    with pytest.raises((BufferError, ValueError), match=match) as told:
        WAYS[way](raw)
    if way == "producer" and wrong.keys() & {"null_shape", "data", "ndim"}:
        assert "raw_producer.Producer: a DLTensor" in str(told.value)
        assert isinstance(told.value.__cause__, dlbridge.ExchangeError)
    del told
    gc.collect()
    assert raw.alive == 0
    assert raw.exported == 1


@pytest.mark.parametrize("dtype", [(2, 32, 1), (4, 16, 1)], ids=["numpy", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 1)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_no_memory_ends_where_addresses_do(way, shape, dtype):  # C24
    """As in C, where a pointer behind the last byte is one."""
    end = (1 << 64) - prod(shape) * dtype[1] // 8
    for data in (end, end - 64):
        raw = Producer(shape, data=data, byte_offset=end - data, version=None, dtype=dtype)
        with pytest.raises((BufferError, ValueError), match="wraps around"):
            WAYS[way](raw)
    raw = Producer(shape, data=end - 8, version=None, dtype=dtype)
    assert WAYS[way](raw).shape == shape


def test_devices_that_there_are_not():  # C20
    raw = Producer((2,), device=(2, 7), data=0x1234)
    with installed("cuda", Streams()), pytest.raises(BufferError, match=r"no cuda:7"):
        dlbridge.to_device(dlbridge.from_dlpack(raw), "cpu")


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


def test_byte_offset_of_a_handle():  # C25, P39
    tensor = dlbridge.from_dlpack(Producer((4,), device=(8, 0), data=0x777, byte_offset=64))
    assert tensor.data_ptr() == 0x777
    assert tensor.byte_offset == 64
    capsule = tensor[2:].__dlpack__(max_version=(1, 3), stream=-1)
    again = struct_in(capsule).dl_tensor
    assert address(again.data) == 0x777
    assert again.byte_offset == 72


@pytest.mark.parametrize("dtype", [(2, 32, 1), (4, 16, 1)])
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


def test_a_legacy_capsule_is_writable():  # C28
    tensor = dlbridge.from_dlpack(floats(version=None))
    assert not tensor.readonly
    dlbridge.copy_(tensor, FLOATS[::-1])
    assert tensor.tolist() == FLOATS[::-1].tolist()


class Legacy:
    """Its capsules have no flags, so they cannot say whether the memory may be written."""

    def __dlpack__(self):
        return FLOATS.copy().__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


FROZEN = FLOATS.copy()
FROZEN.flags.writeable = False

# nanoarrow's views of Arrow's immutable memory have a buffer (tests/peers). Before CPython 3.12 a
# class has one only from its base.
SAY_READONLY = [
    type("SaysByBuffer", (Legacy, bytes), {}),
    type("SaysByInterface", (Legacy,), {"__array_interface__": FROZEN.__array_interface__}),
    type("SaysByFlags", (Legacy,), {"flags": FROZEN.flags}),
]
SAY_NOTHING = [
    Legacy,
    type("SaysWritable", (Legacy, bytearray), {"__array_interface__": FLOATS.__array_interface__}),
    type("SaysWrongly", (Legacy,), {"__array_interface__": {"shape": ()}, "flags": 1}),
    type("Fails", (Legacy,), {"flags": property(lambda _self: 1 / 0)}),
]


@pytest.mark.parametrize("make", SAY_READONLY)
def test_what_a_legacy_capsule_cannot_say_another_interface_says(make):  # C28
    for tensor in (
        dlbridge.from_dlpack(make()),
        dlbridge.asarray(make()),
        dlbridge.asarray(make(), copy=False),
        dlbridge.to_device(make(), "cpu"),
    ):
        assert tensor.readonly
        with pytest.raises(BufferError, match="read-only"):
            dlbridge.copy_(tensor, FLOATS[::-1])
        assert tensor.tolist() == FLOATS.tolist()
    with pytest.raises(BufferError, match="read-only"):
        dlbridge.copy_(make(), FLOATS[::-1])
    assert "read-only" in dlbridge.explain(make(), "cpu", like=peer("torch"))
    assert not dlbridge.from_dlpack(make(), copy=True).readonly


@pytest.mark.parametrize("readonly", [True, False])
def test_memory_of_a_gpu_whose_array_interface_says_readonly(readonly):  # C28
    x = floats(kind=OldProducer, device=(2, 0))
    x.__cuda_array_interface__ = {"data": (1, readonly)}
    assert dlbridge.from_dlpack(x).readonly is readonly


@pytest.mark.parametrize("make", SAY_NOTHING)
def test_a_legacy_capsule_is_writable_where_no_interface_says_otherwise(make):  # C28
    assert not dlbridge.from_dlpack(make()).readonly


def test_a_tensor_that_is_dropped_while_an_exception_passes():  # C15
    raw = floats()
    kept = [dlbridge.from_dlpack(raw)]
    drop_with_error(kept)
    gc.collect()
    assert live == {}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_copy_for_a_consumer_has_no_gaps(dtype):  # P26
    wide = dlbridge.zeros((6, 8), dtype)
    for view in (wide[:, ::2], wide[::2, 1::2], wide[::-1, ::-1], wide[1:3, 2:5]):
        copied = dlbridge.from_dlpack(view.__dlpack__(max_version=(1, 3), copy=True))
        assert copied.is_contiguous()
        assert copied.is_copied


def test_copied_stays_visible():  # C29
    assert dlbridge.from_dlpack(floats(flags=FLAG_IS_COPIED)).is_copied
    assert not dlbridge.from_dlpack(floats()).is_copied


# device= and copy=


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


def test_pinned_memory_needs_no_backend_to_be_read():  # C18
    run_script(
        """
        import dlbridge
        from tests.support.raw_producer import Producer
        raw = Producer((4,), device=(3, 0), content=bytes(16))
        assert dlbridge.from_dlpack(raw).tolist() == [0, 0, 0, 0]
        assert dlbridge.from_dlpack(Producer((4,), device=(2, 1), data=64)).data_ptr() == 64
        """,
        env={"DLBRIDGE_BACKENDS": "cpu"},
    )
