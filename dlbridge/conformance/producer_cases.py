"""The rules for a producer, of DLPack and the array API: P and S1 in ``docs/conformance.md``."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import partial
from typing import Any

import numpy as np

from dlbridge.core._cdefs import ffi
from dlbridge.core.values.devices import plain_number

from .cases import Table, export, first_address, refusal, version_argument
from .producer import name_of
from .subject import Fail, NotOffered, Subject

__all__ = ["PRODUCER"]

PRODUCER = Table()
case = PRODUCER.case

_IS_COPIED = 2
_READ_ONLY = 1


def _matrix() -> np.ndarray[Any, Any]:
    return np.arange(6, dtype="float32").reshape(2, 3)


@case("P1", "All four keywords of __dlpack__ are keyword-only")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    return refusal(lambda: array.__dlpack__(None), (TypeError,))


@case("P2", "__dlpack_device__ returns two ints, equal to those of the struct")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    pair = array.__dlpack_device__()
    _capsule, managed = export(array)  # the struct lives as long as the capsule
    device = managed.dl_tensor.device
    exported = int(ffi.cast("int32_t *", ffi.addressof(device))[0]), int(device.device_id)
    numbers = tuple(map(plain_number, pair))
    if not isinstance(pair, tuple) or any(not isinstance(part, int) for part in numbers):
        raise Fail(f"{pair!r} is not a tuple of two ints")
    if numbers != exported:
        raise Fail(f"{pair!r}, and the struct says {exported}")
    return str(exported)


@case("P3", "No max_version: a legacy capsule")
def _(subject: Subject) -> str:
    return _named(subject.make(_matrix()).__dlpack__(), "dltensor")


@case("P4", "max_version=None: a legacy capsule")
def _(subject: Subject) -> str:
    return _named(export(subject.make(_matrix()), max_version=None)[0], "dltensor")


@case("P5", "max_version below (1, 0): a legacy capsule")
def _(subject: Subject) -> str:
    return _named(export(subject.make(_matrix()), max_version=(0, 8))[0], "dltensor")


@case("P6", "max_version (1, 0): a versioned capsule of major version 1")
def _(subject: Subject) -> str:
    capsule, managed = export(subject.make(_matrix()), max_version=(1, 0))
    _named(capsule, "dltensor_versioned")
    return _major(managed)


@case("P7", "A later major max_version: still version 1")
def _(subject: Subject) -> str:
    capsule, managed = export(subject.make(_matrix()), max_version=(2, 0))
    _named(capsule, "dltensor_versioned")
    return _major(managed)


def _named(capsule: Any, name: str) -> str:
    if name_of(capsule) != name:
        raise Fail(f"a capsule named {name_of(capsule)!r}, not {name!r}")
    return name


def _major(managed: Any) -> str:
    version = int(managed.version.major), int(managed.version.minor)
    if version[0] != 1:
        raise Fail(f"version {version}")
    return f"version {version}"


@case("P8", "max_version that is not a pair of ints: TypeError")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    version_argument(array)
    for wrong in ("1", (1,), (1.0, 0), ("1", "0")):
        refusal(partial(array.__dlpack__, max_version=wrong), (TypeError,))
    return "TypeError"


def _readonly(subject: Subject) -> Any:
    """A read-only array: the library's arrays are immutable, or it keeps numpy's mark."""
    source = _matrix()
    source.flags.writeable = False
    if subject.immutable:
        return subject.make(source)
    try:
        return subject.take(source)
    except NotOffered:
        raise
    except Exception as exc:
        raise NotOffered(f"no read-only arrays: {exc}") from exc


def _says_read_only(array: Any) -> bool:
    version_argument(array)
    return bool(export(array, max_version=(1, 0))[1].flags & _READ_ONLY)


@case("P9", "A read-only tensor in a legacy capsule: BufferError")
def _(subject: Subject) -> str:
    array = _readonly(subject)
    if not subject.immutable and not _says_read_only(array):
        raise NotOffered("it has no read-only arrays")
    return refusal(array.__dlpack__, (BufferError,))


@case("P12", "An unknown keyword: TypeError")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    return refusal(lambda: array.__dlpack__(no_such_keyword=1), (TypeError,))


@case("P13", "dl_device=None is the tensor's own device")
def _(subject: Subject) -> str:
    _, managed = export(subject.make(_matrix()), dl_device=None)
    return f"device type {managed.dl_tensor.device.device_type}"


@case("P14", "dl_device= its own device")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    capsule, _ = export(array, max_version=(1, 0), dl_device=(1, 0))
    return name_of(capsule)


def _device_argument(array: Any) -> None:
    try:
        array.__dlpack__(dl_device=None)
    except TypeError as exc:
        raise NotOffered(f"it does not know dl_device: {exc}") from exc


@case("P15", "dl_device of another type: BufferError")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    _device_argument(array)
    return refusal(lambda: array.__dlpack__(dl_device=(16, 0)), (BufferError,))


@case("P16", "dl_device of its type that does not exist: BufferError")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    _device_argument(array)
    return refusal(lambda: array.__dlpack__(dl_device=(1, 77)), (BufferError,))


@case("P20", "dl_device that is not a pair of ints: TypeError")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    _device_argument(array)
    return refusal(lambda: array.__dlpack__(dl_device="cpu"), (TypeError,))


@case("P21", "copy=True: other memory, IS_COPIED")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    one = export(array, max_version=(1, 0))
    two = export(array, max_version=(1, 0), copy=True)
    if first_address(one[1]) == first_address(two[1]):
        raise Fail("the same memory")
    if "versioned" in name_of(two[0]) and not two[1].flags & _IS_COPIED:
        raise Fail("other memory, without the flag IS_COPIED")
    return "other memory"


@case("P22", "copy=False: the same memory, or BufferError")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    one = export(array)
    try:
        two = export(array, copy=False)
    except BufferError as exc:
        return f"BufferError: {exc}"
    if first_address(one[1]) != first_address(two[1]):
        raise Fail("other memory")
    return "the same memory"


@case("P23", "copy=None: the same memory, no IS_COPIED")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    one, two = export(array), export(array)
    if first_address(one[1]) != first_address(two[1]):
        raise Fail("other memory at each call")
    return "the same memory"


@case("P24", "copy that is not a bool: TypeError")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    export(array, copy=None)
    return refusal(lambda: array.__dlpack__(copy="yes"), (TypeError, ValueError))


@case("P25", "A copy of a read-only tensor is writable")
def _(subject: Subject) -> str:
    array = _readonly(subject)
    if not _says_read_only(array):
        raise NotOffered("it has no read-only arrays")
    _, managed = export(array, max_version=(1, 0), copy=True)
    if managed.flags & _READ_ONLY:
        raise Fail("the copy is marked READ_ONLY")
    return "writable"


@case("P26", "A copy keeps the values of every layout")
def _(subject: Subject) -> str:
    for source in (_matrix().T, np.arange(12, dtype="float32").reshape(3, 4)[:, ::2]):
        array = subject.make(source)
        _, managed = export(array, copy=True)
        if not np.array_equal(_elements(managed), source):
            raise Fail(f"{_elements(managed).tolist()}, not {source.tolist()}")
    return "values equal"


def _elements(managed: Any) -> np.ndarray[Any, Any]:
    """The float32 elements that a struct describes, read by its own fields."""
    tensor = managed.dl_tensor
    shape = [int(tensor.shape[axis]) for axis in range(tensor.ndim)]
    if tensor.strides:
        steps = [int(tensor.strides[axis]) for axis in range(tensor.ndim)]
    else:
        steps = [int(np.prod(shape[axis + 1 :])) for axis in range(tensor.ndim)]
    start = ffi.cast("float *", first_address(managed))
    found = np.empty(shape, "float32")
    for index in np.ndindex(*shape):
        found[index] = start[sum(map(int.__mul__, index, steps))]
    return found


@case("P27", "No dimensions")
def _(subject: Subject) -> str:
    _, managed = export(subject.make(np.array(7, dtype="float32")))
    if managed.dl_tensor.ndim != 0 or _elements(managed) != 7:
        raise Fail(f"ndim {managed.dl_tensor.ndim}")
    return "one element"


@case("P28", "Shape and strides are readable, strides in elements")
def _(subject: Subject) -> str:
    source = _matrix()
    _, managed = export(subject.make(source))
    if not np.array_equal(_elements(managed), source):
        raise Fail(f"{_elements(managed).tolist()}, not {source.tolist()}")
    return "values equal"


@case("P29", "No elements: NULL data, offset 0, the shape kept")
def _(subject: Subject) -> str:
    _, managed = export(subject.make(np.zeros((0, 3), "float32")))
    tensor = managed.dl_tensor
    shape = tuple(int(tensor.shape[axis]) for axis in range(tensor.ndim))
    if shape != (0, 3):
        raise Fail(f"shape {shape}")
    if tensor.data or tensor.byte_offset:
        raise Fail("data is not NULL (dlpack.h: it should be)")
    return "NULL"


@case("P31", "Byte strides that are not a multiple of the item size: BufferError")
def _(subject: Subject) -> str:
    record = np.zeros(4, np.dtype([("a", "u1"), ("b", "f4")]))["b"]
    array = subject.make(record) if subject.name != "numpy" else record
    _, managed = _or_buffer_error(array)
    if managed is None:
        return "BufferError"
    if not np.array_equal(_elements(managed), record):
        raise Fail("exported with wrong strides")
    return "copied when it was made"


@case("P32", "Foreign byte order: BufferError")
def _(subject: Subject) -> str:
    swapped = np.arange(3, dtype=np.dtype("float32").newbyteorder())
    array = subject.make(swapped) if subject.name != "numpy" else swapped
    _, managed = _or_buffer_error(array)
    if managed is None:
        return "BufferError"
    if not np.array_equal(_elements(managed), swapped):
        raise Fail("exported as if it had native byte order")
    return "converted when it was made"


@case("P33", "Types that DLPack does not have: BufferError")
def _(subject: Subject) -> str:
    array = subject.make(np.array(["2020-01-01"], "M8[D]"))
    return refusal(array.__dlpack__, (BufferError,))


def _or_buffer_error(array: Any) -> tuple[Any, Any]:
    try:
        return export(array)
    except BufferError:
        return None, None


_KINDS = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64),
    "complex64": (5, 64), "complex128": (5, 128), "bool": (6, 8),
}  # fmt: skip


@case("P34", "Code and bits of every type")
def _(subject: Subject) -> str:
    seen = []
    for name, expected in _KINDS.items():
        try:
            array = subject.make(np.zeros(2, name))
        except NotOffered:
            continue
        if _type_name(array) not in (name, None):
            continue  # made as another type: jax without 64 bits
        _capsule, managed = export(array)
        dtype = managed.dl_tensor.dtype
        if (dtype.code, dtype.bits, dtype.lanes) != (*expected, 1):
            raise Fail(f"{name} as code {dtype.code}, {dtype.bits} bits, {dtype.lanes} lanes")
        seen.append(name)
    if not seen:
        raise NotOffered("none of numpy's types")
    return f"{len(seen)} types"


def _type_name(array: Any) -> str | None:
    dtype = getattr(array, "dtype", None)
    return None if dtype is None else str(getattr(dtype, "name", dtype)).rpartition(".")[2]


@case("P36", "Flags are 0 by default")
def _(subject: Subject) -> str:
    capsule, managed = export(subject.make(_matrix()), max_version=(1, 0))
    if "versioned" not in name_of(capsule):
        raise NotOffered("legacy capsules have no flags")
    flags = int(managed.flags)
    if flags & ~_READ_ONLY or (flags and not subject.immutable):
        raise Fail(f"flags {flags}")
    return f"flags {flags}"


@case("P38", "The version is filled in")
def _(subject: Subject) -> str:
    capsule, managed = export(subject.make(_matrix()), max_version=(1, 3))
    if "versioned" not in name_of(capsule):
        raise NotOffered("legacy capsules have no version")
    return _major(managed)


@case("P39", "data + byte_offset is the first element")
def _(subject: Subject) -> str:
    source = np.arange(8, dtype="float32")
    whole = subject.make(source)
    try:
        part = whole[3:]
    except Exception as exc:
        raise NotOffered(f"no slices: {exc}") from exc
    found = _elements(export(part)[1])
    if not np.array_equal(found, source[3:]):
        raise Fail(f"{found.tolist()}, not {source[3:].tolist()}")
    return "values equal"


@case("P40", "Memory of its own is aligned to 256 bytes")
def _(subject: Subject) -> str:
    lowest = 4096
    arrays = [subject.allocate(np.ones(size, "float32")) for size in (3, 100, 1000, 5000)]
    for array in arrays:
        address = first_address(export(array)[1])
        lowest = min(lowest, address & -address)
    if lowest < 256:
        raise Fail(f"aligned to {lowest} bytes only")
    return f"{lowest} bytes"


@case("P41", "Negative strides: exported right, or BufferError")
def _(subject: Subject) -> str:
    source = np.arange(6, dtype="float32")[::-1]
    array = subject.make(source) if subject.name != "numpy" else source
    _, managed = _or_buffer_error(array)
    if managed is None:
        return "BufferError"
    tensor = managed.dl_tensor
    step = int(tensor.strides[0]) if tensor.strides else 1
    if not np.array_equal(_elements(managed), source):
        raise Fail("other values")
    return f"stride {step}"


def _grows(function: Any) -> int:
    """By how many MiB the process grows while *function* runs 40 times."""
    for _ in range(4):
        function()
    gc.collect()
    before = _resident()
    for _ in range(40):
        function()
    gc.collect()
    return (_resident() - before) >> 20


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - not a path of ours
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError as exc:
        raise NotOffered("this system does not tell the size of a process") from exc


_BIG = 1 << 21
"""Elements of 4 bytes: 40 leaked arrays are 320 MiB."""


@case("P42", "A capsule that nobody consumes frees its tensor")
def _(subject: Subject) -> str:
    def drop() -> None:
        subject.make(np.ones(_BIG, "float32")).__dlpack__()

    grown = _grows(drop)
    if grown > 100:
        raise Fail(f"{grown} MiB more after 40 capsules of 8 MiB")
    return "no growth"


@case("P43", "A consumed tensor is freed by its deleter, and not by the capsule")
def _(subject: Subject) -> str:
    def consume() -> None:
        array = np.from_dlpack(subject.make(np.ones(_BIG, "float32")))
        gc.collect(0)
        if array[-1] != 1:
            raise Fail("the elements have changed")

    grown = _grows(consume)
    if grown > 100:
        raise Fail(f"{grown} MiB more after 40 tensors of 8 MiB")
    return "no growth"


@case("P47", "An export owns its memory")
def _(subject: Subject) -> str:
    array = subject.make(np.arange(1 << 16, dtype="float32"))
    capsule, managed = export(array)
    del array
    gc.collect()
    others = [np.full(1 << 16, 7, "float32") for _ in range(8)]
    last = ffi.cast("float *", first_address(managed))[(1 << 16) - 1]
    if last != (1 << 16) - 1:
        raise Fail(f"the last element is {last} after the array was deleted")
    return f"alive beside {len(others)} new arrays, {name_of(capsule)}"


@case("P48", "Exports are independent of each other")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    one, two = export(array), export(array)
    if first_address(one[1]) == 0 or int(ffi.cast("uintptr_t", one[1])) == int(
        ffi.cast("uintptr_t", two[1])
    ):
        raise Fail("both capsules have one struct")
    del one
    gc.collect()
    if not np.array_equal(_elements(two[1]), _matrix()):
        raise Fail("dropping one has changed the other")
    return "two structs"


def _taken(array: Any) -> tuple[int, int]:
    """The address of a struct and of its deleter, taken out of a capsule as a consumer does."""
    capsule, managed = export(array)
    used = ctypes.create_string_buffer(f"used_{name_of(capsule)}".encode())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(used))
    rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
        ("PyCapsule_SetName", ctypes.pythonapi)
    )
    rename(capsule, ctypes.addressof(used))
    return int(ffi.cast("uintptr_t", managed)), int(ffi.cast("uintptr_t", managed.deleter))


@case("P49", "Deletion in a thread that Python does not know")
def _(subject: Subject) -> str:
    struct, deleter = _taken(subject.make(_matrix()))
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    at = ctypes.c_void_p(deleter)
    libc.pthread_create(ctypes.byref(thread), None, at, ctypes.c_void_p(struct))
    libc.pthread_join(thread, None)
    return "deleted"


@case("P50", "Deletion with the GIL held")
def _(subject: Subject) -> str:
    struct, deleter = _taken(subject.make(_matrix()))
    ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter)(struct)
    return "deleted"


@case("P51", "Deletion within a garbage collection")
def _(subject: Subject) -> str:
    class Holder:
        def __init__(self, capsule: Any) -> None:
            self.capsule, self.me = capsule, self

    for _ in range(10):
        Holder(subject.make(_matrix()).__dlpack__())
    gc.collect()
    return "deleted"


@case("P53", "Deletion after the end of Python")
def _(subject: Subject) -> str:
    struct, deleter = _taken(subject.make(_matrix()))
    libc = ctypes.CDLL(None)
    at = getattr(libc, "__cxa_atexit", None)
    if at is None:
        raise NotOffered("this system has no __cxa_atexit")
    at(ctypes.c_void_p(deleter), ctypes.c_void_p(struct), None)
    return "deleted at the exit of the process"


@case("P55", "A failed export leaks nothing")
def _(subject: Subject) -> str:
    array = subject.make(np.ones(_BIG, "float32"))
    before = sys.getrefcount(array)
    failed = 0
    for _ in range(50):
        try:
            array.__dlpack__(dl_device=(16, 0))
        except Exception:
            failed += 1
    if not failed:
        raise NotOffered("it does not refuse dl_device=(16, 0)")
    if sys.getrefcount(array) > before + 5:
        raise Fail(f"{sys.getrefcount(array) - before} references more after 50 failures")
    return "no reference more"


@case("P56", "A real capsule, whose repr names it")
def _(subject: Subject) -> str:
    text = repr(subject.make(_matrix()).__dlpack__())
    if '"dltensor' not in text:
        raise Fail(text)
    return text.partition(" at ")[0]


@case("P57", "Exports survive a fork")
def _(subject: Subject) -> str:
    if not hasattr(os, "fork"):
        raise NotOffered("this system has no fork")
    capsule, managed = export(subject.make(_matrix()))
    child = os.fork()
    if not child:
        good = np.array_equal(_elements(managed), _matrix())
        del capsule
        os._exit(0 if good else 1)
    status = os.waitpid(child, 0)[1]
    if status:
        raise Fail(f"the child ended with status {status}")
    return "read and freed in the child"


@case("S1", "Host memory takes stream None and -1, and refuses others")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    for stream in (None, -1):
        try:
            array.__dlpack__(stream=stream)
        except Exception as exc:
            raise Fail(f"stream={stream}: {type(exc).__name__}: {exc}") from exc
    return refusal(lambda: array.__dlpack__(stream=7), (ValueError, TypeError, BufferError))
