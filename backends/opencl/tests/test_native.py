"""pyopencl's objects in and out, and what other libraries export as kDLOpenCL."""

from __future__ import annotations

import ctypes

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray, Span
from dlbridge.testing import side
from tests.support.scripts import run_script


def contents(opencl, array, nbytes):
    into = bytearray(nbytes)
    opencl.copy_to_host(
        Span(array.device_id, array.data, array.offset, len(into)), memoryview(into), 0
    )
    opencl.synchronize(array.device_id, 0)
    return into


@pytest.mark.parametrize("name", ["float4", "int2", "uchar16", "double8", "ulong4"])
def test_vector_types_are_lanes(queue, name):
    """dlpack.h names float4 as an example of lanes."""
    vector = getattr(cl.cltypes, name)
    (scalar, lanes) = next(key for key, each in cl.cltypes.vec_types.items() if each is vector)
    scalar = np.dtype(scalar)
    numbers = np.arange(3 * lanes, dtype=scalar).reshape(3, lanes)
    array = cl.array.to_device(queue, numbers.view(vector).reshape(3))
    t = bridge.asarray(array)
    assert (t.dtype, t.shape) == (f"{scalar}x{lanes}", (3,))
    back = bridge.to_device(t, t.device, like="opencl")
    assert back.dtype == vector
    assert back.base_data.int_ptr == array.base_data.int_ptr
    for each in (t.to_native(), back, bridge.asarray(array[1:]).to_native()):
        assert each.get().tobytes() == numbers[3 - len(each) :].tobytes()
    assert bridge.to_device(t.view(str(scalar)), "cpu", like="numpy").tobytes() == numbers.tobytes()


def test_structures_and_padded_vectors_are_refused(opencl, queue):
    for dtype in (cl.cltypes.float3, np.dtype([("a", "f4"), ("b", "i4")])):
        with pytest.raises(ExchangeError, match="view"):
            opencl.from_native(cl.array.empty(queue, 4, dtype))


def test_images_are_refused(opencl, context):
    if not context.devices[0].image_support:
        pytest.skip("the device has no images")
    pixels = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNORM_INT8)
    image = cl.create_image(context, cl.mem_flags.READ_WRITE, pixels, shape=(4, 4))
    with pytest.raises(ExchangeError, match="not linear memory"):
        opencl.from_native(image)


@pytest.mark.parametrize("stranger", ["queue", "context", "event", "module", "class"])
def test_other_objects_of_pyopencl_are_strangers(opencl, queue, stranger):
    event = cl.enqueue_marker(queue)
    objects = {"context": queue.context, "event": event, "module": cl, "class": cl.Buffer}
    assert opencl.from_native(objects.get(stranger, queue)) is None


def test_buffers_are_bytes(opencl, context):
    host = np.arange(256, dtype="u1")
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    array = opencl.from_native(cl.Buffer(context, flags, hostbuf=host))
    assert (array.dtype, array.shape, array.offset) == ("uint8", (256,), 0)
    assert array.readonly
    assert contents(opencl, array, 256) == host.tobytes()


def test_sub_buffers(opencl, context):
    host = np.arange(1024, dtype="u2").view("u1")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    part = cl.Buffer(context, flags, hostbuf=host).get_sub_region(256, 512)
    array = opencl.from_native(part)
    assert array.shape == (512,)
    assert contents(opencl, array, 512) == host[256:768].tobytes()


@pytest.mark.parametrize("kind", ["buffer", "array"])
def test_a_buffer_that_its_owner_releases(queue, kind):
    """pyopencl's way to free memory early: the tensor has a reference of its own."""
    from dlbridge_opencl import devices

    if not devices.device(0).thread_safe:
        pytest.skip("no finalizer calls this driver, so that no reference could be given back")
    host = np.full(64, 5, "i4")
    array = cl.array.to_device(queue, host)
    tensor = bridge.asarray(array if kind == "array" else array.data)
    array.data.release()
    others = [cl.array.to_device(queue, np.full(64, 9, "i4")) for _ in range(3)]
    assert bridge.to_device(tensor, "cpu").tobytes() == host.tobytes()
    bridge.copy_(tensor, np.zeros(tensor.shape, str(tensor.dtype)))
    assert all((other.get() == 9).all() for other in others)


def test_pooled_buffers(opencl, queue):
    pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(queue))
    host = np.arange(100, dtype="f4")
    array = opencl.from_native(cl.array.to_device(queue, host, allocator=pool))
    assert contents(opencl, array, 400) == host.tobytes()


@pytest.fixture
def fine_grain(opencl):
    """Skips unless device 0 has fine-grain SVM."""
    if "fine-grain buffer" not in opencl.device_info(0)["svm"]:
        pytest.skip(f"SVM of {opencl.device_info(0)['name']}: {opencl.device_info(0)['svm']}")


def test_svm_is_one_memory(opencl, context, kernels, fine_grain):
    host = cl.fsvm_empty(context, 64, "u4")
    array = opencl.from_native(cl.SVM(host))
    assert (array.dtype, array.shape) == ("uint32", (64,))
    queue = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
    kernels("late_fill", queue, cl.Buffer.from_int_ptr(array.data, True), 64, 7, 0)
    queue.finish()
    assert (host == 7).all()


def test_svm_allocations_are_bytes(opencl, context, fine_grain):
    flags = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
    svm = cl.SVMAllocation(context, 256, 64, flags)
    array = opencl.from_native(svm)
    assert (array.dtype, array.shape) == ("uint8", (256,))
    opencl.copy_from_host(Span(0, array.data, 0, 256), memoryview(b"x" * 256), 0)
    assert ctypes.string_at(svm.svm_ptr, 256) == b"x" * 256


def test_arrays_over_svm(opencl, queue, fine_grain):
    flags = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
    allocator = cl.tools.SVMAllocator(queue.context, flags=flags, queue=queue)
    host = np.arange(100, dtype="f4")
    array = opencl.from_native(cl.array.to_device(queue, host, allocator=allocator))
    assert contents(opencl, array, 400) == host.tobytes()


def test_plain_memory_is_no_svm(opencl, fine_grain):
    with pytest.raises(ExchangeError, match="not SVM"):
        opencl.from_native(cl.SVM(np.zeros(64, "u4")))


def test_work_in_another_context(opencl, elsewhere, make):
    """Copies to, from and beside the user's own context go through its queues."""
    host = np.arange(1000, dtype="f4")
    theirs = opencl.from_native(cl.array.to_device(elsewhere, host))
    assert contents(opencl, theirs, 4000) == host.tobytes()
    ours = make(4000)
    opencl.copy(Span(0, ours.data, 0, 4000), Span(0, theirs.data, 0, 4000), 0)
    assert (ours.read("f4") == host).all()
    ours.write(host * 2)
    opencl.copy(Span(0, theirs.data, 0, 4000), Span(0, ours.data, 0, 4000), 0)
    assert contents(opencl, theirs, 4000) == (host * 2).tobytes()
    opencl.fill(Span(0, theirs.data, 0, 8), 0, 0)
    opencl.copy_strided(
        *side(0, ours.data, 0, (500,), (4,), 4), *side(0, theirs.data, 0, (500,), (8,), 4), 0
    )
    assert (ours.read("f4")[:500] == [0, *(host * 2)[2::2]]).all()


def test_arrays_out_have_offset_and_strides(opencl, make, queue):
    host = np.arange(12, dtype="f4")
    memory = make(48).write(host)
    array = NativeArray(0, memory.data, 4, "float32", (2, 2), (16, 4), False, memory)
    out = opencl.to_native(array)
    assert isinstance(out, cl.array.Array)
    assert (out.offset, out.strides, out.queue.int_ptr) == (4, (16, 4), memory.stream)
    assert (out[1].get() == [5, 6]).all()
    assert (out[0].with_queue(queue).get() == [1, 2]).all()


def test_small_floats_need_ml_dtypes(opencl, make):
    memory = make(64)
    array = NativeArray(0, memory.data, 0, "bfloat16", (32,), None, False, memory)
    assert opencl.to_native(array).dtype.name == "bfloat16"
    with pytest.raises(ExchangeError, match="float4_e2m1fn_x2"):
        opencl.to_native(
            NativeArray(0, memory.data, 0, "float4_e2m1fn_x2", (32,), None, False, memory)
        )
    with pytest.raises(ExchangeError, match=r"have no float32x3.*t\.view\('uint8'\)"):
        bridge.zeros(2, "float32x3", "opencl:0").to_native()


def test_foreign_cl_mem(opencl, elsewhere):
    buffer = cl.Buffer(elsewhere.context, cl.mem_flags.READ_WRITE, size=256)
    assert opencl.import_data(77, buffer.int_ptr, "somebody") == (0, buffer.int_ptr)


def test_tvms_descriptor(opencl, context):
    """A struct with the cl_mem in front, and whatever behind it."""
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, size=256)
    descriptor = (ctypes.c_size_t * 4)(buffer.int_ptr, 1, 2, 3)
    data = ctypes.addressof(descriptor)
    assert opencl.import_data(0, data, "tvm") == (0, buffer.int_ptr)


@pytest.mark.parametrize("data", [0, 1, 3, 4095, 0x7FFF_0000_0000, (1 << 64) - 8, 1 << 70, -8])
def test_what_is_neither_is_refused(opencl, data):
    with pytest.raises(ExchangeError, match="neither a cl_mem nor"):
        opencl.import_data(0, data, "somebody")
    with pytest.raises(ExchangeError, match="not a cl_mem"):
        opencl.copy_from_host(Span(0, data, 0, 1), memoryview(b"x"), 0)


def test_arrays_in_the_users_context_have_one_queue(opencl, elsewhere, make):
    memory = make(64, opencl.normalize_stream(0, elsewhere))
    described = NativeArray(0, memory.data, 0, "uint32", (16,), None, False, memory)
    arrays = [opencl.to_native(described) for _ in range(3)]
    assert arrays[0].context == elsewhere.context
    assert {array.queue for array in arrays} == {arrays[0].queue}


DESTROYED = """
import ctypes, gc, os
import numpy as np, pyopencl as cl
import dlbridge as bridge
from dlbridge_opencl import queues

opencl = bridge.backend("opencl")
own = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
here = bridge.to_device(np.arange(1 << 20, dtype="u4"), "opencl:0", copy=True)
layer = ctypes.CDLL(os.environ["OPENCL_LAYERS"])
tell = ctypes.CDLL(cl._cl.__file__).clSetContextDestructorCallback
tell.argtypes = [ctypes.c_void_p] * 3
gone = ctypes.cast(layer.layer_context_gone, ctypes.c_void_p)
for _ in range(40):
    context = cl.Context([own.device])
    assert tell(context.int_ptr, gone, None) == 0
    with bridge.use_stream("opencl:0", cl.CommandQueue(context)):
        there = bridge.to_device(here[::3], "opencl:0", copy=True)  # a kernel
        array = there.to_native()
        del there, array
    del context
    queues._users.clear()  # it keeps queues, whose handles the users may still use
gc.collect()
print(layer.layer_get(b"contexts_gone"))
"""


def test_a_gpu_keeps_few_contexts_of_the_users(script, opencl):
    """Programs keep theirs alive, too: each takes some of a GPU's memory."""
    if "OpenCL 3" not in opencl.device_info(0)["version"]:
        pytest.skip("clSetContextDestructorCallback is of OpenCL 3.0")
    assert int(script(DESTROYED, unified=0, gpu=1)) >= 40 - 16


@pytest.mark.parametrize("like", ["opencl", "pyopencl"])
def test_a_read_only_array_becomes_one_that_is_writable_by_a_copy(opencl, like):
    if not opencl.device_info(0)["host_memory_shared"]:
        pytest.skip("the device has memory of its own")
    frozen = bridge.empty(64, "float32").numpy()
    frozen[...] = 3
    frozen.setflags(write=False)
    for x in (frozen, bridge.to_device(frozen, "opencl:0")):
        told = bridge.plan(x, "opencl:0", like=like)
        assert told.copies
        assert "the memory is read-only, which pyopencl ignores" in str(told)
        array = bridge.to_device(x, "opencl:0", like=like)
        array.fill(4)
        assert array.get().tolist() == [4] * 64
        assert frozen.tolist() == [3] * 64
        assert not bridge.asarray(array).readonly
        for function in (bridge.plan, bridge.to_device):
            with pytest.raises(bridge.ExchangeError, match=r"copy=False"):
                function(x, "opencl:0", like=like, copy=False)


def test_svm_without_elements(opencl, context, fine_grain):
    array = opencl.from_native(cl.SVM(cl.fsvm_empty(context, (0, 5), "f4")))
    assert (array.data, array.shape, array.dtype) == (0, (0, 5), "float32")


WAYS = {
    "HOST_NO_ACCESS": "HOST_NO_ACCESS or",
    "HOST_WRITE_ONLY": "HOST_WRITE_ONLY",
    "HOST_READ_ONLY": "HOST_READ_ONLY, and the tensor is writable",
}


@pytest.mark.parametrize("flag", WAYS)
def test_buffers_that_the_host_may_not_map(opencl, context, shared, flag):
    """What is refused is also what `explain` predicts, and a copy goes where the flag allows it."""
    host = np.arange(64, dtype="u1")
    flags = getattr(cl.mem_flags, flag) | cl.mem_flags.COPY_HOST_PTR
    buffer = cl.Buffer(context, flags, hostbuf=host)
    assert WAYS[flag] in opencl.host_view_refusal(0, buffer.int_ptr)
    assert [step.kind for step in bridge.plan(buffer, "cpu").steps] == ["download"]
    if flag == "HOST_READ_ONLY":
        assert (bridge.to_device(buffer, "cpu").numpy() == host).all()
    else:
        with pytest.raises(ExchangeError, match=r"flags that forbid it.* on the device first"):
            bridge.to_device(buffer, "cpu")


def test_an_array_is_on_the_queue_that_the_user_has_chosen(opencl, queue):
    tensor = bridge.ones(1000, device="opencl:0")
    mine = cl.CommandQueue(tensor.to_native().context)
    with bridge.use_stream("opencl:0", mine):
        array = tensor.to_native()
        assert array.queue is mine
        assert bridge.empty(0, device="opencl:0").to_native().queue is mine
        array += 1
        made = bridge.zeros(3, device="opencl:0").to_native()
        assert made.queue is mine
    assert tensor.tolist() == [2] * 1000  # our read comes after the work on the user's queue
    assert tensor.to_native().queue is not mine
    with bridge.use_stream("opencl:0", queue):  # of another context, where the memory is not
        assert tensor.to_native().context == mine.context
        assert bridge.ones(3, device="opencl:0").to_native().queue is queue


OF_ANOTHER_DEVICE = """
import itertools
import pyopencl as cl
from dlbridge import backend
from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray

opencl = backend("opencl")
for named, at in itertools.permutations(range(opencl.device_count()), 2):
    memory = opencl.allocate(at, 64, 64, 0)
    array = NativeArray(named, memory.data, 0, "uint8", (64,), None, readonly=False, owner=memory)
    try:
        opencl.to_native(array)
    except ExchangeError as exc:
        assert f"not on opencl:{named}" in str(exc), exc
    else:
        raise AssertionError(f"memory of opencl:{at} is an array on opencl:{named}")
    try:
        opencl.normalize_stream(named, opencl.current_stream(at))
    except ValueError as exc:
        assert f"not on opencl:{named}" in str(exc), exc
    else:
        raise AssertionError(f"a queue of opencl:{at} is a stream of opencl:{named}")
    queue = cl.CommandQueue.from_int_ptr(opencl.current_stream(at), True)
    try:
        opencl.normalize_stream(named, queue)
    except ValueError as exc:
        assert f"name its device: 'opencl:{at}'" in str(exc), exc
    else:
        raise AssertionError(f"pyopencl's queue of opencl:{at} is a stream of opencl:{named}")
    assert opencl.normalize_stream(at, queue) == queue.int_ptr
print("refused")
"""


def test_memory_and_queues_of_another_device_are_refused(opencl):
    """In a process of its own: a driver crashes with a context of another one."""
    assert "refused" in run_script(OF_ANOTHER_DEVICE)
