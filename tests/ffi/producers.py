"""Tensors on devices that this machine lacks: host memory under another device's name."""

from __future__ import annotations

import ctypes

from dlbridge.core._cdefs import ffi
from dlbridge.core.dlpack.foreign_tables import table_of
from dlbridge.ffi._lib import C, address
from dlbridge.ffi.containers import Packed

STREAMS = {(2, 0): 0x1234, (2, 1): 0x5678, (10, 0): 0x9ABC}
"""Device -> the stream that `TableTensor` says it works on."""

_live = {}


def _immortal(thing):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


@_immortal
@ffi.callback("void(DLManagedTensorVersioned *)")
def _delete(managed):
    del _live[int(ffi.cast("intptr_t", managed))]


def live():
    """How many exported tensors nobody has deleted yet."""
    return len(_live)


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


class DeviceTensor:
    """Two floats that claim to be on *device*, with no way out yet."""

    def __init__(self, device, version=(1, 3), flags=0):
        self.device = device
        self.version, self.flags = version, flags
        self.data = ffi.new("float[2]", [1.0, 2.0])

    def export(self):
        managed = ffi.new("DLManagedTensorVersioned *")
        shape = ffi.new("int64_t[2]", [2, 1])
        managed.version.major, managed.version.minor = self.version
        managed.deleter, managed.flags = _delete, self.flags
        tensor = managed.dl_tensor
        tensor.data = self.data
        tensor.device.device_type, tensor.device.device_id = self.device
        tensor.ndim = 1
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = 2, 32, 1
        tensor.shape, tensor.strides = shape, shape + 1
        _live[int(ffi.cast("intptr_t", managed))] = (managed, shape, self.data)
        return managed

    def __dlpack_device__(self):
        return self.device


_FROM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))


@_immortal
@_FROM
def _from_py_object(tensor, out):
    out[0] = int(ffi.cast("intptr_t", tensor.export()))
    return 0


_VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)


@_immortal
@_VIEW
def _view_of_py_object(tensor, out):
    managed = tensor.export()
    ffi.cast("DLTensor *", out)[0] = managed.dl_tensor
    tensor.lent = _live.pop(int(ffi.cast("intptr_t", managed)))  # lives as long as the tensor
    return 0


@_immortal
@ffi.callback("int(DLDeviceType, int32_t, void **)")
def _current_work_stream(device_type, device_id, out):
    out[0] = ffi.cast("void *", STREAMS[device_type, device_id])
    return 0


@_immortal
@ffi.callback("int(DLManagedTensorVersioned *, void **)")
def _to_py_object(_managed, _out):
    return -1


_table = _immortal(ffi.new("DLPackExchangeAPI *"))
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

_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_API_NAME = _immortal(ffi.new("char[]", b"dlpack_exchange_api"))
_TENSOR_NAME = _immortal(ffi.new("char[]", b"dltensor_versioned"))


def _capsule(pointer, name):
    return _new_capsule(int(ffi.cast("intptr_t", pointer)), int(ffi.cast("intptr_t", name)), None)


class TableTensor(DeviceTensor):
    """With an exchange table, whose current streams are `STREAMS`."""

    __dlpack_c_exchange_api__ = _immortal(_capsule(_table, _API_NAME))

    def __dlpack__(self, **_keywords):
        raise AssertionError("the table is asked first")


class PlainTensor(DeviceTensor):
    """With ``__dlpack__`` only; remembers what stream it was given."""

    asked = None

    def __dlpack__(self, *, stream=None, max_version=None, **_keywords):
        self.asked = stream
        return _capsule(self.export(), _TENSOR_NAME)


class StreamTensor(PlainTensor):
    """Paddle's way to name its stream."""

    def __tvm_ffi_env_stream__(self):
        return 0xBEEF


DEVICES = [(2, 0), (2, 1), (10, 0)]


def streams():
    """The streams that a kernel sees now: device -> stream, where one is set."""
    seen = {device: int(ffi.cast("intptr_t", C.TVMFFIEnvGetStream(*device))) for device in DEVICES}
    return {device: stream for device, stream in seen.items() if stream}
