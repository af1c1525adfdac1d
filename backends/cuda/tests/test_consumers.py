"""Tensors that die while a consumer's kernel runs on a stream that was known at the export.

By each way out but ``__dlpack__(stream=)``, which `suite.streams` has. The simulated driver
crashes if memory is freed before the work on it is done.
"""

import ctypes
import gc
from contextlib import nullcontext

import numpy as np
import pytest

import dlbridge
from backends.cuda.tests.cuda_support import gate, memory, read, slow, stream
from dlbridge import ffi
from dlbridge.abi import DLPACK_VERSION, TABLE_NAMES, begin_call, end_blocks, ffi as c, table_of
from dlbridge.core.dlpack import foreign_tables
from dlbridge.core.plugins.streams import begin_block
from dlbridge.ffi import lending, streams, tensors
from dlbridge.protocol import Span
from tests.drivers.suite.rig import capture
from tests.support.interrupted import at_each_step
from tests.support.raw_producer import Producer

N = 1 << 16
NEW, OLD = b"n" * N, b"o" * N
CUDA = dlbridge.device("cuda:0")
TABLE = table_of(dlbridge.Tensor)


def on_device(content):
    return dlbridge.to_device(np.frombuffer(content, "u1"), CUDA, copy=True)


def kernel(cuda, on, data, copy, seconds=0.1):
    """A consumer's slow kernel on its own stream, which reads *data* in the end."""
    slow(on, seconds)
    cuda.copy(Span(0, copy, 0, N), Span(0, data, 0, N), on)


# Each way takes a tensor, and starts the consumer's kernel on the stream that it learns of.


def by_table(cuda, tensor, copy):
    managed = TABLE.export(tensor)
    on = TABLE.current_work_stream(CUDA)
    kernel(cuda, on, managed.fields.data, copy)
    return on


def by_borrowed_view(cuda, tensor, copy):
    view = ctypes.create_string_buffer(64)
    start = ctypes.c_void_p(ctypes.addressof(view))
    assert TABLE.fill_view(ctypes.py_object(tensor), start) == 0
    on = TABLE.current_work_stream(CUDA)
    kernel(cuda, on, ctypes.c_void_p.from_buffer(view).value, copy)
    return on


def by_array_interface(cuda, tensor, copy):
    interface = tensor.__cuda_array_interface__
    kernel(cuda, interface["stream"], interface["data"][0], copy)
    return interface["stream"]


def by_native_object(cuda, tensor, copy):
    pytest.importorskip("cuda.core")
    view = tensor.to_native()
    on = dlbridge.current_stream(CUDA)
    kernel(cuda, on, int(view.ptr), copy)
    return on


def by_operand(cuda, tensor, copy):
    operand = tensor.operand()
    on = operand.access()
    kernel(cuda, on, operand.data + operand.byte_offset, copy)
    return on


def by_call(cuda, tensor, copy):
    seen = []

    def launch(argument):
        seen.append(ffi.get_raw_stream("cuda:0"))
        kernel(cuda, seen[0], argument.data_ptr(), copy)

    ffi.convert_func(launch)(tensor)
    return seen[0]


def by_bound_call(cuda, tensor, copy):
    seen = []

    def launch(argument):
        seen.append(ffi.get_raw_stream("cuda:0"))
        kernel(cuda, seen[0], argument.data_ptr(), copy)

    ffi.convert_func(launch).bind(tensor)()
    return seen[0]


WAYS = [
    by_table,
    by_borrowed_view,
    by_array_interface,
    by_native_object,
    by_operand,
    by_call,
    by_bound_call,
]


@pytest.mark.parametrize("inside", [True, False], ids=["in the block", "after it"])
@pytest.mark.parametrize("way", WAYS)
def test_the_memory_lives_as_long_as_the_kernel(fake, cuda, way, inside):
    with stream() as theirs, memory(cuda, N) as copy:
        tensor = on_device(NEW)
        dlbridge.synchronize(CUDA)
        with dlbridge.use_stream(CUDA, theirs):
            assert way(cuda, tensor, copy) == theirs
            if inside:
                del tensor
                gc.collect()
        tensor = None
        gc.collect()
        cuda.synchronize(0, 1)
        assert read(cuda, copy, N, theirs) == NEW


@pytest.mark.parametrize("way", WAYS)
def test_the_kernel_comes_after_our_work(fake, cuda, way):
    """The stream that a consumer learns of waits for what was queued on another one."""
    with stream() as ours, stream() as theirs, memory(cuda, N) as copy:
        with dlbridge.use_stream(CUDA, ours):
            tensor = on_device(OLD)
            with gate(ours) as closed:
                slow(ours)
                cuda.fill(Span(0, tensor.data_ptr(), 0, N), NEW[0], ours)
                with dlbridge.use_stream(CUDA, theirs):
                    way(cuda, tensor, copy)
                closed.open_soon()
                assert read(cuda, copy, N, theirs) == NEW
        del tensor
        gc.collect()


@pytest.mark.parametrize("way", WAYS)
def test_our_work_after_the_block_comes_after_the_kernel(fake, cuda, way, monkeypatch):
    """A consumer that was told to launch on the stream of the block has written to the memory."""

    def write_slowly(cuda, on, data, _copy):
        slow(on)
        cuda.fill(Span(0, data, 0, N), NEW[0], on)

    monkeypatch.setitem(globals(), "kernel", write_slowly)
    with stream() as theirs:
        tensor = on_device(OLD)
        dlbridge.synchronize(CUDA)
        with dlbridge.use_stream(CUDA, theirs):
            way(cuda, tensor, 0)
        assert dlbridge.to_device(tensor, "cpu").tobytes() == NEW


# Another library's stream ---------------------------------------------------------


class Theirs:
    """Another library's tensor, which is on a stream of that library."""

    def __init__(self, tensor, stream):
        self._tensor, self._stream = tensor, stream

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **keywords):
        keywords.pop("stream", None)
        return self._tensor.__dlpack__(stream=-1, **keywords)

    def __tvm_ffi_env_stream__(self):
        return self._stream


def test_a_call_on_another_librarys_stream(fake, cuda):
    """The callee works on the stream of the first argument; ours is the second."""
    with stream() as theirs, memory(cuda, N) as copy:
        other, tensor = on_device(OLD), on_device(NEW)

        def launch(_other, argument):
            assert ffi.get_raw_stream("cuda:0") == theirs
            kernel(cuda, theirs, argument.data_ptr(), copy)

        ffi.convert_func(launch)(Theirs(other, theirs), tensor)
        del tensor
        gc.collect()
        cuda.synchronize(0, 1)
        assert read(cuda, copy, N, theirs) == NEW


def library_with_stream(number):
    """A class of another library, whose exchange table says that it works on stream *number*."""
    taken = []

    class Array:
        pass

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def to_py_object(address, out):
        made = Array()
        made.managed = c.cast("DLManagedTensorVersioned *", address)
        made.data = int(c.cast("uintptr_t", made.managed.dl_tensor.data))
        taken.append(made)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        ctypes.c_void_p.from_address(out).value = id(made)
        return 0

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
    def from_py_object(_x, _out):
        return -1

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
    def current_work_stream(_type, _index, out):
        ctypes.c_void_p.from_address(out).value = number
        return 0

    struct = c.new("DLPackExchangeAPI *")
    struct.header.version.major, struct.header.version.minor = DLPACK_VERSION
    functions = {
        "managed_tensor_to_py_object_no_sync": to_py_object,
        "managed_tensor_from_py_object_no_sync": from_py_object,
        "current_work_stream": current_work_stream,
    }
    for name, function in functions.items():
        kind = c.typeof(getattr(struct, name))
        setattr(struct, name, c.cast(kind, ctypes.cast(function, ctypes.c_void_p).value))
    setattr(Array, TABLE_NAMES[-1], int(c.cast("uintptr_t", struct)))
    Array.keep = (struct, functions, taken)
    return Array


def torch_with_stream(number, asked, monkeypatch):
    """A class that passes for torch's: it has a table, and notes what it is asked for."""
    torch = pytest.importorskip("torch")
    Array = library_with_stream(number)  # noqa: N806  # a class

    class Tensor:
        dtype, is_cpu = torch.float32, False

        def __init__(self, tensor):
            self.tensor = tensor

        def numpy(self):
            asked.append("numpy")
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        view = is_neg = data_ptr = numpy

        def __dlpack_device__(self):
            asked.append("device")
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, **keywords):
            asked.append("method")
            return self.tensor.__dlpack__(**keywords)

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
    def from_py_object(x, out):
        asked.append("table")
        return TABLE._from_py_object(x.tensor, out)  # private: a table of another library's

    struct = Array.keep[0]
    function = ctypes.cast(from_py_object, ctypes.c_void_p).value
    kind = c.typeof(struct.managed_tensor_from_py_object_no_sync)
    struct.managed_tensor_from_py_object_no_sync = c.cast(kind, function)
    setattr(Tensor, TABLE_NAMES[-1], int(c.cast("uintptr_t", struct)))
    Tensor.keep, Tensor.__module__ = (Array, from_py_object), "torch"
    Tensor.__qualname__ = "_OfThisTest"  # where short ways look whether it is torch's own
    monkeypatch.setattr(torch, "_OfThisTest", Tensor, raising=False)
    return Tensor


@pytest.mark.parametrize(
    "take",
    [dlbridge.from_dlpack, dlbridge.asarray, lambda x: dlbridge.to_device(x, "cuda:0")],
    ids=["from_dlpack", "asarray", "to_device"],
)
def test_a_tensor_of_torch_is_taken_by_its_table_at_once(fake, cuda, take, monkeypatch):
    """A conversion to numpy would fail first, which takes longer than all the rest."""
    with stream() as theirs, memory(cuda, N) as copy:
        asked = []
        Tensor = torch_with_stream(theirs, asked, monkeypatch)  # noqa: N806  # a class
        inner = dlbridge.to_device(np.frombuffer(OLD, "f4"), CUDA, copy=True)
        with gate(theirs) as closed:
            cuda.fill(Span(0, inner.data_ptr(), 0, N), NEW[0], theirs)
            tensor = take(Tensor(inner))
            assert asked == ["table"]
            cuda.copy(Span(0, copy, 0, N), Span(0, tensor.data_ptr(), 0, N), 1)
            closed.open_soon()
            assert read(cuda, copy, N) == NEW  # our stream has waited for its own
        del tensor, inner
        gc.collect()


def written_later(tensor):
    """A callee's kernel on the stream that it is told: slow, and it writes NEW in the end."""
    on = ffi.get_raw_stream("cuda:0")
    slow(on)
    dlbridge.backend("cuda").fill(Span(0, tensor.data_ptr(), 0, N), NEW[0], on)
    return on


@pytest.mark.parametrize("given", ["argument", "result"])
def test_our_work_comes_after_a_call_on_another_librarys_stream(fake, given):
    """What the callee has written there is ours to read, without a word of the user's."""
    with stream() as theirs:
        other, tensor = on_device(OLD), on_device(OLD)
        if given == "argument":

            def write_argument(_other, argument):
                assert written_later(argument) == theirs

            ffi.convert_func(write_argument)(Theirs(other, theirs), tensor)
        else:

            def write_result(_other):
                assert written_later(tensor) == theirs
                return tensor

            result = ffi.convert_func(write_result)(Theirs(other, theirs))
            assert result.data_ptr() == tensor.data_ptr()
        assert dlbridge.to_device(tensor, "cpu").tobytes() == NEW


@pytest.mark.parametrize("given", ["argument", "result"])
def test_a_call_on_a_chosen_stream_is_before_what_comes_after(fake, cuda, given, monkeypatch):
    """The argument's library goes on behind it on its own stream, and we behind the block."""
    with stream() as chosen, stream() as theirs, memory(cuda, N) as copy:
        Tensor = torch_with_stream(theirs, [], monkeypatch)  # noqa: N806  # a class
        inner, made = on_device(OLD), on_device(OLD)
        dlbridge.synchronize(CUDA)

        def write(argument):
            written = argument if given == "argument" else made
            assert written_later(written) == chosen
            return None if given == "argument" else made

        with dlbridge.use_stream(CUDA, chosen):
            ffi.convert_func(write)(Tensor(inner))
            if given == "argument":
                cuda.copy(Span(0, copy, 0, N), Span(0, inner.data_ptr(), 0, N), theirs)
        if given == "argument":
            assert read(cuda, copy, N, theirs) == NEW
        else:
            assert dlbridge.to_device(made, "cpu").tobytes() == NEW


def test_a_callback_reads_what_another_library_has_queued(fake, cuda, monkeypatch):
    """Its arguments are ready on the stream of the call; our work in the callback is behind that."""
    with stream() as theirs:
        Tensor = torch_with_stream(theirs, [], monkeypatch)  # noqa: N806  # a class
        inner = on_device(OLD)
        dlbridge.synchronize(CUDA)
        slow(theirs)
        cuda.fill(Span(0, inner.data_ptr(), 0, N), NEW[0], theirs)
        seen = ffi.convert_func(lambda x: dlbridge.to_device(x, "cpu").tobytes())(Tensor(inner))
        assert bytes(seen) == NEW


def test_a_call_in_a_callback_goes_to_the_stream_of_its_own_argument(fake, cuda, monkeypatch):
    """The outer call has chosen a stream for dlbridge's work, and the user has chosen none."""
    with stream() as first, stream() as second:
        Outer = torch_with_stream(first, [], monkeypatch)  # noqa: N806  # a class
        Inner = torch_with_stream(second, [], monkeypatch)  # noqa: N806  # a class
        x = on_device(OLD)
        seen = []

        def look(*_arguments):
            seen.append((ffi.get_raw_stream("cuda:0"), dlbridge.current_stream("cuda:0")))

        inner = ffi.convert_func(look)

        def outer(_x):
            inner(Inner(x))
            look()
            with dlbridge.use_stream(CUDA, 1):  # now the user has
                inner(Inner(x))
            look()

        ffi.convert_func(outer)(Outer(x))
        look()
        both = (second, second), (first, first), (1, 1), (first, first), (0, 1)
        assert seen == [*both]


def test_an_interruption_of_a_call_leaves_no_block(fake, cuda):
    """Also while its exception is treated, or kept: our work must not go to another's stream."""
    steps = streams._on_streams, streams._put_back, begin_call, begin_block, end_blocks
    with stream() as first, stream() as second:
        arguments = Theirs(on_device(OLD), first), Theirs(on_device(OLD), second), on_device(OLD)
        call = ffi.convert_func(lambda *each: each[0])

        def chosen():
            return dlbridge.current_stream(CUDA), ffi.get_raw_stream("cuda:0")

        left = at_each_step(steps, lambda: call(*arguments), chosen)
        assert len(left) > 30
        assert left == [(1, 0)] * len(left)


@pytest.mark.parametrize("number", [-1, -5])
def test_a_call_on_what_is_no_stream(fake, cuda, number):
    call = ffi.convert_func(lambda _x: 1)
    with pytest.raises(ValueError, match=rf"stream[ =]{number} "):
        call(Theirs(on_device(OLD), number))
    assert (dlbridge.current_stream(CUDA), ffi.get_raw_stream("cuda:0")) == (1, 0)


class OnMetal(Producer):
    """A tensor on a device without a backend, whose library names its stream."""

    def __tvm_ffi_env_stream__(self):
        return 5


def test_a_call_with_tensors_of_two_devices_of_which_one_has_no_backend(fake, cuda):
    """What it returns is returned."""
    with stream() as theirs:
        x, elsewhere = Theirs(on_device(OLD), theirs), OnMetal((2,), device=(8, 0))
        devices = "cuda:0", dlbridge.Device.of(8, 0)
        see = ffi.convert_func(lambda *_each: list(map(ffi.get_raw_stream, devices)))
        assert list(see(x, elsewhere)) == list(see(elsewhere, x)) == [theirs, 5]


@pytest.mark.parametrize("chosen", [False, True], ids=["no block", "in a block"])
def test_our_work_comes_after_a_call_that_returns_an_object(fake, cuda, chosen, monkeypatch):
    """Though the call had no tensor of ours; the user's block of that stream has ended."""
    with stream() as theirs:
        Tensor = torch_with_stream(theirs, [], monkeypatch)  # noqa: N806  # a class

        @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
        def from_py_object(x, out):  # memory of which we know nothing
            ctypes.c_void_p.from_address(out).value = x.tensor.build()
            return 0

        table = Tensor.keep[0].keep[0]
        kind = c.typeof(table.managed_tensor_from_py_object_no_sync)
        function = ctypes.cast(from_py_object, ctypes.c_void_p).value
        table.managed_tensor_from_py_object_no_sync = c.cast(kind, function)
        made = on_device(OLD)
        boxed = ffi.Array([dlbridge.from_dlpack(Theirs(made, theirs))])
        dlbridge.synchronize(CUDA)

        def write(_other):
            assert written_later(made) == theirs
            return boxed

        with dlbridge.use_stream(CUDA, theirs) if chosen else nullcontext():
            result = ffi.convert_func(write)(Tensor(Producer((2,), device=(2, 0))))
        assert dlbridge.to_device(result[0], "cpu").tobytes() == NEW


class OnlyInterface:
    """Another library's array that has nothing but the CUDA Array Interface."""

    def __init__(self, tensor, stream):
        self._tensor = tensor
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (N,),
            "typestr": "|u1",
            "stream": stream,
            "version": 3,
        }


def taken_by_method(tensor, stream, _monkeypatch):
    return dlbridge.from_dlpack(Theirs(tensor, stream))


def taken_by_interface(tensor, stream, _monkeypatch):
    return dlbridge.asarray(OnlyInterface(tensor, stream))


def taken_by_table(tensor, stream, monkeypatch):
    return dlbridge.from_dlpack(torch_with_stream(stream, [], monkeypatch)(tensor))


def taken_as_blob(tensor, stream, _monkeypatch):
    data = tensor.data_ptr()
    return dlbridge.from_blob(data, (N,), "uint8", device=CUDA, owner=tensor, stream=stream)


@pytest.mark.parametrize(
    "take", [taken_by_method, taken_by_interface, taken_by_table, taken_as_blob]
)
def test_what_is_taken_in_a_block_is_ordered_after_it(fake, cuda, take, monkeypatch):
    """S6 S17: the block has no work of ours, and its stream has that of the other library."""
    with stream() as own, stream() as theirs, memory(cuda, N) as copy:
        inner = on_device(OLD)
        dlbridge.synchronize(CUDA)
        with gate(own) as closed:
            cuda.fill(Span(0, inner.data_ptr(), 0, N), NEW[0], own)
            with dlbridge.use_stream(CUDA, own):
                tensor = take(inner, own, monkeypatch)
            capsule = tensor.__dlpack__(stream=theirs)
            cuda.copy(Span(0, copy, 0, N), Span(0, tensor.data_ptr(), 0, N), theirs)
            closed.open_soon()
            assert read(cuda, copy, N, theirs) == NEW
        del capsule, tensor, inner
        gc.collect()


@pytest.mark.parametrize("known", [True, False], ids=["a tensor of ours", "nothing of ours"])
@pytest.mark.parametrize("inner_is_default", [False, True])
def test_blocks_inside_blocks(fake, cuda, known, inner_is_default):
    """S6: what was done in the inner one is done in the outer one; its stream ends after it."""
    with stream() as theirs:
        x = on_device(OLD)
        dlbridge.synchronize(CUDA)
        with stream() as outer, stream() as other:
            inner = 1 if inner_is_default else other
            with dlbridge.use_stream(CUDA, theirs):
                with dlbridge.use_stream(CUDA, outer), dlbridge.use_stream(CUDA, inner):
                    if known:
                        x.operand().access()
                    else:
                        dlbridge.from_dlpack(Theirs(x, inner))
                    slow(inner)
                    cuda.fill(Span(0, x.data_ptr(), 0, N), NEW[0], inner)
                view = dlbridge.from_dlpack(Theirs(x, theirs))
                assert dlbridge.to_device(view, "cpu").tobytes() == NEW
                del view
        # The two streams are gone.
        assert dlbridge.to_device(x, "cpu").tobytes() == NEW
    del x
    gc.collect()


def test_a_result_for_another_library(fake, cuda):
    """Wrapped by its exchange table: it works on its own stream, which the table tells."""
    with stream() as theirs, memory(cuda, N) as copy:
        Array = library_with_stream(theirs)  # noqa: N806  # a class
        make = ffi.convert_func(lambda: on_device(OLD)).like(Array)
        slow(1)
        array = make()
        data = array.data
        cuda.copy(
            Span(0, copy, 0, N), Span(0, data, 0, N), theirs
        )  # reads what was written on ours
        assert read(cuda, copy, N, theirs) == OLD
        kernel(cuda, theirs, data, copy)
        array.managed.deleter(array.managed)
        Array.keep[2].clear()
        del array
        gc.collect()
        cuda.synchronize(0, 1)
        assert read(cuda, copy, N, theirs) == OLD


def test_a_consumer_that_cannot_be_ordered(fake, cuda, caplog):
    """A graph cannot wait for work outside it, and a table's function cannot raise: it is logged."""
    with stream() as ours, stream() as captured:
        with dlbridge.use_stream(CUDA, ours):
            tensor = on_device(NEW)
        dlbridge.synchronize(CUDA)
        with gate(1), capture(captured), dlbridge.use_stream(CUDA, captured):
            managed = TABLE.export(tensor)
            assert managed.fields.data == tensor.data_ptr()
            del managed
        assert "a consumer of cuda:0 memory is not ordered" in caplog.text
        dlbridge.synchronize(CUDA)
        del tensor
        gc.collect()


@pytest.mark.parametrize("chosen", [False, True], ids=["torch's", "ours"])
def test_a_call_lends_tensors_of_torch_on_the_device(fake, cuda, chosen, monkeypatch):
    """Nothing is exported: the callee gets torch's own DLTensor, and torch's stream, once."""
    torch = pytest.importorskip("torch")
    with stream() as theirs, stream() as ours, memory(cuda, N) as copy:
        inner, asked = dlbridge.to_device(np.frombuffer(OLD, "f4"), CUDA, copy=True), []
        Tensor = torch_with_stream(theirs, asked, monkeypatch)  # noqa: N806  # a class

        class Lent(torch.Tensor):
            """A tensor that says by its table that it is on the device."""

        @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
        def dltensor_from_py_object(_x, out):
            asked.append("view")
            return TABLE.fill_view(ctypes.py_object(inner), ctypes.c_void_p(out))

        table = Tensor.keep[0].keep[0]
        kind = c.typeof(table.dltensor_from_py_object_no_sync)
        function = ctypes.cast(dltensor_from_py_object, ctypes.c_void_p).value
        table.dltensor_from_py_object_no_sync = c.cast(kind, function)
        for name in TABLE_NAMES:  # torch has one of them
            setattr(Lent, name, int(c.cast("uintptr_t", table)))
        monkeypatch.setitem(foreign_tables._tables, torch.Tensor, table_of(Lent))
        monkeypatch.setattr(lending, "_torchs_work", {})
        tensors.tensor_rule(Lent)  # as the first call of a class does
        on = ours if chosen else theirs

        def launch(x, y):
            assert ffi.get_raw_stream("cuda:0") == on
            assert x.data_ptr() == y.data_ptr() == inner.data_ptr()
            kernel(cuda, on, x.data_ptr(), copy)

        call, x = ffi.convert_func(launch), torch.zeros(4).as_subclass(Lent)
        with gate(theirs) as closed:
            cuda.fill(Span(0, inner.data_ptr(), 0, N), NEW[0], theirs)
            with dlbridge.use_stream(CUDA, ours) if chosen else nullcontext():
                call(x, x)
            closed.open_soon()
            assert asked == ["view", "view"]
            assert read(cuda, copy, N, on) == NEW  # our stream has waited for torch's
        assert ffi.get_raw_stream("cuda:0") == 0
        inner = None
        gc.collect()
