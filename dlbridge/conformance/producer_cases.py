"""The rules for a producer, of DLPack and the array API: P in ``docs/conformance.md``."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import platform
import sys
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge.abi import ffi, immortal
from dlbridge.protocol import ADDRESS_DEVICES

from .cases import (
    IS_COPIED,
    MATRIX,
    READ_ONLY,
    SUBBYTE_PADDED,
    Cycle,
    Offering,
    Source,
    Table,
    address_of,
    delete_in_thread,
    deleted_once,
    described,
    drop_with_error,
    export,
    first_address,
    in_threads,
    offered,
    owned,
    read,
    readonly,
    refusal,
    require,
    require_equal,
    require_mark,
    same_memory,
    told,
    version_argument,
)
from .producer import (
    Described,
    capsule_in,
    capsule_of,
    delete,
    device_of,
    drop_destructor,
    dtype_of,
    integer,
    is_host,
    is_versioned,
    managed_in,
    name_of,
    rename,
    shape_of,
    taken,
)
from .subject import NotOffered, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

case = PRODUCER = Table()


def _refuses(subject: Subject, *kinds: type[Exception], **keywords: Any) -> str:
    """The evidence that ``__dlpack__`` raises one of *kinds* for these keywords."""
    array = subject.make(MATRIX)
    if "dl_device" in keywords:
        _device_argument(array)
    return refusal(lambda: array.__dlpack__(**keywords), *kinds)


def _device_argument(array: Any) -> None:
    with Offering("it does not know dl_device", TypeError):
        array.__dlpack__(dl_device=None)


def _legacy(subject: Subject, **keywords: Any) -> str:
    array = subject.make(MATRIX)
    with Offering("it makes no legacy capsules, as the standard allows", BufferError):
        name = name_of(array.__dlpack__(**keywords))
    require(name == "dltensor", f"a capsule named {name!r}, not 'dltensor'")
    return name


def _versioned(subject: Subject, max_version: tuple[int, int]) -> str:
    """A capsule "of a different version" may be returned, so that a legacy one is no fault."""
    managed = export(subject.make(MATRIX), max_version=max_version)
    offered(is_versioned(managed), "it makes legacy capsules, as the standard allows")
    version = int(managed.version.major), int(managed.version.minor)
    require(version[0] == 1, f"version {version}")
    return f"version {version}"


@case("P1", "All four keywords of `__dlpack__` are keyword-only", Source.EXPORT)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    return refusal(lambda: array.__dlpack__(None), TypeError)


_WITHOUT_INDEX = {1, 3, 11, 13}
"""Memory of the CPU, pinned and managed memory."""


@case(
    "P2",
    "`__dlpack_device__` returns two ints, equal to those of the exported struct",
    Source.DEVICE,
)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    pair = array.__dlpack_device__()
    exported = device_of(export(array))
    # The array API's pair has a member of any library's Enum, whose value is the number.
    numbers = tuple(part.value if isinstance(part, Enum) else part for part in pair)
    ints = isinstance(pair, tuple) and all(
        type(part) is not bool and hasattr(part, "__index__") for part in numbers
    )
    require(ints, f"{pair!r} is not a tuple of two ints")
    require(numbers == exported, f"{pair!r}, and the struct says {exported}")
    numbered = exported[0] not in _WITHOUT_INDEX or exported[1] == 0
    require(numbered, f"{exported}: the index of such memory is 0 (dlpack.h, DLDevice)")
    return str(exported)


case("P3", "No `max_version`: a legacy capsule, `dltensor`", Source.EXPORT)(_legacy)


@case("P4", "`max_version=None`: the same", Source.EXPORT)
def _(subject: Subject) -> str:
    version_argument(subject.make(MATRIX))
    return _legacy(subject, max_version=None)


@case("P5", "`max_version` below (1, 0): a capsule of any version, or BufferError", Source.EXPORT)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    version_argument(array)
    try:
        name = name_of(array.__dlpack__(max_version=(0, 8)))
    except BufferError as exc:
        return told(exc)
    require(name in ("dltensor", "dltensor_versioned"), f"a capsule named {name!r}")
    return name


case("P6", "`max_version` from (1, 0) on: `dltensor_versioned`, major version 1", Source.EXPORT)(
    partial(_versioned, max_version=(1, 0))
)


case("P7", "`max_version` of a later major version: still 1.x", Source.EXPORT)(
    partial(_versioned, max_version=(2, 0))
)


@case("P8", "`max_version` that is not a pair of ints: an error", Source.NONE)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    version_argument(array)
    for wrong in ("1", (1,), (1.0, 0), ("1", "0")):
        evidence = refusal(partial(array.__dlpack__, max_version=wrong))
    return evidence


@case("P9", "A read-only tensor in a legacy capsule: BufferError", Source.NONE)
def _(subject: Subject) -> str:
    array = readonly(subject)
    if not subject.immutable:
        require_mark(array)
    return refusal(array.__dlpack__, BufferError)


def _of_type(subject: Subject, dtype: tuple[int, int, int], **fields: Any) -> Any:
    """An array of elements that numpy does not have, over memory of ours."""
    try:
        return subject.take(described(subject, dtype=dtype, content=bytes(range(64)), **fields))
    except Exception as exc:
        raise NotOffered(f"it does not take such elements: {told(exc)}") from exc


def _keeps_type(subject: Subject, dtype: tuple[int, int, int]) -> bool:
    """Whether it takes elements of *dtype*; Fail if it exports them as others."""
    try:
        exported = dtype_of(managed_in(capsule_of(_of_type(subject, dtype))))
    except NotOffered:
        return False
    if exported == (*dtype[:2], 1) != dtype:
        return False  # the lanes are a dimension now
    require(exported == dtype, f"{dtype} is exported as {exported}")
    return True


@case("P10", "A padded sub-byte tensor in a legacy capsule: BufferError", Source.NONE)
def _(subject: Subject) -> str:
    array = _of_type(subject, (17, 4, 1), version=(1, 0), flags=SUBBYTE_PADDED)
    flags = managed_in(capsule_of(array)).flags
    require(flags & SUBBYTE_PADDED, f"exported with flags {flags}")
    return refusal(array.__dlpack__, BufferError)


case("P12", "An unknown keyword: TypeError", Source.NONE)(
    lambda subject: _refuses(subject, TypeError, no_such_keyword=1)
)


@case("P13", "`dl_device=None` is the tensor's own device", Source.EXPORT)
def _(subject: Subject) -> str:
    managed = export(subject.make(MATRIX), dl_device=None)
    return f"device type {managed.dl_tensor.device.device_type}"


class _Type(int):
    """A device type as an enum would have it."""


@case("P14", "Its own device, also with an IntEnum", Source.EXPORT)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    type_, index = subject.traits.device
    for device in ((type_, index), (_Type(type_), index)):
        same_memory(array, export(array, max_version=(1, 0), dl_device=device))
    return f"({type_}, {index})"


case("P15", "A device of another type: BufferError", Source.EXPORT)(
    lambda subject: _refuses(subject, BufferError, dl_device=(16, 0))
)
case("P16", "A device of its type that does not exist: an error", Source.NONE)(
    lambda subject: _refuses(subject, dl_device=(subject.traits.device[0], 77))
)


def _on_a_device(subject: Subject) -> Any:
    """An array whose memory the host cannot read."""
    array = subject.make(MATRIX)
    offered(not is_host(export(array)), "its arrays are in host memory")
    _device_argument(array)
    return array


@case("P17", "`(1, 0)` from a device: finished, and a copy with IS_COPIED", Source.EXPORT)
def _(subject: Subject) -> str:
    array = _on_a_device(subject)
    managed = export(array, dl_device=(1, 0), max_version=(1, 0))
    require(is_host(managed), "the struct names no memory of the host")
    if is_versioned(managed) and first_address(managed) != address_of(array):
        require(managed.flags & IS_COPIED, "without the flag IS_COPIED")
    require(np.array_equal(read(subject, managed), MATRIX), "other values")
    return "values equal"


@case("P18", "`(1, 0)` with `copy=False` where the host cannot read: BufferError", Source.EXPORT)
def _(subject: Subject) -> str:
    array = _on_a_device(subject)
    try:
        managed = export(array, dl_device=(1, 0), copy=False)
    except BufferError as exc:
        return told(exc)
    require(is_host(managed), "accepted, on its own device")
    require(first_address(managed) == address_of(array), "accepted, with other memory")
    return "the host reads it in place"


case("P20", "`dl_device` that is not a pair of ints: an error", Source.NONE)(
    lambda subject: _refuses(subject, dl_device="cpu")
)


@case("P21", "`copy=True`: other memory, IS_COPIED", Source.EXPORT)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    one = managed_in(capsule_of(array))
    with Offering("it makes no copies", BufferError):
        legacy = export(array, copy=True)
    require(first_address(one) != first_address(legacy), "the same memory")
    with Offering("it makes no copies", BufferError):
        two = export(array, max_version=(1, 0), copy=True)
    require(first_address(one) != first_address(two), "the same memory, with max_version")
    if is_versioned(two):
        require(two.flags & IS_COPIED, "other memory, without the flag IS_COPIED")
    return "other memory"


@case("P22", "`copy=False`: the same pointer, or BufferError", Source.EXPORT)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    one = export(array)
    try:
        two = export(array, copy=False)
    except BufferError as exc:
        return told(exc)
    require(first_address(one) == first_address(two), "other memory")
    return "the same memory"


@case("P23", "`copy=None`: the same pointer where possible, no IS_COPIED", Source.EXPORT)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    same_memory(array, managed_in(capsule_of(array)))
    return "the same memory"


@case("P24", "`copy` that is not a bool: an error", Source.NONE)
def _(subject: Subject) -> str:
    export(subject.make(MATRIX), copy=None)
    return _refuses(subject, copy="yes")


@case("P25", "A copy of a read-only tensor is writable", Source.MANAGED)
def _(subject: Subject) -> str:
    array = readonly(subject)
    require_mark(array)
    managed = export(array, max_version=(1, 0), copy=True)
    require(not managed.flags & READ_ONLY, "the copy is marked READ_ONLY")
    return "writable"


@case("P26", "A copy keeps the values of every layout", Source.EXPORT)
def _(subject: Subject) -> str:
    wide = np.arange(48, dtype="float32").reshape(6, 8)
    layouts = [MATRIX.T, wide[:, ::2], wide[::2, 1::2], wide[::-1, ::-1], wide[:1, ::3]]
    layouts += [np.broadcast_to(wide[0], (3, 8)), np.asfortranarray(wide), wide[0, 0, None]]
    made = 0
    for source in layouts:
        try:
            array = subject.make(source)
        except NotOffered:
            continue  # torch makes nothing of negative strides
        with Offering("it makes no copies", BufferError):
            managed = export(array, copy=True)
        require_equal(read(subject, managed), source)
        made += 1
    offered(made, "no array of any layout")
    return f"{made} layouts"


@case("P27", "No dimensions", Source.TENSOR)
def _(subject: Subject) -> str:
    array = subject.make(np.array(7, dtype="float32"))
    shape = getattr(array, "shape", ())
    offered(not isinstance(shape, tuple) or shape == (), f"it makes an array of shape {shape}")
    managed = export(array)
    require(managed.dl_tensor.ndim == 0, f"ndim {managed.dl_tensor.ndim}")
    require(read(subject, managed) == 7, "another value")
    return "one element"


@case("P28", "Shape and strides are readable, strides in elements, from 1.2 on set", Source.TENSOR)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    managed = managed_in(capsule_of(array))
    if is_versioned(managed) and (managed.version.major, managed.version.minor) >= (1, 2):
        require(managed.dl_tensor.strides, "NULL strides in a struct of version 1.2 or later")
    return require_equal(read(subject, export(array)), MATRIX)


@case("P29", "No elements: the shape is kept", Source.TENSOR)
def _(subject: Subject) -> str:
    for wanted in ((0, 3), (0,), (3, 0), (2, 0, 4)):
        managed = export(subject.make(np.zeros(wanted, "float32")))
        require(shape_of(managed) == wanted, f"shape {shape_of(managed)}")
    return "data is not NULL" if managed.dl_tensor.data else "NULL"  # which it should be


@case("P30", "Strides of dimensions of one element may be anything", Source.TENSOR)
def _(subject: Subject) -> str:
    managed = export(subject.make(np.arange(10, dtype="float32")[::3][:1]))
    strides = managed.dl_tensor.strides
    evidence = f"stride {strides[0]}" if strides else "no strides"
    require(read(subject, managed).tolist() == [0], "another value")
    return evidence


def _right_or_refused(
    subject: Subject, source: np.ndarray[Any, Any], wrong: str, right: Callable[[Any], str]
) -> str:
    """The evidence that an array is not exported, or has the values of *source*."""
    array = subject.make(source) if subject.name != "numpy" else source
    try:
        managed = managed_in(capsule_of(array))
    except Exception as exc:
        return told(exc)
    strides = managed.dl_tensor.strides
    evidence = right(int(strides[0]) if strides else 1)  # an import may free the struct
    require(np.array_equal(read(subject, managed), source), wrong)
    return evidence


@case(
    "P31",
    "Byte strides that are no multiple of the item size: right, or an error",
    Source.TENSOR,
)
def _(subject: Subject) -> str:
    source = np.zeros(4, np.dtype([("a", "u1"), ("b", "f4")]))["b"]
    made = "copied when it was made"
    return _right_or_refused(subject, source, "exported with wrong strides", lambda _: made)


@case("P32", "Foreign byte order: right, or an error", Source.TYPE)
def _(subject: Subject) -> str:
    source = np.arange(3, dtype=np.dtype("float32").newbyteorder())
    wrong = "exported as if it had native byte order"
    return _right_or_refused(subject, source, wrong, lambda _: "converted when it was made")


@case("P33", "Types that DLPack does not have: an error", Source.EXPORT)
def _(subject: Subject) -> str:
    evidence, missing = "", None
    for kind in ("M8[D]", "m8[s]", "U4", "V3", "O", [("a", "i4")]):
        try:
            # Zeros of the type "O" are ints, of which a library may make an array.
            array = subject.make(np.array([object()]) if kind == "O" else np.zeros(1, kind))
        except NotOffered as exc:
            missing = exc
            continue
        given = np.dtype(kind)
        if str(getattr(array, "dtype", given)) == str(given):  # else it was converted
            evidence = refusal(partial(capsule_of, array))
    if not evidence:
        raise missing or NotOffered("it converts all of them")
    return evidence


_OF_NUMPY = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64),
    "complex64": (5, 64), "complex128": (5, 128), "bool": (6, 8),
}  # fmt: skip

_OTHERS = (
    (4, 16), (5, 32), (7, 8), (8, 8), (9, 8), (10, 8), (11, 8), (12, 8), (13, 8), (14, 8),
    (15, 6), (16, 6), (17, 4),
)  # fmt: skip
"""bfloat16, complex32, and the floats of 8, 6 and 4 bits."""


@case("P34", "Code and bits of every type", Source.TYPE)
def _(subject: Subject) -> str:
    seen = 0
    for name, expected in _OF_NUMPY.items():
        try:
            array = subject.make(np.zeros(2, name))
        except NotOffered:
            continue
        try:
            dtype = getattr(array, "dtype", None)
        except Exception:  # the export is what counts
            dtype = None
        if str(getattr(dtype, "name", dtype)).rpartition(".")[2] not in (name, "None"):
            continue  # made as another type: jax without 64 bits
        code, bits, lanes = exported = dtype_of(export(array))
        if dtype is None and exported != (*expected, 1):
            continue  # nothing says that it was not made as another type
        words = f"{name} as code {code}, {bits} bits, {lanes} lanes"
        require(exported == (*expected, 1), words)
        seen += 1
    offered(seen, "none of numpy's types")
    others = sum(_keeps_type(subject, (*dtype, 1)) for dtype in _OTHERS)
    return f"{seen} types of numpy, {others} others"


@case("P35", "Lanes, and float4 in pairs", Source.TYPE)
def _(subject: Subject) -> str:
    lanes = ((2, 32, 4), (1, 8, 4), (17, 4, 2))
    seen = [str(dtype) for dtype in lanes if _keeps_type(subject, dtype)]
    offered(seen, "it takes no elements of several lanes")
    return ", ".join(seen)


@case("P36", "Flags are 0 by default", Source.MANAGED)
def _(subject: Subject) -> str:
    managed = export(subject.make(MATRIX), max_version=(1, 0))
    offered(is_versioned(managed), "legacy capsules have no flags")
    flags = int(managed.flags)
    if flags & IS_COPIED:
        same_memory(subject.make(MATRIX), managed)
    require(flags == 0 or (flags == READ_ONLY and subject.immutable), f"flags {flags}")
    return f"flags {flags}"


case("P38", "Versions are filled before the struct is handed over", Source.MANAGED)(
    partial(_versioned, max_version=(1, 3))
)


@case("P39", "`data` + `byte_offset` is the first element", Source.TENSOR)
def _(subject: Subject) -> str:
    source = np.arange(8, dtype="float32")
    whole = subject.make(source)
    with Offering("no slices"):
        part = whole[3:]
    return require_equal(read(subject, export(part)), source[3:])


@case("P40", "Memory of its own is aligned to 256 bytes", Source.TENSOR)
def _(subject: Subject) -> str:
    lowest = 4096
    offered(subject.traits.device[0] in ADDRESS_DEVICES, "data is a handle")
    arrays = [subject.allocate(np.ones(size, "float32")) for size in (3, 100, 1000, 5000)]
    for array in arrays:
        managed = export(array)
        address = integer(managed.dl_tensor.data)
        lowest = min(lowest, address & -address)
    require(lowest >= 256, f"aligned to {lowest} bytes only")
    return f"{lowest} bytes"


@case("P41", "Negative strides: right, or an error", Source.NONE)
def _(subject: Subject) -> str:
    source = np.arange(6, dtype="float32")[::-1]
    return _right_or_refused(subject, source, "other values", lambda step: f"stride {step}")


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - not a path of ours
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError as exc:
        raise NotOffered("this system does not tell the size of a process") from exc


def _require_no_growth(function: Callable[[], Any], what: str) -> None:
    """Fail if the process grows while *function* runs 40 times."""
    for _ in range(4):
        function()
    gc.collect()
    before = _resident()
    for _ in range(40):
        function()
    gc.collect()
    grown = (_resident() - before) >> 20
    require(grown <= 100, f"{grown} MiB more after 40 {what} of 8 MiB")


def _big(subject: Subject) -> Any:
    """An array of 8 MiB: 40 leaked ones are 320 MiB."""
    return subject.make(np.ones(1 << 21, "float32"))


def _counted(subject: Subject) -> tuple[Described, Any]:
    """A capsule of an array over memory whose deletion is counted; the array is gone."""
    producer, array = owned(subject)
    capsule = capsule_of(array)
    del array
    gc.collect()
    require(producer.alive, "deleted although an export is alive")
    return producer, capsule


@case("P42", "A capsule that nobody consumes frees its tensor", Source.PYTHON)
def _(subject: Subject) -> str:
    _require_no_growth(lambda: capsule_of(_big(subject)), "capsules")
    try:
        producer, capsule = _counted(subject)
    except NotOffered:
        return "no growth"
    del capsule
    return deleted_once(producer)


@case("P43", "A consumed capsule leaves the tensor to its consumer", Source.PYTHON)
def _(subject: Subject) -> str:
    def consume() -> None:
        capsule = capsule_of(_big(subject))
        struct, deleter = taken(capsule)
        del capsule
        gc.collect(0)
        delete(struct, deleter)

    _require_no_growth(consume, "tensors")
    producer, capsule = _counted(subject)
    struct, deleter = taken(capsule)
    del capsule
    gc.collect()
    require(producer.alive, "the capsule has deleted what its consumer has taken")
    delete(struct, deleter)
    return deleted_once(producer)


@case("P44", "A consumer that never renames the capsule: freed with it", Source.PYTHON)
def _(subject: Subject) -> str:
    producer, capsule = _counted(subject)
    ndim = managed_in(capsule).dl_tensor.ndim
    require(producer.alive, "deleted by a look at it")
    del capsule
    return f"{ndim} dimension, {deleted_once(producer)}"


@case("P45", "A consumer that takes the destructor away: freed by the deleter", Source.MANAGED)
def _(subject: Subject) -> str:
    producer, capsule = _counted(subject)
    managed = managed_in(capsule)
    struct, deleter = integer(managed), integer(managed.deleter)
    drop_destructor(capsule)
    del managed, capsule
    gc.collect()
    require(producer.alive, "deleted without a destructor")
    delete(struct, deleter)
    return deleted_once(producer)


@case("P46", "A capsule that was renamed to something else: no crash", Source.NONE)
def _(subject: Subject) -> str:
    rename(capsule_of(subject.make(MATRIX)), b"something_else")
    gc.collect()
    return "no crash"


@case("P47", "An export owns its memory", Source.MANAGED)
def _(subject: Subject) -> str:
    array = subject.make(np.arange(1 << 16, dtype="float32") % 128)  # nobody else keeps that
    managed = export(array)
    del array
    gc.collect()
    others = [np.full(1 << 16, 7, "float32") for _ in range(8)]
    last = read(subject, managed)[-1]
    require(last == 127, f"the last element is {last} after the array was deleted")
    name = name_of(capsule_in(managed)).removeprefix("used_")
    return f"alive beside {len(others)} new arrays, {name}"


@case("P48", "Exports are independent of each other", Source.MANAGED)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)
    one, two = export(array), export(array)
    require(integer(one) != integer(two), "both capsules have one struct")
    del one
    gc.collect()
    require(np.array_equal(read(subject, two), MATRIX), "dropping one has changed the other")
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
    return deleted_once(producer)


def _deleted_by(subject: Subject, way: Callable[[int, int], None]) -> str:
    """The evidence that the deleter may be called in this *way*, counted where that is possible."""
    try:
        producer, capsule = _counted(subject)
    except NotOffered:
        way(*taken(capsule_of(subject.make(MATRIX))))
        return "deleted"
    way(*taken(capsule))
    return deleted_once(producer)


case("P49", "Deletion in a thread that Python does not know", Source.PYTHON)(
    partial(_deleted_by, way=delete_in_thread)
)
case("P50", "Deletion with the GIL held", Source.PYTHON)(partial(_deleted_by, way=delete))


@case("P51", "Deletion within a garbage collection", Source.PYTHON)
def _(subject: Subject) -> str:
    for _ in range(10):
        Cycle(capsule_of(subject.make(MATRIX)))
    gc.collect()
    try:
        producer, array = owned(subject)
    except NotOffered:
        return "deleted"
    Cycle(capsule_of(array))
    del array
    return deleted_once(producer)


@case("P52", "Deletion while an exception is pending, which stays pending", Source.NONE)
def _(subject: Subject) -> str:
    drop_with_error([capsule_of(subject.make(MATRIX))])
    producer, capsule = _counted(subject)
    kept = [capsule]
    del capsule
    drop_with_error(kept)
    return deleted_once(producer)


_CODE: dict[str, Callable[[int], bytes]] = {
    "x86_64": lambda at: bytes((0x48, 0x8B, 0x47, at, 0xFF, 0xE0)),  # mov rax, [rdi + at]; jmp rax
    "aarch64": lambda at: (0xF9400001 | at // 8 << 10 | 0xD61F0020 << 32).to_bytes(8, "little"),
}
"""Machine code of ``managed->deleter(managed)``: when it runs, nothing of Python can."""


@case("P53", "Deletion after the end of Python", Source.NONE)
def _(subject: Subject) -> str:
    capsule = capsule_of(subject.make(MATRIX))
    code = _CODE.get(platform.machine())
    if code is None:
        raise NotOffered(f"no code for {platform.machine()}")
    at_exit = getattr(ctypes.CDLL(None), "__cxa_atexit", None)
    if at_exit is None:
        raise NotOffered("this system has no __cxa_atexit")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code(ffi.offsetof(ffi.typeof(managed_in(capsule)).item, "deleter")))
    function = ctypes.addressof(ctypes.c_char.from_buffer(immortal(page)))
    at_exit(ctypes.c_void_p(function), ctypes.c_void_p(taken(capsule)[0]), None)
    return "deleted at the exit of the process"


@case("P55", "A failed export leaks nothing", Source.NONE)
def _(subject: Subject) -> str:
    array = _big(subject)
    before = sys.getrefcount(array)
    failed = 0
    for _ in range(50):
        try:
            array.__dlpack__(dl_device=(16, 0))
        except Exception:
            failed += 1
    offered(failed, "it does not refuse dl_device=(16, 0)")
    more = sys.getrefcount(array) - before
    require(more <= 5, f"{more} references more after 50 failures")
    return "no reference more"


@case("P56", "A real capsule, whose repr names it", Source.PYTHON)
def _(subject: Subject) -> str:
    text = repr(capsule_of(subject.make(MATRIX)))
    require('"dltensor' in text, text)
    return text.partition(" at ")[0]


@case("P57", "Exports survive a fork", Source.NONE)
def _(subject: Subject) -> str:
    offered(hasattr(os, "fork"), "this system has no fork")
    managed = export(subject.make(MATRIX))
    offered(is_host(managed), "drivers of devices do not survive a fork")
    child = os.fork()
    if not child:
        good = np.array_equal(read(subject, managed), MATRIX)
        del managed
        os._exit(0 if good else 1)
    status = os.waitpid(child, 0)[1]
    require(not status, f"the child ended with status {status}")
    return "read and freed in the child"


@case("P58", "Exports and deletions in many threads", Source.NONE)
def _(subject: Subject) -> str:
    array = subject.make(MATRIX)

    def work(_number: int) -> None:
        for _ in range(200):
            require(shape_of(managed_in(capsule_of(array))) == (2, 3), "another struct")

    in_threads(4, work)
    return "800 exports"
