"""The CUDA Array Interface without CUDA: what its dictionaries say, in and out."""

import ctypes

import numpy as np
import pytest

from dlbridge import Device, dtype
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.extending import Memory, tensor_on
from dlbridge.interop import (
    array_interfaces as cuda_array,
    array_interfaces as outgoing_interface,
)
from dlbridge.interop.array_interfaces import (
    cuda_array_interface,
    from_cuda_array_interface,
    parse,
)
from tests.support.case_ids import stable

GOOD = {
    "shape": (2, 3),
    "typestr": "<f4",
    "data": (0x7000, False),
    "strides": None,
    "stream": 1,
    "version": 3,
}


def good(**changes):
    return {**GOOD, **changes}


def without(*keys):
    return {key: value for key, value in GOOD.items() if key not in keys}


def tensor(device=2, shape=(2, 3), strides=None, kind="float32", readonly=False, data=0x7000):
    memory = Memory(Device.of(device, 0), data, "a test")
    return tensor_on(memory, dtype(kind), shape, strides, readonly=readonly)


# In -----------------------------------------------------------------------------


NO_MEMORY = [
    {"strides": (1 << 60, 4)},
    {"shape": (1 << 60, 4)},
    {"data": ((1 << 64) - 4, False)},
    {"data": (64, False), "strides": (-128, 4)},
]
NO_DATA = [None, 0x7000, (0x7000,), (None, False), ("7", False), (True, False)]
NO_TYPES = ["|O", "<U4", "|S3", "<M8[s]", "<m8[s]", "nonsense"]
REFUSED = [
    # I15
    *(
        (it, TypeError, "must be a dict")
        for it in (None, 1, "x", (1,), [("shape", (1,))], object())
    ),
    # I16
    *((without(key), ExchangeError, key) for key in ("shape", "typestr", "data", "version")),
    *((good(data=data), TypeError, "data") for data in NO_DATA),
    *((good(data=(at, False)), BufferError, "address") for at in (0, -1, 1 << 64)),
    *((good(**wrong), BufferError, "any machine|wraps around") for wrong in NO_MEMORY),
    # I17
    (good(version="3"), TypeError, "version"),
    # I18
    (good(mask=object()), BufferError, "mask"),
    # I19
    *((good(strides=s), BufferError, "strides for 2 dim") for s in ((), (4,), (12, 4, 4))),
    *((good(strides=s), TypeError, "strides") for s in (7, "ab", (1.0, 2), (True, 4))),
    (good(strides=(12, 6)), BufferError, "multiples"),
    *((good(shape=s), TypeError, "shape") for s in (None, 6, (2.0, 3), (True,), "23")),
    (good(shape=(2, -3)), BufferError, "negative"),
    # I20
    *((good(typestr=s), BufferError, "[Bb]yte order|endian") for s in (">f4", ">i8", ">c16")),
    *(
        (good(typestr=s), BufferError, "cannot be exchanged: it holds|is not a type")
        for s in NO_TYPES
    ),
    *((good(typestr=s), TypeError, "typestr") for s in (None, 4, np.dtype("f4"))),
    # I23
    *((good(stream=s), BufferError, "stream") for s in (0, -1, -2, 1 << 64, (1 << 64) + 7)),
    *((good(stream=s), TypeError, "stream") for s in (True, "1", 1.0)),
]


@pytest.mark.parametrize(("said", "error", "words"), REFUSED, ids=stable)
def test_what_is_refused(said, error, words):
    with pytest.raises(error, match=words):
        parse(said)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_are_taken_to_work_on_the_default_stream(version):  # I17
    old = {**without("stream"), "version": version}
    assert parse(old).stream == 1
    assert parse({**old, "stream": 77}).stream == 1  # it had no meaning then


STRIDES = [((12, 4), (3, 1)), ((4, 8), (1, 2)), ((0, 4), (0, 1)), ((-12, -4), (-3, -1))]
STRIDES += [([12, 4], (3, 1)), ((24, 8), (6, 2))]


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        (good(version=4, event=5), {}),  # I17
        (good(mask=None), {}),  # I18
        (good(stream=None), {"stream": None}),  # I23
        (without("stream"), {"stream": None}),  # I23
        (good(data=(0x7000, True)), {"readonly": True}),  # I26
        (good(data=(0x7000, False)), {"readonly": False}),  # I26
        (without("strides"), {}),  # I19
        *((good(strides=steps), {"strides": found}) for steps, found in STRIDES),  # I19
        # It has no neighbour.
        (good(shape=(2, 1), strides=(12, 6)), {"shape": (2, 1), "strides": (3, 0)}),  # I19
        (good(shape=(2, 0), strides=(3, 6)), {"shape": (2, 0), "data": 0}),  # I19
    ],
    ids=stable,
)
def test_what_is_taken(said, changed):
    assert parse(said) == parse(GOOD)._replace(**changed)


def test_numpy_ints_are_ints():
    said = parse(good(shape=(np.int64(2), np.int32(3)), data=(np.uint64(0x7000), np.False_)))
    assert (said.shape, said.data, said.readonly) == ((2, 3), 0x7000, False)
    assert all(type(part) is int for part in (*said.shape, said.data))


@pytest.mark.parametrize(
    ("typestr", "name"),
    [("|b1", "bool"), ("|u1", "uint8"), ("|i1", "int8"), ("<u2", "uint16"), ("<i4", "int32"), ("<i8", "int64"),
     ("<f2", "float16"), ("<f8", "float64"), ("<c8", "complex64"), ("<c16", "complex128")],
)  # fmt: skip
def test_typestr(typestr, name):
    assert parse(good(typestr=typestr)).dtype is dtype(name)


def test_raw_bytes_need_a_dtype():  # I20
    raw = good(typestr="<V2", descr=[("", "<V2")])
    with pytest.raises(BufferError, match="dtype="):
        parse(raw)
    assert parse(raw, "bfloat16").dtype is dtype("bfloat16")
    assert parse(good(typestr="|V1"), "float8_e4m3fn").dtype is dtype("float8_e4m3fn")
    for wrong in ("float32", "int4"):
        with pytest.raises(BufferError, match="sizes"):
            parse(raw, wrong)


@pytest.mark.parametrize("data", [(0, False), (None, False), (0x7000, False)], ids=stable)
def test_no_elements_no_address(data):  # I21 I22
    assert parse(good(shape=(0, 3), data=data)).data == 0


def test_no_elements_need_no_driver(monkeypatch):  # I21
    monkeypatch.setattr(cuda_array, "plugin_of", None)
    empty = from_cuda_array_interface(good(shape=(0, 3), data=(0, True)))
    assert (empty.shape, empty.data_ptr(), empty.device) == ((0, 3), 0, Device.of(2, 0))


@pytest.mark.parametrize("stranger", [None, 1, "x", object(), np.zeros(2)], ids=type)
def test_strangers(stranger):
    with pytest.raises(TypeError, match="__cuda_array_interface__"):
        from_cuda_array_interface(stranger)


# Out ----------------------------------------------------------------------------


@pytest.mark.parametrize("device", [1, 4, 7, 8, 10, 11, 12])
def test_absent_where_cuda_cannot_reach(device):  # I1
    data = ctypes.addressof(ctypes.create_string_buffer(64))
    with pytest.raises(AttributeError, match="CUDA cannot reach it"):
        cuda_array_interface(tensor(device, data=data))


@pytest.mark.parametrize(("device", "stream"), [(2, 1), (3, None), (13, 1)])
def test_present_where_it_can(device, stream):  # I1, I10
    data = ctypes.addressof(buffer := ctypes.create_string_buffer(64))
    assert cuda_array_interface(tensor(device, data=data)) == {
        **GOOD,
        "data": (data, False),
        "stream": stream,
    }
    del buffer


SAYS = [
    ({}, {}),  # I2, I9, I10
    ({"shape": ()}, {"shape": ()}),  # I3
    # I4
    ({"kind": "bool"}, {"typestr": "|b1"}),
    ({"kind": "uint8"}, {"typestr": "|u1"}),
    ({"kind": "int64"}, {"typestr": "<i8"}),
    ({"kind": "complex64"}, {"typestr": "<c8"}),
    # I8
    ({"kind": "bfloat16"}, {"typestr": "<V2", "descr": [("", "<V2")]}),
    *(
        ({"kind": f"float8_{kind}"}, {"typestr": "|V1", "descr": [("", "|V1")]})
        for kind in ("e4m3fn", "e5m2")
    ),
    # I5
    *(
        ({"shape": (0, 3), "readonly": readonly}, {"shape": (0, 3), "data": (0, readonly)})
        for readonly in (False, True)
    ),
    ({"readonly": True}, {"data": (0x7000, True)}),  # I6
    # I7
    ({"strides": (3, 1)}, {}),
    ({"strides": (6, 2)}, {"strides": (24, 8)}),
    ({"strides": (0, 1)}, {"strides": (0, 4)}),
    ({"shape": (3, 2), "strides": (1, 3)}, {"shape": (3, 2), "strides": (4, 12)}),
    ({"shape": (2, 1, 3), "strides": (3, 77, 1)}, {"shape": (2, 1, 3)}),
    ({"shape": (0, 3), "strides": (5, 7)}, {"shape": (0, 3), "data": (0, False)}),
]


@pytest.mark.parametrize(("given", "changed"), SAYS, ids=stable)
def test_what_a_tensor_says(given, changed):
    said = cuda_array_interface(tensor(**given))
    assert said == {**GOOD, **changed}
    assert type(said["shape"]) is tuple
    assert {type(part) for part in said["shape"]} <= {int}
    assert type(said["data"][1]) is bool


def test_the_address_has_the_offset():  # I5
    assert cuda_array_interface(tensor()[1])["data"] == (0x7000 + 12, False)


def test_a_new_dict_each_time():  # I12
    ours = tensor()
    first = cuda_array_interface(ours)
    first["shape"] = "spoilt"
    assert cuda_array_interface(ours)["shape"] == (2, 3)


@pytest.mark.parametrize("name", ["float32x4", "int4", "uint1", "float4_e2m1fn", "handle"])
def test_types_without_typestr(name):  # I13 I14
    with pytest.raises(AttributeError, match="typestr"):
        cuda_array_interface(tensor(kind=name))


def test_export_toggle(monkeypatch):  # I27
    assert cuda_array_interface(tensor())["stream"] == 1  # off by default
    monkeypatch.setenv(outgoing_interface.EXPORT_STREAM, "0")
    assert cuda_array_interface(tensor())["stream"] is None
    monkeypatch.setenv(outgoing_interface.EXPORT_STREAM, "1")
    assert cuda_array_interface(tensor())["stream"] == 1
    monkeypatch.setenv(outgoing_interface.EXPORT_STREAM, "banana")
    with pytest.raises(BackendUnavailable, match="EXPORT_STREAM is 'banana'; set it to 1"):
        cuda_array_interface(tensor())
