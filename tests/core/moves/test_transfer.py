"""to_device of lists, of types that numpy has not, with copy= and stream=, to devices by each name.

Numpy's types in every layout, beside a model: `dlbridge.testing.TensorMachine`, in the kit.
A comment ``# C34`` names the line of docs/conformance.md that the test shows.
"""

from __future__ import annotations

import ctypes
from math import prod

import numpy as np
import pytest
from dlbridge_fake import Stream

import dlbridge as bridge
from dlbridge.abi import FLAG_READ_ONLY, FLAG_SUBBYTE_PADDED
from tests.support.case_ids import stable
from tests.support.counting_backend import NAME
from tests.support.foreign_arrays import OneCapsule
from tests.support.peers import peer
from tests.support.raw_producer import Producer

ROUTES = [
    ("cpu",),
    ("ext_dev:0", "cpu"),
    ("ext_dev:1", "ext_dev:0", "cpu"),
    ("ext_dev", "ext_dev", "cpu"),
]


def raw_bytes(tensor):
    """The elements' bytes in order, whatever they mean."""
    host = bridge.to_device(tensor, "cpu")
    if not host.is_contiguous():
        host = bridge.to_device(host, "cpu", copy=True)
    return ctypes.string_at(host.data_ptr(), host.nbytes) if host.size else b""


def values(shape):
    return np.arange(prod(shape), dtype="float32").reshape(shape)


@pytest.mark.parametrize("device", ["cpu", "ext_dev:0", "ext_dev:1"])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, "int64"),
        (True, "bool"),
        (2.5, "float64"),
        (1 + 2j, "complex128"),
        ([], "float64"),
        ([1, 2], "int64"),
        ([[1.0, 2.0], [3.0, 4.0]], "float64"),
        ((True, False), "bool"),
    ],
    ids=stable,
)
def test_scalars_and_lists(value, dtype, device):
    moved = bridge.to_device(value, device)
    assert moved.dtype is bridge.dtype(dtype)
    assert moved.tolist() == np.asarray(value).tolist()


# Types that numpy has not


ODD = {
    "bfloat16": ((4, 16, 1), 0, 12),
    "float8_e4m3fn": ((10, 8, 1), 0, 6),
    "float32x3": ((2, 32, 3), 0, 72),
    "int4, packed": ((0, 4, 1), 0, 3),
    "float4_e2m1fn, packed": ((17, 4, 1), 0, 3),
    "float6_e2m3fn, packed": ((15, 6, 1), 0, 5),
    "float4_e2m1fnx2": ((17, 4, 2), 0, 6),
    "int4, padded": ((0, 4, 1), FLAG_SUBBYTE_PADDED, 6),
    "float6_e2m3fn, padded": ((15, 6, 1), FLAG_SUBBYTE_PADDED, 6),
    "uint2, packed": ((1, 2, 1), 0, 2),
    "opaque handle": ((3, 64, 1), 0, 48),
}


@pytest.mark.parametrize("route", ROUTES, ids="->".join)
@pytest.mark.parametrize("kind", ODD)
def test_odd_types(kind, route):  # C31, P35, P37
    numbers, flags, nbytes = ODD[kind]
    content = bytes(range(1, nbytes + 1))
    raw = Producer((6,), dtype=numbers, flags=flags, content=content)
    moved = raw
    for device in route:
        moved = bridge.to_device(moved, device, copy=True)
        assert (moved.nbytes, moved.is_padded) == (nbytes, bool(flags))
        assert raw_bytes(moved) == content
    del moved
    assert raw.alive == 0


@pytest.mark.parametrize("kind", ["float32x3", "int4, padded", "bfloat16"])
@pytest.mark.parametrize(
    ("strides", "first"), [((2, 4), 0), ((-1, -2), 5), ((0, 1), 2)], ids=["apart", "back", "zero"]
)
def test_odd_types_with_strides(kind, strides, first):  # C22, C31
    numbers, flags, nbytes = ODD[kind]
    size = nbytes // 6
    content = bytes(range(8 * size))
    raw = Producer(
        (2, 2),
        dtype=numbers,
        flags=flags,
        content=content,
        strides=strides,
        byte_offset=first * size,
    )
    at = [(first + i * strides[0] + j * strides[1]) * size for i in (0, 1) for j in (0, 1)]
    wanted = b"".join(content[start : start + size] for start in at)
    for device in ("cpu", "ext_dev:0"):
        assert raw_bytes(bridge.to_device(raw, device, copy=True)) == wanted


# copy=


EMPTY = {
    "numpy": lambda dtype: np.frombuffer(b"", dtype).reshape(0, 3),
    "a slice": lambda dtype: np.frombuffer(bytes(16), dtype)[:0],
    "bfloat16": lambda dtype: bridge.from_dlpack(np.frombuffer(b"", "u2")).view("bfloat16"),
    "bytes": lambda dtype: b"",
    "jax": lambda dtype: peer("jax").numpy.zeros((0, 2), dtype),
    "a capsule": lambda dtype: Producer((0, 3), flags=FLAG_READ_ONLY),
    "on ext_dev": lambda dtype: bridge.from_dlpack(
        Producer((0, 3), device=(12, 0), flags=FLAG_READ_ONLY)
    ),
    "padded": lambda dtype: Producer(
        (0, 3), dtype=(0, 4, 1), flags=FLAG_READ_ONLY | FLAG_SUBBYTE_PADDED
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", EMPTY)
def test_a_copy_of_an_empty_readonly_tensor_is_writable(name, dtype):  # P25
    x = EMPTY[name](dtype)
    tensor = bridge.asarray(x)
    assert tensor.readonly
    copies = [
        bridge.to_device(x, tensor.device, copy=True),
        bridge.asarray(x, copy=True),
        bridge.from_dlpack(tensor, copy=True),
        bridge.from_dlpack(
            OneCapsule(tensor.__dlpack__(max_version=(1, 3), copy=True), tensor.__dlpack_device__())
        ),
    ]
    for copy in copies:
        assert not copy.readonly
        assert (copy.shape, copy.dtype, copy.device) == (tensor.shape, tensor.dtype, tensor.device)
        assert copy.is_padded == tensor.is_padded
    with pytest.raises(BufferError, match="empty_like"):
        bridge.copy_(tensor, copies[0])
    bridge.copy_(copies[0], tensor)
    assert bridge.to_device(x, tensor.device).readonly


def test_a_copy_of_an_empty_tensor_needs_no_backend():
    x = Producer((0, 3), device=(17, 0), flags=FLAG_READ_ONLY)
    for take in (bridge.from_dlpack, bridge.asarray):
        assert not take(x, copy=True).readonly


def on(device, array=None):
    return bridge.to_device(values((4, 6)) if array is None else array, device)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("cpu", "ext_dev:0", "upload cpu:0 -> ext_dev:0 would copy 96 bytes: the device cannot"),
        ("ext_dev:0", "cpu", "download ext_dev:0 -> cpu:0 would copy 96 bytes: the host cannot"),
        ("ext_dev:0", "ext_dev:1", "peer copy ext_dev:0 -> ext_dev:1 would copy 96 bytes"),
    ],
)
def test_copy_false_names_the_step_that_would_copy(source, target, said):  # C35, D7
    tensor = on(source)
    with pytest.raises(BufferError, match=said) as caught:
        bridge.to_device(tensor, target, copy=False)
    assert "pass copy=None" in str(caught.value)


@pytest.mark.parametrize("copy", [1, "no", 0])
def test_copy_is_a_bool_or_none(copy):  # P24
    takes = (bridge.to_device, bridge.explain, bridge.asarray, bridge.from_dlpack)
    for take in takes:
        for keywords in [{"device": "cpu"}, *[{}] * (take in takes[2:])]:
            with pytest.raises(TypeError, match="copy must be True, False or None"):
                take(values((2,)), copy=copy, **keywords)


# stream=


def test_the_stream_that_is_copied_on(backend):  # S-rows: the backend knows its streams
    stream, done = Stream(1), []
    enqueue = stream.enqueue
    stream.enqueue = lambda work: (done.append(stream.handle), enqueue(work))
    moved = bridge.to_device(values((4,)), f"{NAME}:1", stream=stream)
    assert done
    assert moved.tolist() == [0, 1, 2, 3]
    assert bridge.to_device(values((4,)), f"{NAME}:1", stream=stream.handle).shape == (4,)
    assert moved.to_device("cpu").tolist() == [0, 1, 2, 3]


# Devices


@pytest.mark.parametrize(
    ("device", "index"),
    [
        ("ext_dev", 0),
        ("ext_dev:1", 1),
        ("ext_dev:one", 1),
        ((12, 1), 1),
        (bridge.device("ext_dev:1"), 1),
    ],
    ids=str,
)
def test_devices_by_every_name(device, index):  # C32
    moved = bridge.to_device(values((4,)), device)
    assert (moved.device.name, moved.device.index) == ("ext_dev", index)


def test_a_backend_registered_by_hand(backend):
    for device in (NAME, f"{NAME}:0", f"{NAME}:zero"):
        moved = bridge.to_device(values((4,)), device)
        assert str(moved.device) == f"{NAME}:0"
        assert moved.tolist() == [0, 1, 2, 3]
    # The name is the identity, not the type: both are kDLExtDev.
    other = bridge.to_device(moved, "ext_dev:0")
    assert other.device is not moved.device
    assert backend.log[-1] == ("download", 16)


@pytest.mark.parametrize(
    ("device", "error", "said"),
    [
        ("ext_dev:three", LookupError, "there are zero, one"),
        ("cpu:first", LookupError, "no cpu device is called 'first'; there are 0: "),
        ("metal:0", RuntimeError, "no backend for device 'metal' .installed: .*ext_dev"),
        ("", ValueError, "'name' or 'name:index'"),
        ("ext_dev:-1", ValueError, "-1"),
    ],
)
def test_devices_that_there_are_not(device, error, said):  # C20, C32
    """Others, and texts that name none: tests/core/test_messages.py, values/test_devices.py."""
    for take in (bridge.to_device, bridge.from_dlpack):
        with pytest.raises(error, match=said):
            take(values((4,)), device=device)


def test_a_tensor_whose_device_has_no_backend():
    opaque = bridge.from_dlpack(Producer((4,), device=(99, 3)))
    with pytest.raises(BufferError, match="type99:3, and no backend here can read it"):
        bridge.to_device(opaque, "cpu")


# empty and zeros


def test_copy_into_a_strided_target_of_a_type_that_numpy_has_not():
    source = bridge.empty((4,), "float32x3")
    ctypes.memmove(source.data_ptr(), bytes(range(48)), 48)
    target = bridge.empty((8,), "float32x3")[::2]
    bridge.copy_(target, bridge.to_device(source, "ext_dev"))
    assert target.tobytes() == bytes(range(48))


def test_asarray_never_reinterprets_in_silence():
    assert bridge.asarray([1, 2, 3], dtype="float32").tolist() == [1.0, 2.0, 3.0]
    assert bridge.asarray(np.zeros(2), dtype="float64").dtype == "float64"
    with pytest.raises(BufferError, match="converts no elements"):
        bridge.asarray(np.array([1.5, 2.0]), dtype="int64")
