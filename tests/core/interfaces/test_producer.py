"""The producer's side: what `__dlpack__` and `__dlpack_device__` accept, and what they export.

A comment ``# P12`` names the line of docs/conformance.md that the test shows.
Each rule is shown on the three kinds of export that there are: an
`ArrayTensor`, whose `__dlpack__` is numpy's own; a `Tensor` whose capsule numpy
makes and we overwrite; and a tensor on a plugin's device.
"""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
from expected import backend_or_skip
from harness import load
from peers import peer
from raw_producer import (
    Producer,
    address,
    capsule_name,
    immortal as immortal_name,
    is_valid,
    pointer_in,
    set_destructor,
    set_name,
    struct_in,
    versioned_struct,
)
from stream_backend import Pinned, installed

import dlbridge
import dlbridge as bridge
from dlbridge.core._cdefs import ffi
from dlbridge.core.dlpack.structs import FLAG_IS_COPIED, FLAG_READ_ONLY, FLAG_SUBBYTE_PADDED
from dlbridge.core.tensor.array_tensor import ArrayTensor, NumpyTensor
from dlbridge.core.tensor.exports import own_export_of
from dlbridge.core.values.layout import compact_strides

VERSION = (1, 3)


def cpu_float():
    return dlbridge.from_dlpack(np.arange(6, dtype="float32").reshape(2, 3))


def cpu_bfloat():
    return dlbridge.from_dlpack(np.arange(6, dtype="uint16").reshape(2, 3)).view("bfloat16")


def ext_dev_float():
    peer("dlbridge_fake")
    return dlbridge.to_device(np.arange(6, dtype="float32").reshape(2, 3), "ext_dev:1")


@pytest.fixture(params=[cpu_float, cpu_bfloat, ext_dev_float], ids=lambda make: make.__name__)
def tensor(request):
    return request.param()


@pytest.fixture
def host(request):
    return cpu_float()


def exported(tensor, **keywords):
    """The struct of an export; the capsule rides on it."""
    capsule = tensor.__dlpack__(max_version=VERSION, **keywords)
    managed = struct_in(capsule)
    _keep.append(capsule)
    return managed


_keep: list[object] = []


@pytest.fixture(autouse=True)
def _drop():
    yield
    _keep.clear()


def shape_of(managed):
    return tuple(managed.dl_tensor.shape[axis] for axis in range(managed.dl_tensor.ndim))


def strides_of(managed):
    """In elements. NULL, as numpy 2.2 leaves them, means compact, and no 1.2 or later may say so."""
    if not managed.dl_tensor.strides:
        assert not hasattr(managed, "version") or managed.version.minor < 2
        return compact_strides(shape_of(managed))
    return tuple(managed.dl_tensor.strides[axis] for axis in range(managed.dl_tensor.ndim))


def values(managed, kind="float"):
    tensor = managed.dl_tensor
    first = ffi.cast(f"{kind} *", address(tensor.data) + tensor.byte_offset)
    return list(ffi.unpack(first, int(np.prod(shape_of(managed)))))


def test_the_three_kinds_are_there():
    assert type(cpu_float()) is ArrayTensor
    assert type(cpu_bfloat()) is NumpyTensor


# Signature and arguments


def test_the_methods_are_found_on_the_type(tensor):  # P1
    """MLX looks in the dicts of the type and its bases, and takes only what can be called."""
    for name in ("__dlpack__", "__dlpack_device__"):
        assert callable(inspect.getattr_static(type(tensor), name))
    capsule = type(tensor).__dlpack__(tensor, max_version=VERSION)
    assert address(struct_in(capsule).dl_tensor.data) == address(exported(tensor).dl_tensor.data)
    assert type(tensor).__dlpack_device__(tensor) == tensor.__dlpack_device__()
    assert not hasattr(tensor, "__dict__")


def test_arguments_are_keyword_only(tensor):  # P1
    with pytest.raises(TypeError):
        tensor.__dlpack__(None)


def test_device_is_two_plain_ints(tensor):  # P2
    pair = tensor.__dlpack_device__()
    assert type(pair) is tuple
    assert [type(part) for part in pair] == [int, int]
    device = exported(tensor).dl_tensor.device
    assert pair == (device.device_type, device.device_id)
    assert pair == ((12, 1) if tensor.device.name == "ext_dev" else (1, 0))


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ({}, "dltensor"),  # P3
        ({"max_version": None}, "dltensor"),  # P4
        ({"max_version": (0, 8)}, "dltensor"),  # P5
        ({"max_version": (1, 0)}, "dltensor_versioned"),  # P6
        ({"max_version": (1, 1)}, "dltensor_versioned"),
        ({"max_version": (1, 3)}, "dltensor_versioned"),
        ({"max_version": (1, 99)}, "dltensor_versioned"),
        ({"max_version": (2, 0)}, "dltensor_versioned"),  # P7
        ({"max_version": (10, 10)}, "dltensor_versioned"),
    ],
)
def test_capsule_name_follows_max_version(tensor, version, name):
    capsule = tensor.__dlpack__(**version)
    assert capsule_name(capsule) == name
    if name == "dltensor_versioned":
        managed = struct_in(capsule)
        assert managed.version.major == 1
        # numpy's own export, which needs nothing newer, says 1.0.  # P38
        newest = 3 if managed.dl_tensor.strides else 1
        assert managed.version.minor == (0 if type(tensor) is ArrayTensor else newest)


@pytest.mark.parametrize(
    "version", [1, "1.0", (1,), (1, 0, 0), (), ("1", "0"), (1, None), (1.0, 0)], ids=repr
)
def test_max_version_that_is_no_pair_of_ints(tensor, version):  # P8
    if type(tensor) is ArrayTensor:  # numpy looks at the first number only
        if version in {(1, None), (1.0, 0)}:
            return
        with pytest.raises((TypeError, ValueError)):
            tensor.__dlpack__(max_version=version)
        return
    with pytest.raises(TypeError, match="max_version"):
        tensor.__dlpack__(max_version=version)


def test_max_version_as_a_list():  # P8
    assert capsule_name(cpu_bfloat().__dlpack__(max_version=[1, 0])) == "dltensor_versioned"
    with pytest.raises(TypeError):  # numpy's own method
        cpu_float().__dlpack__(max_version=[1, 0])


def test_readonly_does_not_fit_a_legacy_capsule():  # P9
    array = np.arange(3, dtype="float32")
    array.setflags(write=False)
    for tensor in (
        dlbridge.from_dlpack(array),
        dlbridge.from_dlpack(array).view("uint32"),
        dlbridge.from_dlpack(array.view("uint16")).view("bfloat16"),
    ):
        with pytest.raises(BufferError):
            tensor.__dlpack__()
        assert exported(tensor).flags == FLAG_READ_ONLY


def padded():
    raw = Producer((4,), dtype=(17, 4, 1), flags=FLAG_SUBBYTE_PADDED)
    return dlbridge.from_dlpack(raw), raw


def test_padded_does_not_fit_a_legacy_capsule():  # P10, P55
    tensor, raw = padded()
    with pytest.raises(BufferError, match="padded"):
        tensor.__dlpack__()
    assert exported(tensor).flags == FLAG_SUBBYTE_PADDED
    _keep.clear()
    del tensor
    assert raw.alive == 0


def test_unknown_keywords_are_a_type_error(tensor):  # P12
    with pytest.raises(TypeError):
        tensor.__dlpack__(colour="blue")


def test_no_type_error_for_what_is_wrong_with_the_data():  # P12
    """Consumers take a TypeError for a missing keyword and ask again."""
    readonly = np.zeros(2)
    readonly.setflags(write=False)
    backwards = dlbridge.from_dlpack(np.arange(4.0)[::-1])
    cases = [
        (dlbridge.from_dlpack(readonly), {}),
        (padded()[0], {}),
        (backwards, {"copy": False}),
        (cpu_float(), {"dl_device": (2, 0)}),
        (cpu_bfloat(), {"dl_device": (2, 0)}),
        (ext_dev_float(), {"dl_device": (2, 0)}),
        (ext_dev_float(), {"dl_device": (1, 0), "copy": False}),
    ]
    for tensor, keywords in cases:
        with pytest.raises((BufferError, ValueError)):
            tensor.__dlpack__(**keywords)


class Type(IntEnum):
    CPU = 1
    EXT_DEV = 12


def test_own_device_by_name(tensor):  # P13, P14
    own = tensor.__dlpack_device__()
    at = exported(tensor).dl_tensor.data
    assert exported(tensor, dl_device=None).dl_tensor.data == at
    assert exported(tensor, dl_device=own).dl_tensor.data == at
    assert exported(tensor, dl_device=(Type(own[0]), own[1])).dl_tensor.data == at


@pytest.mark.parametrize("device", [(2, 0), (16, 0), (99, 0), (1, 5), (12, 5)])
def test_devices_that_a_producer_cannot_reach(tensor, device):  # P15, P16
    # numpy: ValueError for another device; ours: BufferError.
    error = (ValueError, BufferError) if type(tensor) is ArrayTensor else BufferError
    with pytest.raises(error):
        tensor.__dlpack__(dl_device=device)


def test_device_to_cpu_is_a_synchronised_copy():  # P17, S12
    tensor = ext_dev_float()
    managed = exported(tensor, dl_device=(1, 0))
    assert (managed.dl_tensor.device.device_type, managed.dl_tensor.device.device_id) == (1, 0)
    assert managed.flags == FLAG_IS_COPIED
    assert values(managed) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="stream must be None"):
        tensor.__dlpack__(dl_device=(1, 0), stream=1)
    with pytest.raises(ValueError, match="stream must be None"):
        tensor.__dlpack__(dl_device=(1, 0), stream=-1)


def test_device_to_cpu_without_a_copy():  # P18
    with pytest.raises(BufferError, match="copy=False"):
        ext_dev_float().__dlpack__(dl_device=(1, 0), copy=False)


def test_pinned_memory_is_cpu_memory_already():  # P19
    raw = Producer((3,), device=(3, 0), content=np.arange(3, dtype="f4").tobytes())
    tensor = dlbridge.from_dlpack(raw)
    with installed("cuda_host", Pinned()):
        for copy in (None, False):
            managed = exported(tensor, dl_device=(1, 0), copy=copy)
            assert managed.dl_tensor.device.device_type == 1
            assert address(managed.dl_tensor.data) == raw.data
            assert managed.flags == 0
            assert values(managed) == [0, 1, 2]


@pytest.mark.parametrize("device", [1, (1,), (1, 0, 0), ("cpu", 0), "cpu", (None, 0)], ids=repr)
def test_dl_device_that_is_no_pair_of_ints(tensor, device):  # P20
    with pytest.raises((TypeError, ValueError)) as caught:
        tensor.__dlpack__(dl_device=device)
    if type(tensor) is not ArrayTensor:  # numpy says ValueError for some
        assert caught.type is TypeError


def test_copy_true_is_new_memory(tensor):  # P21
    managed = exported(tensor, copy=True)
    assert managed.flags & FLAG_IS_COPIED
    assert managed.dl_tensor.data != exported(tensor).dl_tensor.data
    assert shape_of(managed) == (2, 3)
    if tensor.device.name == "cpu":
        before = tensor.view("uint16" if tensor.itemsize == 2 else "uint32").tolist()
        ffi.memmove(managed.dl_tensor.data, b"\xff" * tensor.nbytes, tensor.nbytes)
        assert tensor.view("uint16" if tensor.itemsize == 2 else "uint32").tolist() == before


def test_copy_false_and_none_share(tensor):  # P22, P23
    at = exported(tensor).dl_tensor.data
    for copy in (False, None):
        managed = exported(tensor, copy=copy)
        assert managed.dl_tensor.data == at
        assert managed.flags == 0  # P36


@pytest.mark.parametrize("copy", [1, "yes", np.zeros(2)], ids=type)
def test_copy_that_is_no_bool(copy):  # P24
    with pytest.raises((TypeError, ValueError)):
        cpu_bfloat().__dlpack__(copy=copy)
    if not isinstance(copy, int):  # numpy's own method takes anything that has a truth
        with pytest.raises((TypeError, ValueError)):
            cpu_float().__dlpack__(copy=np.zeros(2))


def test_a_copy_of_readonly_memory_is_writable():  # P25
    array = np.arange(3, dtype="uint16")
    array.setflags(write=False)
    for tensor in (dlbridge.from_dlpack(array), dlbridge.from_dlpack(array).view("bfloat16")):
        managed = exported(tensor, copy=True)
        assert managed.flags == FLAG_IS_COPIED
        assert capsule_name(tensor.__dlpack__(copy=True)) == "dltensor"


LAYOUTS = {
    "C": np.arange(12, dtype="int32").reshape(3, 4),
    "F": np.asfortranarray(np.arange(12, dtype="int32").reshape(3, 4)),
    "sliced": np.arange(48, dtype="int32").reshape(6, 8)[::2, 1::2],
    "negative": np.arange(12, dtype="int32").reshape(3, 4)[::-1, ::-1],
    "broadcast": np.broadcast_to(np.arange(4, dtype="int32"), (3, 4)),
    "scalar": np.array(7, dtype="int32"),
    "empty": np.zeros((0, 3), "int32"),
    "one": np.arange(10, dtype="int32")[::3][:1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", ["cpu", "ext_dev:0"])
def test_copies_keep_the_values_of_every_layout(layout, device):  # P26
    if device != "cpu":
        peer("dlbridge_fake")
    array = LAYOUTS[layout]
    tensor = dlbridge.to_device(array, device)
    if tensor.ndim and device != "cpu":  # its own strides, on the device
        tensor = tensor[::-1]
        array = array[::-1]
    capsule = tensor.__dlpack__(copy=True, dl_device=(1, 0), max_version=VERSION)
    copy = dlbridge.from_dlpack(capsule)
    assert copy.tolist() == array.tolist()
    assert copy.is_copied
    if type(tensor) is not ArrayTensor:  # numpy's copies keep the order of the dimensions
        assert copy.is_contiguous()


# Struct contents


def test_no_dimensions(host):  # P27
    for tensor in (host[0, 1], cpu_bfloat()[0, 1]):
        managed = exported(tensor)
        assert managed.dl_tensor.ndim == 0
        assert address(managed.dl_tensor.data) + managed.dl_tensor.byte_offset == tensor.data_ptr()
        assert managed.dl_tensor.byte_offset == 0


def test_shape_and_strides_are_readable(tensor):  # P28
    for capsule in (tensor.__dlpack__(), tensor.__dlpack__(max_version=VERSION)):
        managed = struct_in(capsule)
        assert shape_of(managed) == (2, 3)
        assert strides_of(managed) == (3, 1)
    if tensor.device.name == "cpu":
        assert strides_of(exported(tensor.T)) == (1, 3)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "ext_dev:0"])
def test_no_elements(shape, dtype, device):  # P29
    if device != "cpu":
        peer("dlbridge_fake")
    made = [dlbridge.empty(shape, dtype, device)]
    if device == "cpu" and dtype == "float32":
        made += [
            dlbridge.from_dlpack(np.zeros(shape, dtype)),
            dlbridge.from_dlpack(np.zeros(shape, dtype)[::-1]),
        ]
    for tensor in made:
        managed = exported(tensor)
        assert managed.dl_tensor.data == ffi.NULL
        assert managed.dl_tensor.byte_offset == 0
        assert shape_of(managed) == shape
        assert len(strides_of(managed)) == len(shape)
        assert tensor.data_ptr() == 0


def test_strides_of_single_elements_may_be_anything():  # P30
    tensor = dlbridge.from_dlpack(np.arange(10, dtype="float32")[::3][:1])
    managed = exported(tensor)
    assert shape_of(managed) == (1,)
    assert np.from_dlpack(tensor).tolist() == [0]
    # Numpy's own strides, of no multiple of the item size, where no step is taken.
    record = np.zeros(5, [("i", "i4"), ("c", "i1")])["i"][:1]
    assert np.from_dlpack(dlbridge.from_dlpack(record)).tolist() == [0]  # P31


def test_strides_within_an_element_are_refused():  # P31
    record = np.zeros(5, [("i", "i4"), ("c", "i1")])["i"]
    with pytest.raises(BufferError, match=r"byte strides .* item size"):
        dlbridge.from_dlpack(record)


def test_foreign_byte_order_is_refused():  # P32
    with pytest.raises(BufferError, match="byte order"):
        dlbridge.from_dlpack(np.zeros(3, np.dtype("f4").newbyteorder()))


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.array(["text"]),
        np.zeros(1, "M8[s]"),
        np.zeros(1, "m8[s]"),
        np.zeros(1, [("a", "i4")]),
        np.zeros(1, "V3"),
        np.zeros(1, np.longdouble),
        np.zeros(1, np.clongdouble),
    ],
    ids=lambda array: str(array.dtype),
)
def test_dtypes_that_dlpack_has_not(array):  # P33
    with pytest.raises(BufferError):
        dlbridge.from_dlpack(array)


NUMBERS = {
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64)},
    "bfloat16": (4, 16),
    "complex32": (5, 32),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "bool": (6, 8),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6),
    "float6_e3m2fn": (16, 6),
    "float4_e2m1fn": (17, 4),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_dtype_by_number(name):  # P34, P38
    tensor = dlbridge.empty((3,), name)
    managed = exported(tensor)
    dtype = managed.dl_tensor.dtype
    assert (dtype.code, dtype.bits, dtype.lanes) == (*NUMBERS[name], 1)
    assert managed.flags == 0  # P36
    if NUMBERS[name][0] > 6:
        assert managed.version.minor >= 1
    again = dlbridge.from_dlpack(tensor.__dlpack__(max_version=VERSION))
    assert again.dtype is tensor.dtype
    assert again.nbytes == tensor.nbytes


@pytest.mark.parametrize(
    ("name", "numbers", "itemsize"),
    [
        ("float32x4", (2, 32, 4), 16),
        ("float32x3", (2, 32, 3), 12),
        ("uint8x4", (1, 8, 4), 4),
        ("float4_e2m1fnx2", (17, 4, 2), 1),
    ],
)
def test_lanes(name, numbers, itemsize):  # P35, C17
    tensor = dlbridge.empty((5,), name)
    assert tensor.itemsize == itemsize
    assert tensor.nbytes == 5 * itemsize
    dtype = exported(tensor).dl_tensor.dtype
    assert (dtype.code, dtype.bits, dtype.lanes) == numbers


def test_float4_in_pairs_as_torch_has_it():  # P35
    torch = peer("torch")
    theirs = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    tensor = dlbridge.from_dlpack(theirs)
    assert (tensor.dtype.bits, tensor.dtype.lanes) == (4, 2)
    assert torch.from_dlpack(tensor).dtype == torch.float4_e2m1fn_x2


def test_packed_and_padded_sub_byte_elements():  # P37
    packed = dlbridge.empty((3,), "float4_e2m1fn")
    assert packed.nbytes == 2
    assert exported(packed).flags == 0
    content = dlbridge.pack_bits(np.array([1, 2, 3], "u1"), packed.dtype)
    # Little bit-endian: element i = (D >> 4 i) & 15
    number = int.from_bytes(content, "little")
    assert [(number >> 4 * i) & 15 for i in range(3)] == [1, 2, 3]
    tensor, _raw = padded()
    assert tensor.nbytes == 4


def test_data_begins_at_the_first_element():  # P39
    array = np.arange(24, dtype="uint16").reshape(4, 6)
    for tensor in (dlbridge.from_dlpack(array), dlbridge.from_dlpack(array).view("bfloat16")):
        for index in ((slice(1, None), slice(2, None)), (2,), (slice(None, None, 2), 3)):
            managed = exported(tensor[index])
            assert address(managed.dl_tensor.data) == array[index].__array_interface__["data"][0]
            assert managed.dl_tensor.byte_offset == 0


def test_handles_keep_their_byte_offset():  # P39
    tensor = ext_dev_float()
    handle = address(exported(tensor).dl_tensor.data)
    managed = exported(tensor[1, 1:])
    assert address(managed.dl_tensor.data) == handle == tensor[1, 1:].data_ptr()
    assert managed.dl_tensor.byte_offset == 16 == tensor[1, 1:].byte_offset


@pytest.mark.parametrize("shape", [(1,), (7, 13), (1000,)])
def test_our_allocations_are_aligned(shape):  # P40
    for name in ("float32", "bfloat16", "uint8"):
        assert dlbridge.empty(shape, name).data_ptr() % 256 == 0


@pytest.mark.parametrize("device", ["cpu", "ext_dev:0"])
def test_negative_strides_are_exported_as_a_copy(device):  # P41
    if device != "cpu":
        peer("dlbridge_fake")
    tensor = dlbridge.to_device(np.arange(4, dtype="float32"), device)[::-1]
    assert tensor.strides == (-1,)
    managed = exported(tensor)
    assert managed.flags == FLAG_IS_COPIED
    assert strides_of(managed) == (1,)
    with pytest.raises(BufferError, match="negative strides"):
        tensor.__dlpack__(max_version=VERSION, copy=False)
    assert values(exported(tensor, dl_device=(1, 0))) == [3, 2, 1, 0]


def test_torch_survives_negative_strides():  # P41
    """It would end the process if it ever saw one."""
    peer("torch")
    code = (
        "import torch, numpy as np, dlbridge\n"
        "t = dlbridge.from_dlpack(np.arange(4.)[::-1])\n"
        "assert torch.from_dlpack(t).tolist() == [3, 2, 1, 0]\n"
        "assert torch.utils.dlpack.from_dlpack(t.__dlpack__()).tolist() == [3, 2, 1, 0]\n"
        "print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


# Capsule and lifetime


class Owned:
    """Memory of ours whose life can be watched: a capsule that a `Producer` made."""

    def __init__(self, dtype=(2, 32, 1), device=(1, 0)):
        self.raw = Producer((2, 3), dtype=dtype, device=device)
        self.tensor = dlbridge.from_dlpack(self.raw)

    def forget(self):
        self.tensor = None

    @property
    def alive(self):
        return self.raw.alive == 1


@pytest.fixture(
    params=[((2, 32, 1), (1, 0)), ((4, 16, 1), (1, 0)), ((2, 32, 1), (2, 0))],
    ids=["numpy", "bfloat16", "device"],
)
def owned(request):
    return Owned(*request.param)


@pytest.fixture(params=[None, VERSION], ids=["legacy", "versioned"])
def version(request):
    return request.param


def test_a_capsule_that_nobody_consumes(owned, version):  # P42
    capsule = owned.tensor.__dlpack__(max_version=version, **quiet(owned))
    owned.forget()
    assert owned.alive
    del capsule
    assert not owned.alive


def quiet(owned):
    """Keywords that ask a device without a backend for no order."""
    return {"stream": -1} if owned.raw.device[0] != 1 else {}


def used(capsule, version):
    name = b"used_dltensor" if version is None else b"used_dltensor_versioned"
    set_name(capsule, immortal_name(name))
    return struct_in(capsule)


def test_a_consumed_capsule_leaves_the_tensor_to_its_consumer(owned, version):  # P43
    capsule = owned.tensor.__dlpack__(max_version=version, **quiet(owned))
    managed = used(capsule, version)
    owned.forget()
    del capsule
    assert owned.alive
    managed.deleter(managed)
    assert not owned.alive


def test_a_consumer_that_only_keeps_the_capsule(owned, version):  # P44
    capsule = owned.tensor.__dlpack__(max_version=version, **quiet(owned))
    owned.forget()
    managed = struct_in(capsule)  # read, never renamed
    assert shape_of(managed) == (2, 3)
    assert owned.alive
    del capsule
    assert not owned.alive


def test_a_consumer_that_takes_the_destructor_away(owned, version):  # P45
    capsule = owned.tensor.__dlpack__(max_version=version, **quiet(owned))
    owned.forget()
    managed = struct_in(capsule)
    set_destructor(capsule, None)
    del capsule
    assert owned.alive
    managed.deleter(managed)
    assert not owned.alive


def test_mpi4py_keeps_the_capsule_and_never_renames_it():  # P44
    mpi = peer("mpi4py.MPI")
    owned = Owned()
    buffer = mpi.buffer.frombuffer(owned.tensor)
    owned.forget()
    assert owned.alive
    assert buffer.nbytes == 24
    del buffer
    gc.collect()
    assert not owned.alive


def test_a_capsule_renamed_to_something_else(version):  # P46
    """Its destructor cannot know whose the tensor is: it says so, and nothing breaks."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import dlbridge, raw_producer, numpy as np\n"
        "t = dlbridge.from_dlpack(np.arange(3.))\n"
        f"c = t.__dlpack__(max_version={version})\n"
        "raw_producer.set_name(c, raw_producer.immortal(b'something_else'))\n"
        "del c\n"
        "print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parents[2] / "support")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_an_export_owns_the_memory_by_itself(owned):  # P47
    array = np.arange(6.0)
    start = sys.getrefcount(array)
    tensor = dlbridge.from_dlpack(array)
    held = sys.getrefcount(array)
    capsule = tensor.__dlpack__(max_version=VERSION)
    del tensor
    assert sys.getrefcount(array) > start
    del capsule
    assert sys.getrefcount(array) == start
    assert held > start


def test_exports_are_independent_of_each_other(owned):  # P48
    owned_exports = [
        owned.tensor.__dlpack__(max_version=VERSION, **quiet(owned)) for _ in range(10)
    ]
    owned.forget()
    for position in (3, 0, 7, 0, 5, 1, 0, 1, 0):
        del owned_exports[position]
        assert owned.alive
    owned_exports.clear()
    assert not owned.alive


def test_deletion_in_a_thread_that_python_has_never_seen(owned):  # P49
    library = load()
    capsule = owned.tensor.__dlpack__(max_version=VERSION, **quiet(owned))
    managed = used(capsule, VERSION)
    del capsule
    owned.forget()
    assert library.harness_delete_in_thread(address(managed)) == 0
    assert not owned.alive


def test_deletion_with_the_gil_held(owned):  # P50
    library = load(keep_gil=True)
    capsule = owned.tensor.__dlpack__(max_version=VERSION, **quiet(owned))
    managed = used(capsule, VERSION)
    owned.forget()
    library.harness_delete(address(managed))
    assert not owned.alive


def test_deletion_within_a_garbage_collection(owned):  # P51
    class Cycle:
        pass

    cycle = Cycle()
    cycle.itself = cycle
    cycle.capsule = owned.tensor.__dlpack__(max_version=VERSION, **quiet(owned))
    cycle.array = np.from_dlpack(Owned().tensor)
    owned.forget()
    del cycle
    assert owned.alive
    gc.collect()
    assert not owned.alive


class Pretender:
    """Exports *capsule*, so that a consumer can be made to refuse it."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_):
        capsule, self.capsule = self.capsule, None
        return capsule

    def __dlpack_device__(self):
        return self.device


def test_the_consumers_error_is_what_its_user_sees():  # P52
    """numpy drops the capsule with its own error pending; our deleter must not disturb it."""
    owned = Owned(dtype=(4, 16, 1))
    capsule = owned.tensor.__dlpack__(max_version=VERSION)
    owned.forget()
    with pytest.raises((BufferError, RuntimeError), match=r"(?i)dtype|type"):
        np.from_dlpack(Pretender(capsule))
    del capsule
    assert not owned.alive


def test_torchs_error_is_what_its_user_sees():  # P52
    torch = peer("torch")
    owned = Owned(dtype=(3, 64, 1))
    capsule = owned.tensor.__dlpack__(max_version=VERSION)
    owned.forget()
    with pytest.raises((BufferError, RuntimeError), match=r"(?i)unsupported|code"):
        torch.from_dlpack(Pretender(capsule))
    del capsule
    assert not owned.alive
    tensor = ext_dev_float()
    memory = weakref.ref(tensor._memory)
    capsule = tensor.__dlpack__(max_version=VERSION, stream=-1)
    del tensor
    with pytest.raises(ModuleNotFoundError, match="privateuseone"):
        torch.from_dlpack(Pretender(capsule, (12, 0)))
    del capsule
    assert memory() is None


# P53 and P54, after the interpreter's end and in the middle of it: test_exit_safety.py.


def test_a_failed_export_leaks_nothing(monkeypatch):  # P55
    owned = Owned(dtype=(4, 16, 1))
    from dlbridge.core.dlpack import exports as module

    def fail(*_args, **_keywords):
        raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(module.Image, "write", fail)
        with pytest.raises(MemoryError, match="injected"):
            owned.tensor.__dlpack__(max_version=VERSION)
        with pytest.raises(MemoryError, match="injected"):
            own_export_of(owned.tensor).release()
    owned.forget()
    gc.collect()
    assert not owned.alive


def test_a_failed_copy_leaks_nothing():  # P55
    owned = Owned(dtype=(17, 4, 1))
    strided = owned.tensor[:, ::2]  # packed elements cannot be copied with gaps
    with pytest.raises(BufferError):
        strided.__dlpack__(max_version=VERSION, copy=True)
    owned.forget()
    del strided
    gc.collect()
    assert not owned.alive


def test_a_real_capsule(tensor, version):  # P56
    capsule = tensor.__dlpack__(max_version=version)
    name = "dltensor" if version is None else "dltensor_versioned"
    assert type(capsule).__name__ == "PyCapsule"
    assert is_valid(capsule, name.encode())
    assert f'"{name}"' in repr(capsule)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_exports_survive_a_fork():  # P57
    """In a process of its own: other libraries' threads do not survive one."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, dlbridge\n"
        "from raw_producer import Producer\n"
        "raws = [Producer((2, 3)), Producer((2, 3), dtype=(4, 16, 1))]\n"
        "tensors = [dlbridge.from_dlpack(raw) for raw in raws]\n"
        "held = [tensor.__dlpack__(max_version=(1, 3)) for tensor in tensors]\n"
        "held.append(np.from_dlpack(tensors[0]))\n"
        "if not (child := os.fork()):\n"
        "    assert [raw.alive for raw in raws] == [1, 1] and held[-1].shape == (2, 3)\n"
        "    del tensors, held  # the child's own copies\n"
        "    assert [raw.alive for raw in raws] == [0, 0]\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "del tensors\n"
        "assert [raw.alive for raw in raws] == [1, 1]\n"
        "del held\n"
        "assert [raw.alive for raw in raws] == [0, 0]\n"
        "print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parents[2] / "support")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_exports_from_many_threads():  # P48, C40
    owned = Owned()
    failures = []

    def work():
        try:
            for _ in range(500):
                versioned = owned.tensor.__dlpack__(max_version=VERSION)
                assert struct_in(versioned).dl_tensor.ndim == 2
                np.from_dlpack(owned.tensor[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    owned.forget()
    gc.collect()
    assert not owned.alive


def test_managed_tensors_without_a_capsule():  # P43
    """What the exchange table hands out: the struct alone, which its new owner deletes."""
    owned = Owned()
    at = own_export_of(owned.tensor).release()
    owned.forget()
    gc.collect()
    assert owned.alive
    managed = versioned_struct(at)
    assert address(managed) == at
    assert pointer_in(dlbridge.empty(1).__dlpack__()) != at
    managed.deleter(managed)
    assert not owned.alive


@pytest.mark.parametrize("device", ["opencl:0", "vulkan:0"])
def test_torch_is_told_that_it_has_no_tensors_on_the_device(device):
    """By itself torch says INTERNAL ASSERT FAILED, and asks for a report."""
    torch = peer("torch")
    backend_or_skip(device.partition(":")[0])
    tensor = bridge.ones(3, device=device)
    with pytest.raises(BufferError, match=rf"torch has no tensors on {device}; .*like='torch'"):
        torch.from_dlpack(tensor)
    assert bridge.to_device(tensor, "cpu", like="torch").tolist() == [1, 1, 1]
    assert bridge.from_dlpack(tensor) is tensor
    assert type(tensor.__dlpack__(max_version=(1, 0))).__name__ == "PyCapsule"
