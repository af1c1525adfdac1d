"""The table of cases: what a case is, and the checks that several of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .producer import managed_in, name_of
from .subject import Fail, NotOffered, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Case", "Table", "export", "first_address", "refusal", "version_argument"]


class Case(NamedTuple):
    """One line of ``docs/conformance.md`` as a function: it returns the evidence.

    It raises `Fail`, or `NotOffered`; any other exception is a failure too.
    """

    line: str
    rule: str
    function: Callable[[Subject], str]


class Table(dict[str, Case]):
    """Cases by line."""

    def case(self, line: str, rule: str) -> Callable[..., Callable[[Subject], str]]:
        """A decorator: the function is the case of *line*."""

        def add(function: Callable[[Subject], str]) -> Callable[[Subject], str]:
            self[line] = Case(line, rule, function)
            return function

        return add


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


def first_address(managed: Any) -> int:
    """The address of the first element."""
    from dlbridge.core._cdefs import ffi

    tensor = managed.dl_tensor
    return int(ffi.cast("uintptr_t", tensor.data)) + int(tensor.byte_offset)


def refusal(function: Callable[[], Any], kinds: tuple[type[Exception], ...] = (Exception,)) -> str:
    """The evidence that *function* raises one of *kinds*; Fail if it returns or raises another."""
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        result = function()
    except NotOffered:
        raise
    except kinds as exc:
        return f"{type(exc).__name__}: {exc}"
    except Exception as exc:
        raise Fail(f"{type(exc).__name__}, not {names}: {exc}") from exc
    text = name_of(result) if type(result).__name__ == "PyCapsule" else type(result).__name__
    raise Fail(f"accepted ({text}), not {names}")


def _words(keywords: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items())
