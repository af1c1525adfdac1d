"""A rule of DLPack with its case, and the checks that several cases share."""

from __future__ import annotations

import ctypes
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from threading import Barrier
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from .producer import (
    Described,
    capsule_in,
    capsule_of,
    elements,
    encoded,
    integer,
    is_host,
    is_versioned,
    managed_in,
    name_of,
)
from .subject import Fail, NotOffered, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")

READ_ONLY, IS_COPIED, SUBBYTE_PADDED = 1, 2, 4
"""The flags of structs."""

NUMBERS = np.arange(8, dtype="float32")
"""What memory of ours holds."""

MATRIX = np.arange(6, dtype="float32").reshape(2, 3)
"""What most arrays of the library hold."""


class Source(StrEnum):
    """The standard that has a rule, and the section."""

    EXPORT = "array API, `__dlpack__`"
    DEVICE = "array API, `__dlpack_device__`"
    IMPORT = "array API, `from_dlpack`"
    PYTHON = "DLPack, Python Specification"
    TENSOR = "dlpack.h, `DLTensor`"
    TYPE = "dlpack.h, `DLDataType`"
    VERSION = "dlpack.h, `DLPackVersion`"
    MANAGED = "dlpack.h, `DLManagedTensorVersioned`"
    TABLE = "dlpack.h, `DLPackExchangeAPI`"
    HEADER = "dlpack.h, `DLPackExchangeAPIHeader`"
    ALLOCATOR = "dlpack.h, `DLPackManagedTensorAllocator`"
    FROM_OBJECT = "dlpack.h, `DLPackManagedTensorFromPyObjectNoSync`"
    TO_OBJECT = "dlpack.h, `DLPackManagedTensorToPyObjectNoSync`"
    LEND = "dlpack.h, `DLPackDLTensorFromPyObjectNoSync`"
    STREAM = "dlpack.h, `DLPackCurrentWorkStream`"
    NONE = "no standard"
    """About crashes, lost memory, corrupt input, wrong arguments, and what follows from a rule."""


class Rule(NamedTuple):
    """One line of ``docs/conformance.md``, and its case.

    The case returns the evidence that the rule is kept. It raises `Fail`, or
    `NotOffered`; any other exception is a failure too.
    """

    line: str
    text: str
    source: str
    case: Callable[[Subject], str]


class Table(dict[str, Rule]):
    """Rules by line."""

    def __call__(
        self, line: str, text: str, source: Source
    ) -> Callable[[Callable[[Subject], str]], None]:
        """A decorator: the function is the case of this rule."""

        def add(case: Callable[[Subject], str]) -> None:
            self[line] = Rule(line, text, source, case)

        return add


def require(condition: object, otherwise: str) -> None:
    """Fail with the evidence *otherwise* unless *condition* is true."""
    if not condition:
        raise Fail(otherwise)


def offered(condition: object, otherwise: str) -> None:
    """NotOffered, with the reason *otherwise*, unless *condition* is true."""
    if not condition:
        raise NotOffered(otherwise)


class Offering:
    """NotOffered instead of an exception of these *kinds*, by default any: a context manager."""

    def __init__(self, otherwise: str, *kinds: type[Exception]) -> None:
        self._otherwise, self._kinds = otherwise, kinds or (Exception,)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, exc: BaseException | None, _at: object) -> None:
        if isinstance(exc, self._kinds):
            raise NotOffered(f"{self._otherwise}: {exc}") from exc


def delete_in_thread(struct: int, deleter: int) -> None:
    """Call a deleter in a thread that Python does not know."""
    if sys.platform == "win32":
        raise NotOffered("this system has no pthread_create")
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    at, argument = ctypes.c_void_p(deleter), ctypes.c_void_p(struct)
    libc.pthread_create(ctypes.byref(thread), None, at, argument)
    libc.pthread_join(thread, None)


def told(exc: BaseException) -> str:
    """The class and the words of an exception."""
    return f"{type(exc).__name__}: {exc}"


def in_threads(count: int, work: Callable[[int], _Result]) -> list[_Result]:
    """The results of *work* in so many threads at once, each with its number."""
    with ThreadPoolExecutor(count, initializer=Barrier(count).wait) as threads:
        return list(threads.map(work, range(count)))


def export(array: Any, **keywords: Any) -> Any:
    """The struct in a new capsule of *array*; keywords that are unknown are not offered.

    Without `max_version`, which only legacy capsules fit, BufferError is allowed since 2025.
    """
    words = ", ".join(f"{name}={value!r}" for name, value in keywords.items())
    with Offering(f"__dlpack__({words})", TypeError):
        try:
            capsule = array.__dlpack__(**keywords)
        except BufferError as exc:
            if "max_version" in keywords:
                raise
            try:
                capsule = array.__dlpack__(**keywords, max_version=(1, 0))
            except TypeError:
                raise exc from None
    return managed_in(capsule)


def same_memory(array: Any, managed: Any) -> None:
    """Fail if *managed*, an export of *array*, has other memory; NotOffered if it is a copy."""
    same = first_address(managed) == address_of(array)
    if is_versioned(managed) and managed.flags & IS_COPIED:
        require(not same, "IS_COPIED over the same memory")
        raise NotOffered("it copies at each export, and says so")
    require(same, "other memory")


def first_address(managed: Any) -> int:
    """The address of the first element; on devices with handles, only to be compared."""
    tensor = managed.dl_tensor
    return integer(tensor.data) + int(tensor.byte_offset)


def address_of(array: Any) -> int:
    """`first_address` of an export of *array*."""
    return first_address(managed_in(capsule_of(array)))


def read(subject: Subject, managed: Any) -> np.ndarray[Any, Any]:
    """The elements of an export: read by the host, or taken back by the library.

    In that case the struct is the library's afterwards, which may free it.
    """
    if is_host(managed):
        return elements(managed)

    class Gives(Described):
        def capsule(self) -> Any:
            return capsule_in(managed)

    values: np.ndarray[Any, Any]
    values = subject.values(subject.take(Gives(device=subject.traits.device)))
    return values


def require_equal(values: Any, expected: Any, what: str = "") -> str:
    """The evidence that two arrays have the same values; Fail otherwise."""
    values, expected = np.asarray(values).tolist(), np.asarray(expected).tolist()
    require(values == expected, f"{what}{values}, not {expected}")
    return "values equal"


def described(
    subject: Subject,
    shape: tuple[int, ...] = (4,),
    kind: type[Described] = Described,
    **fields: Any,
) -> Described:
    """A producer of memory with `NUMBERS`: on the device, and of the elements, of the library."""
    traits = subject.traits
    fields.setdefault("dtype", traits.dtype)
    fields.setdefault("content", encoded(NUMBERS, fields["dtype"]))
    owner = None
    if traits.device[0] != 1 and "device" not in fields:
        fields = {**fields, "device": traits.device}
        if fields.get("data") is None:
            owner = capsule_of(subject.make(NUMBERS))
            tensor = managed_in(owner).dl_tensor
            fields["data"] = integer(tensor.data)
            fields["byte_offset"] = fields.get("byte_offset", 0) + int(tensor.byte_offset)
    producer = kind(shape, **fields)
    producer.owner = owner
    return producer


def owned(subject: Subject, **fields: Any) -> tuple[Described, Any]:
    """An array of the library over memory whose deletion is counted; NotOffered if it copies."""
    producer = described(subject, **fields)
    array = subject.take(producer)
    gc.collect()
    offered(producer.alive == 1, "it copies what it takes")
    return producer, array


def deleted_once(producer: Described, after: str = "") -> str:
    """The evidence that each struct of *producer* has been deleted once; Fail otherwise."""
    for _ in range(3):
        gc.collect()
        if not producer.alive:
            break
    require(set(producer.deletions) <= {1}, f"deletions {producer.deletions}{after}")
    return "deleted once"


class Cycle:
    """What only a garbage collection drops."""

    def __init__(self, capsule: Any) -> None:
        self.capsule, self.me = capsule, self


class _Own(Exception):
    """What a consumer of ours raises."""


def drop_with_error(kept: list[Any]) -> None:
    """Drop the only thing in *kept* while an exception is pending; Fail if that does not arrive."""

    def things() -> Any:
        yield kept.pop()
        raise _Own

    try:
        list(things())  # C code drops the list, and the thing with it, with the exception set
    except _Own:
        return
    except BaseException as exc:
        raise Fail(f"the pending exception was replaced by {told(exc)}") from exc
    raise Fail("the pending exception was lost")


def refusal(function: Callable[[], Any], *kinds: type[Exception]) -> str:
    """The evidence that *function* raises one of *kinds*, by default any; Fail otherwise."""
    names = ", not " + " or ".join(kind.__name__ for kind in kinds) if kinds else ""
    try:
        result = function()
    except Exception as exc:
        if kinds and not isinstance(exc, kinds):
            raise Fail(f"{type(exc).__name__}{names}: {exc}") from exc
        return told(exc)
    text = name_of(result) if type(result).__name__ == "PyCapsule" else type(result).__name__
    raise Fail(f"accepted ({text}){names}")


def version_argument(array: Any) -> None:
    """NotOffered if the ``__dlpack__`` of *array* does not know the keyword."""
    with Offering("it does not know max_version", TypeError):
        array.__dlpack__(max_version=(1, 0))


def readonly(subject: Subject) -> Any:
    """A read-only array: the library's arrays are immutable, or it keeps numpy's mark."""
    source = MATRIX.copy()
    source.flags.writeable = False
    if subject.immutable:
        return subject.make(source)
    try:
        array = subject.make(source)
        require_mark(array)
    except NotOffered:  # the library's own function may copy what another one keeps
        with Offering("no read-only arrays"):
            return subject.take(source)
    return array


def require_mark(array: Any) -> None:
    """NotOffered unless the exports of *array* are marked as read-only."""
    version_argument(array)
    managed = export(array, max_version=(1, 0))
    offered(is_versioned(managed) and managed.flags & READ_ONLY, "it has no read-only arrays")
