"""The rules for a consumer, of DLPack and the array API: C in ``docs/conformance.md``."""

from __future__ import annotations

import gc
import re
import weakref
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from dlbridge import DType
from dlbridge.abi import ffi
from dlbridge.extending import check_dtype

from .cases import (
    NUMBERS,
    READ_ONLY,
    Offering,
    Source,
    Table,
    address_of,
    deleted_once,
    described,
    first_address,
    in_threads,
    offered,
    owned,
    readonly,
    refusal,
    require,
    require_equal,
    require_mark,
    told,
)
from .producer import (
    HOST,
    Described,
    capsule_of,
    dtype_of,
    encoded,
    is_versioned,
    managed_in,
    name_of,
    shape_of,
)
from .subject import Fail, Subject

case = CONSUMER = Table()


def _offered(subject: Subject) -> None:
    """Fail if the library takes no plain producer: a refusal of another one means something."""
    try:
        subject.take(described(subject))
    except Exception as exc:
        raise Fail(f"it does not take a plain producer: {told(exc)}") from exc


def _versioned(subject: Subject) -> None:
    """NotOffered if the library does not take versioned capsules."""
    with Offering("it takes no versioned capsules"):
        subject.take(described(subject, version=(1, 0)))


def _refuses(subject: Subject, *wrong: dict[str, Any]) -> str:
    """The evidence that producers with these fields are refused, and what they made deleted."""
    _offered(subject)
    for fields in wrong:
        producer = described(subject, **fields)
        evidence = refusal(partial(subject.take, producer))
        deleted_once(producer, f" after it was refused: {evidence}")
    return evidence


def _may_take(subject: Subject, producer: Described, otherwise: str) -> str:
    """As `_takes`, where a library may refuse: NotOffered, with the reason *otherwise*."""
    with Offering(otherwise):
        array = subject.take(producer)
    return require_equal(subject.values(array), NUMBERS[:4])


def _takes(subject: Subject, producer: Described, expected: Any = NUMBERS[:4]) -> str:
    """The evidence that the library's array of *producer* has the values *expected*."""
    return require_equal(subject.values(subject.take(producer)), expected)


def _exported(array: Any, what: str) -> Any:
    """The struct of an export of *array*, which has no attribute *what*; NotOffered if none."""
    offered(hasattr(array, "__dlpack__"), f"its arrays have neither {what} nor __dlpack__")
    return managed_in(capsule_of(array))


def _dtype_name(array: Any) -> str:
    """The type of the elements of *array*, by its attribute or else by its export."""
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        dtype = DType.of(*dtype_of(_exported(array, "dtype")))
        check_dtype(dtype)
    return str(dtype)


@case("C1", "One `__dlpack__`, and `__dlpack_device__` before it if at all", Source.NONE)
def _(subject: Subject) -> str:
    subject.needs_producers()
    producer = described(subject)
    subject.take(producer)
    calls = producer.calls
    require(calls.count("__dlpack__") == 1, f"calls {calls}")
    require(calls[-1] == "__dlpack__", f"__dlpack_device__ after the export: {calls}")
    return f"with {', '.join(producer.keywords[0]) or 'no keywords'}"


class _Old(Described):
    """A producer from before DLPack 1.0: only the keyword stream."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.capsule()


@case(
    "C2",
    "Producers that do not know the keywords are called once more without them",
    Source.EXPORT,
)
def _(subject: Subject) -> str:
    subject.needs_producers()
    producer = described(subject, kind=_Old)
    return _may_take(subject, producer, "it takes no producers of before DLPack 1.0")


def _passes(subject: Subject, error: Exception) -> str:
    """The evidence that the *error* of a producer is that of the import."""

    class Fails(Described):
        def __dlpack__(self, **_keywords: Any) -> Any:
            raise error

    subject.needs_producers()
    _offered(subject)
    return refusal(lambda: subject.take(described(subject, kind=Fails)), type(error))


@case("C3", "A producer's TypeError passes through", Source.IMPORT)
def _(subject: Subject) -> str:
    evidence = _passes(subject, TypeError("this cannot be exported"))
    require("cannot be exported" in evidence, f"replaced by {evidence}")
    return evidence


case("C4", "Other errors of a producer pass through", Source.IMPORT)(
    lambda subject: _passes(subject, BufferError("it is lent"))
)


@case("C5", "A legacy capsule is accepted although a versioned one was requested", Source.EXPORT)
def _(subject: Subject) -> str:
    producer = described(subject, version=None)
    return _may_take(subject, producer, "it takes no legacy capsules, which are deprecated")


def _gives(thing: object) -> type[Described]:
    """A class of producers that return *thing*."""

    class Gives(Described):
        def __dlpack__(self, **_keywords: Any) -> Any:
            return thing

    return Gives


@case(
    "C6", "An object that is not a capsule, or a capsule of another name: an error", Source.PYTHON
)
def _(subject: Subject) -> str:
    _offered(subject)
    evidence = refusal(lambda: subject.take(described(subject, name=b"something")))
    refusal(lambda: subject.take(described(subject, kind=_gives(3))))
    return evidence


@case("C7", "An object without both methods: an error", Source.IMPORT)
def _(subject: Subject) -> str:
    subject.needs_producers()
    return refusal(lambda: subject.take(object()))


@case("C8", "`__dlpack_device__` that does not return two valid ints: an error", Source.NONE)
def _(subject: Subject) -> str:
    subject.needs_producers()
    producer = described(subject)
    subject.take(producer)
    offered("__dlpack_device__" in producer.calls, "it does not ask for the device")
    wrong = ((1,), (1, 0, 1), ("cpu", 0), "cpu")
    return _refuses(subject, *({"says": says} for says in wrong))


@case("C9", "Bare capsules are accepted", Source.NONE)
def _(subject: Subject) -> str:
    with Offering("it takes no bare capsules"):
        array = subject.take(described(subject).capsule())
    return require_equal(subject.values(array), NUMBERS[:4])


@case("C10", "Renamed once; deleted exactly once on every path", Source.PYTHON)
def _(subject: Subject) -> str:
    kept: list[Any] = []

    class Keeps(Described):
        def capsule(self) -> Any:
            kept.append(super().capsule())
            return kept[-1]

    producer = described(subject, kind=Keeps)
    array = subject.take(producer)
    name = name_of(kept[0])
    require(name.startswith("used_dltensor"), f"the capsule's name is {name!r} after the import")
    del array
    return deleted_once(producer)


@case("C11", "A second import of one capsule: an error", Source.PYTHON)
def _(subject: Subject) -> str:
    kept: list[Any] = []

    class Again(Described):
        def capsule(self) -> Any:
            if not kept:
                kept.append(super().capsule())
            return kept[0]

    first = subject.take(described(subject, kind=Again))
    again = described(subject, kind=Again)
    evidence = refusal(lambda: subject.take(again))
    del first
    return evidence


@case("C12", "Another major version: an error, and the deleter is called", Source.MANAGED)
def _(subject: Subject) -> str:
    _versioned(subject)
    corrupt = {"dtype": (99, 77, 0), "ndim": -5}  # nothing after the flags may be read
    versions = ((0, 5), (2, 0), (77, 0))
    return _refuses(subject, *({"version": version, **corrupt} for version in versions))


@case("C13", "Any minor version", Source.MANAGED)
def _(subject: Subject) -> str:
    _versioned(subject)
    producer = described(subject, version=(1, 99))
    return _may_take(subject, producer, "it takes no versions that it does not know")


@case("C14", "A NULL deleter is accepted", Source.MANAGED)
def _(subject: Subject) -> str:
    evidence = _takes(subject, described(subject, deleter=False))
    gc.collect()
    return evidence


@case("C15", "The deleter is called once, when the last array is dropped", Source.MANAGED)
def _(subject: Subject) -> str:
    producer, array = owned(subject)
    gc.collect()
    require(producer.alive, "deleted while an array is in use")
    require_equal(subject.values(array), NUMBERS[:4])
    del array
    return deleted_once(producer)


@case("C16", "Types that are not valid: an error", Source.NONE)
def _(subject: Subject) -> str:
    wrong = ((99, 32, 1), (2, 24, 1), (255, 255, 65535), (17, 8, 1), (0, 0, 1), (2, 32, 0))
    return _refuses(subject, *({"dtype": dtype} for dtype in wrong))


@case("C17", "Lanes are kept, or refused", Source.TYPE)
def _(subject: Subject) -> str:
    _offered(subject)
    try:
        array = subject.take(described(subject, (2,), dtype=(2, 32, 4)))
    except Exception as exc:
        return told(exc)
    if "x4" in (name := _dtype_name(array)):
        return f"kept: {name}"
    return require_equal(subject.values(array), NUMBERS.reshape(2, 4), f"{name} of lanes: ")


@case("C18", "An unknown device: opaque, or an error", Source.NONE)
def _(subject: Subject) -> str:
    _offered(subject)
    seen = []
    for device in ((77, 0), (4, 0)):
        producer = described(subject, device=device)
        try:
            subject.take(producer)
        except Exception as exc:
            seen.append(f"{device}: {told(exc)}")
        else:
            seen.append(f"{device}: opaque")
        deleted_once(producer, f" after it was refused: {seen[-1]}")
    return "; ".join(seen)


case("C20", "A negative device index: an error", Source.NONE)(
    lambda subject: _refuses(subject, {"device": (2, -5)})
)


def _size(subject: Subject) -> int:
    return subject.traits.dtype[1] * subject.traits.dtype[2] // 8


case("C21", "NULL strides are compact", Source.TENSOR)(
    lambda subject: _takes(subject, described(subject, (2, 4), strides=None), NUMBERS.reshape(2, 4))
)


@case("C22", "Any strides: right values, or an error", Source.TENSOR)
def _(subject: Subject) -> str:
    _offered(subject)
    seen = []
    for name, shape, strides, offset, expected in (
        ("gaps", (4,), (2,), 0, NUMBERS[::2]),
        ("transposed", (4, 2), (1, 4), 0, NUMBERS.reshape(2, 4).T),
        ("broadcast", (3, 2), (0, 1), 0, np.broadcast_to(NUMBERS[:2], (3, 2))),
        ("negative", (4,), (-1,), 3 * _size(subject), NUMBERS[3::-1]),
    ):
        producer = described(subject, shape, strides=strides, byte_offset=offset)
        try:
            array = subject.take(producer)
        except Exception as exc:
            seen.append(f"{name}: {type(exc).__name__}")
            continue
        require_equal(subject.values(array), expected, f"{name} strides: ")
        seen.append(name)
    return ", ".join(seen)


@case("C23", "Corrupt ndim, shape and extents: an error", Source.NONE)
def _(subject: Subject) -> str:
    endless = {"shape": (2, -(1 << 63)), "strides": None}
    return _refuses(subject, {"ndim": -1}, {"null_shape": True}, endless, {"shape": (-4,)})


@case("C24", "More elements than memory can hold: an error", Source.NONE)
def _(subject: Subject) -> str:
    return _refuses(
        subject,
        {"shape": (1 << 40, 1 << 40), "strides": (1 << 40, 1)},
        {"shape": (1 << 62, 4), "strides": None},
        {"shape": (1 << 21, 1 << 21, 1 << 21), "strides": (0, 0, 0)},
    )


case("C25", "`byte_offset` is honoured", Source.TENSOR)(
    lambda subject: _takes(subject, described(subject, byte_offset=4 * _size(subject)), NUMBERS[4:])
)


@case("C26", "No elements, with data or without", Source.TENSOR)
def _(subject: Subject) -> str:
    for data in (None, 0):
        array = subject.take(described(subject, (0, 3), data=data))
        shape = getattr(array, "shape", None)
        if shape is None:
            shape = shape_of(_exported(array, "shape"))
        require(tuple(shape() if callable(shape) else shape) == (0, 3), f"shape {shape}")
    return "(0, 3)"


def _writable_address(array: Any) -> int:
    """The address that a write through *array* reaches; an exception if it cannot be written."""
    managed = managed_in(capsule_of(array))
    if is_versioned(managed) and managed.flags & READ_ONLY:
        raise ValueError("the array is read-only: marked READ_ONLY")
    return first_address(managed)


@case("C27", "READ_ONLY is kept, or the memory copied, or the tensor refused", Source.MANAGED)
def _(subject: Subject) -> str:
    _versioned(subject)
    producer = described(subject, version=(1, 0), flags=READ_ONLY)
    try:
        array = subject.take(producer)
    except Exception as exc:
        return told(exc)
    if subject.immutable:
        return "its arrays are immutable"
    try:
        address = _writable_address(array)
    except Exception as exc:
        return f"a write fails: {type(exc).__name__}"
    if address == producer.first:
        # The array API: "a consumer that does not support read-only arrays should ignore this
        # flag (this is preferred over raising an exception)".
        require_mark(readonly(subject))
        raise Fail("the array is writable, over the read-only memory")
    return "copied"


@case("C30", "Unknown flags are ignored", Source.NONE)
def _(subject: Subject) -> str:
    _versioned(subject)
    return _takes(subject, described(subject, version=(1, 0), flags=1 << 20))


@case("C31", "Sub-byte elements: known, or an error", Source.MANAGED)
def _(subject: Subject) -> str:
    _offered(subject)
    try:
        array = subject.take(described(subject, dtype=(0, 4, 1), content=b"\x10\x32"))
    except Exception as exc:
        return told(exc)
    name = _dtype_name(array)
    if not re.search(r"\D4\b", name):
        require_equal(subject.values(array), NUMBERS[:4], f"int4 elements became {name}: ")
    return name


@case("C32", "`device=` of the memory: the same memory", Source.IMPORT)
def _(subject: Subject) -> str:
    device = getattr(subject.take(described(subject)), "device", None)
    named = device is not None and not callable(device)
    offered(named, "its arrays have no attribute device")
    producer = described(subject)
    with Offering("no keyword device", TypeError):
        array = subject.take(producer, device=device)
    require_equal(subject.values(array), NUMBERS[:4])
    return f"device={device!r}"


@case("C34", "`copy=True` makes a copy, or asks for one", Source.IMPORT)
def _(subject: Subject) -> str:
    producer = described(subject)
    with Offering("no keyword copy", TypeError):
        array = subject.take(producer, copy=True)
    if any(call.get("copy") is True for call in producer.keywords):
        return "the producer was asked"
    other = subject.immutable or _writable_address(array) != producer.first
    require(other, "the same memory, and the producer was not asked for a copy")
    return "copied"


@case("C35", "`copy=False` never copies", Source.IMPORT)
def _(subject: Subject) -> str:
    producer = described(subject)
    try:
        with Offering("no keyword copy", TypeError):
            array = subject.take(producer, copy=False)
    except Exception as exc:
        return told(exc)
    require(_shares(subject, producer, array), "other memory")
    return "the same memory"


@case("C36", "To host memory no stream is passed, to CUDA not 0", Source.EXPORT)
def _(subject: Subject) -> str:
    subject.needs_producers()
    producer = described(subject)
    subject.take(producer)
    streams = [call["stream"] for call in producer.keywords if "stream" in call]
    if subject.traits.device[0] in (2, 13):
        require(0 not in streams, "stream=0, which the standard does not allow")
    elif subject.traits.device[0] in HOST:
        require(not streams, f"stream={streams}")
    return f"stream={streams[0]}" if streams else "none"


def _shares(subject: Subject, producer: Described, array: Any) -> bool:
    """Whether *array* has the memory of *producer*; on the host, by a write to that."""
    if subject.traits.device[0] != 1:
        return address_of(array) == producer.first
    new = encoded(np.full(1, 99, "f4"), subject.traits.dtype)
    ffi.memmove(ffi.cast("char *", producer.first), new, len(new))
    return bool(subject.values(array).ravel()[0] == 99)


@case("C37", "The struct is kept alive, not the producer", Source.NONE)
def _(subject: Subject) -> str:
    producer = described(subject)
    array = subject.take(producer)
    if any(producer.deletions):
        require(not _shares(subject, producer, array), "deleted while the array is in use")
        return "copied"
    counts, watch = copy(producer), weakref.ref(producer)
    del producer
    gc.collect()
    require(watch() is None, "the producer is kept as long as the array")
    evidence = require_equal(subject.values(array), NUMBERS[:4])
    del array
    deleted_once(counts)
    return evidence


@case("C38", "Later changes of the memory are seen", Source.PYTHON)
def _(subject: Subject) -> str:
    producer = described(subject)
    array = subject.take(producer)
    offered(_shares(subject, producer, array), "it copies")
    return "shared"


@case("C39", "Exported again, the memory is the same", Source.PYTHON)
def _(subject: Subject) -> str:
    producer = described(subject)
    array = subject.take(producer)
    offered(hasattr(array, "__dlpack__"), "its arrays are not producers")
    if address_of(array) != producer.first:
        offered(_shares(subject, producer, array), "it copies")
        raise Fail("another address")
    return "the same address"


@case("C40", "Imports and deletions in many threads", Source.NONE)
def _(subject: Subject) -> str:
    producers = [described(subject) for _ in range(8)]

    def work(number: int) -> None:
        for _ in range(25):
            subject.values(subject.take(producers[number]))

    in_threads(8, work)
    for producer in producers:
        deleted_once(producer)
    return "200 tensors"
