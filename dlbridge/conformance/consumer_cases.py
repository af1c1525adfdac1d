"""The rules for a consumer, of DLPack and the array API: C in ``docs/conformance.md``."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import Any

import numpy as np

from .cases import (
    NUMBERS,
    Table,
    capsule_of,
    described,
    drop_with_error,
    first_address,
    owned,
    refusal,
    require,
)
from .producer import Described, encoded, managed_in, name_of
from .subject import Fail, NotOffered, Subject

__all__ = ["CONSUMER"]

CONSUMER = Table()
case = CONSUMER.case

_READ_ONLY = 1


def _offered(subject: Subject) -> Described:
    """A plain producer that the library takes, so that a refusal of another one means something."""
    plain = described(subject, version=None)
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


@case("C1")
def _(subject: Subject) -> str:
    subject.needs_producers()
    producer = described(subject)
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


@case("C2")
def _(subject: Subject) -> str:
    subject.needs_producers()
    return _equal(subject, subject.take(described(subject, kind=_Old, version=None)), NUMBERS[:4])


class _Fails(Described):
    """A producer that raises."""

    error: Exception = BufferError("it is lent")

    def __dlpack__(self, **_keywords: Any) -> Any:
        raise self.error


class _FailsByType(_Fails):
    error = TypeError("this cannot be exported")


@case("C3")
def _(subject: Subject) -> str:
    subject.needs_producers()
    _offered(subject)
    producer = described(subject, kind=_FailsByType)
    evidence = refusal(lambda: subject.take(producer), (TypeError,))
    if "cannot be exported" not in evidence:
        raise Fail(f"replaced by {evidence}")
    return evidence


@case("C4")
def _(subject: Subject) -> str:
    subject.needs_producers()
    _offered(subject)
    return refusal(lambda: subject.take(described(subject, kind=_Fails)), (BufferError,))


@case("C5")
def _(subject: Subject) -> str:
    return _equal(subject, subject.take(described(subject, version=None)), NUMBERS[:4])


@case("C6")
def _(subject: Subject) -> str:
    _offered(subject)
    evidence = refusal(lambda: subject.take(described(subject, name=b"something")))

    class Gives(Described):
        def __dlpack__(self, **_keywords: Any) -> Any:
            return 3

    refusal(lambda: subject.take(described(subject, kind=Gives)))
    return evidence


@case("C7")
def _(subject: Subject) -> str:
    subject.needs_producers()
    return refusal(lambda: subject.take(object()), (TypeError, AttributeError, ValueError))


@case("C8")
def _(subject: Subject) -> str:
    subject.needs_producers()
    _offered(subject)
    for says in ((1,), (1, 0, 1), ("cpu", 0), "cpu"):
        evidence = refusal(partial(subject.take, described(subject, says=says)))
    return evidence


@case("C9")
def _(subject: Subject) -> str:
    try:
        array = subject.take(described(subject, version=None).capsule())
    except NotOffered:
        raise
    except Exception as exc:
        raise NotOffered(f"{type(exc).__name__}: {exc}") from exc
    return _equal(subject, array, NUMBERS[:4])


@case("C10")
def _(subject: Subject) -> str:
    kept: list[Any] = []

    class Keeps(Described):
        def capsule(self) -> Any:
            kept.append(super().capsule())
            return kept[-1]

    producer = described(subject, kind=Keeps, version=None)
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


@case("C11")
def _(subject: Subject) -> str:
    producer = described(subject, version=None)
    capsule = producer.capsule()

    class Gives(Described):
        def __dlpack__(self, **_keywords: Any) -> Any:
            return capsule

    first = subject.take(described(subject, kind=Gives, version=None))
    again = described(subject, kind=Gives, version=None)
    evidence = refusal(lambda: subject.take(again))
    del first
    return evidence


def _versioned(subject: Subject) -> None:
    """NotOffered if the library does not take versioned capsules."""
    try:
        subject.take(described(subject, version=(1, 0)))
    except NotOffered:
        raise
    except Exception as exc:
        raise NotOffered(f"it takes no versioned capsules: {exc}") from exc


def _freed(producer: Described, refused: str) -> None:
    """Fail unless a tensor that was refused is deleted once, by the consumer or its capsule."""
    gc.collect()
    deleted = producer.deletions == [1] * len(producer.made)
    require(deleted, f"deletions {producer.deletions} after it was refused: {refused}")


@case("C12")
def _(subject: Subject) -> str:
    _versioned(subject)
    for version in ((0, 5), (2, 0), (77, 0)):  # and nothing after the flags may be read
        producer = described(subject, version=version, dtype=(99, 77, 0), ndim=-5)
        evidence = refusal(partial(subject.take, producer))
        _freed(producer, evidence)
    return evidence


@case("C13")
def _(subject: Subject) -> str:
    _versioned(subject)
    return _equal(subject, subject.take(described(subject, version=(1, 99))), NUMBERS[:4])


@case("C14")
def _(subject: Subject) -> str:
    array = subject.take(described(subject, version=None, deleter=False))
    evidence = _equal(subject, array, NUMBERS[:4])
    del array
    gc.collect()
    return evidence


@case("C15")
def _(subject: Subject) -> str:
    producer, array = owned(subject, version=None)
    kept = [array]
    del array
    gc.collect()
    require(producer.alive, "deleted while an array is in use")
    _equal(subject, kept[0], NUMBERS[:4])
    drop_with_error(kept)
    return f"{_deleted_once(producer)}, while an exception passes"


@case("C16")
def _(subject: Subject) -> str:
    _offered(subject)
    for dtype in ((99, 32, 1), (2, 24, 1), (255, 255, 65535), (17, 8, 1), (0, 0, 1), (2, 32, 0)):
        producer = described(subject, version=None, dtype=dtype)
        evidence = refusal(partial(subject.take, producer))
        _freed(producer, evidence)
    return evidence


@case("C17")
def _(subject: Subject) -> str:
    _offered(subject)
    return refusal(lambda: _lanes(subject))


def _lanes(subject: Subject) -> Any:
    array = subject.take(described(subject, (2,), version=None, dtype=(2, 32, 4)))
    if "x4" in str(getattr(array, "dtype", "")):
        raise ValueError(f"kept: {array.dtype}")  # what `refusal` takes for evidence
    return array


@case("C18")
def _(subject: Subject) -> str:
    _offered(subject)
    seen = []
    for device in ((77, 0), (4, 0)):
        producer = described(subject, version=None, device=device)
        try:
            subject.take(producer)
        except NotOffered:
            raise
        except Exception as exc:
            seen.append(f"{device}: {type(exc).__name__}: {exc}")
        else:
            seen.append(f"{device}: opaque")
        _freed(producer, seen[-1])
    return "; ".join(seen)


@case("C20")
def _(subject: Subject) -> str:
    _offered(subject)
    return refusal(lambda: subject.take(described(subject, version=None, device=(2, -5))))


def _size(subject: Subject) -> int:
    return subject.place.dtype[1] * subject.place.dtype[2] // 8


@case("C21")
def _(subject: Subject) -> str:
    array = subject.take(described(subject, (2, 4), version=None, strides=None))
    return _equal(subject, array, NUMBERS.reshape(2, 4))


@case("C22")
def _(subject: Subject) -> str:
    _offered(subject)
    seen = []
    for name, shape, strides, offset, expected in (
        ("gaps", (4,), (2,), 0, NUMBERS[::2]),
        ("transposed", (4, 2), (1, 4), 0, NUMBERS.reshape(2, 4).T),
        ("broadcast", (3, 2), (0, 1), 0, np.broadcast_to(NUMBERS[:2], (3, 2))),
        ("negative", (4,), (-1,), 3 * _size(subject), NUMBERS[3::-1]),
    ):
        producer = described(subject, shape, version=None, strides=strides, byte_offset=offset)
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


@case("C23")
def _(subject: Subject) -> str:
    _offered(subject)
    corrupt: tuple[dict[str, Any], ...] = (
        {"ndim": -1},
        {"null_shape": True},
        {"shape": (2, -(1 << 63)), "strides": None},
        {"shape": (-4,)},
    )
    for fields in corrupt:
        shape = fields.pop("shape", (4,))
        producer = described(subject, shape, version=None, **fields)
        evidence = refusal(partial(subject.take, producer))
        _freed(producer, evidence)
    return evidence


@case("C24")
def _(subject: Subject) -> str:
    _offered(subject)
    shapes: tuple[tuple[tuple[int, ...], Any], ...] = (
        ((1 << 40, 1 << 40), (1 << 40, 1)),
        ((1 << 62, 4), None),
        ((1 << 21, 1 << 21, 1 << 21), (0, 0, 0)),
    )
    for shape, strides in shapes:
        producer = described(subject, shape, version=None, strides=strides)
        evidence = refusal(partial(subject.take, producer))
        _freed(producer, evidence)
    return evidence


@case("C25")
def _(subject: Subject) -> str:
    array = subject.take(described(subject, version=None, byte_offset=4 * _size(subject)))
    return _equal(subject, array, NUMBERS[4:])


@case("C26")
def _(subject: Subject) -> str:
    for data in (None, 0):
        array = subject.take(described(subject, (0, 3), version=None, data=data))
        if tuple(array.shape() if callable(array.shape) else array.shape) != (0, 3):
            raise Fail(f"shape {array.shape}")
    return "(0, 3)"


@case("C27")
def _(subject: Subject) -> str:
    _versioned(subject)
    producer = described(subject, version=(1, 0), flags=_READ_ONLY)
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
    if back == producer.first:
        raise Fail("the array is writable, over the read-only memory")
    return "copied"


def _writable_view(array: Any) -> int:
    """The address that a write through *array* reaches; an exception if it cannot be written."""
    capsule = capsule_of(array)
    managed = managed_in(capsule)
    if "versioned" in name_of(capsule) and managed.flags & _READ_ONLY:
        raise ValueError("marked READ_ONLY")
    return first_address(managed)


@case("C28")
def _(subject: Subject) -> str:
    array = subject.take(described(subject, version=None))
    if subject.immutable:
        return "its arrays are immutable"
    try:
        _writable_view(array)
    except BufferError as exc:
        raise Fail(f"read-only: {exc}") from exc
    except ValueError as exc:
        raise Fail(f"the array is read-only: {exc}") from exc
    return "writable"


@case("C30")
def _(subject: Subject) -> str:
    _versioned(subject)
    return _equal(
        subject, subject.take(described(subject, version=(1, 0), flags=1 << 20)), NUMBERS[:4]
    )


@case("C31")
def _(subject: Subject) -> str:
    _offered(subject)
    try:
        array = subject.take(described(subject, (4,), version=None, dtype=(0, 4, 1)))
    except NotOffered:
        raise
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    name = str(getattr(array, "dtype", ""))
    if "4" not in name:
        raise Fail(f"int4 elements became {name}")
    return name


@case("C32")
def _(subject: Subject) -> str:
    plain = subject.take(described(subject, version=None))
    device = getattr(plain, "device", None)
    if device is None or callable(device):
        raise NotOffered("its arrays have no attribute device")
    producer = described(subject, version=None)
    try:
        array = subject.take(producer, device=device)
    except TypeError as exc:
        raise NotOffered(f"no keyword device: {exc}") from exc
    _equal(subject, array, NUMBERS[:4])
    return f"device={device!r}"


@case("C34")
def _(subject: Subject) -> str:
    producer = described(subject, version=None)
    try:
        array = subject.take(producer, copy=True)
    except TypeError as exc:
        raise NotOffered(f"no keyword copy: {exc}") from exc
    except BufferError as exc:
        raise Fail(f"BufferError: {exc}") from exc
    asked = any(call.get("copy") is True for call in producer.keywords)
    if not asked and not subject.immutable and _writable_view(array) == producer.first:
        raise Fail("the same memory, and the producer was not asked for a copy")
    return "the producer was asked" if asked else "copied"


@case("C35")
def _(subject: Subject) -> str:
    producer = described(subject, version=None)
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


@case("C36")
def _(subject: Subject) -> str:
    subject.needs_producers()
    producer = described(subject)
    subject.take(producer)
    streams = [call["stream"] for call in producer.keywords if "stream" in call]
    if subject.place.device[0] in (2, 10, 13):
        require(0 not in streams, "stream=0, which the standard does not allow")
    else:
        require(not streams or set(streams) == {-1}, f"stream={streams}")
    return f"stream={streams[0]}" if streams else "none"


@case("C37")
def _(subject: Subject) -> str:
    producer = described(subject, version=None)
    array = subject.take(producer)
    if producer.deletions != [0] * len(producer.made):
        if not _shares(subject, producer, array):
            return "copied"
        raise Fail("deleted while the array is in use")
    evidence = _equal(subject, array, NUMBERS[:4])
    del array
    _deleted_once(producer)
    return evidence


def _shares(subject: Subject, producer: Described, array: Any) -> bool:
    from dlbridge.core._cdefs import ffi

    if subject.place.device[0] != 1:
        return first_address(managed_in(capsule_of(array))) == producer.first
    new = encoded(np.full(1, 99, "f4"), subject.place.dtype)
    ffi.memmove(ffi.cast("char *", producer.first), new, len(new))
    return bool(subject.values(array).ravel()[0] == 99)


def _require_shared(subject: Subject, producer: Described, array: Any) -> None:
    if not _shares(subject, producer, array):
        raise Fail("other memory")


@case("C38")
def _(subject: Subject) -> str:
    producer = described(subject, version=None)
    array = subject.take(producer)
    if not _shares(subject, producer, array):
        raise NotOffered("it copies")
    return "shared"


@case("C39")
def _(subject: Subject) -> str:
    producer = described(subject, version=None)
    array = subject.take(producer)
    if not hasattr(array, "__dlpack__"):
        raise NotOffered("its arrays are not producers")
    again = first_address(managed_in(capsule_of(array)))
    if again != producer.first:
        if not _shares(subject, producer, array):
            raise NotOffered("it copies")
        raise Fail("another address")
    return "the same address"


@case("C40")
def _(subject: Subject) -> str:
    producers = [described(subject, version=None) for _ in range(8)]
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
