"""Our own DLPackExchangeAPI tables: of `Tensor`, and of each class that is an `Exporter`.

The functions are callbacks that C keeps for ever, so they, the tables, their
capsules and the capsules' name each have one deliberate extra reference.
Source: dlpack.h 1.3, struct DLPackExchangeAPI.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import ref

from dlbridge.core._cdefs import ffi
from dlbridge.core.dlpack.capsules import (
    CURRENT,
    ManagedTensor,
    get_destructor,
    new_capsule,
    read_managed,
)
from dlbridge.core.dlpack.foreign_tables import CAPSULE_NAME
from dlbridge.core.dlpack.structs import DLPACK_VERSION, FLAG_IS_COPIED
from dlbridge.core.implementation_details.ends import at_exit
from dlbridge.core.implementation_details.handlers import (
    c_callback,
    unless_deferred,
    unless_handler,
)
from dlbridge.core.implementation_details.python_api import (
    HARMLESS,
    MEMBERS_AT,
    decrement_references,
    immortal,
    increment_references,
    memory,
    object_at,
    word_at,
)
from dlbridge.core.moves.transfer import copy_of, new_tensor
from dlbridge.core.plugins.streams import current_stream
from dlbridge.core.tensor.exchange import adopt, order_consumer_on_current_stream, own_export_of
from dlbridge.core.tensor.metadata import LOST_WRITES, has_negative_strides
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device, DLDeviceType
from dlbridge.core.values.dtypes import check_numbers
from dlbridge.errors import ExchangeError
from dlbridge.kit.resources import shared_lock

from .dlpack import as_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.values.dtypes import DType

_MANAGED = ffi.typeof("DLManagedTensorVersioned *")


class StructPool:
    """The structs that consumers of a tensor get from the table, used again and again.

    This is allowed, because consumers only read them; to make one for each call
    would cost three times as much. The address of a struct that is lent is a key of
    `_lent`, whose value, the loan, is a cffi handle that keeps the tensor alive.
    """

    __slots__ = ("is_padded", "owner", "queued_on", "strides", "structs", "template")

    def __init__(self, tensor: Tensor, flags: int = 0) -> None:
        # The memory whose consumers must be ordered; the CPU's is ready.
        on_cpu = tensor.device.type is DLDeviceType.kDLCPU
        self.queued_on = None if on_cpu else operand_of(tensor).memory
        # numpy's own export holds shape, strides and the memory. Its capsule is the owner:
        # a consumer's destructor may drop the last loan, and nothing may release the GIL there.
        self.owner = own_export_of(tensor, flags)
        self.template = self.owner.pointer
        self.is_padded = tensor.is_padded
        described = self.template.dl_tensor
        if not described.strides and described.ndim:  # numpy 2.2, if they are compact
            self.strides = described.strides = ffi.new("int64_t[]", tensor.strides)
        self.structs: list[tuple[int, Any]] = []

    def lend(self, tensor: Tensor) -> tuple[int, Any]:
        """The address of a struct that is not lent, entered in `_lent`, and its loan."""
        if self.queued_on is not None:
            order_consumer_on_current_stream(self.queued_on)
        loan = ffi.new_handle(tensor)
        for address, _ in self.structs:
            if _lent.setdefault(address, loan) is loan:
                return address, loan
        struct = ffi.new(_MANAGED, self.template[0])
        struct.manager_ctx = ffi.NULL
        struct.deleter = _deleters[-1]
        address = int(ffi.cast("uintptr_t", struct))
        _lent[address] = loan  # before another thread can find the struct
        self.structs.append((address, struct))
        return address, loan

    def is_lent(self) -> bool:
        """Whether a consumer has one of the structs."""
        return any(address in _lent for address, _ in self.structs)


_lent: dict[int, Any] = {}
"""Address of a struct that is lent -> its loan. Each loan is a new object, so that
`dict.setdefault`, one atomic step, says which of two threads got the struct."""


def _ignore_second_deletion(*_exception: object) -> None:
    """Do nothing: a consumer has called the deleter twice; the first call ended the loan."""


# The deleter calls C directly: a signal handler cannot interrupt it, because no
# Python instruction runs, and a pending exception of the consumer is kept. Its
# result, the loan, is not used; a callback for void may only return None.
_end_loan = immortal(
    ffi.callback("void *(intptr_t)", _lent.pop, onerror=immortal(_ignore_second_deletion))
)
_deleters = [ffi.cast("void(*)(DLManagedTensorVersioned *)", ffi.cast("uintptr_t", _end_loan))]


@at_exit
def _at_exit() -> None:
    # Consumers may hold tensors until after Python has ended. They read the
    # deleter when they call it, so from now on it is a harmless C function.
    _deleters.append(ffi.cast("void(*)(DLManagedTensorVersioned *)", HARMLESS))
    immortal(_lent)  # and with it each tensor, its shape and its memory
    for address in list(_lent):
        ffi.cast(_MANAGED, address).deleter = _deleters[-1]


_sharing = shared_lock()  # a collection inside may run a finalizer that exports


def _pool_of(tensor: Tensor, flags: int = 0) -> StructPool:
    """The structs of *tensor*, made once: another thread may be exporting it too."""
    known: StructPool | None = getattr(tensor, "_shared", None)
    if known is not None:
        return known
    with _sharing:
        known = getattr(tensor, "_shared", None)
        if known is None:
            known = tensor._shared = StructPool(tensor, flags)
        return known


def _lend_to(loans: list[tuple[int, Any]], tensor: Tensor) -> None:
    """Append the address of a struct of *tensor*, and its loan: `_take_back` looks there."""
    if has_negative_strides(tensor):  # a copy of what the elements are now, for this consumer alone
        why = f"a consumer gets no negative strides {tensor.strides}: {LOST_WRITES}"
        tensor = copy_of(tensor, why)
        pool = _pool_of(tensor, FLAG_IS_COPIED)
    else:
        pool = _pool_of(tensor)
    # In C, so that the exception of a signal handler comes before both or after both.
    loans.extend(map(pool.lend, [tensor]))


_new_handle, _claim = ffi.new_handle, _lent.setdefault


def _take_back(variables: dict[str, Any]) -> None:
    """End the loan of a call that was interrupted between claiming a struct and returning it."""
    claimed = [(variables.get("address", 0), variables.get("loan")), *variables.get("loans", ())]
    for address, loan in claimed:
        if loan is not None and _lent.get(address) is loan:
            del _lent[address]


def _lend_struct(tensor: Tensor, out: Any) -> int:
    """Write a struct of *tensor* to *out*; or return a status with the exception."""
    try:  # 25 ns less than getattr with a default
        shared = tensor._shared
        if shared.queued_on is None:
            loan = _new_handle(tensor)
            for address, struct in shared.structs:
                if _claim(address, loan) is loan:
                    out[0] = struct
                    return 0
    except unless_handler(Exception):  # the first export; or it has expired, as `_lend_to` says
        pass
    loans: list[tuple[int, Any]] = []
    try:
        _lend_to(loans, tensor)
    except unless_handler(Exception) as exc:
        return failure_status(exc)
    out[0] = ffi.cast(_MANAGED, loans[0][0])
    return 0


_exporting = c_callback("int(intptr_t, DLManagedTensorVersioned **)", undo=_take_back)


@_exporting
def _managed_tensor_from_py_object(identity: int, out: Any) -> int:
    return _lend_struct(object_at(identity), out)


@_exporting
def _managed_tensor_from_exporter(identity: int, out: Any) -> int:
    try:
        tensor = as_tensor(object_at(identity))
    except unless_deferred() as exc:
        return failure_status(exc)
    return _lend_struct(tensor, out)


def _leave_to_caller(variables: dict[str, Any]) -> None:
    """Undo the ownership of the struct by a call that was interrupted: it runs again."""
    managed = variables.get("managed")
    if isinstance(managed, ManagedTensor):
        managed.disown()


def _taker(make: Callable[[Tensor], object]) -> Any:
    """A function of a table: the object that *make* makes of the tensor, in the caller's hands."""

    # By its default argument, which an interrupted call has, too: it runs again with that.
    def take(address: int, out: Any, make: Callable[[Tensor], object] = make) -> int:
        managed = None
        try:
            managed = read_managed(address)
            tensor = adopt(managed, "an exchange table")
            managed.take_over()
            made = make(tensor)
        except unless_deferred() as exc:
            if managed is not None:
                managed.disown()  # the caller keeps the struct (tvm_ffi deletes it itself)
            return failure_status(exc)
        increment_references(made)  # the caller's reference
        out[0] = ffi.cast("void *", id(made))
        return 0

    return c_callback("int(intptr_t, void **)", undo=_leave_to_caller)(take)


_managed_tensor_to_py_object = _taker(lambda tensor: tensor)


@c_callback("int(intptr_t, DLTensor *)")
def _dltensor_from_py_object(identity: int, out: Any) -> int:
    tensor = object_at(identity)
    # Borrowed: valid as long as the tensor, which keeps the struct. With the true
    # strides, negative ones too: who only borrows the memory may write to it.
    shared = _borrowed_backwards(tensor) if has_negative_strides(tensor) else _pool_of(tensor)
    if shared.is_padded:
        why = f"padded {tensor.dtype} elements cannot be borrowed: a DLTensor has no flags"
        return failure_status(ExchangeError(why))
    if shared.queued_on is not None:
        order_consumer_on_current_stream(shared.queued_on)
    out[0] = shared.template.dl_tensor
    return 0


def _borrowed_backwards(tensor: Tensor) -> StructPool:
    """The structs of a tensor with negative strides, for consumers that only borrow it."""
    with _sharing:
        structs = _borrowed.get(ref(tensor))
        if structs is None:
            structs = _borrowed[ref(tensor, _borrowed.pop)] = StructPool(tensor)
        return structs


_borrowed: dict[ref[Tensor], StructPool] = {}
"""C code removes the entry of a tensor that ends (`remember` of `dlbridge.kit.resources`)."""


@c_callback(
    "int(DLTensor *, DLManagedTensorVersioned **, void *, "
    "void(*)(void *, const char *, const char *))",
    undo=_take_back,
)
def managed_tensor_allocator(prototype: Any, out: Any, context: Any, set_error: Any) -> int:
    """Allocate by our backends: a ``DLPackManagedTensorAllocator``."""
    # cffi takes the GIL: callers may be threads that Python does not know.
    try:
        out[0] = ffi.NULL
        shape, dtype, device = _prototype(prototype)
        loans: list[tuple[int, Any]] = []
        _lend_to(loans, new_tensor(device, dtype, shape))
        out[0] = ffi.cast(_MANAGED, loans[0][0])
    except unless_handler(Exception) as exc:  # reported through set_error
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
    dtype = check_numbers(prototype.dtype.code, prototype.dtype.bits, prototype.dtype.lanes)
    shape = tuple(ffi.unpack(prototype.shape, prototype.ndim)) if prototype.ndim else ()
    return shape, dtype, Device.of(prototype.device.device_type, prototype.device.device_id)


@c_callback("int(DLDeviceType, int32_t, void **)")
def _current_work_stream(device_type: int, device_id: int, out: Any) -> int:
    try:
        stream = 0
        if device_type != 1:
            stream = current_stream(Device.of(device_type, device_id))
        out[0] = ffi.cast("void *", stream)
    except unless_handler(Exception) as exc:  # no backend, no stream
        return failure_status(exc)
    return 0


_name: Any = immortal(ffi.new("char[]", CAPSULE_NAME))


@cache
def table_capsule(cls: type) -> Any:
    """The capsule of the table of *cls*, filled once: consumers keep its address.

    Of a class that is no `Tensor` it calls ``__as_tensor__`` and ``__from_tensor__``, and nobody
    can borrow the struct: how long the Tensor lives, only the class knows.
    """
    if issubclass(cls, Tensor):
        return _filled(
            _managed_tensor_from_py_object, _managed_tensor_to_py_object, _dltensor_from_py_object
        )

    def make(tensor: Tensor) -> object:  # the class may get the method after the table
        own = getattr(cls, "__from_tensor__", None)
        return tensor if own is None else own(tensor)

    return _filled(_managed_tensor_from_exporter, _taker(make), ffi.NULL)


def _filled(export: Any, take: Any, borrow: Any) -> Any:
    """The capsule of a table with these functions, and those that all tables share."""
    table: Any = immortal(ffi.new("DLPackExchangeAPI *"))
    table.header.version.major, table.header.version.minor = DLPACK_VERSION
    for field, function in (
        ("managed_tensor_allocator", managed_tensor_allocator),
        ("managed_tensor_from_py_object_no_sync", export),
        ("managed_tensor_to_py_object_no_sync", take),
        ("dltensor_from_py_object_no_sync", borrow),
        ("current_work_stream", _current_work_stream),
    ):
        kind = ffi.typeof(getattr(table, field))
        setattr(table, field, ffi.cast(kind, ffi.cast("uintptr_t", function)))
    address, name = (int(ffi.cast("uintptr_t", pointer)) for pointer in (table, _name))
    return immortal(new_capsule(address, name, None))


# The status of a callback that has failed -----------------------------------------


_DELETER = word_at(ffi.offsetof("DLManagedTensorVersioned", "deleter"))
"""Where a struct has it, and with a GIL a float its value."""


class _PendingError(float):
    """An *error* that ``PyObject_Size`` raises, once; until then it has an extra reference."""

    error: BaseException

    def __len__(self) -> int:
        memory[(id(self) >> 3) + _DELETER] = 0
        decrement_references(self)
        raise self.error


class _FailureStatus(int):
    """The status of C."""

    capsule: object


def failure_status(error: BaseException) -> int:
    """The status to return from a callback that has failed: C finds *error* pending.

    cffi and ctypes clear the exception of a callback, and a Python function cannot return with
    one pending. Here the number that cffi has read holds the last reference to a capsule, and
    dropping it calls C: numpy's destructor of capsules calls the deleter in the struct, with the
    address of the struct. The "struct" is a float, whose value lies where a struct has its
    deleter, and is the address of ``PyObject_Size``; and so its ``__len__``, which raises the
    exception, is called by C. Without a GIL the number of other threads' references lies there:
    none has one, and the address is written there until ``__len__`` is called.
    """
    value, destructor = _functions()
    pending = _PendingError(value)
    pending.error = error
    status = _FailureStatus(-1)
    increment_references(pending)
    memory[(id(pending) >> 3) + _DELETER] = memory[(id(pending) >> 3) + MEMBERS_AT]
    status.capsule = new_capsule(id(pending), CURRENT, destructor)
    return status


@cache
def _functions() -> tuple[float, int]:
    """``PyObject_Size``, as the value of a float, and numpy's destructor."""
    import numpy as np

    size = ctypes.cast(ctypes.pythonapi.PyObject_Size, ctypes.c_void_p).value
    (value,) = struct.unpack("=d", struct.pack("=Q", size))
    return value, get_destructor(np.zeros(1).__dlpack__(max_version=DLPACK_VERSION))
