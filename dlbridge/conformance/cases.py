"""The table of cases: what a case is, and the checks that several of them share."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .producer import (
    Described,
    elements,
    encoded,
    integer,
    is_host,
    managed_in,
    name_of,
)
from .rules import RULES
from .subject import Fail, NotOffered, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rules import Rule

__all__ = [
    "NUMBERS",
    "Case",
    "Table",
    "capsule_of",
    "described",
    "drop_with_error",
    "export",
    "first_address",
    "owned",
    "read",
    "refusal",
    "require",
    "version_argument",
]

NUMBERS = np.arange(8, dtype="float32")
"""What memory of ours holds."""


class Case(NamedTuple):
    """A rule as a function, which returns the evidence that it is kept.

    It raises `Fail`, or `NotOffered`; any other exception is a failure too.
    """

    rule: Rule
    function: Callable[[Subject], str]


class Table(dict[str, Case]):
    """Cases by line."""

    def case(self, line: str) -> Callable[..., Callable[[Subject], str]]:
        """A decorator: the function is the case of *line*."""

        def add(function: Callable[[Subject], str]) -> Callable[[Subject], str]:
            self[line] = Case(RULES[line], function)
            return function

        return add


def require(condition: object, otherwise: str) -> None:
    """Fail with the evidence *otherwise* unless *condition* is true."""
    if not condition:
        raise Fail(otherwise)


def version_argument(array: Any) -> None:
    """NotOffered if the library's ``__dlpack__`` does not know max_version."""
    try:
        array.__dlpack__(max_version=(1, 0))
    except TypeError as exc:
        raise NotOffered(f"it does not know max_version: {exc}") from exc


def export(array: Any, **keywords: Any) -> tuple[Any, Any]:
    """A capsule of *array* and the struct in it; keywords that are unknown are not offered."""
    try:
        capsule = array.__dlpack__(**keywords)
    except TypeError as exc:
        raise NotOffered(f"__dlpack__({_words(keywords)}): {exc}") from exc
    return capsule, managed_in(capsule)


def capsule_of(array: Any) -> Any:
    """A capsule of *array*, versioned where the library knows it: READ_ONLY fits no other."""
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:
        return array.__dlpack__()


def first_address(managed: Any) -> int:
    """The address of the first element; on devices with handles, only to be compared."""
    tensor = managed.dl_tensor
    return integer(tensor.data) + int(tensor.byte_offset)


class _Gives(Described):
    """A producer of one capsule of another library's."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        super().__init__(device=device)
        self._capsule = capsule

    def capsule(self) -> Any:
        return self._capsule


def read(subject: Subject, exported: tuple[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements of an export: read by the host, or taken back by the library."""
    capsule, managed = exported
    if is_host(managed):
        return elements(managed)
    array = subject.take(_Gives(capsule, subject.place.device))
    found: np.ndarray[Any, Any] = subject.values(array)
    return found


def described(
    subject: Subject,
    shape: tuple[int, ...] = (4,),
    kind: type[Described] = Described,
    **fields: Any,
) -> Described:
    """A producer of memory with `NUMBERS`: on the device, and of the elements, of the library."""
    place = subject.place
    fields.setdefault("dtype", place.dtype)
    fields.setdefault("content", encoded(NUMBERS, fields["dtype"]))
    owner = None
    if place.device[0] != 1 and "device" not in fields:
        fields = {**fields, "device": place.device}
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
    if producer.alive != 1:
        raise NotOffered("it copies what it takes")
    return producer, array


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
        raise Fail(f"the pending exception was replaced by {type(exc).__name__}: {exc}") from exc
    raise Fail("the pending exception was lost")


def refusal(function: Callable[[], Any], kinds: tuple[type[Exception], ...] = (Exception,)) -> str:
    """The evidence that *function* raises one of *kinds*; Fail if it returns or raises another."""
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        result = function()
    except (Fail, NotOffered):
        raise
    except kinds as exc:
        return f"{type(exc).__name__}: {exc}"
    except Exception as exc:
        raise Fail(f"{type(exc).__name__}, not {names}: {exc}") from exc
    text = name_of(result) if type(result).__name__ == "PyCapsule" else type(result).__name__
    raise Fail(f"accepted ({text}), not {names}")


def _words(keywords: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items())
