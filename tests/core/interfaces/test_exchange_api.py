"""The DLPack exchange API: our table called from C and by tvm_ffi, others' called by us.

A comment ``# X5`` names the line of docs/conformance.md that the test shows.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import signal
import sys
import weakref

import numpy as np
import pytest

import dlbridge
from dlbridge.abi import (
    FLAG_IS_COPIED,
    FLAG_READ_ONLY,
    FLAG_SUBBYTE_PADDED,
    TABLE_NAMES,
    ForeignTable,
    ffi,
    table_of,
)
from dlbridge.core.interfaces import own_table as table
from tests.support.harness import load
from tests.support.interrupted import Alarm, handled
from tests.support.peers import peer
from tests.support.raw_producer import Producer, address, new_capsule, pointer_in
from tests.support.scripts import run_script
from tests.support.stream_backend import Streams, installed
from tests.support.table_calls import delete_managed, wrapped

FLOATS = np.arange(6, dtype="float32")
TABLE = ffi.cast("DLPackExchangeAPI *", pointer_in(dlbridge.Tensor.__dlpack_c_exchange_api__))
FROM = address(TABLE.managed_tensor_from_py_object_no_sync)
ALLOCATE = address(TABLE.managed_tensor_allocator)
OURS = ForeignTable(TABLE)


def lent():
    """How many structs of ours are in the hands of C."""
    gc.collect()
    return len(table._lent)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = lent()
    yield
    assert lent() == before


class Out:
    """A C variable for a managed tensor."""

    def __init__(self):
        self.variable = ffi.new("DLManagedTensorVersioned **")
        self.address = address(self.variable)

    @property
    def managed(self):
        return self.variable[0]

    def delete(self):
        self.managed.deleter(self.managed)


class Prototype:
    def __init__(self, shape=(2, 3), dtype=(2, 32, 1), device=(1, 0)):
        self.shape = ffi.new("int64_t[]", list(shape)) if shape else ffi.NULL
        self.struct = ffi.new("DLTensor *")
        self.struct.ndim = len(shape)
        self.struct.shape = self.shape
        self.struct.dtype.code, self.struct.dtype.bits, self.struct.dtype.lanes = dtype
        pair = ffi.cast("int32_t *", ffi.addressof(self.struct, "device"))
        pair[0], pair[1] = device
        # Nothing else of a prototype is valid.
        self.struct.data = ffi.cast("void *", 0xBAD)
        self.struct.strides = ffi.cast("int64_t *", 0xBAD)
        self.address = address(self.struct)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"dtype": (99, 32, 1)}, b"BufferError"),
        ({"dtype": (2, 32, 0)}, b"BufferError"),
        ({"device": (99, 0)}, b"RuntimeError"),
        ({"device": (1, 7)}, b"BufferError"),
        ({"device": (1, -1)}, b"ValueError"),
        ({"shape": (1 << 60, 1 << 20)}, None),
        ({"shape": (-1, 3)}, None),
        ({"shape": (1 << 46,)}, b"MemoryError"),
    ],
    ids=str,
)
def test_allocator_that_fails(wrong, kind):  # X4
    library, prototype = load(), Prototype(**wrong)
    for with_set_error in (1, 0):
        out = Out()
        status = library.harness_allocate(ALLOCATE, prototype.address, out.address, with_set_error)
        assert status == -1
        assert library.harness_errors() == with_set_error
        assert out.managed == ffi.NULL
        if with_set_error:
            assert library.harness_message()
            assert library.harness_kind() == kind or kind is None
            assert issubclass(getattr(builtins, library.harness_kind().decode()), Exception)


def signalled_once(function):
    """*function*, and after its first call a signal whose handler raises `Alarm`."""
    left = [True]

    def call(*arguments):
        found = function(*arguments)
        if left and left.pop():
            signal.raise_signal(signal.SIGTERM)
        return found

    return call


@pytest.fixture
def _alarming():
    with handled(Alarm):
        yield


@pytest.mark.usefixtures("_alarming")
@pytest.mark.parametrize("step", ["_prototype", "new_tensor", "_pool_of", "_lend_to"])
def test_allocator_that_a_signal_handler_interrupts(step, monkeypatch):  # X4
    """The handler's exception was reported to C as a failure of the allocator."""
    library, out, prototype, before = load(), Out(), Prototype(), lent()
    monkeypatch.setattr(table, step, signalled_once(getattr(table, step)))
    with pytest.raises(Alarm):
        library.harness_allocate(ALLOCATE, prototype.address, out.address, 1)
    assert library.harness_errors() == 0
    assert out.managed != ffi.NULL
    assert lent() == before + 1  # others may have left some in the hands of C in this process
    out.delete()


@pytest.mark.usefixtures("_alarming")
def test_a_stream_query_that_a_signal_handler_interrupts(monkeypatch):  # X8
    """The handler's exception became a failure without an error."""
    peer("dlbridge_fake")
    monkeypatch.setattr(table, "current_stream", signalled_once(table.current_stream))
    stream, seen = ffi.new("void **"), []
    with pytest.raises(Alarm):
        seen.append(TABLE.current_work_stream(12, 0, stream))
    assert -1 not in seen
    assert TABLE.current_work_stream(12, 0, stream) == 0


def test_the_flags_of_an_export():  # X5
    readonly = FLOATS.copy()
    readonly.setflags(write=False)
    assert OURS.export(dlbridge.from_dlpack(FLOATS)).fields.flags == 0
    assert OURS.export(dlbridge.from_dlpack(readonly)).fields.flags == FLAG_READ_ONLY


def test_structs_are_lent_again_and_not_lost():  # X5
    library = load(keep_gil=True)
    tensor = dlbridge.from_dlpack(FLOATS)
    assert library.harness_repeat_from_py_object(FROM, tensor, 10_000) == 10_000
    assert len(tensor._shared.structs) == 1


def test_deletion_with_an_error_pending():  # X5, P52
    """The consumer's own error is what arrives, and the tensor is gone."""
    library, out = load(keep_gil=True), Out()
    tensor = dlbridge.from_dlpack(FLOATS)
    references = sys.getrefcount(tensor)
    assert (
        library.harness_from_py_object(FROM, tensor, out.address, ctypes.addressof(ctypes.c_int()))
        == 0
    )
    with pytest.raises(ValueError, match="the consumer's own"):
        library.harness_delete_with_error(address(out.managed))
    assert sys.getrefcount(tensor) == references


def test_an_export_shows_the_elements_of_now():  # X5, P41
    """Negative strides are exported as a copy: one made now, not one from before."""
    array = FLOATS.copy()
    tensor = dlbridge.from_dlpack(array[::-1])
    for first in (5.0, 50.0):
        array[5] = first
        managed = OURS.export(tensor)
        assert managed.fields.flags == FLAG_IS_COPIED
        assert managed.fields.strides == (1,)
        assert ffi.cast("float *", managed.fields.data)[0] == first
        del managed


def test_what_is_no_tensor_fails_without_a_crash(capfd):  # X5, X9
    library, out = load(keep_gil=True), Out()
    for thing in (object(), None, 7):
        error = ctypes.c_int()
        with pytest.raises(AttributeError, match=type(thing).__name__):
            library.harness_from_py_object(FROM, thing, out.address, ctypes.addressof(error))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": (2, 0)},
        {"dtype": (99, 1, 1)},
        {"ndim": -1},
        {"shape": (0, 1 << 62, 1 << 62), "strides": None},
    ],
    ids=str,
)
def test_a_failed_import_by_the_table_deletes_nothing(wrong):  # X6
    """The caller does: tvm_ffi calls the deleter itself after -1."""
    raw = Producer(**{"shape": (2, 3), **wrong})
    out = ctypes.c_void_p()
    at = raw.build()
    with pytest.raises(BufferError):
        OURS._to_py_object(at, ctypes.addressof(out))
    gc.collect()
    assert raw.alive == 1
    delete_managed(at)
    assert raw.alive == 0
    with pytest.raises(BufferError):
        wrapped(OURS, raw.build())
    assert raw.alive == 0


def test_borrowed():  # X7
    borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
        address(TABLE.dltensor_from_py_object_no_sync)
    )
    tensor = ffi.new("DLTensor *")
    array = np.arange(4, dtype="float32")
    ours = dlbridge.from_dlpack(array)
    backwards = ours[::-1]
    assert borrow(ours, address(tensor)) == 0
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, 4, 1)
    assert address(tensor.data) == array.ctypes.data
    gc.collect()
    assert tensor.shape[0] == 4  # as long as the tensor
    assert borrow(backwards, address(tensor)) == 0
    assert tensor.strides[0] == -1  # no copy: who borrows may write
    assert address(tensor.data) == array[::-1].ctypes.data
    # and the owned kind of export is still a copy
    managed = OURS.export(backwards)
    assert managed.fields.strides == (1,)
    # A DLTensor cannot say that elements are padded.
    four = dlbridge.asarray([1, 2], dtype="int4")
    with pytest.raises(BufferError, match="padded int4 elements cannot be borrowed"):
        borrow(four, address(tensor))
    assert OURS.export(four).fields.flags & FLAG_SUBBYTE_PADDED
    assert borrow(dlbridge.full(2, 1, "int4"), address(tensor)) == 0


def test_current_work_stream():  # X8, X10
    holding = load(keep_gil=True)
    for library in (load(), holding):
        out = ctypes.c_void_p(7)
        call = library.harness_current_work_stream
        function = address(TABLE.current_work_stream)
        assert call(function, 1, 0, ctypes.addressof(out)) == 0
        assert not out.value
        if library is holding:  # an exception is pending afterwards
            with pytest.raises(dlbridge.BackendUnavailable, match="type99"):
                call(function, 99, 0, ctypes.addressof(out))
            with pytest.raises(ValueError, match="-5"):
                call(function, 1 << 20, -5, ctypes.addressof(out))
        with installed("cuda", Streams()) as plugin:
            plugin.current = 0xABCD
            assert call(function, 2, 1, ctypes.addressof(out)) == 0
            assert out.value == 0xABCD
            if library is holding:
                with pytest.raises(dlbridge.DeviceNotFound, match="cuda:9"):
                    call(function, 2, 9, ctypes.addressof(out))


def test_no_exception_comes_out_of_a_callback():  # X9
    """A backend that fails in the strangest way gives -1."""

    class Broken(Streams):
        def current_stream(self, device_id):
            raise SystemExit("no")

        def allocate(self, *_):
            raise OSError("driver on fire")

    library, out = load(), Out()
    with installed("cuda", Broken()):
        status = library.harness_allocate(
            ALLOCATE, Prototype(device=(2, 0)).address, out.address, 1
        )
        assert status == -1
    with installed("cuda", Streams()) as plugin:
        plugin.allocate = Broken.allocate.__get__(plugin)
        status = library.harness_allocate(
            ALLOCATE, Prototype(device=(2, 0)).address, out.address, 1
        )
        assert status == -1
        assert library.harness_kind() == b"RuntimeError"  # BackendError, for consumers in C
        said = b"backend 'cuda' failed in allocate: OSError: driver on fire; report it to "
        assert library.harness_message().startswith(said)


# tvm_ffi as the consumer of our table


def test_tvm_ffi_takes_our_tensors():  # X2, X5
    tvm_ffi = peer("tvm_ffi")
    echo = tvm_ffi.get_global_func("testing.echo")
    tensor = dlbridge.from_dlpack(FLOATS)
    theirs = tvm_ffi.from_dlpack(tensor)
    assert np.from_dlpack(theirs).ctypes.data == FLOATS.ctypes.data
    ours = echo(tensor)
    assert isinstance(ours, dlbridge.Tensor)  # the type of the first tensor argument
    assert ours.data_ptr() == tensor.data_ptr()
    del ours, theirs


def test_tvm_ffi_takes_device_tensors_and_asks_for_the_stream():  # X8, X15
    tvm_ffi = peer("tvm_ffi")
    peer("dlbridge_fake")
    tensor = dlbridge.to_device(FLOATS, "ext_dev:1")
    seen = []
    tvm_ffi.convert(
        lambda x: seen.append((x.device.dlpack_device_type(), x.device.index, tuple(x.shape)))
    )(tensor)
    assert seen == [(12, 1, (6,))]


def test_a_failing_export_is_an_error_for_tvm_ffi():  # X5, X9
    """Its own: without an exception tvm_ffi 0.1.15 ends the process on CPython 3.13."""
    peer("tvm_ffi")
    out = run_script(
        """
        import numpy, tvm_ffi, dlbridge
        from dlbridge.core.interfaces import own_table

        def fail(*_):
            raise MemoryError("injected")

        own_table._pool_of = fail
        try:
            tvm_ffi.from_dlpack(dlbridge.from_dlpack(numpy.ones(1)))
        except MemoryError as error:
            print(error)
        """
    )
    assert out == "injected\n"


# Consuming other libraries' tables


def test_where_a_table_is_looked_for():  # X11
    class OnlyOnTheInstance:
        def __init__(self):
            self.__dlpack_c_exchange_api__ = dlbridge.Tensor.__dlpack_c_exchange_api__

    pretended = type("PyCapsule", (), {})()
    for wrong in (new_capsule(address(TABLE), b"other_name"), "yes", 0, pretended):
        assert table_of(type("Wrong", (), {TABLE_NAMES[0]: wrong})) is None
    for cls in (object, OnlyOnTheInstance):
        assert table_of(cls) is None
    right = {
        TABLE_NAMES[0]: new_capsule(address(TABLE), b"dlpack_exchange_api"),
        TABLE_NAMES[1]: address(TABLE),
    }
    for name, value in right.items():
        cls = type("Right", (), {name: value})
        assert table_of(cls).address == address(TABLE)
        assert table_of(cls) is table_of(cls)  # looked up once
    gone = weakref.ref(cls)
    del cls
    gc.collect()
    assert gone() is None  # and not kept


def class_of(base=Producer, major=1, previous=ffi.NULL, **functions):
    """A subclass of *base*; its table is ours with other *functions*, of ctypes or None for NULL."""
    struct = ffi.new("DLPackExchangeAPI *", TABLE[0])
    struct.header.version.major = major
    struct.header.prev_api = ffi.cast("DLPackExchangeAPIHeader *", previous)
    for name, function in functions.items():
        at = ctypes.cast(function, ctypes.c_void_p).value or 0
        setattr(struct, name, ffi.cast(ffi.typeof(getattr(struct, name)), at))
    capsule = new_capsule(address(struct), b"dlpack_exchange_api")
    return type("WithTable", (base,), {TABLE_NAMES[0]: capsule, "kept": (struct, functions)})


EXPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


@EXPORT
def exported(x, out):
    ctypes.c_void_p.from_address(out).value = x.build()
    return 0


def test_versions_of_tables():  # X12
    older = class_of(major=2, previous=TABLE)
    assert table_of(class_of(major=3, previous=older.kept[0])).address == address(TABLE)
    assert table_of(class_of(major=2)) is None
    assert table_of(class_of(major=0)) is None
    assert table_of(class_of()) is not None
    assert table_of(class_of(managed_tensor_from_py_object_no_sync=None)) is None


LIES = """
import ctypes
import numpy as np
import dlbridge
from dlbridge.abi import TABLE_NAMES, ffi, table_of
from tests.support.raw_producer import new_capsule, pointer_in

OURS = ffi.cast("DLPackExchangeAPI *", pointer_in(dlbridge.Tensor.__dlpack_c_exchange_api__))
FUNCTIONS = [name for name, _ in ffi.typeof(OURS[0]).fields if name != "header"]
TABLE = ffi.sizeof("DLPackExchangeAPI")
kept = []

def table(version, previous=0, **functions):
    struct = ffi.new("DLPackExchangeAPI *", OURS[0])
    kept.append(struct)
    struct.header.version.major, struct.header.version.minor = version
    struct.header.prev_api = ffi.cast("DLPackExchangeAPIHeader *", previous)
    for name, at in functions.items():
        setattr(struct, name, ffi.cast(ffi.typeof(getattr(struct, name)), at))
    return struct

def address(struct): return int(ffi.cast("uintptr_t", struct))

def leads_to(struct, other):
    struct.header.prev_api = ffi.cast("DLPackExchangeAPIHeader *", other)
    return address(struct)

itself, first, second, same = table((2, 0)), table((3, 0)), table((2, 1)), table((2, 1))
ring, end = leads_to(first, second), leads_to(second, first)
numbers = [True, 1, 8, 4096, 65528, 1 << 63, 1 << 64, -1, -8, (1 << 64) + address(OURS), np.True_,
           address(OURS) + 1, address(OURS) + 4, leads_to(itself, itself), ring, end,
           leads_to(same, second), leads_to(table((9, 9)), first)]
numbers += [address(table((2, 0), wrong)) for wrong in (1, 8, 4096, address(OURS) + 1, 1 << 63)]
for name in FUNCTIONS:
    if name != "managed_tensor_allocator":  # nobody calls it
        numbers += [address(table((1, 3), **{name: wrong})) for wrong in (1, 4095)]
for value in numbers:
    values = [value]
    if type(value) is int and 0 < value < 1 << 64:
        values.append(new_capsule(value, b"dlpack_exchange_api"))
    for told in values:
        for name in TABLE_NAMES:
            cls = type("Lies", (), {name: told})
            assert table_of(cls) is None, value
            try:
                dlbridge.from_dlpack(cls())
            except TypeError as exc:
                assert "has no __dlpack__" in str(exc)
chain = table((2, 0), OURS)
for minor in range(1, 200):
    chain = table((2, minor), chain)
assert table_of(type("Right", (), {TABLE_NAMES[0]: address(chain)})).address == address(OURS)
"""


def test_tables_that_lie():  # X12
    """Rings of tables hung with the GIL held, and numbers that are no addresses crashed."""
    run_script(LIES, imported=("numpy", "tests.support.whole_core"), timeout=60)


def test_a_table_that_fails_without_an_error():  # X14
    fails = class_of(managed_tensor_from_py_object_no_sync=EXPORT(lambda _x, _out: -1))
    raw = fails((6,), content=FLOATS.tobytes())
    tensor = dlbridge.from_dlpack(raw)  # asked by __dlpack__ instead
    assert raw.calls == [{"max_version": (1, 3)}]
    assert tensor.tolist() == FLOATS.tolist()
    with pytest.raises(BufferError, match="without an error"):
        table_of(fails).export(raw)


def test_after_an_error_of_a_table_the_method_is_asked(monkeypatch):  # X14
    """As with paddle's table and torch's; ours raises, as the object is no Tensor."""

    def refuse(_x, **_keywords):
        raise BufferError("requires gradients: use detach()")

    fails = class_of()
    raw = fails((6,), content=FLOATS.tobytes())
    assert dlbridge.from_dlpack(raw).tolist() == FLOATS.tolist()
    monkeypatch.setattr(fails, "__dlpack__", refuse)
    with pytest.raises(BufferError, match="use detach") as told:
        dlbridge.from_dlpack(raw)
    assert type(told.value.__context__) is AttributeError


def test_torchs_table():  # X13, X17
    torch = peer("torch")
    theirs = table_of(torch.Tensor)
    tensor = torch.arange(6.0).reshape(2, 3)
    managed = theirs.export(tensor)
    assert managed.fields.data == tensor.data_ptr()
    assert managed.fields.shape == (2, 3)
    del managed
    references = sys.getrefcount(tensor)
    for _ in range(100):
        theirs.export(tensor)
    assert sys.getrefcount(tensor) == references
    assert theirs.current_work_stream(dlbridge.device("cpu")) == 0
    raw = Producer((6,), content=FLOATS.tobytes())
    back = wrapped(theirs, raw.build())
    assert isinstance(back, torch.Tensor)
    new = torch.arange(1)
    assert sys.getrefcount(back) == sys.getrefcount(new)  # a reference of its own, and no other
    assert back.tolist() == FLOATS.tolist()
    del back
    assert raw.alive == 0
    bfloat = dlbridge.from_dlpack(torch.arange(4).to(torch.bfloat16))  # comes by the table
    assert str(bfloat.dtype) == "bfloat16"


def test_a_foreign_tables_stream_is_waited_for():  # X15
    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
    def current_work_stream(_type, _index, out):
        ctypes.c_void_p.from_address(out).value = 0x5151
        return 0

    cls = class_of(
        managed_tensor_from_py_object_no_sync=exported, current_work_stream=current_work_stream
    )
    raw = cls((4,), device=(2, 0))
    with installed("cuda", Streams()) as plugin:
        dlbridge.from_dlpack(raw)
        dlbridge.from_dlpack(raw, stream=0x77)
        dlbridge.from_dlpack(raw, stream=-1)
        dlbridge.from_dlpack(raw, stream=0x5151)
        assert plugin.log == [("wait", 0, 0x5151), ("wait", 0x77, 0x5151)]
    gc.collect()
    assert raw.alive == 0


@pytest.mark.parametrize(
    "wrong", [{"version": (2, 0)}, {"dtype": (99, 1, 1)}, {"ndim": -1}], ids=str
)
def test_what_comes_out_of_a_table_is_checked(wrong):  # X17
    raw = class_of(managed_tensor_from_py_object_no_sync=exported)(**{"shape": (2, 3), **wrong})
    with pytest.raises(BufferError):
        dlbridge.from_dlpack(raw)
    gc.collect()
    assert raw.alive == 0
