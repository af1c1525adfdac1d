"""Our own DLPackExchangeAPI table, on `Tensor` under both names.

The functions are closures that C keeps for ever, so they, the table, its
capsule and the capsule's name each have one deliberate extra reference. A
failing closure cannot leave a Python exception behind (ctypes and cffi clear
it), so what could fail is refused when a Tensor is made: exporting one that
exists does not fail. Source: dlpack.h 1.3, struct DLPackExchangeAPI.
"""

from __future__ import annotations

import atexit
import ctypes
from typing import Any

from ._cdefs import ffi
from .capsule import FLAG_IS_COPIED, export_managed, take_managed
from .consume import adopt
from .device import Device
from .dtype import DType, check
from .exchange import CAPSULE_NAME, NAMES
from .fields import DLPACK_VERSION
from .produce import OPERATIONS, has_negative_strides
from .tensor import Tensor

__all__ = ["export_tensor", "install"]

_POINTER = ctypes.POINTER(ctypes.c_void_p)


def _immortal(thing: Any) -> Any:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


class Shared:
    """The one struct that every consumer of a tensor gets from the table.

    Legal, as consumers only read it; a struct made per call would cost three
    times as much (measured: a tvm_ffi call with three tensors 3.0 us, so 1.3).
    Each export keeps the tensor by an entry in `exports`, and the deleter takes
    one entry away.
    """

    __slots__ = ("address", "exports", "managed", "template")

    def __init__(self, tensor: Tensor) -> None:
        self.address = 0
        flags = 0
        if has_negative_strides(tensor):
            tensor, flags = OPERATIONS["copy"](tensor), FLAG_IS_COPIED
        # numpy's own export holds shape, strides and the memory.
        self.template = take_managed(export_managed(tensor._array, tensor._table_image(flags)))
        self.managed: Any = ffi.new("DLManagedTensorVersioned *", self.template.pointer[0])
        self.managed.manager_ctx = ffi.NULL
        self.managed.deleter = _deleter
        self.address = int(ffi.cast("uintptr_t", self.managed))
        self.exports: list[Tensor] = []
        _exports[self.address] = self.exports
        _managed[self.address] = self.managed

    def __del__(self) -> None:
        _exports.pop(self.address, None)
        _managed.pop(self.address, None)


_exports: dict[int, list[Tensor]] = {}
_managed: dict[int, Any] = {}


@_immortal
@ffi.callback("void(intptr_t)")
def _drop(address: int) -> None:
    # Only this form, a del statement on an integer, leaves a pending exception
    # alone: a call in here would replace the consumer's error by SystemError.
    del _exports[address][-1]


_deleter = ffi.cast("void(*)(DLManagedTensorVersioned *)", ffi.cast("uintptr_t", _drop))


@atexit.register
def _at_exit() -> None:
    # Consumers may hold tensors until after Python has gone. They read the
    # deleter when they call it, so from now on it is a harmless C function.
    global _deleter
    harmless = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    _deleter = ffi.cast("void(*)(DLManagedTensorVersioned *)", harmless)
    for managed in list(_managed.values()):
        managed.deleter = _deleter
        _immortal(managed)


def _shared(tensor: Tensor) -> Shared:
    try:
        shared: Shared = tensor._shared
        return shared
    except AttributeError:
        found = tensor._shared = Shared(tensor)
        return found


def export_tensor(tensor: Tensor) -> int:
    """The address of a ``DLManagedTensorVersioned`` of *tensor* that the caller owns."""
    shared = _shared(tensor)
    shared.exports.append(tensor)
    return shared.address


@_immortal
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _POINTER)
def _managed_tensor_from_py_object(tensor: Tensor, out: Any) -> int:
    try:
        shared = tensor._shared
        shared.exports.append(tensor)
        out[0] = shared.address
    except AttributeError:
        try:
            out[0] = export_tensor(tensor)
        except BaseException:  # nothing may pass through C; ctypes would report success
            return -1
    return 0


@_immortal
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _POINTER)
def _managed_tensor_to_py_object(address: int, out: Any) -> int:
    try:
        # On failure the caller keeps the struct (tvm_ffi deletes it itself).
        tensor = adopt(take_managed(address), "an exchange table")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))  # the caller's reference
        out[0] = id(tensor)
    except BaseException:  # as above
        return -1
    return 0


@_immortal
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def _dltensor_from_py_object(tensor: Tensor, out: int) -> int:
    try:
        # Borrowed: valid as long as the tensor, which keeps the shared struct.
        ffi.cast("DLTensor *", out)[0] = _shared(tensor).managed.dl_tensor
    except BaseException:  # as above
        return -1
    return 0


@_immortal
@ffi.callback(
    "int(DLTensor *, DLManagedTensorVersioned **, void *, "
    "void(*)(void *, const char *, const char *))",
    error=-1,
)
def _managed_tensor_allocator(prototype: Any, out: Any, context: Any, set_error: Any) -> int:
    # cffi takes the GIL: callers may be threads that Python has never seen.
    try:
        out[0] = ffi.NULL
        tensor = OPERATIONS["empty"](*_prototype(prototype))
        out[0] = ffi.cast("DLManagedTensorVersioned *", export_tensor(tensor))
    except BaseException as exc:  # reported through set_error
        if set_error:
            kind, message = type(exc).__mro__, str(exc)
            name = next(cls.__name__ for cls in kind if cls.__module__ == "builtins")
            set_error(
                context, ffi.new("char[]", name.encode()), ffi.new("char[]", message.encode())
            )
        return -1
    return 0


def _prototype(prototype: Any) -> tuple[tuple[int, ...], DType, Device]:
    """Shape, dtype and device of a prototype; nothing else of it is valid."""
    dtype = check(prototype.dtype.code, prototype.dtype.bits, prototype.dtype.lanes)
    shape = tuple(ffi.unpack(prototype.shape, prototype.ndim)) if prototype.ndim else ()
    return shape, dtype, Device.of(prototype.device.device_type, prototype.device.device_id)


@_immortal
@ffi.callback("int(DLDeviceType, int32_t, void **)", error=-1)
def _current_work_stream(device_type: int, device_id: int, out: Any) -> int:
    try:
        stream = 0
        if device_type != 1:
            stream = OPERATIONS["current_stream"](Device.of(device_type, device_id))
        out[0] = ffi.cast("void *", stream)
    except BaseException:  # no backend, no stream
        return -1
    return 0


_table: Any = _immortal(ffi.new("DLPackExchangeAPI *"))
_name: Any = _immortal(ffi.new("char[]", CAPSULE_NAME))


def install() -> None:
    """Fill the table and put it on `Tensor`. Once per process: consumers keep its address."""
    _table.header.version.major, _table.header.version.minor = DLPACK_VERSION
    _table.managed_tensor_allocator = _managed_tensor_allocator
    _table.current_work_stream = _current_work_stream
    for field, function in (
        ("managed_tensor_from_py_object_no_sync", _managed_tensor_from_py_object),
        ("managed_tensor_to_py_object_no_sync", _managed_tensor_to_py_object),
        ("dltensor_from_py_object_no_sync", _dltensor_from_py_object),
    ):
        pointer = ctypes.cast(function, ctypes.c_void_p).value
        kind = ffi.typeof(getattr(_table, field))
        setattr(_table, field, ffi.cast(kind, pointer))
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    capsule = new(("PyCapsule_New", ctypes.pythonapi))(
        int(ffi.cast("uintptr_t", _table)), int(ffi.cast("uintptr_t", _name)), None
    )
    _immortal(capsule)
    for name in NAMES:
        setattr(Tensor, name, capsule)


install()
