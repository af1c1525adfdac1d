"""The rules for a consumer, of DLPack and the array API: C in ``docs/conformance.md``."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import Any

import numpy as np

from .cases import Table, first_address, refusal
from .producer import Described, managed_in, name_of
from .subject import Fail, NotOffered, Subject

__all__ = ["CONSUMER"]

CONSUMER = Table()
case = CONSUMER.case

_READ_ONLY = 1
_NUMBERS = np.arange(8, dtype="float32")


def _described(shape: tuple[int, ...] = (4,), **fields: Any) -> Described:
    return Described(shape, content=_NUMBERS.tobytes(), **fields)


def _offered(subject: Subject) -> Described:
    """A plain producer that the library takes, so that a refusal of another one means something."""
    plain = _described(version=None)
    try:
        subject.take(plain)
    except NotOffered:
        raise
    except Exception as exc:
        raise Fail(f"it does not take a plain producer: {type(exc).__name__}: {exc}") from exc
    return plain


def _equal(subject: Subject, array: Any, expected: Any) -> str:
    found = subject.values(array)
    if found.tolist() != np.asarray(expected).tolist():
        raise Fail(f"{found.tolist()}, not {np.asarray(expected).tolist()}")
    return "values equal"


@case("C1", "__dlpack_device__ first, then one __dlpack__")
def _(subject: Subject) -> str:
    subject.needs_producers()
    producer = _described()
    subject.take(producer)
    calls = [call for call in producer.calls if call == "__dlpack__"]
    if len(calls) != 1:
        raise Fail(f"calls {producer.calls}")
    if producer.calls[0] != "__dlpack_device__":
        raise Fail(f"__dlpack_device__ is not the first call: {producer.calls}")
    return f"with {', '.join(producer.keywords[0]) or 'no keywords'}"


class _Old(Described):
    """A producer from before DLPack 1.0: only the keyword stream."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.capsule()


@case("C2", "Producers that do not know the keywords are called again without them")
def _(subject: Subject) -> str:
    subject.needs_producers()
    return _equal(
        subject, subject.take(_Old(content=_NUMBERS.tobytes(), version=None)), _NUMBERS[:4]
    )


class _Fails(Described):
    """A producer that raises."""

    error: Exception = BufferError("it is lent")

    def __dlpack__(self, **_keywords: Any) -> Any:
        raise self.error


@case("C3", "A producer's TypeError comes through")
def _(subject: Subject) -> str:
    subject.needs_producers()
    _offered(subject)
    producer = _Fails()
    producer.error = TypeError("this cannot be exported")
    evidence = refusal(lambda: subject.take(producer), (TypeError,))
    if "cannot be exported" not in evidence:
        raise Fail(f"replaced by {evidence}")
    return evidence


@case("C4", "Other errors of a producer come through")
def _(subject: Subject) -> str:
    subject.needs_producers()
    _offered(subject)
    return refusal(lambda: subject.take(_Fails()), (BufferError,))


@case("C5", "A legacy capsule is accepted")
def _(subject: Subject) -> str:
    return _equal(subject, subject.take(_described(version=None)), _NUMBERS[:4])


@case("C6", "An object that is not a capsule, and a capsule of another name: an error")
def _(subject: Subject) -> str:
    _offered(subject)
    evidence = refusal(lambda: subject.take(_described(name=b"something")))

    class Gives(Described):
        def __dlpack__(self, **_keywords: Any) -> Any:
            return 3

    refusal(lambda: subject.take(Gives()))
    return evidence


@case("C7", "An object without the methods: TypeError or AttributeError")
def _(subject: Subject) -> str:
    subject.needs_producers()
    return refusal(lambda: subject.take(object()), (TypeError, AttributeError, ValueError))


@case("C8", "__dlpack_device__ that does not return two ints: an error")
def _(subject: Subject) -> str:
    subject.needs_producers()
    _offered(subject)
    return refusal(lambda: subject.take(_described(says="cpu")))


@case("C9", "Bare capsules are accepted")
def _(subject: Subject) -> str:
    try:
        array = subject.take(_described(version=None).capsule())
    except NotOffered:
        raise
    except Exception as exc:
        raise NotOffered(f"{type(exc).__name__}: {exc}") from exc
    return _equal(subject, array, _NUMBERS[:4])


@case("C10", "The capsule is renamed, and the struct deleted exactly once")
def _(subject: Subject) -> str:
    kept: list[Any] = []

    class Keeps(Described):
        def capsule(self) -> Any:
            kept.append(super().capsule())
            return kept[-1]

    producer = Keeps(content=_NUMBERS.tobytes(), version=None)
    array = subject.take(producer)
    name = name_of(kept[0])
    if name != "used_dltensor":
        raise Fail(f"the capsule's name is {name!r} after the import")
    del array
    return _deleted_once(producer, len(kept))


def _deleted_once(producer: Described, exports: int = 1) -> str:
    for _ in range(3):
        gc.collect()
    if producer.deletions != [1] * exports:
        raise Fail(f"deletions {producer.deletions}")
    return "deleted once"


@case("C11", "A second import of one capsule: an error")
def _(subject: Subject) -> str:
    producer = _described(version=None)
    capsule = producer.capsule()

    class Gives(Described):
        def __dlpack__(self, **_keywords: Any) -> Any:
            return capsule

    first = subject.take(Gives(version=None))
    evidence = refusal(lambda: subject.take(Gives(version=None)))
    del first
    return evidence


def _versioned(subject: Subject) -> None:
    """NotOffered if the library does not take versioned capsules."""
    try:
        subject.take(_described())
    except NotOffered:
        raise
    except Exception as exc:
        raise NotOffered(f"it takes no versioned capsules: {exc}") from exc


@case("C12", "Another major version: an error, and the deleter is called")
def _(subject: Subject) -> str:
    _versioned(subject)
    producer = _described(version=(2, 0))
    evidence = refusal(lambda: subject.take(producer))
    if sum(producer.deletions) > len(producer.made):
        raise Fail(f"deletions {producer.deletions}")
    if producer.deletions != [1] * len(producer.made):
        raise Fail(f"refused, and the deleter is not called ({evidence})")
    return evidence


@case("C13", "Any minor version")
def _(subject: Subject) -> str:
    _versioned(subject)
    return _equal(subject, subject.take(_described(version=(1, 99))), _NUMBERS[:4])


@case("C14", "A NULL deleter")
def _(subject: Subject) -> str:
    array = subject.take(_described(version=None, deleter=False))
    evidence = _equal(subject, array, _NUMBERS[:4])
    del array
    gc.collect()
    return evidence


@case("C15", "The deleter is called once, when the array is dropped")
def _(subject: Subject) -> str:
    producer = _described(version=None)
    array = subject.take(producer)
    _equal(subject, array, _NUMBERS[:4])
    del array
    return _deleted_once(producer)


@case("C16", "Types that are not valid: an error")
def _(subject: Subject) -> str:
    _offered(subject)
    for dtype in ((99, 32, 1), (2, 24, 1), (2, 32, 0)):
        evidence = refusal(partial(subject.take, _described(version=None, dtype=dtype)))
    return evidence


@case("C17", "Lanes are kept, or refused")
def _(subject: Subject) -> str:
    _offered(subject)
    return refusal(lambda: _lanes(subject))


def _lanes(subject: Subject) -> Any:
    array = subject.take(_described((2,), version=None, dtype=(2, 32, 4)))
    if "x4" in str(getattr(array, "dtype", "")):
        raise ValueError(f"kept: {array.dtype}")  # what `refusal` takes for evidence
    return array


@case("C18", "An unknown device: opaque, or an error")
def _(subject: Subject) -> str:
    _offered(subject)
    try:
        subject.take(_described(version=None, device=(77, 0)))
    except NotOffered:
        raise
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return "opaque"


@case("C20", "A negative device index: an error")
def _(subject: Subject) -> str:
    _offered(subject)
    return refusal(lambda: subject.take(_described(version=None, device=(2, -5))))


@case("C21", "NULL strides are compact")
def _(subject: Subject) -> str:
    array = subject.take(_described((2, 4), version=None, strides=None))
    return _equal(subject, array, _NUMBERS.reshape(2, 4))


@case("C22", "Any strides: right values, or an error")
def _(subject: Subject) -> str:
    _offered(subject)
    seen = []
    for name, shape, strides, offset, expected in (
        ("gaps", (4,), (2,), 0, _NUMBERS[::2]),
        ("transposed", (4, 2), (1, 4), 0, _NUMBERS.reshape(2, 4).T),
        ("broadcast", (3, 2), (0, 1), 0, np.broadcast_to(_NUMBERS[:2], (3, 2))),
        ("negative", (4,), (-1,), 12, _NUMBERS[3::-1]),
    ):
        producer = _described(shape, version=None, strides=strides, byte_offset=offset)
        try:
            array = subject.take(producer)
        except NotOffered:
            raise
        except Exception as exc:
            seen.append(f"{name}: {type(exc).__name__}")
            continue
        found = subject.values(array)
        if found.tolist() != expected.tolist():
            raise Fail(f"{name} strides: {found.tolist()}, not {expected.tolist()}")
        seen.append(name)
    return ", ".join(seen)


@case("C23", "Corrupt ndim, shape and extents: an error")
def _(subject: Subject) -> str:
    _offered(subject)
    corrupt: tuple[dict[str, Any], ...] = ({"ndim": -1}, {"null_shape": True}, {"shape": (-4,)})
    for fields in corrupt:
        shape = fields.pop("shape", (4,))
        evidence = refusal(partial(subject.take, _described(shape, version=None, **fields)))
    return evidence


@case("C24", "More elements than memory can hold: an error")
def _(subject: Subject) -> str:
    _offered(subject)
    huge = (1 << 40, 1 << 40)
    return refusal(lambda: subject.take(_described(huge, version=None, strides=(1 << 40, 1))))


@case("C25", "byte_offset is honoured")
def _(subject: Subject) -> str:
    array = subject.take(_described(version=None, byte_offset=16))
    return _equal(subject, array, _NUMBERS[4:])


@case("C26", "No elements, with data or without")
def _(subject: Subject) -> str:
    for data in (None, 0):
        array = subject.take(_described((0, 3), version=None, data=data))
        if tuple(array.shape() if callable(array.shape) else array.shape) != (0, 3):
            raise Fail(f"shape {array.shape}")
    return "(0, 3)"


@case("C27", "READ_ONLY is kept, or the memory copied, or the tensor refused")
def _(subject: Subject) -> str:
    _versioned(subject)
    producer = _described(flags=_READ_ONLY)
    try:
        array = subject.take(producer)
    except NotOffered:
        raise
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    if subject.immutable:
        return "its arrays are immutable"
    try:
        back = _writable_view(array)
    except NotOffered:
        raise
    except Exception as exc:
        return f"a write fails: {type(exc).__name__}"
    if back == producer.data:
        raise Fail("the array is writable, over the read-only memory")
    return "copied"


def _writable_view(array: Any) -> int:
    """The address that a write through *array* reaches; an exception if it cannot be written."""
    capsule = _export(array)
    managed = managed_in(capsule)
    if "versioned" in name_of(capsule) and managed.flags & _READ_ONLY:
        raise ValueError("marked READ_ONLY")
    return first_address(managed)


def _export(array: Any) -> Any:
    """A capsule of *array*, versioned where the library knows it: READ_ONLY fits no other."""
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:
        return array.__dlpack__()


@case("C28", "A legacy capsule is writable")
def _(subject: Subject) -> str:
    array = subject.take(_described(version=None))
    if subject.immutable:
        return "its arrays are immutable"
    try:
        _writable_view(array)
    except BufferError as exc:
        raise Fail(f"read-only: {exc}") from exc
    except ValueError as exc:
        raise Fail(f"the array is read-only: {exc}") from exc
    return "writable"


@case("C30", "Unknown flags are ignored")
def _(subject: Subject) -> str:
    _versioned(subject)
    return _equal(subject, subject.take(_described(flags=1 << 20)), _NUMBERS[:4])


@case("C31", "Sub-byte elements: known, or an error")
def _(subject: Subject) -> str:
    _offered(subject)
    try:
        array = subject.take(_described((4,), version=None, dtype=(0, 4, 1)))
    except NotOffered:
        raise
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    name = str(getattr(array, "dtype", ""))
    if "4" not in name:
        raise Fail(f"int4 elements became {name}")
    return name


@case("C34", "copy=True makes a copy")
def _(subject: Subject) -> str:
    producer = _described(version=None)
    try:
        array = subject.take(producer, copy=True)
    except TypeError as exc:
        raise NotOffered(f"no keyword copy: {exc}") from exc
    except BufferError as exc:
        raise Fail(f"BufferError: {exc}") from exc
    asked = any(call.get("copy") is True for call in producer.keywords)
    if not asked and not subject.immutable and _writable_view(array) == producer.data:
        raise Fail("the same memory, and the producer was not asked for a copy")
    return "the producer was asked" if asked else "copied"


@case("C35", "copy=False never copies")
def _(subject: Subject) -> str:
    producer = _described(version=None)
    try:
        array = subject.take(producer, copy=False)
    except NotOffered:
        raise
    except TypeError as exc:
        raise NotOffered(f"no keyword copy: {exc}") from exc
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    _require_shared(subject, producer, array)
    return "the same memory"


@case("C36", "No stream is passed to a producer of host memory")
def _(subject: Subject) -> str:
    subject.needs_producers()
    producer = _described()
    subject.take(producer)
    streams = [call["stream"] for call in producer.keywords if "stream" in call]
    if any(stream != -1 for stream in streams):
        raise Fail(f"stream={streams[0]!r}")
    return "none" if not streams else "-1"


@case("C37", "The struct is kept alive, not the producer")
def _(subject: Subject) -> str:
    producer = _described(version=None)
    array = subject.take(producer)
    if producer.deletions != [0] * len(producer.made):
        if not _shares(subject, producer, array):
            return "copied"
        raise Fail("deleted while the array is in use")
    evidence = _equal(subject, array, _NUMBERS[:4])
    del array
    _deleted_once(producer)
    return evidence


def _shares(subject: Subject, producer: Described, array: Any) -> bool:
    from dlbridge.core._cdefs import ffi

    ffi.cast("float *", producer.data)[0] = 99
    return bool(subject.values(array).ravel()[0] == 99)


def _require_shared(subject: Subject, producer: Described, array: Any) -> None:
    if not _shares(subject, producer, array):
        raise Fail("other memory")


@case("C38", "Later changes of the memory are seen")
def _(subject: Subject) -> str:
    producer = _described(version=None)
    array = subject.take(producer)
    if not _shares(subject, producer, array):
        raise NotOffered("it copies")
    return "shared"


@case("C39", "Exported again, the memory is the same")
def _(subject: Subject) -> str:
    producer = _described(version=None)
    array = subject.take(producer)
    if not hasattr(array, "__dlpack__"):
        raise NotOffered("its arrays are not producers")
    again = first_address(managed_in(_export(array)))
    if again != producer.data:
        if not _shares(subject, producer, array):
            raise NotOffered("it copies")
        raise Fail("another address")
    return "the same address"


@case("C40", "Imports and deletions in many threads")
def _(subject: Subject) -> str:
    producers = [_described(version=None) for _ in range(8)]
    errors: list[Exception] = []

    def work(producer: Described) -> None:
        try:
            for _ in range(25):
                subject.values(subject.take(producer))
        except Exception as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(producer,)) for producer in producers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    for producer in producers:
        _deleted_once(producer, len(producer.made))
    return "200 tensors"
