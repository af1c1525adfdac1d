"""The rules for an exchange table: X in ``docs/conformance.md``."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from typing import Any

from dlbridge.abi import capsule_pointer, decrement_references, ffi
from dlbridge.protocol import ADDRESS_DEVICES

from .cases import (
    MATRIX,
    NUMBERS,
    Cycle,
    Source,
    Table,
    address_of,
    delete_in_thread,
    deleted_once,
    described,
    first_address,
    in_threads,
    offered,
    owned,
    require,
    require_equal,
    told,
)
from .producer import Described, capsule_of, delete, integer, set_device, shape_of
from .subject import Fail, NotOffered, Subject

case = TABLES = Table()

NAMES = ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")
"""The attribute's name, and the one it had before dlpack.h 1.3."""

_EXPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_IMPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
_SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_ALLOCATE = ctypes.CFUNCTYPE(  # without the GIL: the header does not ask for it
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _SET_ERROR
)
_BORROW = "dltensor_from_py_object_no_sync"


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


def _call(function: Any, *arguments: Any) -> int:
    """0 of a function of the table, or its exception; Fail if it fails without setting one."""
    status: int = function(*arguments)  # ctypes raises what was set
    require(status == 0, f"it returned {status} and set no exception")
    return status


def _exported(table: Any, array: Any) -> Any:
    """The struct that the table makes of *array*."""
    out = ffi.new("DLManagedTensorVersioned **")
    function = _EXPORT(integer(table.managed_tensor_from_py_object_no_sync))
    _call(function, array, integer(out))
    require(out[0] != ffi.NULL, "it returned 0, and no struct")
    return out[0]


def _delete(managed: Any) -> None:
    delete(integer(managed), integer(managed.deleter))


def _imported(table: Any, address: int) -> Any:
    """The library's array over the struct at *address*, with one reference."""
    out = ctypes.c_void_p()
    function = _IMPORT(integer(table.managed_tensor_to_py_object_no_sync))
    _call(function, address, ctypes.addressof(out))
    require(out.value, "it returned 0, and no array")
    array = ctypes.cast(out, ctypes.py_object).value
    decrement_references(array)
    return array


@case("X1", "The attribute: a capsule on the type", Source.TABLE)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    _table(array)
    there = {name: getattr(type(array), name) for name in NAMES if hasattr(type(array), name)}
    offered(NAMES[0] in there, f"only under the name before 1.3, {NAMES[1]}")
    require(type(there[NAMES[0]]).__name__ == "PyCapsule", f"{there[NAMES[0]]!r} is no capsule")
    forms = [f"{name}: {type(value).__name__}" for name, value in there.items()]
    return f"{', '.join(forms)}, tables {len(set(map(_address, there.values())))}"


@case("X2", "Version 1.x; older tables by `prev_api`, NULL at the end", Source.HEADER)
def _(subject: Subject) -> str:
    table = _table(subject.make(MATRIX))
    versions: list[tuple[int, int]] = []
    header = ffi.addressof(table, "header")
    while header != ffi.NULL:
        versions.append((int(header.version.major), int(header.version.minor)))
        require(len(versions) < 16, "prev_api does not end")
        header = header.prev_api
    require(versions == sorted(versions, reverse=True), f"prev_api goes up: {versions}")
    require(any(major == 1 for major, _ in versions), f"no table of version 1: {versions}")
    return " <- ".join(f"{major}.{minor}" for major, minor in versions)


@case("X3", "Every function but the one that lends is set; the table stays", Source.TABLE)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    table = _table(array)
    for name, _ in ffi.typeof("DLPackExchangeAPI").fields:
        if name not in ("header", _BORROW):
            require(getattr(table, name), f"{name} is NULL")
    gc.collect()
    again = _table(subject.make(MATRIX))
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
        extents = ffi.new("int64_t[]", list(shape))
        prototype = ffi.new("DLTensor *")
        prototype.ndim, prototype.shape = len(shape), extents if shape else ffi.NULL
        prototype.dtype.code, prototype.dtype.bits, prototype.dtype.lanes = dtype
        set_device(prototype, device)
        prototype.data = ffi.cast("void *", 0xBAD)  # nothing else of a prototype is used
        prototype.strides = ffi.cast("int64_t *", 0xBAD)
        self.errors: list[tuple[bytes, bytes]] = []
        out = ffi.new("DLManagedTensorVersioned **")
        tell = _SET_ERROR(lambda _context, kind, message: self.errors.append((kind, message)))
        function = _ALLOCATE(integer(table.managed_tensor_allocator))
        self.status: int = function(integer(prototype), integer(out), None, tell)
        self.managed = out[0]


@case(
    "X4",
    "The allocator: which fields it reads, what it returns, how it reports errors",
    Source.ALLOCATOR,
)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    table, device = _table(array), subject.traits.device
    first = _Allocation(table, device)
    if first.status:
        require(len(first.errors) == 1, f"status {first.status}, errors {first.errors}")
        raise NotOffered(f"it allocates nothing: {first.errors[0][1].decode()}")
    _delete(first.managed)
    for shape in ((2, 3), (7,), (), (0, 3)):
        made = _Allocation(table, device, shape=shape)
        require(made.status == 0 and not made.errors, f"{shape}: {made.status}, {made.errors}")
        tensor, extents = made.managed.dl_tensor, shape_of(made.managed)
        require(extents == shape, f"shape {extents}, not {shape}")
        if 0 not in shape and device[0] in ADDRESS_DEVICES:
            require(tensor.data != ffi.NULL, f"{shape}: data is NULL")
            require(first_address(made.managed) % 16 == 0, "not aligned to 16 bytes")
        _delete(made.managed)
    wrong: tuple[dict[str, Any], ...] = ({"device": (99, 0)}, {"shape": (1 << 60, 1 << 20)})
    for fields in wrong:
        failed = _Allocation(table, **{"device": device, **fields})
        require(failed.status != 0, f"{fields}: accepted")
        require(len(failed.errors) == 1, f"{fields}: SetError called {len(failed.errors)} times")
    [status] = in_threads(1, lambda _: _Allocation(table, device).status)
    require(status == 0, f"status {status} in a thread")
    return f"errors: {failed.errors[0][0].decode()}"


@case("X5", "Exports: flags, ownership, failures", Source.FROM_OBJECT)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    table = _table(array)
    before = sys.getrefcount(array)
    exports = [_exported(table, array) for _ in range(3)]
    at = address_of(array)
    for managed in exports:
        require(managed.version.major == 1, f"version {managed.version.major}")
        require(first_address(managed) == at, "other memory than __dlpack__ gives")
        require(managed.dl_tensor.ndim == 2, f"ndim {managed.dl_tensor.ndim}")
    require(len({integer(managed) for managed in exports}) == 3, "one struct for two exports")
    for managed in (exports[1], exports[0], exports[2]):
        _delete(managed)
    require(sys.getrefcount(array) == before, "references are left")
    producer, array = owned(subject)
    managed = _exported(table, array)
    del array
    gc.collect()
    require(producer.alive, "deleted although an export is alive")
    delete_in_thread(integer(managed), integer(managed.deleter))
    return f"{deleted_once(producer)}, in a thread that Python does not know"


@case("X6", "Imports: a new reference; the struct is deleted once", Source.TO_OBJECT)
def _(subject: Subject) -> str:
    table = _table(subject.make(MATRIX))
    producer = described(subject, version=(1, 0))
    array = _imported(table, producer.build())
    count = sys.getrefcount(array)
    require_equal(subject.values(array), NUMBERS[:4])
    try:
        name, made = type(array).__name__, _table(array)
    except NotOffered as exc:
        raise Fail(str(exc)) from exc
    del array
    evidence = deleted_once(producer)
    if made == table:
        return f"{evidence}, {count} references"
    # The header wants the function, which makes a tensor of the library that implements the
    # table: for a class that nothing makes objects of, this is another class of that library.
    same = made.managed_tensor_allocator == table.managed_tensor_allocator
    require(same, f"a {name}, of another library's table")
    raise NotOffered(f"no way back to the class: a {name}, {evidence}")


@case("X7", "A borrowed struct has the memory of the tensor, and no reference to it", Source.LEND)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    table = _table(array)
    offered(getattr(table, _BORROW), "the function is NULL")
    borrowed = ffi.new("DLTensor *")
    before = sys.getrefcount(array)
    _call(_EXPORT(integer(getattr(table, _BORROW))), array, integer(borrowed))
    # Nothing may run between: the struct is the caller's until then alone.
    shape, at = (
        (borrowed.shape[0], borrowed.shape[1]),
        integer(borrowed.data) + int(borrowed.byte_offset),
    )
    require(sys.getrefcount(array) == before, "it holds a reference")
    require((borrowed.ndim, *shape) == (2, 2, 3), "another shape")
    require(at == address_of(array), "other memory")
    return "the same memory"


@case("X8", "The stream of its device; an unknown device is no crash", Source.STREAM)
def _(subject: Subject) -> str:
    table = _table(subject.make(MATRIX))
    function = _STREAM(integer(table.current_work_stream))
    stream = ctypes.c_void_p(7)
    _call(function, *subject.traits.device, ctypes.addressof(stream))
    said = stream.value or 0
    require(said != 7, "it returned 0, and wrote no stream")
    for device in ((99, 0), (1 << 20, -5)):
        try:
            function(*device, ctypes.addressof(stream))
        except Exception as exc:
            return f"stream {said:#x}; {type(exc).__name__} for an unknown device"
    return f"stream {said:#x}; no exception for an unknown device"


@case("X10", "Exports while a garbage collection deletes others", Source.NONE)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    table = _table(array)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            Cycle(capsule_of(subject.make(MATRIX)))
            _delete(_exported(table, array))
    finally:
        gc.set_threshold(*before)
    return "50 exports"


def _import(table: Any, producer: Described) -> Any:
    """The library's array by the table, or the exception of its failure."""
    try:
        return _imported(table, producer.build())
    except Exception as exc:
        return exc


@case("X18", "A failure leaves a Python exception set, and a success none", Source.TABLE)
def _(subject: Subject) -> str:
    table = _table(subject.make(MATRIX))
    _delete(_exported(table, subject.make(MATRIX)))  # ctypes would raise what is pending
    evidence = "it takes what a table may refuse"
    wrongs: tuple[dict[str, Any], ...] = ({"dtype": (99, 1, 1)}, {"dtype": (2, 24, 1)})
    for wrong in wrongs:
        producer = described(subject, **{"content": bytes(64), "version": (1, 0), **wrong})
        result = _import(table, producer)  # `_call` fails without an exception, or raises one
        if isinstance(result, Exception):
            evidence = told(result)
        del result
        require(sum(producer.deletions) <= 1, f"{wrong}: deletions {producer.deletions}")
    return evidence


@case("X21", "A struct of another major version is not imported", Source.VERSION)
def _(subject: Subject) -> str:
    table = _table(subject.make(MATRIX))
    result = _import(table, described(subject, content=bytes(64), version=(2, 0)))
    require(isinstance(result, Exception), f"accepted ({type(result).__name__})")
    return told(result)


@case("X19", "Exports by the table in many threads", Source.NONE)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    table = _table(array)
    before = sys.getrefcount(array)

    def work(_number: int) -> None:
        for _ in range(500):
            _delete(_exported(table, array))

    in_threads(4, work)
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
except BaseException as exc:
    said = type(exc).__name__ + ": " + str(exc)
"""


@case(
    "X20", "A sub-interpreter works with the table, or refuses the library: no crash", Source.NONE
)
def _(subject: Subject) -> str:
    table = _table(subject.make(MATRIX))
    try:
        name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
        interpreters = importlib.import_module(name)
    except ImportError as exc:
        raise NotOffered("this Python has no sub-interpreters") from exc
    other = interpreters.create()
    try:
        interpreters.run_string(other, _INSIDE.format(spec=subject.spec))
        evidence = "no crash"
    except Exception as exc:
        evidence = told(exc)
    finally:
        interpreters.destroy(other)
    _delete(_exported(table, subject.make(MATRIX)))
    return evidence
