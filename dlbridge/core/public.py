"""What public objects share: the decorators that set ``__module__``, and two base classes."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from dlbridge.protocol import Backend
    from dlbridge.typing import BackendFunction

_Thing = TypeVar("_Thing")


def public_in(module: str) -> Callable[[_Thing], _Thing]:
    """Return a decorator that says where users find a class or function.

    Pickles, tracebacks and documents then name ``dlbridge.Tensor``, so that the object can move
    between the modules of its package.

    Parameters
    ----------
    module : str
        What ``__module__`` becomes.

    Returns
    -------
    callable
        It returns the object that it gets.

    Examples
    --------
    >>> from dlbridge.extending import public_in
    >>> @public_in("mylib")
    ... def read(path): ...
    >>> read.__module__
    'mylib'
    """

    def mark(thing: _Thing) -> _Thing:
        anything: Any = thing
        anything.__module__ = module
        return thing

    return mark


def public(thing: _Thing) -> _Thing:
    """*thing*, whose ``__module__`` is ``"dlbridge"``."""
    return public_in("dlbridge")(thing)


for_guests = public_in("dlbridge.extending")
"""The decorator of what `dlbridge.extending` exports."""


def typed(function: Callable[[str], Backend]) -> BackendFunction:
    """`dlbridge.backend` itself; type checkers know the class of each backend by its name."""
    anything: Any = function
    result: BackendFunction = anything
    return result


class OpenEnum(IntEnum):
    """Numbers of ``dlpack.h``: one that it does not list becomes a member, which equals it."""

    @staticmethod
    def _unlisted(value: int) -> str:
        """The name of such a member."""
        raise NotImplementedError

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_ = cls._unlisted(value)
        member._value_ = value
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[int]]:
        # CPython 3.11.2 pickles the name, by which such a member is not found.
        return type(self), (int(self),)


class Value:
    """An object whose attributes never change after it was made."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        kind = type(self).__name__
        raise AttributeError(f"a {kind} is a value: {name!r} cannot be set; make another")

    def __delattr__(self, name: str) -> NoReturn:
        kind = type(self).__name__
        raise AttributeError(f"a {kind} is a value: {name!r} cannot be deleted")
