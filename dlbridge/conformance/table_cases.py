"""The rules for an exchange table: X in ``docs/conformance.md``."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
import threading
from functools import partial
from typing import Any

import numpy as np

from dlbridge.core._cdefs import ffi
from dlbridge.core.dlpack.capsules import capsule_pointer
from dlbridge.core.implementation_details.python_api import decrement_references
from dlbridge.protocol import ADDRESS_DEVICES

from .cases import NUMBERS, Table, capsule_of, described, first_address, owned, refusal, require
from .producer import delete_in_thread, integer, managed_in
from .subject import Fail, NotOffered, Subject

__all__ = ["TABLES"]

TABLES = Table()
case = TABLES.case

NAMES = ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")
"""The attribute's name, and the one it had before dlpack.h 1.3."""

_EXPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_IMPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
_SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_ALLOCATE = ctypes.CFUNCTYPE(  # without the GIL: the header does not ask for it
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _SET_ERROR
)
_FUNCTIONS = (
    "managed_tensor_allocator",
    "managed_tensor_from_py_object_no_sync",
    "managed_tensor_to_py_object_no_sync",
    "current_work_stream",
)
_BORROW = "dltensor_from_py_object_no_sync"


def _matrix() -> np.ndarray[Any, Any]:
    return np.arange(6, dtype="float32").reshape(2, 3)


def _address(value: object) -> int:
    """The table in an attribute, which is a capsule or, before 1.3, an integer."""
    if isinstance(value, int):
        return value
    return capsule_pointer(value, b"dlpack_exchange_api") or 0


def _table(array: Any) -> Any:
    """The exchange table of the type of *array*, as cffi sees it."""
    for name in NAMES:
        value = getattr(type(array), name, None)
        if value is not None:
            address = _address(value)
            require(address, f"{name} is a {type(value).__name__} without a table")
            return ffi.cast("DLPackExchangeAPI *", address)
    raise NotOffered(f"{type(array).__name__} has no exchange table")


def _status(function: Any, *arguments: Any) -> int:
    """0; the exception of a function that sets one; Fail for a failure without an exception."""
    status: int = function(*arguments)  # ctypes raises what was set
    require(status == 0, f"it returned {status} and set no exception")
    return status


def _exported(table: Any, array: Any) -> tuple[Any, int]:
    """The struct that the table makes of *array*, and the address of its deleter."""
    out = ffi.new("DLManagedTensorVersioned **")
    function = _EXPORT(integer(table.managed_tensor_from_py_object_no_sync))
    _status(function, array, integer(out))
    require(out[0] != ffi.NULL, "it returned 0, and no struct")
    return out[0], integer(out[0].deleter)


def _delete(managed: Any, deleter: int) -> None:
    ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter)(integer(managed))


def _imported(table: Any, address: int) -> Any:
    """The library's array over the struct at *address*, with one reference."""
    out = ctypes.c_void_p()
    function = _IMPORT(integer(table.managed_tensor_to_py_object_no_sync))
    _status(function, address, ctypes.addressof(out))
    require(out.value, "it returned 0, and no array")
    array = ctypes.cast(out, ctypes.py_object).value
    decrement_references(array)
    return array


@case("X1")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    _table(array)
    there = {name: getattr(type(array), name) for name in NAMES if hasattr(type(array), name)}
    require(NAMES[0] in there, f"only under the name before 1.3, {NAMES[1]}")
    require(type(there[NAMES[0]]).__name__ == "PyCapsule", f"{there[NAMES[0]]!r} is no capsule")
    require(len(set(map(_address, there.values()))) == 1, "another table under each name")
    forms = [f"{name}: {type(value).__name__}" for name, value in there.items()]
    return ", ".join(forms)


@case("X2")
def _(subject: Subject) -> str:
    table = _table(subject.make(_matrix()))
    versions: list[tuple[int, int]] = []
    header = ffi.addressof(table, "header")
    while header != ffi.NULL:
        versions.append((int(header.version.major), int(header.version.minor)))
        require(len(versions) < 16, "prev_api does not end")
        header = header.prev_api
    require(versions == sorted(versions, reverse=True), f"prev_api goes up: {versions}")
    require(any(major == 1 for major, _ in versions), f"no table of version 1: {versions}")
    return " <- ".join(f"{major}.{minor}" for major, minor in versions)


@case("X3")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    table = _table(array)
    for name in _FUNCTIONS:
        require(getattr(table, name) != ffi.NULL, f"{name} is NULL")
    gc.collect()
    again = _table(subject.make(_matrix()))
    require(table == again, "another table for another array")
    return "lends, too" if getattr(table, _BORROW) else "does not lend"


class _Allocation:
    """One call of an allocator: its status, the struct it made, the errors it told."""

    def __init__(
        self,
        table: Any,
        device: tuple[int, int],
        shape: tuple[int, ...] = (2, 3),
        dtype: tuple[int, int, int] = (2, 32, 1),
    ) -> None:
        self._shape = ffi.new("int64_t[]", list(shape)) if shape else ffi.NULL
        prototype = ffi.new("DLTensor *")
        prototype.ndim, prototype.shape = len(shape), self._shape
        kind = prototype.dtype
        kind.code, kind.bits, kind.lanes = dtype
        pair = ffi.cast("int32_t *", ffi.addressof(prototype, "device"))
        pair[0], pair[1] = device
        prototype.data = ffi.cast("void *", 0xBAD)  # nothing else of a prototype is used
        prototype.strides = ffi.cast("int64_t *", 0xBAD)
        self.errors: list[tuple[bytes, bytes]] = []
        self._out = ffi.new("DLManagedTensorVersioned **")
        told = _SET_ERROR(lambda _context, kind, message: self.errors.append((kind, message)))
        function = _ALLOCATE(integer(table.managed_tensor_allocator))
        self.status: int = function(integer(prototype), integer(self._out), None, told)

    @property
    def managed(self) -> Any:
        return self._out[0]


@case("X4")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    table, device = _table(array), subject.place.device
    first = _Allocation(table, device)
    if first.status:
        require(len(first.errors) == 1, f"status {first.status}, errors {first.errors}")
        raise NotOffered(f"it allocates nothing: {first.errors[0][1].decode()}")
    _delete(first.managed, integer(first.managed.deleter))
    for shape in ((2, 3), (7,), (), (0, 3)):
        made = _Allocation(table, device, shape=shape)
        require(made.status == 0 and not made.errors, f"{shape}: {made.status}, {made.errors}")
        tensor = made.managed.dl_tensor
        found = tuple(int(tensor.shape[axis]) for axis in range(tensor.ndim))
        require(found == shape, f"shape {found}, not {shape}")
        if shape == (2, 3) and tensor.strides:
            require((tensor.strides[0], tensor.strides[1]) == (3, 1), "strides that are not (3, 1)")
        if 0 not in shape and device[0] in ADDRESS_DEVICES:
            require(tensor.data != ffi.NULL, f"{shape}: data is NULL")
            require(first_address(made.managed) % 16 == 0, "not aligned to 16 bytes")
        _delete(made.managed, integer(made.managed.deleter))
    wrong: tuple[dict[str, Any], ...] = (
        {"dtype": (99, 32, 1)},
        {"device": (99, 0)},
        {"shape": (1 << 60, 1 << 20)},
    )
    for fields in wrong:
        failed = _Allocation(table, **{"device": device, **fields})
        require(failed.status != 0, f"{fields}: accepted")
        require(len(failed.errors) == 1, f"{fields}: SetError called {len(failed.errors)} times")
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(_Allocation(table, device).status))
    thread.start()
    thread.join()
    require(seen == [0], f"status {seen} in a thread")
    return f"errors: {failed.errors[0][0].decode()}"


@case("X5")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    table = _table(array)
    before = sys.getrefcount(array)
    exports = [_exported(table, array) for _ in range(3)]
    at = first_address(managed_in(capsule_of(array)))
    for managed, _ in exports:
        require(managed.version.major == 1, f"version {managed.version.major}")
        require(first_address(managed) == at, "other memory than __dlpack__ gives")
        require(managed.dl_tensor.ndim == 2, f"ndim {managed.dl_tensor.ndim}")
    require(len({integer(managed) for managed, _ in exports}) == 3, "one struct for two exports")
    for managed, deleter in (exports[1], exports[0], exports[2]):
        _delete(managed, deleter)
    require(sys.getrefcount(array) == before, "references are left")
    producer, array = owned(subject)
    managed, deleter = _exported(table, array)
    del array
    gc.collect()
    require(producer.alive, "deleted although an export is alive")
    delete_in_thread(integer(managed), deleter)
    gc.collect()
    require(producer.deletions[-1] == 1, f"deletions {producer.deletions}")
    return "deleted once, in a thread that Python does not know"


@case("X6")
def _(subject: Subject) -> str:
    table = _table(subject.make(_matrix()))
    producer = described(subject, version=(1, 0))
    array = _imported(table, producer.build())
    require(_table(array) == table, f"a {type(array).__name__}, of another table")
    count = sys.getrefcount(array)
    require(count == 2, f"{count} references, not 2")
    require(subject.values(array).tolist() == NUMBERS[:4].tolist(), "other values")
    require(producer.alive, "deleted while the array is in use")
    del array
    gc.collect()
    require(producer.deletions == [1], f"deletions {producer.deletions}")
    return "deleted once"


@case("X7")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    table = _table(array)
    if not getattr(table, _BORROW):
        raise NotOffered("the function is NULL")
    lent = ffi.new("DLTensor *")
    before = sys.getrefcount(array)
    _status(_EXPORT(integer(getattr(table, _BORROW))), array, integer(lent))
    require(sys.getrefcount(array) == before, "it holds a reference")
    gc.collect()
    require((lent.ndim, lent.shape[0], lent.shape[1]) == (2, 2, 3), "another shape")
    at = integer(lent.data) + int(lent.byte_offset)
    require(at == first_address(managed_in(capsule_of(array))), "other memory")
    return "the same memory"


@case("X8")
def _(subject: Subject) -> str:
    table = _table(subject.make(_matrix()))
    function = _STREAM(integer(table.current_work_stream))
    stream = ctypes.c_void_p(7)
    _status(function, *subject.place.device, ctypes.addressof(stream))
    said = stream.value or 0
    if subject.place.device[0] == 1:
        require(said == 0, f"stream {said:#x} of the host")
    for device in ((99, 0), (1 << 20, -5)):
        try:
            function(*device, ctypes.addressof(stream))
        except Exception as exc:
            return f"stream {said:#x}; {type(exc).__name__} for an unknown device"
    return f"stream {said:#x}; no exception for an unknown device"


@case("X10")
def _(subject: Subject) -> str:
    class Cycle:
        def __init__(self, capsule: Any) -> None:
            self.capsule, self.me = capsule, self

    array = subject.make(_matrix())
    table = _table(array)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            Cycle(capsule_of(subject.make(_matrix())))
            _delete(*_exported(table, array))
    finally:
        gc.set_threshold(*before)
    return "50 exports"


@case("X18")
def _(subject: Subject) -> str:
    table = _table(subject.make(_matrix()))
    _delete(*_exported(table, subject.make(_matrix())))  # ctypes would raise what is pending
    function = _IMPORT(integer(table.managed_tensor_to_py_object_no_sync))
    evidence = ""
    wrongs: tuple[dict[str, Any], ...] = ({"dtype": (99, 1, 1)}, {"version": (2, 0)})
    for wrong in wrongs:
        producer = described(subject, **{"content": bytes(64), "version": (1, 0), **wrong})
        out = ctypes.c_void_p()
        try:
            evidence = refusal(partial(_status, function, producer.build(), ctypes.addressof(out)))
        except Fail as exc:
            raise Fail(f"{wrong}: {exc}") from exc
        require(not out.value, f"{wrong}: a failure with an array")
        require(sum(producer.deletions) <= 1, f"{wrong}: deletions {producer.deletions}")
    return evidence


@case("X19")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    table = _table(array)
    before = sys.getrefcount(array)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(500):
                _delete(*_exported(table, array))
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    del threads
    gc.collect()
    require(sys.getrefcount(array) == before, "references are left")
    return "2000 exports"


_INSIDE = """
try:
    from dlbridge.conformance.subject import Subject
    subject = Subject({spec!r})
    import numpy
    array = subject.make(numpy.arange(6, dtype="float32"))
    said = "works: " + str(bool(array.__dlpack__()))
except Exception as exc:
    said = type(exc).__name__ + ": " + str(exc)
"""


@case("X20")
def _(subject: Subject) -> str:
    table = _table(subject.make(_matrix()))
    try:
        name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
        interpreters = importlib.import_module(name)
    except ImportError as exc:
        raise NotOffered("this Python has no sub-interpreters") from exc
    other = interpreters.create()
    try:
        try:
            interpreters.run_string(other, _INSIDE.format(spec=subject.spec))
            evidence = "no crash"
        except Exception as exc:
            evidence = f"{type(exc).__name__}: {exc}"
    finally:
        interpreters.destroy(other)
    _delete(*_exported(table, subject.make(_matrix())))
    return evidence
