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
import weakref
from _ctypes import PyObj_FromPtr  # of an address: py_object.from_address takes ten times as long
from typing import Any

from dlbridge.core.dlpack._cdefs import ffi
from dlbridge.core.dlpack.capsules import FLAG_IS_COPIED, export_managed, take_managed
from dlbridge.core.dlpack.foreign_tables import CAPSULE_NAME, NAMES
from dlbridge.core.dlpack.structs import DLPACK_VERSION
from dlbridge.core.incoming.producers import adopt
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import DType, check

from .producer import OPERATIONS, has_negative_strides

__all__ = ["export_tensor", "install"]


def _immortal(thing: Any) -> Any:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


def _after_interrupt(
    kind: type[BaseException], _error: BaseException, traceback: Any
) -> int | None:
    """Do the work of a callback that a Ctrl-C has cut off, and let it be heard again later.

    One that came while C ran is noticed at the first instruction of the next
    Python function, and that is a callback: after a long kernel, always. C
    could not be told. Any other exception makes the callback fail.
    """
    if kind is not KeyboardInterrupt:
        return None
    code = traceback.tb_frame.f_code
    arguments = [traceback.tb_frame.f_locals[name] for name in code.co_varnames[: code.co_argcount]]
    status: int = _WORK[code](*arguments)
    # When the frame is gone: a call would meet the new Ctrl-C in here.
    _at_return = ffi.gc(ffi.cast("void *", 1), _SET_INTERRUPT)
    return status


_SET_INTERRUPT = ffi.cast(
    "void(*)(void *)",
    ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, ctypes.c_void_p).value,
)
_WORK: dict[Any, Any] = {}


def _callback(signature: str) -> Any:
    """A C function that never ends and never raises: -1 where the Python one does."""

    def decorate(function: Any) -> Any:
        _WORK[function.__code__] = function
        return _immortal(ffi.callback(signature, function, error=-1, onerror=_after_interrupt))

    return decorate


class Shared:
    """The structs that consumers of a tensor get from the table, used again and again.

    Legal, as consumers only read them; one made per call would cost three times
    as much. A struct that is lent is a key of `_lent`, whose value is a cffi
    handle that keeps the tensor.
    """

    __slots__ = ("strides", "structs", "template")

    def __init__(self, tensor: Tensor, flags: int = 0) -> None:
        # numpy's own export holds shape, strides and the memory.
        self.template = take_managed(export_managed(tensor._array, tensor._table_image(flags)))
        described = self.template.pointer.dl_tensor
        if described.ndim and not described.strides:  # numpy 2.2, if they are compact
            self.strides = described.strides = ffi.new("int64_t[]", tensor.strides)
        self.structs: list[tuple[int, Any]] = []

    def lend(self) -> tuple[int, Any]:
        """The address and pointer of a struct that nobody has; the caller enters it in `_lent`."""
        for found in self.structs:
            if found[0] not in _lent:
                return found
        struct = ffi.new("DLManagedTensorVersioned *", self.template.pointer[0])
        struct.manager_ctx = ffi.NULL
        struct.deleter = _deleter
        found = int(ffi.cast("uintptr_t", struct)), struct
        self.structs.append(found)
        return found

    def is_lent(self) -> bool:
        """Whether a consumer has one of the structs."""
        return any(address in _lent for address, _ in self.structs)


_lent: dict[int, Any] = {}

# The deleter calls C itself: there is no instruction of Python's at which a
# Ctrl-C could cut it off, and a pending exception of the consumer's passes. It
# returns the handle, which nobody looks at, as a callback for void may only
# return None.
_drop = _immortal(ffi.callback("void *(intptr_t)", _lent.pop))
_deleter = ffi.cast("void(*)(DLManagedTensorVersioned *)", ffi.cast("uintptr_t", _drop))


@atexit.register
def _at_exit() -> None:
    # Consumers may hold tensors until after Python has gone. They read the
    # deleter when they call it, so from now on it is a harmless C function.
    global _deleter
    harmless = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    _deleter = ffi.cast("void(*)(DLManagedTensorVersioned *)", harmless)
    _immortal(_lent)  # and with it each tensor, its shape and its memory
    for address in list(_lent):
        ffi.cast("DLManagedTensorVersioned *", address).deleter = _deleter


def _shared(tensor: Tensor) -> Shared:
    try:
        shared: Shared = tensor._shared
        return shared
    except AttributeError:
        found = tensor._shared = Shared(tensor)
        return found


def export_tensor(tensor: Tensor) -> int:
    """The address of a ``DLManagedTensorVersioned`` of *tensor* that the caller owns."""
    flags = 0
    if has_negative_strides(tensor):
        # A copy of what the elements are now, for this consumer alone.
        tensor, flags = OPERATIONS["copy"](tensor), FLAG_IS_COPIED
        tensor._shared = Shared(tensor, flags)
    address, _ = _shared(tensor).lend()
    _lent[address] = ffi.new_handle(tensor)
    return address


_new_handle = ffi.new_handle


@_callback("int(intptr_t, DLManagedTensorVersioned **)")
def _managed_tensor_from_py_object(identity: int, out: Any) -> int:
    tensor = PyObj_FromPtr(identity)
    try:
        for found in tensor._shared.structs:
            if found[0] not in _lent:
                out[0] = found[1]
                _lent[found[0]] = _new_handle(tensor)
                return 0
    except AttributeError:
        pass  # the first export
    try:
        out[0] = ffi.cast("DLManagedTensorVersioned *", export_tensor(tensor))
    except Exception:
        return -1
    return 0


@_callback("int(intptr_t, void **)")
def _managed_tensor_to_py_object(address: int, out: Any) -> int:
    managed = None
    try:
        managed = take_managed(address)
        tensor = adopt(managed, "an exchange table")
    except BaseException as exc:
        # On failure the caller keeps the struct (tvm_ffi deletes it itself).
        if managed is not None:
            managed.disown()
        if isinstance(exc, Exception):
            return -1
        raise
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))  # the caller's reference
    out[0] = ffi.cast("void *", id(tensor))
    return 0


@_callback("int(intptr_t, DLTensor *)")
def _dltensor_from_py_object(identity: int, out: Any) -> int:
    tensor = PyObj_FromPtr(identity)
    try:
        # Borrowed: valid as long as the tensor, which keeps the struct.
        shared = _backwards(tensor) if has_negative_strides(tensor) else _shared(tensor)
        out[0] = shared.template.pointer.dl_tensor
    except Exception:
        return -1
    return 0


def _backwards(tensor: Tensor) -> Shared:
    """The true strides of a tensor that is exported as a copy: who only borrows it may write."""
    if tensor not in _borrowed:
        _borrowed[tensor] = Shared(tensor)
    return _borrowed[tensor]


_borrowed: weakref.WeakKeyDictionary[Tensor, Shared] = weakref.WeakKeyDictionary()


@_callback(
    "int(DLTensor *, DLManagedTensorVersioned **, void *, "
    "void(*)(void *, const char *, const char *))"
)
def _managed_tensor_allocator(prototype: Any, out: Any, context: Any, set_error: Any) -> int:
    # cffi takes the GIL: callers may be threads that Python has never seen.
    try:
        out[0] = ffi.NULL
        tensor = OPERATIONS["empty"](*_prototype(prototype))
        out[0] = ffi.cast("DLManagedTensorVersioned *", export_tensor(tensor))
    except Exception as exc:  # reported through set_error
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


@_callback("int(DLDeviceType, int32_t, void **)")
def _current_work_stream(device_type: int, device_id: int, out: Any) -> int:
    try:
        stream = 0
        if device_type != 1:
            stream = OPERATIONS["current_stream"](Device.of(device_type, device_id))
        out[0] = ffi.cast("void *", stream)
    except Exception:  # no backend, no stream
        return -1
    return 0


_table: Any = _immortal(ffi.new("DLPackExchangeAPI *"))
_name: Any = _immortal(ffi.new("char[]", CAPSULE_NAME))


def install() -> None:
    """Fill the table and put it on `Tensor`. Once per process: consumers keep its address."""
    _table.header.version.major, _table.header.version.minor = DLPACK_VERSION
    for field, function in (
        ("managed_tensor_allocator", _managed_tensor_allocator),
        ("managed_tensor_from_py_object_no_sync", _managed_tensor_from_py_object),
        ("managed_tensor_to_py_object_no_sync", _managed_tensor_to_py_object),
        ("dltensor_from_py_object_no_sync", _dltensor_from_py_object),
        ("current_work_stream", _current_work_stream),
    ):
        kind = ffi.typeof(getattr(_table, field))
        setattr(_table, field, ffi.cast(kind, ffi.cast("uintptr_t", function)))
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    capsule = new(("PyCapsule_New", ctypes.pythonapi))(
        int(ffi.cast("uintptr_t", _table)), int(ffi.cast("uintptr_t", _name)), None
    )
    _immortal(capsule)
    for name in NAMES:
        setattr(Tensor, name, capsule)


install()
