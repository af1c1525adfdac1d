"""`from_blob`: what it takes and refuses, who keeps the memory, and when the deleter is called."""

from __future__ import annotations

import ctypes
import gc
import mmap
import signal
import sys
import threading
import weakref
from array import array
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace

import cffi
import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.interop import blobs
from tests.support.interrupted import Alarm, handled
from tests.support.peers import peer
from tests.support.scripts import run_script
from tests.support.stream_backend import Streams, installed

FFI = cffi.FFI()
FLOATS = np.arange(12, dtype="float32")
AT = FLOATS.ctypes.data


def name_of(value):
    """In all workers the same: without addresses."""
    return value if isinstance(value, str) else type(value).__name__


@pytest.fixture(autouse=True)
def _nothing_is_left():
    gc.collect()
    before = len(blobs._blobs)
    yield
    gc.collect()
    assert len(blobs._blobs) == before


# The address --------------------------------------------------------------------


class Index:
    """As the handles of some libraries are."""

    def __init__(self, address):
        self.address = address

    def __index__(self):
        return self.address

    def free(self, data, size):
        pytest.fail("called")


POINTERS = {
    "int": lambda: AT,
    "an index": lambda: Index(AT),
    "c_void_p": lambda: ctypes.c_void_p(AT),
    "POINTER": lambda: ctypes.cast(AT, ctypes.POINTER(ctypes.c_float)),
    "c_char_p": lambda: ctypes.cast(AT, ctypes.c_char_p),
    "array": lambda: (ctypes.c_float * 12).from_address(AT),
    "cffi pointer": lambda: FFI.cast("float *", AT),
    "cffi void": lambda: FFI.cast("void *", AT),
    "cffi number": lambda: FFI.cast("uintptr_t", AT),
    "cffi array": lambda: FFI.from_buffer("float[]", FLOATS),
}


@pytest.mark.parametrize("kind", POINTERS)
def test_what_is_an_address(kind):
    tensor = bridge.from_blob(POINTERS[kind](), (3, 4), "float32")
    assert tensor.data_ptr() == AT
    assert tensor.tolist() == FLOATS.reshape(3, 4).tolist()
    assert (tensor.device, tensor.readonly) == (bridge.device("cpu"), False)
    assert tensor.origin == "dlbridge.from_blob"


@pytest.mark.parametrize(
    ("data", "way"),
    [
        (None, "pass an int, a ctypes pointer"),
        (True, "pass an int"),
        ("7", "pass an int"),
        (1.5, "pass an int"),
        (FLOATS, r"dlbridge.from_dlpack\(x\)"),
        (np.int64(7), r"pass int\(x\)"),
        (bridge.zeros(3), r"dlbridge.from_dlpack\(x\)"),
        (b"abcd", r"dlbridge.asarray\(x\)"),
        (array("f", [1]), r"dlbridge.asarray\(x\)"),
        (ctypes.c_size_t(7), "pass x.value if that is the address"),
        (ctypes.byref(ctypes.c_int(7)), "pass an int"),
        (FFI.cast("float", 1), "pass an int"),
        (FFI.new("struct {int a;} *")[0], r"pass ffi.addressof\(x\)"),
        (ctypes.CFUNCTYPE(None)(lambda: None), "a function, which has no elements"),
        (FFI.callback("void(void)", lambda: None), "a function, which has no elements"),
        (ctypes.CDLL(None).free, "a function, which has no elements"),
        ([1, 2], "pass an int"),
    ],
    ids=name_of,
)
def test_what_is_no_address(data, way):
    with pytest.raises(TypeError, match=f"from_blob takes an address, .* is none: .*{way}"):
        bridge.from_blob(data, 1, "uint8")


@pytest.mark.parametrize(
    ("data", "shape", "dtype", "more", "message"),
    [
        (0, 3, "uint8", {}, "data is NULL"),
        (ctypes.c_void_p(), 3, "uint8", {}, "data is NULL"),
        (FFI.NULL, 3, "uint8", {}, "data is NULL"),
        (-1, 3, "uint8", {}, r"unsigned 64-bit number \(.*f\.restype = ctypes\.c_void_p"),
        (7, 3, "uint8", {}, "no system maps the first page"),
        (1 << 64, 3, "uint8", {}, "unsigned 64-bit"),
        *(((1 << 64) - 16, shape, "uint8", {}, "wraps around") for shape in (17, 16)),
        ((1 << 64) - 8, (), "float64", {}, "wraps around"),
        (AT, (-1,), "uint8", {}, "extents are 0 or more"),
        (AT, (1,) * 65, "uint8", {}, "at most 64"),
        (AT, 1 << 60, "uint8", {}, "more than the memory of any machine"),
        (AT, (1 << 40, 1 << 40), "uint8", {}, "more bytes than 63 bits"),
        (AT, 1 << 47, "float64x32767", {}, "more bytes than 63 bits"),
        (AT, (1 << 40, 1 << 40), "uint8", {"strides": (0, 0)}, "more bytes than 63 bits"),
        (AT, (2, 2), "uint8", {"strides": (1 << 62, 1)}, "more than the memory"),
        (AT, (2, 2), "uint8", {"strides": (1 << 63, 1)}, "int64 in DLPack"),
        (AT, (2, 2), "uint8", {"strides": (1,)}, "1 strides .* for 2 dimensions"),
        (AT, (AT,), "uint8", {"strides": (-2,)}, "wraps around"),
        (AT, 3, "uint8", {"byte_offset": -1}, "add it to data"),
        (AT, 3, "uint8", {"byte_offset": 1 << 63}, "more than the memory"),
        (AT + 1, 1, "float16", {}, "multiple of 2"),
        (AT + 2, 1, "float32", {}, "multiple of 4, as float32 needs"),
        (AT, 1, "float32", {"byte_offset": 2}, "multiple of 4"),
        (AT + 4, 1, "float64", {}, "multiple of 8"),
        (AT + 4, 1, "complex128", {}, "multiple of 8"),
        ((ctypes.c_float * 3)(), 4, "float32", {}, "bytes 0 to 16 of data, which has 12"),
        ((ctypes.c_float * 3)(), 2, "float32", {"byte_offset": 8}, "bytes 8 to 16"),
        ((ctypes.c_float * 3)(), 2, "float32", {"strides": (-1,)}, "bytes -4 to 4"),
        (FFI.new("float[3]"), 4, "float32", {}, "which has 12"),
        (AT, 3, "uint8", {"stream": 7}, "host memory has no streams"),
    ],
    ids=name_of,
)
def test_elements_that_cannot_be_there(data, shape, dtype, more, message):
    with pytest.raises(ValueError, match=message):
        bridge.from_blob(data, shape, dtype, deleter=pytest.fail, **more)


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"shape": 1.5}, TypeError, "not an integer"),
        ({"shape": "ab"}, TypeError, "not an integer"),
        ({"dtype": "float33"}, TypeError, "float33"),
        ({"dtype": (2, 24, 1)}, bridge.ExchangeError, "24"),
        ({"dtype": "cpu:0"}, TypeError, "is a device, not a dtype"),
        ({"strides": 1}, TypeError, "strides 1 are not integers"),
        ({"strides": (1.0, 1)}, TypeError, "not integers"),
        ({"byte_offset": 1.0}, TypeError, "integer"),
        ({"device": "cpu:1"}, bridge.DeviceNotFound, "cpu:1"),
        ({"device": "nowhere"}, ValueError, "no device is called"),
        ({"device": "metal:0"}, bridge.BackendUnavailable, "metal"),
        ({"deleter": 7}, TypeError, "deleter is an int"),
        ({"deleter": lambda: None}, TypeError, "takes no argument"),
        ({"deleter": lambda data, size: None}, TypeError, "needs size, too"),
        ({"deleter": lambda data, *, size: None}, TypeError, "needs size, too"),
        ({"deleter": lambda *, data: None}, TypeError, "takes no argument"),
        ({"deleter": Index(AT).__eq__}, None, ""),
        ({"deleter": Index(AT).free}, TypeError, "needs size, too"),
        ({"deleter": lambda data, size=3, *more, other=4: None}, None, ""),
        ({"deleter": lambda *all: None}, None, ""),
        ({"deleter": threading.Lock().release}, None, ""),
        ({"stream": True}, TypeError, "host memory has no streams"),
        ({"owner": None, "stream": -1, "readonly": 1}, None, ""),
    ],
    ids=name_of,
)
def test_other_arguments(more, kind, message, reported):
    given = {"shape": (2, 2), "dtype": "float32", **more}
    if kind is None:
        bridge.from_blob(AT, **given)
        return
    with pytest.raises(kind, match=message):
        bridge.from_blob(AT, **given)
    assert reported == []


FOREIGN = "__ctype_be__" if sys.byteorder == "little" else "__ctype_le__"
TYPED = {
    "double *": lambda: ctypes.pointer(ctypes.c_double()),
    "double **": lambda: ctypes.pointer(ctypes.pointer(ctypes.c_double())),
    "double[]": ctypes.c_double * 3,
    "double[][]": ctypes.c_double * 3 * 2,
    "int32 *": lambda: ctypes.pointer(ctypes.c_int32()),
    "uint16 *": lambda: ctypes.pointer(ctypes.c_uint16()),
    "uint8 *": lambda: ctypes.pointer(ctypes.c_uint8()),
    "char *": lambda: ctypes.c_char_p(b"12345678"),
    "void *": lambda: ctypes.c_void_p(AT),
    "foreign[]": lambda: (getattr(ctypes.c_uint32, FOREIGN) * 2)(1, 2),
    "objects[]": ctypes.py_object * 2,
    "struct *": lambda: ctypes.pointer(type("_S", (ctypes.Structure,), {"_fields_": []})()),
    "cffi double *": lambda: FFI.new("double *"),
    "cffi double[]": lambda: FFI.new("double[3]"),
    "cffi double[][]": lambda: FFI.new("double[2][3]"),
    "cffi double **": lambda: FFI.new("double **"),
    "cffi int32 *": lambda: FFI.new("int32_t *"),
    "cffi uint16 *": lambda: FFI.new("uint16_t *"),
    "cffi char *": lambda: FFI.new("char *"),
    "cffi void *": lambda: FFI.cast("void *", AT),
    "cffi struct *": lambda: FFI.new("struct {double a;} *"),
    "cffi complex *": lambda: FFI.cast("float _Complex *", AT),
}
FITTING = {
    "foreign": set(),  # in the other byte order
    "objects": set(),
    "double": {"float64", "complex128", "float64x2"},
    "double *": {"int64", "int4"},
    "int32": {"int32", "uint32", "int4"},
    "uint16": {"int16", "float16", "bfloat16", "int4"},
    "complex": {"float32", "complex64"},
}


@pytest.mark.parametrize("kind", TYPED)
def test_a_dtype_that_does_not_fit_the_pointer(kind):
    """A pointer to bytes, to structs or to nothing named is one to anything."""
    pointed = kind.removeprefix("cffi ").removesuffix(" *").removesuffix("[]").removesuffix("[]")
    pointed = pointed.replace("double **", "double *")
    fitting = FITTING.get(pointed)
    names = set.union({"uint8", "float8_e4m3fn", "float32"}, *FITTING.values())
    data = TYPED[kind]()
    for name in names:
        if fitting is None or name in fitting:
            bridge.from_blob(data, 0, name)
            continue
        with pytest.raises(ValueError, match=rf"points to .*, which is not {name}.*c_void_p"):
            bridge.from_blob(data, 0, name)


def test_a_function_of_ctypes_that_would_get_half_an_address():
    free = ctypes.CDLL(None).free
    with pytest.raises(TypeError, match="would pass 32 of the 64 bits"):
        bridge.from_blob(AT | 1 << 40, 1, "uint8", deleter=free)
    free.argtypes = [ctypes.c_void_p]
    blobs._check_deleter(free, AT)


def of_cffi(kind, address=4096):
    return FFI.cast(kind, address)


def of_ctypes(*kinds, address=4096):
    return ctypes.CFUNCTYPE(None, *kinds)(address)


HIGH = AT | 1 << 40


@pytest.mark.parametrize(
    ("deleter", "data", "words"),
    [
        (of_cffi("void(*)(void *)"), AT, r"takes a void \*, .*ffi\.cast\('void \*'"),
        (of_cffi("void(*)(void *)"), ctypes.c_void_p(AT), r"ffi\.cast\('void \*'"),
        (of_cffi("void(*)(void *)", 0), AT, "is NULL"),
        (of_ctypes(ctypes.c_void_p, address=0), AT, "is NULL"),
        (of_cffi("void(*)(void *, int)"), AT, "takes 2 arguments"),
        (of_ctypes(ctypes.c_void_p, ctypes.c_int), AT, "takes 2 arguments"),
        (of_cffi("void(*)(int)"), HIGH, "int, which has 32 of the 64 bits"),
        (of_ctypes(ctypes.c_uint32), HIGH, "c_uint, which has 32 of the 64 bits"),
    ],
    ids=name_of,
)
def test_a_function_of_c_that_cannot_get_the_data(deleter, data, words):
    with pytest.raises(TypeError, match=words):
        bridge.from_blob(data, 1, "uint8", deleter=deleter)


@pytest.mark.parametrize(
    ("deleter", "data"),
    [
        (of_cffi("void(*)(uintptr_t)"), HIGH),
        (of_cffi("void(*)(void *)"), FFI.cast("char *", AT)),
        (of_ctypes(ctypes.c_void_p), HIGH),
        (of_ctypes(ctypes.c_uint64), HIGH),
        (of_ctypes(ctypes.c_uint32), 7),  # a handle
    ],
    ids=["uintptr_t", "cffi", "void *", "uint64", "handle"],
)
def test_a_function_of_c_that_gets_the_data(deleter, data):
    blobs._check_deleter(deleter, data)


# The layout ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "values"),
    [
        ({"shape": 4}, [0, 1, 2, 3]),
        ({"shape": ()}, 0),
        ({"shape": [2, 2]}, [[0, 1], [2, 3]]),
        ({"shape": (2, 3), "strides": (1, 2)}, [[0, 2, 4], [1, 3, 5]]),
        ({"shape": (2, 3), "strides": [0, 1]}, [[0, 1, 2]] * 2),
        ({"shape": 2, "byte_offset": 8}, [2, 3]),
        ({"shape": 3, "byte_offset": 8, "strides": (-1,)}, [2, 1, 0]),
        ({"shape": (1, 2), "strides": (1 << 62, 1)}, [[0, 1]]),
        ({"shape": (0, 2)}, []),
        ({"shape": (0, 1 << 40), "strides": (1 << 62, 1 << 62)}, []),
    ],
    ids=name_of,
)
def test_layouts(more, values):
    tensor = bridge.from_blob(AT, dtype="float32", **more)
    assert tensor.tolist() == values
    assert np.from_dlpack(tensor).tolist() == values


@pytest.mark.parametrize("dtype", ["bool", "int4", "bfloat16", "float32x2", "complex64", "uint1"])
@pytest.mark.parametrize("readonly", [False, True])
def test_dtypes(dtype, readonly):
    tensor = bridge.from_blob(AT, (1, 6), dtype, readonly=readonly)
    assert (tensor.dtype, tensor.shape) == (bridge.dtype(dtype), (1, 6))
    assert tensor.readonly == readonly
    assert tensor.tobytes() == FLOATS.tobytes()[: tensor.nbytes]


def test_nothing_needs_no_address():
    for empty in (0, ctypes.c_void_p(), FFI.NULL):
        tensor = bridge.from_blob(empty, (0, 3), "float32")
        assert (tensor.shape, tensor.data_ptr()) == ((0, 3), 0)


def test_writing_through_it():
    memory = (ctypes.c_int32 * 4)()
    bridge.from_blob(memory, 4, "int32").numpy()[:] = 7
    assert list(memory) == [7] * 4
    readonly = bridge.from_blob(memory, 4, "int32", readonly=True)
    with pytest.raises(ValueError, match="read-only"):
        readonly.numpy()[:] = 8
    with pytest.raises(ValueError, match="WRITEABLE"):
        readonly.numpy().flags.writeable = True
    with pytest.raises(BufferError, match="read-only"):
        readonly.__dlpack__()


# Who keeps the memory -------------------------------------------------------------


class Owner:
    """What can be watched."""


CONSUMERS = {
    "a view": lambda t: t[1:],
    "numpy": np.from_dlpack,
    "asarray": np.asarray,
    "t.numpy()": lambda t: t.numpy(),
    "a capsule": lambda t: t.__dlpack__(max_version=(1, 0)),
    "a legacy capsule": lambda t: t.__dlpack__(),
    "torch": lambda t: peer("torch").from_dlpack(t),
    "tvm_ffi": lambda t: peer("tvm_ffi").from_dlpack(t),
    "jax": lambda t: peer("jax.dlpack").from_dlpack(t),
    "memoryview": lambda t: memoryview(np.asarray(t)),
    "operand": lambda t: t.operand(),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_last_user_ends_it(consumer, dtype):
    calls = []
    owner = Owner()
    memory = (ctypes.c_float * 64)()
    at = (ctypes.addressof(memory) + 63) // 64 * 64  # jax copies what is aligned to less
    watch = weakref.ref(owner)

    def delete(data):
        calls.append((data, watch() is not None, threading.get_ident()))

    tensor = bridge.from_blob(at, 16, dtype, owner=owner, deleter=delete)
    held = CONSUMERS[consumer](tensor)
    del owner, tensor
    gc.collect()
    assert calls == []
    del held
    gc.collect()
    assert calls == [(at, True, threading.get_ident())]  # its owner is there
    assert watch() is None


def test_data_is_kept_and_passed_on():
    """A cffi pointer owns its memory; and a deleter gets what its function wants."""
    memory = FFI.new("float[4]", [1, 2, 3, 4])
    watch = weakref.ref(memory)
    calls = []
    tensor = bridge.from_blob(memory, 4, "float32", deleter=calls.append)
    del memory
    gc.collect()
    assert tensor.tolist() == [1, 2, 3, 4]
    del tensor
    assert calls == [watch()]
    calls.clear()
    assert watch() is None


def test_a_freed_late_by_c():
    """By the function that frees it, of ctypes and of cffi."""
    FFI.cdef("void *malloc(size_t); void free(void *);", override=True)
    lib = FFI.dlopen(None)
    memory = FFI.cast("float *", lib.malloc(16))
    memory[0:4] = [1, 2, 3, 4]
    array = np.from_dlpack(bridge.from_blob(memory, 4, "float32", deleter=lib.free))
    assert array.tolist() == [1, 2, 3, 4]
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    array = np.from_dlpack(bridge.from_blob(libc.malloc(16), 4, "int32", deleter=libc.free))
    array[:] = 7
    assert array.tolist() == [7] * 4


def test_a_mapping():
    memory = mmap.mmap(-1, 4096)
    tensor = bridge.from_blob((ctypes.c_char * 4096).from_buffer(memory), 4096, "uint8")
    tensor.numpy()[:3] = [1, 2, 3]
    assert memory[:4] == b"\1\2\3\0"
    with pytest.raises(BufferError):
        memory.close()
    del tensor
    gc.collect()
    memory.close()


def test_from_blob_that_fails_leaves_the_memory_alone(reported):
    calls = []
    for more in ({"shape": -1}, {"stream": 7}, {"strides": (1, 1)}, {"device": "cpu:7"}):
        with pytest.raises((ValueError, bridge.Error)):
            bridge.from_blob(AT, **{"shape": 3, **more}, dtype="int32", deleter=calls.append)
    gc.collect()
    assert (calls, reported) == ([], [])


class Held(bridge.Exporter, tensor="tensor"):
    """Its attribute is to hold the tensor, so it cannot be the owner."""

    def __init__(self, **keywords):
        self.tensor = bridge.from_blob(AT, 3, "uint8", **keywords)

    def free(self, data):
        raise AssertionError


def test_an_exporter_that_will_hold_the_tensor_is_no_owner():
    x = object.__new__(Held)
    for role, keywords in {"owner": {"owner": x}, "deleter": {"deleter": x.free}}.items():
        with pytest.raises(ValueError, match=rf"{role}.*Held\.tensor is not there.*__as_tensor__"):
            x.__init__(**keywords)
    x.__init__()
    other = bridge.from_blob(AT, 3, "uint8", owner=x)  # x holds another tensor
    watch = weakref.ref(x)
    del x, keywords
    gc.collect()
    assert watch() is not None
    del other
    gc.collect()  # the errors have their frames
    assert watch() is None


def test_a_deleter_that_has_the_tensor_keeps_itself():
    class Block:
        def free(self, data):
            calls.append(data)

    calls = []
    block = Block()
    block.tensor = bridge.from_blob(AT, 3, "uint8", deleter=block.free)
    watch = weakref.ref(block)
    del block
    gc.collect()
    assert calls == []
    del watch().tensor
    gc.collect()
    assert calls == [AT]
    assert watch() is None


def test_an_owner_that_has_the_tensor_keeps_itself():
    """numpy does not show the collector what an array keeps; docs/howto/bring-your-pointer.md."""
    calls = []
    owner = Owner()
    owner.tensor = bridge.from_blob(AT, 3, "uint8", owner=owner, deleter=calls.append)
    watch = weakref.ref(owner)
    del owner
    gc.collect()
    assert calls == []
    del watch().tensor
    assert calls == [AT]
    assert watch() is None


# Exceptions ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyError, SystemExit, GeneratorExit, MemoryError])
def test_what_a_deleter_raises_is_reported(kind, reported):
    def delete(data):
        raise kind("in the deleter")

    array = np.from_dlpack(bridge.from_blob(AT, 3, "uint8", deleter=delete))
    del array
    ((error, place),) = reported
    assert type(error) is kind
    assert place == f"the deleter {delete!r} of dlbridge.from_blob"
    reported.clear()


@pytest.mark.parametrize("consumer", ["numpy", "torch"])
def test_a_pending_exception_of_the_consumer_stays(consumer, reported):
    """The tensor dies while another exception is raised."""
    if consumer == "torch":
        peer("torch")

    def delete(data):
        raise KeyError("of the deleter")

    def use():
        held = CONSUMERS[consumer](bridge.from_blob(AT, 3, "uint8", deleter=delete))
        assert len(held) == 3
        raise LookupError("of the user")

    with pytest.raises(LookupError, match="of the user"):
        use()
    gc.collect()
    assert [str(error) for error, _ in reported] == ["'of the deleter'"]
    reported.clear()


def test_a_deleter_that_uses_the_package():
    """A tensor of the same address, made and dropped within the deleter."""
    calls = []

    def delete(data):
        calls.append(data)
        if len(calls) < 50:
            bridge.from_blob(data, 3, "uint8", deleter=delete).tolist()

    bridge.from_blob(AT, 3, "uint8", deleter=delete)
    assert calls == [AT] * 50


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_signal_at_the_deleter(when, reported):
    """One that has not begun is called again; the exception is raised after it, either way."""
    calls = []

    def delete(_):
        calls.append("called")
        if when == "within":
            signal.raise_signal(signal.SIGTERM)
            calls.append("not here")

    deleter = delete
    if when == "before":
        # Two functions that C calls, one after the other: no instruction comes between.
        arriving = map(getattr(ctypes.CDLL(None), "raise"), chain([signal.SIGTERM], repeat(0)))
        deleter = partial(next, map(delete, arriving))
    tensor = bridge.from_blob(AT, 3, "uint8", deleter=deleter)
    with handled(Alarm), pytest.raises(Alarm):  # noqa: PT012 - CPython 3.12 looks in loops and calls only
        del tensor
        for _ in range(9):
            calls.append("nor here")  # noqa: PERF401 - once at most
    assert calls[0] == "called"
    assert calls.count("called") == 1
    assert "not here" not in calls
    assert calls.count("nor here") <= 1
    assert reported == []


# Devices --------------------------------------------------------------------------


@pytest.fixture
def streams():
    with installed("cuda", Streams()) as plugin:
        yield plugin


def test_the_stream_that_has_written_the_memory(streams):
    """Our own stream waits for it at once, and each consumer for ours."""
    streams.current = 5
    tensor = bridge.from_blob(AT, 12, "float32", device="cuda:0", stream=7)
    assert streams.log == [("wait", 5, 7)]
    streams.log.clear()
    tensor.__dlpack__(stream=9, max_version=(1, 0))
    assert streams.log == [("wait", 9, 5)]
    streams.log.clear()
    bridge.from_blob(AT, 12, "float32", device="cuda:0", stream=5)
    for ready in (None, -1):
        bridge.from_blob(AT, 12, "float32", device="cuda:0", stream=ready)
    bridge.from_blob(0, 0, "float32", device="cuda:0", stream=7)
    assert streams.log == []
    with pytest.raises(ValueError, match="stream 0"):
        bridge.from_blob(AT, 12, "float32", device="cuda:0", stream=0)
    with pytest.raises(bridge.DeviceNotFound, match="cuda:5"):
        bridge.from_blob(AT, 12, "float32", device="cuda:5")


def test_the_deleter_waits_for_our_work(streams):
    calls = []

    def delete(data):
        calls.append((data, streams.log.copy()))

    tensor = bridge.from_blob(AT, 12, "float32", device="cuda:1", deleter=delete)
    del tensor
    assert calls == [(AT, [])]  # no work, and no wait
    tensor = bridge.from_blob(AT, 12, "float32", device="cuda:1", deleter=delete)
    streams.current = 6
    assert tensor.tolist() == list(range(12))
    streams.log.clear()
    del tensor
    assert calls[1] == (AT, [("synchronize", 6)])


def test_a_wait_that_fails_is_reported(streams, reported, monkeypatch):
    calls = []
    tensor = bridge.from_blob(AT, 12, "float32", device="cuda:0", stream=7, deleter=calls.append)

    def synchronize(*_):
        raise bridge.DeviceError("lost")

    monkeypatch.setattr(streams, "synchronize", synchronize)
    del tensor
    assert calls == [AT]
    ((error, place),) = reported
    assert (str(error), place) == (
        "lost",
        "the wait for the work on memory of dlbridge.from_blob",
    )
    reported.clear()


def test_handles():
    fake = peer("dlbridge_fake")
    assert fake
    source = bridge.to_device(FLOATS, "ext_dev:0")
    handle = source.data_ptr()
    tensor = bridge.from_blob(handle, 4, "float32", device="ext_dev:0", byte_offset=16)
    assert (tensor.data_ptr(), tensor.byte_offset) == (handle, 16)
    assert tensor.tolist() == [4, 5, 6, 7]
    calls = []
    tensor = bridge.from_blob(
        handle, 12, "float32", device="ext_dev:0", owner=source, deleter=calls.append
    )
    del source
    assert bridge.to_device(tensor, "cpu").tolist() == FLOATS.tolist()
    del tensor
    assert calls == [handle]
    with pytest.raises(bridge.ExchangeError, match="not memory of dlbridge-fake"):
        bridge.from_blob(0x123450, 4, "float32", device="ext_dev:0")
    other = bridge.to_device(FLOATS, "ext_dev:1")
    with pytest.raises(bridge.ExchangeError, match=r"is on ext_dev:1, .* device='ext_dev:1'"):
        bridge.from_blob(other.data_ptr(), 4, "float32", device="ext_dev:0")
    with pytest.raises(ValueError, match="begin 4 bytes before the memory"):
        bridge.from_blob(other.data_ptr(), 2, "float32", device="ext_dev:1", strides=(-1,))


def test_an_interrupt_of_a_deleters_own_in_a_thread_is_reported(reported):
    """No signal handler runs there, so it is none's."""
    reached = []

    def delete(_data):
        raise KeyboardInterrupt

    def work():
        tensor = bridge.from_blob(AT, 3, "uint8", deleter=delete)
        del tensor
        reached.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert reached
    assert isinstance(reported[0][0], KeyboardInterrupt)


def test_a_deleter_that_cannot_be_entered_is_called_later():
    """Where the last reference goes, Python has no frame left for it.

    CPython 3.11 counts calls of C as well: with no frame at all it cannot even note the end.
    """
    run_script("""
import ctypes, sys
import dlbridge as bridge

memory = (ctypes.c_char * 8)()
called = []

def frames():
    count, frame = 0, sys._getframe()
    while frame:
        count, frame = count + 1, frame.f_back
    return count

def drop_below(depth, held):
    drop_below(depth - 1, held) if depth else held.clear()

def drop(depth, deleter):
    held = [bridge.from_blob(ctypes.addressof(memory), 8, "uint8", deleter=deleter)]
    try:
        drop_below(depth, held)
    except RecursionError:
        pass

for left in range(0 if sys.version_info >= (3, 12) else 3, 40):
    drop(sys.getrecursionlimit() - frames() - left, called.append)
    drop(0, str)
    assert len(called) == 1, (left, called)
    called.clear()
""")


STRIDED = [
    ("C order", (2, 3), (24, 8), r"strides=\(3, 1\)"),
    ("columns", (2, 3), (8, 16), r"strides=\(1, 2\)"),
    ("turned", (2, 3), (24, -8), r"bytes -128 to 200"),
    ("one row", (1, 6), (48, 8), r"strides=\(6, 1\)"),
]


@pytest.mark.parametrize("how", ["an array of ctypes", "an array of cffi", "an owner"])
@pytest.mark.parametrize(("name", "shape", "strides", "said"), STRIDED, ids=[r[0] for r in STRIDED])
def test_strides_in_bytes_are_told_in_elements(how, name, shape, strides, said):
    """Where the end of the memory is known; ``shape`` and ``strides`` are those of numpy."""
    owner = np.arange(6.0)
    data, keep = owner.ctypes.data, {"owner": owner}
    if how == "an array of ctypes":
        data, keep = (ctypes.c_double * 6)(), {}
    elif how == "an array of cffi":
        data, keep = FFI.new("double[6]"), {}
    with pytest.raises(ValueError, match=said):
        bridge.from_blob(data, shape, "float64", strides=strides, **keep)


def test_strides_inside_the_owner_or_beside_it():
    """An owner may keep other memory than its own."""
    owner, other = np.arange(6.0), np.arange(48.0)
    for keep in (owner, other, object()):
        rows = bridge.from_blob(
            owner.ctypes.data + 8, (2, 2), "float64", strides=(3, 1), owner=keep
        )
        assert rows.tolist() == [[1, 2], [4, 5]]
    apart = bridge.from_blob(other.ctypes.data, (2, 3), "float64", strides=(24, 8), owner=owner)
    assert apart[1].tolist() == [24, 32, 40]
    last = other[40:].ctypes.data  # every eighth from there, backwards
    turned = bridge.from_blob(last, (3,), "float64", strides=(-8,), owner=other)
    assert turned.tolist() == [40, 32, 24]
    part = other[8:12]  # it keeps all of them
    view = bridge.from_blob(part.ctypes.data, (2, 2), "float64", strides=(6, 3), owner=part)
    assert view.tolist() == [[8, 11], [14, 17]]


OWNERS = {
    "an array of numpy": lambda: np.arange(6.0),
    "an array of dates, whose buffer has no format": lambda: np.zeros(6, "M8[s]"),
    "a view": lambda: np.arange(6.0)[1:].reshape(1, 5)[:, :2],
    "bytes": lambda: bytes(range(48)),
    "a bytearray": lambda: bytearray(48),
    "a memoryview": lambda: memoryview(bytearray(48))[:16],
    "an array of ctypes": ctypes.c_double * 6,
    "an array of cffi": lambda: FFI.buffer(FFI.new("double[6]")),
}


@pytest.mark.parametrize("name", OWNERS)
@pytest.mark.parametrize("steps", [None, (2,)], ids=name_of)
def test_elements_that_leave_the_memory_of_the_owner(name, steps):
    owner = OWNERS[name]()
    address = int(FFI.cast("uintptr_t", FFI.from_buffer(owner)))
    whole = 5 if name == "a view" else 6  # from its first element to the end of what it is of
    inside = whole if steps is None else (whole + 1) // 2
    keep = {"strides": steps, "owner": owner}
    assert bridge.from_blob(address, inside, "float64", **keep).size == inside
    with pytest.raises(ValueError, match=r"the owner, which has 48; shape and strides count"):
        bridge.from_blob(address, inside + 1, "float64", **keep)


def test_owners_that_keep_memory_that_nothing_shows():
    """No limit is known: a struct at an address, and an array on the memory of a library."""
    memory = FFI.new("double[6]")
    address = int(FFI.cast("uintptr_t", memory))
    lent = (ctypes.c_double * 2).from_address(address)
    for owner in (lent, np.frombuffer(lent), SimpleNamespace(memory=memory), "memory"):
        assert bridge.from_blob(address, 6, "float64", owner=owner).tolist() == [0.0] * 6


def test_a_buffer_of_pyopencl_names_its_handle():
    """And one that has been released is told from an address of the host."""
    if "opencl" not in bridge.backends():
        pytest.skip("opencl is not installed")
    native = bridge.ones(16, device="opencl:0").to_native()
    buffer = getattr(native, "base_data", native)
    with pytest.raises(TypeError, match=r"pass x\.int_ptr, and keep the memory with owner=x$"):
        bridge.from_blob(buffer, 16, "float32", device="opencl:0")
    given = {"device": "opencl:0", "owner": buffer}
    assert bridge.from_blob(buffer.int_ptr, 16, "float32", **given).tolist() == [1.0] * 16
    with pytest.raises(bridge.ExchangeError, match=r"it has been released; .*owner=buffer\)"):
        bridge.from_blob(np.zeros(64).ctypes.data, 16, "float32", device="opencl:0")
