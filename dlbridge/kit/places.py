"""The thread's own place, put back after an exception that came between two calls of a driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from .driver import StreamDriver

__all__ = ["puts_place_back"]


class _HasDriver(Protocol):
    driver: StreamDriver


S = TypeVar("S", bound=_HasDriver)
P = ParamSpec("P")
T = TypeVar("T")


def puts_place_back(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Let *method* leave the thread in its own place, also if a signal handler raises.

    A ``with`` statement that has entered a place calls a Python function to leave it. A handler's
    exception that comes at the first instruction of that function skips it, and the thread's later
    calls, the user's and ours, would mean another device. In a finalizer it would be the rest of
    the work that the finalizer interrupted.
    """

    @wraps(method)
    def work(self: S, /, *arguments: P.args, **keywords: P.kwargs) -> Any:
        driver = self.driver
        before = driver.here()
        try:
            return method(self, *arguments, **keywords)
        except BaseException:
            driver.back_to(before)
            raise

    return work
