"""Memory and arrays of SYCL libraries, in and out, without copies."""

import ctypes

import dpctl
import dpctl.memory
import numpy as np
import pytest
import torch

import dlbridge as bridge
from backends.oneapi.tests.late import Described, memory_of, numbers_in
from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.protocol import NativeArray
from tests.support.agreement import disagreements

KINDS = {
    "device": dpctl.memory.MemoryUSMDevice,
    "shared": dpctl.memory.MemoryUSMShared,
    "host": dpctl.memory.MemoryUSMHost,
}


@pytest.fixture
def queue(oneapi):
    return oneapi.queue(0)


@pytest.fixture
def floats(queue):
    """0 to 11 as float32, in USM device memory."""
    memory = dpctl.memory.MemoryUSMDevice(48, queue=queue)
    memory.copy_from_host(np.arange(12, dtype="f4").view("u1"))
    return memory


def on_host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_dpctl_memory_in(queue, kind):
    memory = KINDS[kind](100, queue=queue)
    memory.copy_from_host(np.arange(100, dtype="u1"))
    tensor = bridge.asarray(memory)
    assert (str(tensor.dtype), tensor.shape, str(tensor.device)) == ("uint8", (100,), "oneapi:0")
    assert tensor.data_ptr() == memory._pointer
    assert not tensor.readonly
    bridge.copy_(tensor[10:20], np.zeros(10, "u1"))
    assert numbers_in(memory, "u1").tolist() == [*range(10), *[0] * 10, *range(20, 100)]


@pytest.mark.parametrize("kind", ["shared", "host"])
def test_the_host_addresses_shared_and_host_memory(queue, kind):
    memory = KINDS[kind](100, queue=queue)
    tensor = bridge.asarray(memory)
    with tensor[10:20].host_view() as host:
        assert host.data_ptr() == memory._pointer + 10
        host.numpy()[:] = 7
    assert numbers_in(memory, "u1")[10:20].tolist() == [7] * 10


def test_the_host_does_not_address_device_memory(queue):
    tensor = bridge.asarray(dpctl.memory.MemoryUSMDevice(100, queue=queue))
    with pytest.raises(ExchangeError, match="is not USM shared or host memory"), tensor.host_view():
        pytest.fail("there is no view")


LAYOUTS = {
    "whole": ({"shape": (12,)}, np.s_[:]),
    "an offset": ({"shape": (5,), "offset": 3}, np.s_[3:8]),
    "strides": ({"shape": (4,), "strides": (3,), "offset": 1}, np.s_[1::3]),
    "reversed": ({"shape": (12,), "strides": (-1,), "offset": 11}, np.s_[::-1]),
    "a number": ({"shape": (), "offset": 5}, 5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_in(queue, floats, layout):
    described, index = LAYOUTS[layout]
    tensor = bridge.asarray(Described(floats._pointer, queue, typestr="<f4", **described))
    assert np.array_equal(on_host(tensor), np.arange(12, dtype="f4")[index])


def test_two_dimensions_out_of_order_in(queue, floats):
    array = Described(floats._pointer, queue, typestr="<f4", shape=(3, 4), strides=(1, 3))
    assert np.array_equal(on_host(bridge.asarray(array)), np.arange(12, dtype="f4").reshape(4, 3).T)


def test_negative_strides_do_not_go_out(oneapi, floats):
    """dpctl 0.22 measures the memory of such arrays wrongly, and refuses it."""
    array = NativeArray(0, floats._pointer, 44, "float32", (12,), (-4,), False, owner=floats)
    with pytest.raises(ExchangeError, match=r"in steps of \(-4,\) bytes; copy the tensor"):
        oneapi.to_native(array)


def test_read_only_in_and_out(oneapi, queue, floats):
    array = Described(
        floats._pointer, queue, typestr="<f4", shape=(12,), data=(floats._pointer, True)
    )
    tensor = bridge.asarray(array)
    assert tensor.readonly
    with pytest.raises(ExchangeError, match="read-only"):
        bridge.copy_(tensor, np.zeros(12, "f4"))
    assert tensor.to_native().__sycl_usm_array_interface__["data"] == (floats._pointer, True)
    assert bridge.asarray(tensor.to_native()).readonly


def test_nothing_in_and_out(queue, floats):
    tensor = bridge.asarray(Described(floats._pointer, queue, typestr="<f4", shape=(0, 3)))
    assert (tensor.shape, str(tensor.device)) == ((0, 3), "oneapi:0")
    native = bridge.empty((3, 0), "int16", "oneapi:0").to_native()
    assert dpctl.memory.as_usm_memory(native).sycl_queue == queue
    assert native.__sycl_usm_array_interface__["shape"] == (3, 0)


def test_types_that_sycl_arrays_do_not_have(oneapi):
    with pytest.raises(ExchangeError, match=r"no arrays of bfloat16 .* view it as uint8"):
        bridge.empty(3, "bfloat16", "oneapi:0").to_native()


def test_a_context_of_its_own_is_refused(oneapi):
    device = oneapi.devices[0]
    queue = dpctl.SyclQueue(dpctl.SyclContext([device]), device)
    with pytest.raises(ExchangeError, match=r"a SYCL context that is not shared; make it on"):
        bridge.asarray(dpctl.memory.MemoryUSMDevice(10, queue=queue))


def renamed(tensor, address, device_id=0):
    """A DLPack capsule of *tensor* that says another address and device."""
    capsule = tensor.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    struct = pointer(capsule, b"dltensor")  # it begins with the data; behind it are type and number
    ctypes.c_void_p.from_address(struct).value = address
    ctypes.c_int32.from_address(struct + 12).value = device_id
    return capsule


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_pointer_is_on_the_device_that_sycl_says(oneapi, queue, kind):
    """Whatever number the exporter has for it, and wherever in the memory it points."""
    memory = KINDS[kind](100, queue=queue)
    memory.copy_from_host(np.arange(100, dtype="u1"))
    tensor = bridge.zeros(10, "uint8", "oneapi:0")
    inside = memory._pointer + 5
    for device_id in (0, 7):
        assert oneapi.import_data(device_id, inside, "test") == (0, inside)
        taken = bridge.from_dlpack(renamed(tensor, inside, device_id))
        assert str(taken.device) == "oneapi:0"
        assert on_host(taken).tolist() == [*range(5, 15)]


def test_imported_pointers_of_nobody_are_refused(oneapi, queue):
    """Host memory, memory of another SYCL context, memory that was freed: at once."""
    device, host = oneapi.devices[0], np.zeros(100, "u1")
    elsewhere = dpctl.SyclQueue(dpctl.SyclContext([device]), device)
    other = dpctl.memory.MemoryUSMDevice(100, queue=elsewhere)
    freed = dpctl.memory.MemoryUSMDevice(100, queue=queue)._pointer
    tensor = bridge.zeros(10, "uint8", "oneapi:0")
    for address in (host.ctypes.data, other._pointer, freed, 8, 2**64 - 16):
        with pytest.raises(
            ExchangeError, match=rf"{address:#x} from .*no USM memory, or in a SYCL"
        ):
            bridge.from_dlpack(renamed(tensor, address))
    assert on_host(tensor).tolist() == [0] * 10


def test_memory_that_is_not_usm_is_refused(oneapi, queue):
    host = np.zeros(10)
    with pytest.raises(DeviceError, match=r"as_usm_memory: .*is not bound to"):
        oneapi.from_native(Described(host.ctypes.data, queue, shape=(10,)))


def test_the_object_names_the_memory_for_kernels(oneapi):
    tensor = bridge.to_device(np.arange(5, dtype="i4"), "oneapi:0")
    operand = tensor.operand()
    memory = memory_of(operand.data + operand.byte_offset, operand.nbytes, oneapi.queue(0))
    assert numbers_in(memory, "i4").tolist() == [0, 1, 2, 3, 4]


# dpnp


def test_dpnp_in(oneapi, dpnp):
    x = dpnp.arange(12, dtype="f4").reshape(3, 4)
    for array, want in [(x, np.s_[:]), (x[1:, ::2], np.s_[1:, ::2])]:
        tensor = bridge.asarray(array)
        assert (str(tensor.device), tensor.data_ptr()) == ("oneapi:0", array.get_array()._pointer)
        assert np.array_equal(on_host(tensor), np.arange(12, dtype="f4").reshape(3, 4)[want])
    assert torch.equal(bridge.to_device(x, "cpu", like="torch"), torch.arange(12.0).reshape(3, 4))


def test_dpnp_out(oneapi, dpnp):
    tensor = bridge.to_device(torch.arange(12.0).reshape(3, 4), "oneapi:0")
    array = bridge.to_device(tensor[1:], "oneapi:0", like="dpnp")
    assert type(array) is dpnp.ndarray
    assert array.get_array()._pointer == tensor[1:].data_ptr()
    array *= 10
    assert on_host(tensor).tolist() == [[0, 1, 2, 3], [40, 50, 60, 70], [80, 90, 100, 110]]


@pytest.mark.parametrize("library", ["dpnp", "dpctl"])
def test_explain_says_what_to_device_does(oneapi, dpnp, library):
    assert disagreements(library, "oneapi:0") == []


@pytest.mark.parametrize("usm_type", ["device", "shared", "host"])
def test_turned_arrays_of_dpnp_keep_their_kind_of_memory(oneapi, dpnp, usm_type):
    """By its own ``from_dlpack`` they would be copies in device memory."""
    x = dpnp.arange(12, dtype="f4", usm_type=usm_type).reshape(3, 4)[::-1, ::-2]
    array = bridge.to_device(bridge.asarray(x), "oneapi:0", like="dpnp")
    assert (array.usm_type, array.strides) == (usm_type, x.strides)
    array[0] = 7
    assert dpnp.asnumpy(x).tolist() == [[7, 7], [7, 5], [3, 1]]


def test_dpnp_takes_our_object(oneapi, dpnp):
    import dpnp.tensor

    tensor = bridge.to_device(np.arange(12, dtype="i4").reshape(3, 4), "oneapi:0")
    array = dpnp.tensor.asarray(tensor[:, 1:3].to_native())
    assert array._pointer == tensor.data_ptr() + 4
    array += 100
    want = np.arange(12).reshape(3, 4)
    want[:, 1:3] += 100
    assert np.array_equal(on_host(tensor), want)
    again = bridge.asarray(Described(0, None, **array.__sycl_usm_array_interface__))
    assert np.array_equal(on_host(again), want[:, 1:3])


def test_dpnp_reads_what_was_just_copied_and_back(oneapi, dpnp):
    rng = np.random.default_rng(0)
    for _ in range(30):
        x = rng.random(100_000, "f4")
        array = bridge.to_device(bridge.to_device(x, "oneapi:0"), "oneapi:0", like="dpnp")
        y = (array * 2 + 1)[::2]
        assert np.array_equal(on_host(bridge.asarray(y)), (x * 2 + 1)[::2])


def test_read_only_and_empty_arrays_of_dpnp(oneapi, dpnp):
    import dpnp.tensor

    array = dpnp.tensor.arange(5)
    array.flags.writable = False
    assert bridge.asarray(array).readonly
    tensor = bridge.asarray(dpnp.empty((0, 3)))
    assert (tensor.shape, str(tensor.device)) == ((0, 3), "oneapi:0")
