"""Tensors on devices that this machine lacks: host memory under another device's name."""

from __future__ import annotations

import ctypes
import struct

from dlbridge.abi import ffi, immortal, table_of
from dlbridge.ffi import Function
from dlbridge.ffi._lib import C, address
from dlbridge.ffi.containers import Packed
from tests.support.raw_producer import Producer, new_capsule

STREAMS = {(2, 0): 0x1234, (2, 1): 0x5678, (10, 0): 0x9ABC}
"""Device -> the stream that `TableTensor` says it works on."""


def c_function(function):
    """A Function of C's kind: *function* gets what a TVMFFISafeCallType gets."""
    made = ffi.callback("int(void *, TVMFFIAny *, int32_t, TVMFFIAny *)", function)
    return Function.__from_extern_c__(address(made), keep_alive_object=made)


def borrowed(tensor, structs):
    """*tensor*, of torch, as an argument of the type ``DLTensor *``: lent for the call.

    The struct is appended to *structs*, which must live as long as the call.
    """
    structs.append(ffi.new("DLTensor *"))
    place = ctypes.c_void_p(address(structs[-1]))
    assert table_of(type(tensor)).fill_view(ctypes.py_object(tensor), place) == 0
    argument = Packed(None)
    argument.words = C.kTVMFFIDLTensorPtr, address(structs[-1])
    return argument


class DeviceTensor(Producer):
    """Two floats that claim to be on *device*."""

    def __init__(self, device, **fields):
        super().__init__((2,), device=device, content=struct.pack("2f", 1, 2), **fields)


_FROM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))


@immortal
@_FROM
def _from_py_object(tensor, out):
    out[0] = tensor.build()
    return 0


_VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


@immortal
@_VIEW
def _view_of_py_object(tensor, out):
    tensor.lent = tensor.new_struct()  # lives as long as the tensor
    ffi.cast("DLTensor *", out)[0] = tensor.lent[0].dl_tensor
    return 0


@immortal
@ffi.callback("int(DLDeviceType, int32_t, void **)")
def _current_work_stream(device_type, device_id, out):
    out[0] = ffi.cast("void *", STREAMS[device_type, device_id])
    return 0


@immortal
@ffi.callback("int(DLManagedTensorVersioned *, void **)")
def _to_py_object(_managed, _out):
    return -1


_table = immortal(ffi.new("DLPackExchangeAPI *"))
_table.header.version.major, _table.header.version.minor = 1, 3
_table.managed_tensor_from_py_object_no_sync = ffi.cast(
    "DLPackManagedTensorFromPyObjectNoSync",
    ctypes.cast(_from_py_object, ctypes.c_void_p).value,
)
_table.managed_tensor_to_py_object_no_sync = _to_py_object
_table.dltensor_from_py_object_no_sync = ffi.cast(
    "DLPackDLTensorFromPyObjectNoSync",
    ctypes.cast(_view_of_py_object, ctypes.c_void_p).value,
)
_table.current_work_stream = _current_work_stream


class TableTensor(DeviceTensor):
    """With an exchange table, whose current streams are `STREAMS`."""

    __dlpack_c_exchange_api__ = immortal(new_capsule(address(_table), b"dlpack_exchange_api"))

    def __dlpack__(self, **_keywords):
        raise AssertionError("the table is asked first")


class StreamTensor(DeviceTensor):
    """Paddle's way to name its stream."""

    def __tvm_ffi_env_stream__(self):
        return 0xBEEF


DEVICES = [(2, 0), (2, 1), (10, 0)]


def streams():
    """The streams that a kernel sees now: device -> stream, where one is set."""
    seen = {device: int(ffi.cast("intptr_t", C.TVMFFIEnvGetStream(*device))) for device in DEVICES}
    return {device: stream for device, stream in seen.items() if stream}
