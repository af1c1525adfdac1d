"""The decorators of public objects: ``__module__`` becomes the public module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.protocol import Backend
    from dlbridge.typing import BackendFunction

_Thing = TypeVar("_Thing")


def public_in(module: str) -> Callable[[_Thing], _Thing]:
    """A decorator that sets ``__module__`` to *module*, where users find the object.

    Pickles, tracebacks and documents then name ``dlbridge.Tensor``, so that a
    class or function can move between rooms.
    """

    def mark(thing: _Thing) -> _Thing:
        anything: Any = thing
        anything.__module__ = module
        return thing

    return mark


def public(thing: _Thing) -> _Thing:
    """*thing*, whose ``__module__`` is ``"dlbridge"``."""
    return public_in("dlbridge")(thing)


def typed(function: Callable[[str], Backend]) -> BackendFunction:
    """`dlbridge.backend` itself; type checkers know the class of each backend by its name."""
    anything: Any = function
    result: BackendFunction = anything
    return result
