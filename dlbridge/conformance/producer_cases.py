"""The rules for a producer, of DLPack and the array API: P and S1 in ``docs/conformance.md``."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import platform
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge.core._cdefs import ffi
from dlbridge.core.values.devices import plain_number
from dlbridge.protocol import ADDRESS_DEVICES

from .cases import (
    Table,
    capsule_of,
    described,
    drop_with_error,
    export,
    first_address,
    owned,
    read,
    refusal,
    require,
    version_argument,
)
from .producer import (
    Described,
    delete_in_thread,
    drop_destructor,
    integer,
    is_host,
    managed_in,
    name_of,
    rename,
    taken,
)
from .subject import Fail, NotOffered, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PRODUCER"]

PRODUCER = Table()
case = PRODUCER.case

_IS_COPIED = 2
_READ_ONLY = 1
_SUBBYTE_PADDED = 4


def _matrix() -> np.ndarray[Any, Any]:
    return np.arange(6, dtype="float32").reshape(2, 3)


@case("P1")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    return refusal(lambda: array.__dlpack__(None), (TypeError,))


@case("P2")
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


@case("P3")
def _(subject: Subject) -> str:
    return _named(subject.make(_matrix()).__dlpack__(), "dltensor")


@case("P4")
def _(subject: Subject) -> str:
    return _named(export(subject.make(_matrix()), max_version=None)[0], "dltensor")


@case("P5")
def _(subject: Subject) -> str:
    return _named(export(subject.make(_matrix()), max_version=(0, 8))[0], "dltensor")


@case("P6")
def _(subject: Subject) -> str:
    capsule, managed = export(subject.make(_matrix()), max_version=(1, 0))
    _named(capsule, "dltensor_versioned")
    return _major(managed)


@case("P7")
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


@case("P8")
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
    capsule, managed = export(array, max_version=(1, 0))
    return "versioned" in name_of(capsule) and bool(managed.flags & _READ_ONLY)


@case("P9")
def _(subject: Subject) -> str:
    array = _readonly(subject)
    if not subject.immutable and not _says_read_only(array):
        raise NotOffered("it has no read-only arrays")
    return refusal(array.__dlpack__, (BufferError,))


@case("P12")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    return refusal(lambda: array.__dlpack__(no_such_keyword=1), (TypeError,))


@case("P13")
def _(subject: Subject) -> str:
    _, managed = export(subject.make(_matrix()), dl_device=None)
    return f"device type {managed.dl_tensor.device.device_type}"


@case("P14")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    type_, index = subject.place.device
    at = first_address(export(array, dl_device=None)[1])
    for device in ((type_, index), (_Type(type_), index)):
        found = first_address(export(array, max_version=(1, 0), dl_device=device)[1])
        require(found == at, f"other memory for dl_device={device!r}")
    return f"({type_}, {index})"


class _Type(int):
    """A device type as an enum would have it."""


def _device_argument(array: Any) -> None:
    try:
        array.__dlpack__(dl_device=None)
    except TypeError as exc:
        raise NotOffered(f"it does not know dl_device: {exc}") from exc


@case("P15")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    _device_argument(array)
    return refusal(lambda: array.__dlpack__(dl_device=(16, 0)), (BufferError,))


@case("P16")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    _device_argument(array)
    wrong = subject.place.device[0], 77
    return refusal(lambda: array.__dlpack__(dl_device=wrong), (BufferError,))


def _on_a_device(subject: Subject) -> Any:
    """An array whose memory the host cannot read."""
    array = subject.make(_matrix())
    if is_host(export(array)[1]):
        raise NotOffered("its arrays are in host memory")
    _device_argument(array)
    return array


@case("P17")
def _(subject: Subject) -> str:
    capsule, managed = export(_on_a_device(subject), dl_device=(1, 0), max_version=(1, 0))
    require(is_host(managed), "the struct names no memory of the host")
    require(np.array_equal(read(subject, (capsule, managed)), _matrix()), "other values")
    if "versioned" in name_of(capsule):
        require(managed.flags & _IS_COPIED, "without the flag IS_COPIED")
    return "values equal"


@case("P18")
def _(subject: Subject) -> str:
    array = _on_a_device(subject)
    return refusal(lambda: array.__dlpack__(dl_device=(1, 0), copy=False), (BufferError,))


@case("P20")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    _device_argument(array)
    return refusal(lambda: array.__dlpack__(dl_device="cpu"), (TypeError,))


@case("P21")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    one = export(array, max_version=(1, 0))
    two = export(array, max_version=(1, 0), copy=True)
    if first_address(one[1]) == first_address(two[1]):
        raise Fail("the same memory")
    if "versioned" in name_of(two[0]) and not two[1].flags & _IS_COPIED:
        raise Fail("other memory, without the flag IS_COPIED")
    return "other memory"


@case("P22")
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


@case("P23")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    one, two = export(array), export(array)
    if first_address(one[1]) != first_address(two[1]):
        raise Fail("other memory at each call")
    return "the same memory"


@case("P24")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    export(array, copy=None)
    return refusal(lambda: array.__dlpack__(copy="yes"), (TypeError, ValueError))


@case("P25")
def _(subject: Subject) -> str:
    array = _readonly(subject)
    if not _says_read_only(array):
        raise NotOffered("it has no read-only arrays")
    _, managed = export(array, max_version=(1, 0), copy=True)
    if managed.flags & _READ_ONLY:
        raise Fail("the copy is marked READ_ONLY")
    return "writable"


@case("P26")
def _(subject: Subject) -> str:
    wide = np.arange(48, dtype="float32").reshape(6, 8)
    layouts = [_matrix().T, wide[:, ::2], wide[::2, 1::2], wide[::-1, ::-1], wide[:1, ::3]]
    layouts += [np.broadcast_to(wide[0], (3, 8)), np.asfortranarray(wide), wide[0, 0, None]]
    made = 0
    for source in layouts:
        try:
            array = subject.make(source)
        except NotOffered:
            continue  # torch makes nothing of negative strides
        try:
            exported = export(array, copy=True)
        except BufferError as exc:
            raise NotOffered(f"it makes no copies: {exc}") from exc
        found = read(subject, exported)
        if not np.array_equal(found, source):
            raise Fail(f"{found.tolist()}, not {source.tolist()}")
        require(_is_dense(exported[1].dl_tensor), "the copy has gaps")
        made += 1
    require(made, "no array of any layout")
    return f"{made} layouts"


def _is_dense(tensor: Any) -> bool:
    """Whether the elements lie side by side, in any order of the dimensions."""
    if not tensor.strides:
        return True
    axes = [(int(tensor.strides[axis]), int(tensor.shape[axis])) for axis in range(tensor.ndim)]
    expected = 1
    for stride, extent in sorted(axis for axis in axes if axis[1] > 1):
        if stride != expected:
            return False
        expected *= extent
    return True


@case("P27")
def _(subject: Subject) -> str:
    exported = export(subject.make(np.array(7, dtype="float32")))
    ndim = exported[1].dl_tensor.ndim
    require(ndim == 0, f"ndim {ndim}")
    require(read(subject, exported) == 7, "another value")
    return "one element"


@case("P28")
def _(subject: Subject) -> str:
    source = _matrix()
    found = read(subject, export(subject.make(source)))
    if not np.array_equal(found, source):
        raise Fail(f"{found.tolist()}, not {source.tolist()}")
    return "values equal"


@case("P29")
def _(subject: Subject) -> str:
    for wanted in ((0, 3), (0,), (3, 0), (2, 0, 4)):
        _capsule, managed = export(subject.make(np.zeros(wanted, "float32")))
        tensor = managed.dl_tensor
        shape = tuple(int(tensor.shape[axis]) for axis in range(tensor.ndim))
        require(shape == wanted, f"shape {shape}")
        require(
            not (tensor.data or tensor.byte_offset), "data is not NULL (dlpack.h: it should be)"
        )
    return "NULL"


@case("P30")
def _(subject: Subject) -> str:
    one = subject.make(np.arange(10, dtype="float32")[::3][:1])
    exported = export(one)
    require(read(subject, exported).tolist() == [0], "another value")
    strides = exported[1].dl_tensor.strides
    return f"stride {strides[0]}" if strides else "no strides"


@case("P31")
def _(subject: Subject) -> str:
    record = np.zeros(4, np.dtype([("a", "u1"), ("b", "f4")]))["b"]
    array = subject.make(record) if subject.name != "numpy" else record
    exported = _or_buffer_error(array)
    if exported is None:
        return "BufferError"
    if not np.array_equal(read(subject, exported), record):
        raise Fail("exported with wrong strides")
    return "copied when it was made"


@case("P32")
def _(subject: Subject) -> str:
    swapped = np.arange(3, dtype=np.dtype("float32").newbyteorder())
    array = subject.make(swapped) if subject.name != "numpy" else swapped
    exported = _or_buffer_error(array)
    if exported is None:
        return "BufferError"
    if not np.array_equal(read(subject, exported), swapped):
        raise Fail("exported as if it had native byte order")
    return "converted when it was made"


@case("P33")
def _(subject: Subject) -> str:
    evidence = ""
    for kind in ("M8[D]", "m8[s]", "U4", "V3", "O", [("a", "i4")]):
        try:
            array = subject.make(np.zeros(1, kind))
        except NotOffered as exc:
            missing = exc
            continue
        evidence = refusal(array.__dlpack__, (BufferError,))
    if not evidence:
        raise missing
    return evidence


def _or_buffer_error(array: Any) -> tuple[Any, Any] | None:
    try:
        return export(array)
    except BufferError:
        return None


_KINDS = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64),
    "complex64": (5, 64), "complex128": (5, 128), "bool": (6, 8),
}  # fmt: skip


_SMALL = (
    (4, 16), (5, 32), (7, 8), (8, 8), (9, 8), (10, 8), (11, 8), (12, 8), (13, 8), (14, 8),
    (15, 6), (16, 6), (17, 4),
)  # fmt: skip
"""bfloat16, complex32, and the floats of 8, 6 and 4 bits."""


@case("P34")
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
    others = 0
    for dtype in _SMALL:
        try:
            found = _type_of(managed_in(capsule_of(_of_type(subject, (*dtype, 1)))))
        except NotOffered:
            continue
        require(found == (*dtype, 1), f"{dtype} is exported as {found}")
        others += 1
    return f"{len(seen)} types of numpy, {others} others"


def _type_name(array: Any) -> str | None:
    dtype = getattr(array, "dtype", None)
    return None if dtype is None else str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def _of_type(subject: Subject, dtype: tuple[int, int, int], **fields: Any) -> Any:
    """An array of elements that numpy does not have, over memory of ours."""
    try:
        return subject.take(described(subject, dtype=dtype, content=bytes(range(64)), **fields))
    except NotOffered:
        raise
    except Exception as exc:
        raise NotOffered(f"it does not take such elements: {type(exc).__name__}: {exc}") from exc


def _type_of(managed: Any) -> tuple[int, int, int]:
    dtype = managed.dl_tensor.dtype
    return int(dtype.code), int(dtype.bits), int(dtype.lanes)


@case("P35")
def _(subject: Subject) -> str:
    seen: list[str] = []
    for dtype in ((2, 32, 4), (1, 8, 4), (17, 4, 2)):
        try:
            array = _of_type(subject, dtype)
            found = _type_of(managed_in(capsule_of(array)))
        except NotOffered:
            continue
        require(found == dtype, f"{dtype} is exported as {found}")
        seen.append(str(dtype))
    if not seen:
        raise NotOffered("it takes no elements of several lanes")
    return ", ".join(seen)


@case("P10")
def _(subject: Subject) -> str:
    array = _of_type(subject, (17, 4, 1), version=(1, 0), flags=_SUBBYTE_PADDED)
    flags = managed_in(capsule_of(array)).flags
    require(flags & _SUBBYTE_PADDED, f"exported with flags {flags}")
    return refusal(array.__dlpack__, (BufferError,))


@case("P36")
def _(subject: Subject) -> str:
    capsule, managed = export(subject.make(_matrix()), max_version=(1, 0))
    if "versioned" not in name_of(capsule):
        raise NotOffered("legacy capsules have no flags")
    flags = int(managed.flags)
    if flags & ~_READ_ONLY or (flags and not subject.immutable):
        raise Fail(f"flags {flags}")
    return f"flags {flags}"


@case("P38")
def _(subject: Subject) -> str:
    capsule, managed = export(subject.make(_matrix()), max_version=(1, 3))
    if "versioned" not in name_of(capsule):
        raise NotOffered("legacy capsules have no version")
    return _major(managed)


@case("P39")
def _(subject: Subject) -> str:
    source = np.arange(8, dtype="float32")
    whole = subject.make(source)
    try:
        part = whole[3:]
    except Exception as exc:
        raise NotOffered(f"no slices: {exc}") from exc
    found = read(subject, export(part))
    if not np.array_equal(found, source[3:]):
        raise Fail(f"{found.tolist()}, not {source[3:].tolist()}")
    return "values equal"


@case("P40")
def _(subject: Subject) -> str:
    lowest = 4096
    if subject.place.device[0] not in ADDRESS_DEVICES:
        raise NotOffered("data is a handle")
    arrays = [subject.allocate(np.ones(size, "float32")) for size in (3, 100, 1000, 5000)]
    for array in arrays:
        address = first_address(export(array)[1])
        lowest = min(lowest, address & -address)
    if lowest < 256:
        raise Fail(f"aligned to {lowest} bytes only")
    return f"{lowest} bytes"


@case("P41")
def _(subject: Subject) -> str:
    source = np.arange(6, dtype="float32")[::-1]
    array = subject.make(source) if subject.name != "numpy" else source
    exported = _or_buffer_error(array)
    if exported is None:
        return "BufferError"
    tensor = exported[1].dl_tensor
    step = int(tensor.strides[0]) if tensor.strides else 1
    if not np.array_equal(read(subject, exported), source):
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


def _counted(subject: Subject) -> tuple[Described, Any]:
    """A capsule of an array over memory whose deletion is counted; the array is gone."""
    producer, array = owned(subject)
    capsule = capsule_of(array)
    del array
    gc.collect()
    require(producer.alive, "deleted although an export is alive")
    return producer, capsule


def _freed(producer: Described) -> str:
    gc.collect()
    require(not producer.alive, "not deleted")
    require(set(producer.deletions) == {1}, f"deletions {producer.deletions}")
    return "deleted once"


@case("P42")
def _(subject: Subject) -> str:
    def drop() -> None:
        subject.make(np.ones(_BIG, "float32")).__dlpack__()

    grown = _grows(drop)
    require(grown <= 100, f"{grown} MiB more after 40 capsules of 8 MiB")
    try:
        producer, capsule = _counted(subject)
    except NotOffered:
        return "no growth"
    del capsule
    return _freed(producer)


def _deleter(address: int) -> Any:
    return ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address)


@case("P43")
def _(subject: Subject) -> str:
    def consume() -> None:
        capsule = subject.make(np.ones(_BIG, "float32")).__dlpack__()
        struct, deleter = taken(capsule)
        del capsule
        gc.collect(0)
        _deleter(deleter)(struct)

    grown = _grows(consume)
    require(grown <= 100, f"{grown} MiB more after 40 tensors of 8 MiB")
    producer, capsule = _counted(subject)
    struct, deleter = taken(capsule)
    del capsule
    gc.collect()
    require(producer.alive, "the capsule has deleted what its consumer has taken")
    _deleter(deleter)(struct)
    return _freed(producer)


@case("P44")
def _(subject: Subject) -> str:
    producer, capsule = _counted(subject)
    ndim = managed_in(capsule).dl_tensor.ndim
    require(producer.alive, "deleted by a look at it")
    del capsule
    return f"{ndim} dimension, {_freed(producer)}"


@case("P45")
def _(subject: Subject) -> str:
    producer, capsule = _counted(subject)
    managed = managed_in(capsule)
    struct, deleter = integer(managed), integer(managed.deleter)
    drop_destructor(capsule)
    del managed, capsule
    gc.collect()
    require(producer.alive, "deleted without a destructor")
    _deleter(deleter)(struct)
    return _freed(producer)


@case("P46")
def _(subject: Subject) -> str:
    capsule = capsule_of(subject.make(_matrix()))
    rename(capsule, b"something_else")
    del capsule
    gc.collect()
    return "no crash"


@case("P47")
def _(subject: Subject) -> str:
    source = np.arange(1 << 16, dtype="float32") % 128
    array = subject.make(source)
    exported = export(array)
    del array
    gc.collect()
    others = [np.full(1 << 16, 7, "float32") for _ in range(8)]
    last = read(subject, exported)[-1]
    require(last == source[-1], f"the last element is {last} after the array was deleted")
    return f"alive beside {len(others)} new arrays, {name_of(exported[0]).removeprefix('used_')}"


@case("P48")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    one, two = export(array), export(array)
    require(integer(one[1]) != integer(two[1]), "both capsules have one struct")
    del one
    gc.collect()
    require(np.array_equal(read(subject, two), _matrix()), "dropping one has changed the other")
    try:
        producer, array = owned(subject)
    except NotOffered:
        return "two structs"
    exports = [capsule_of(array) for _ in range(10)]
    del array
    for position in (3, 0, 7, 0, 5, 1, 0, 1, 0):
        del exports[position]
        gc.collect()
        require(producer.alive, f"deleted with {len(exports)} exports alive")
    exports.clear()
    return _freed(producer)


@case("P49")
def _(subject: Subject) -> str:
    try:
        producer, capsule = _counted(subject)
    except NotOffered:
        producer, capsule = None, capsule_of(subject.make(_matrix()))
    struct, deleter = taken(capsule)
    delete_in_thread(struct, deleter)
    return _freed(producer) if producer else "deleted"


@case("P50")
def _(subject: Subject) -> str:
    try:
        producer, capsule = _counted(subject)
    except NotOffered:
        producer, capsule = None, capsule_of(subject.make(_matrix()))
    struct, deleter = taken(capsule)
    _deleter(deleter)(struct)
    return _freed(producer) if producer else "deleted"


class _Cycle:
    """What only a collection drops."""

    def __init__(self, capsule: Any) -> None:
        self.capsule, self.me = capsule, self


@case("P51")
def _(subject: Subject) -> str:
    for _ in range(10):
        _Cycle(subject.make(_matrix()).__dlpack__())
    gc.collect()
    try:
        producer, array = owned(subject)
    except NotOffered:
        return "deleted"
    _Cycle(capsule_of(array))
    del array
    return _freed(producer)


@case("P52")
def _(subject: Subject) -> str:
    kept = [capsule_of(subject.make(_matrix()))]
    drop_with_error(kept)
    producer, capsule = _counted(subject)
    kept.append(capsule)
    del capsule
    drop_with_error(kept)
    return _freed(producer)


_CODE: dict[str, Callable[[int], bytes]] = {
    "x86_64": lambda at: bytes((0x48, 0x8B, 0x47, at, 0xFF, 0xE0)),  # mov rax, [rdi + at]; jmp rax
    "aarch64": lambda at: (0xF9400001 | at // 8 << 10 | 0xD61F0020 << 32).to_bytes(8, "little"),
}
"""Machine code of ``managed->deleter(managed)``: when it runs, nothing of Python can."""


def _calls_deleter(managed: Any) -> int:
    """The address of a C function that calls the deleter which its argument has by then."""
    code = _CODE.get(platform.machine())
    if code is None:
        raise NotOffered(f"no code for {platform.machine()}")
    at = ffi.offsetof(ffi.typeof(managed).item, "deleter")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code(at))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(page))
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


@case("P53")
def _(subject: Subject) -> str:
    capsule = capsule_of(subject.make(_matrix()))
    function = _calls_deleter(managed_in(capsule))
    struct, _ = taken(capsule)
    libc = ctypes.CDLL(None)
    at = getattr(libc, "__cxa_atexit", None)
    if at is None:
        raise NotOffered("this system has no __cxa_atexit")
    at(ctypes.c_void_p(function), ctypes.c_void_p(struct), None)
    return "deleted at the exit of the process"


@case("P55")
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


@case("P56")
def _(subject: Subject) -> str:
    text = repr(subject.make(_matrix()).__dlpack__())
    if '"dltensor' not in text:
        raise Fail(text)
    return text.partition(" at ")[0]


@case("P57")
def _(subject: Subject) -> str:
    if not hasattr(os, "fork"):
        raise NotOffered("this system has no fork")
    exported = export(subject.make(_matrix()))
    if not is_host(exported[1]):
        raise NotOffered("drivers of devices do not survive a fork")
    child = os.fork()
    if not child:
        good = np.array_equal(read(subject, exported), _matrix())
        del exported
        os._exit(0 if good else 1)
    status = os.waitpid(child, 0)[1]
    if status:
        raise Fail(f"the child ended with status {status}")
    return "read and freed in the child"


@case("P58")
def _(subject: Subject) -> str:
    array = subject.make(_matrix())
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                if managed_in(capsule_of(array)).dl_tensor.ndim != 2:
                    raise Fail("another struct")
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return "800 exports"
