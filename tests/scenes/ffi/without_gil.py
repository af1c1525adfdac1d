"""The FFI as it is without a GIL, in a Python that has one: its locks, and its pool of frames."""

from __future__ import annotations

import sys
from typing import Any

sys._is_gil_enabled = lambda: False  # type: ignore[attr-defined]  # asked when the FFI is loaded

from dlbridge import ffi  # noqa: E402  # see above
from dlbridge.ffi import _calls, _lib  # noqa: E402  # see above

from . import threads  # noqa: E402  # see above
from .scene import at_once, testing  # noqa: E402  # see above

assert not _lib.HAS_GIL


def calls() -> None:
    """Each call has a frame of its own, also by recursion and in threads, and gives it back."""
    echo = testing("echo")

    def inner(depth: Any) -> Any:
        return depth if depth == 0 else nested(depth - 1) + 1

    nested = ffi.convert_func(inner)
    bound = ffi.convert_func(object).bind()

    def work(me: Any) -> list[Any]:
        for turn in range(1000):
            text = f"thread {me}, turn {turn}, long enough for the heap"
            assert echo(text) == text
            assert nested(5) == 5
        results.extend(bound() for _ in range(500))
        return []

    results: list[Any] = []
    sys.setswitchinterval(1e-5)
    at_once(*[lambda me=me: work(me) for me in range(4)])
    assert len(set(map(id, results))) == 2000
    frames = [_calls.ready[0] for _ in range(100)]
    used = [frame for frame in frames if frame]
    assert 6 <= len(used) <= 24  # six of a recursion; at most those of four threads
    assert len({id(frame) for frame in used}) == len(used)


def containers() -> None:
    """As `threads.containers`."""
    threads.containers()


def fields() -> None:
    """As `threads.fields`."""
    threads.fields()


def race() -> None:
    """As `threads.race`."""
    threads.race("2")
