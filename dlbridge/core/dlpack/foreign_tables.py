"""Other libraries' DLPackExchangeAPI tables: found and called.

A table is reached by a capsule (or, formerly, an integer) on the type, under
``__dlpack_c_exchange_api__`` or the name it had before (dlpack.h 1.3). Other
libraries' functions are called with the GIL held, through ctypes; cffi would
drop it and a failing callee would crash (measured).
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

from dlbridge.core._cdefs import ffi
from dlbridge.core.implementation_details.python_api import decrement_references, undisguised
from dlbridge.core.values.layout import MAX_NBYTES

from .capsules import ManagedTensor, Received, capsule_pointer
from .structs import DLPACK_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.values.devices import Device

    from .exports import OwnExport


TABLE_NAMES = ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")
"""The attribute's name, and the one it had before."""

CAPSULE_NAME = b"dlpack_exchange_api"

_FROM_PY_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
# Without the types of arguments, whose conversion takes 80 ns: it takes objects of ctypes.
_FILL_VIEW = ctypes.PYFUNCTYPE(ctypes.c_int)
_TO_PY_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_CURRENT_WORK_STREAM = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p
)


class ForeignTable:
    """Another library's exchange table, as Python methods."""

    __slots__ = ("_current_work_stream", "_from_py_object", "_to_py_object", "address", "fill_view")

    def __init__(self, table: Any) -> None:
        self.address = int(ffi.cast("uintptr_t", table))
        self._from_py_object = _FROM_PY_OBJECT(
            _address(table.managed_tensor_from_py_object_no_sync)
        )
        view = _address(table.dltensor_from_py_object_no_sync)
        self.fill_view: Callable[[ctypes.py_object, ctypes.c_void_p], int] | None = (
            _FILL_VIEW(view) if view else None
        )
        """A function of an instance and an address: it writes the DLTensor there, which is
        valid while the instance exists. Not 0, or an exception, if it cannot."""
        self._to_py_object = _TO_PY_OBJECT(_address(table.managed_tensor_to_py_object_no_sync))
        self._current_work_stream = _CURRENT_WORK_STREAM(_address(table.current_work_stream))

    def export(self, x: object) -> ManagedTensor:
        """*x*, an instance of the table's type, as a tensor that we own; not synchronised.

        The library's own exception if it refuses; BufferError means: ask by
        ``__dlpack__`` instead.
        """
        return self.receive(x).open()

    def receive(self, x: object) -> Received:
        """`export`, as a struct that is not read yet."""
        received = Received()
        try:
            failed = self._from_py_object(x, received.address) != 0
        except ctypes.ArgumentError as exc:
            raise undisguised(exc) from None
        if failed or not received.managed_address:
            raise BufferError(f"{type(x).__name__}: its exchange table failed without an error")
        return received

    def wrap_export(self, export: OwnExport) -> Any:
        """The library's own tensor over a struct of ours, which *export* keeps on failure."""
        # Not py_object: taking it by reference would leak one reference a call.
        out = ctypes.c_void_p()
        try:
            failed = self._to_py_object(export.managed_address, ctypes.addressof(out)) != 0
        finally:  # a Ctrl-C may have come after the library took it
            if out.value:
                export.release()
        if failed or not out.value:
            raise BufferError("the library's exchange table failed without an error")
        result = ctypes.cast(out, ctypes.py_object).value
        decrement_references(result)  # that of *out*, which is ours; ctypes has added another
        return result

    def current_work_stream(self, device: Device) -> int:
        """The stream that the library queues work on now; 0: the default."""
        out = ctypes.c_void_p()
        if self._current_work_stream(device.type, device.index, ctypes.addressof(out)) != 0:
            raise BufferError(f"the library's exchange table knows no stream of {device}")
        return out.value or 0


def table_of(cls: type) -> ForeignTable | None:
    """The exchange table of *cls*, or None if it has none yet that we can use."""
    found = _tables.get(cls)
    if found is None:
        found = _find_table(cls)
        if found is not None:
            _tables[cls] = found
    return found


_tables: weakref.WeakKeyDictionary[type, ForeignTable] = weakref.WeakKeyDictionary()


def _find_table(cls: type) -> ForeignTable | None:
    for name in TABLE_NAMES:
        value = getattr(cls, name, None)
        if not isinstance(value, int) or isinstance(value, bool):
            value = capsule_pointer(value, CAPSULE_NAME)
        table = _table_at(value)
        # A later major version may link to the one that we know. Each table that follows is of an
        # older version, so a chain has an end, and a ring is seen.
        while table and (version := _version(table))[0] > DLPACK_VERSION[0]:
            table = _table_at(_address(table.header.prev_api))
            if table and _version(table) >= version:
                table = None
        if (
            table
            and table.header.version.major == DLPACK_VERSION[0]
            and all(_address(getattr(table, function)) >= _LOWEST for function in _REQUIRED)
            and not 0 < _address(table.dltensor_from_py_object_no_sync) < _LOWEST
        ):
            return ForeignTable(table)
    return None


_REQUIRED = (
    "managed_tensor_from_py_object_no_sync",
    "managed_tensor_to_py_object_no_sync",
    "current_work_stream",
)
_LOWEST = 1 << 16  # no system maps memory below it (Linux: vm.mmap_min_addr)


def _table_at(address: int) -> Any:
    """The table at *address*, or None where none can be. Whether one is there nobody can see."""
    if not _LOWEST <= address < MAX_NBYTES or address % _ALIGNMENT:
        return None
    return ffi.cast("DLPackExchangeAPI *", address)


_ALIGNMENT = ffi.alignof("DLPackExchangeAPI")


def _version(table: Any) -> tuple[int, int]:
    return table.header.version.major, table.header.version.minor


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
