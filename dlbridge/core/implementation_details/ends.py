"""The ends of a process: what the core does in a child of ``fork()``, and when Python ends.

In the child, in the order of the imports, while the collector is off (`in_child` of the kit):

1. The kit forgets what the parent's resources own (`dlbridge.kit.resources`): nothing of the
   parent is given back.
2. The registry puts a stub in the place of every backend that the parent has used. Each of its
   members raises the one error that says so (`dlbridge.core.plugins.registry`).
3. Locks of `shared_lock` of the kit are free: a thread that held one does not exist.

When Python ends, in the reverse order of the imports:

1. Structs that the exchange table has lent get a deleter that is a harmless function of C, as
   consumers may hold them until after Python has ended. Blocks of shared memory stay mapped: a
   device may be writing to them still.
2. The ``__del__`` of memory does nothing any more, and those that other threads run are awaited,
   for two seconds at most (`end_finalizers`): a thread that Python ends inside of one would end
   the process.
3. The kit's owners give nothing back: drivers may be unloaded by then, and the system reclaims
   what they gave.
4. The structs of our capsules get that harmless deleter, too.

Backends have no order of their own: what a driver needs beside that is theirs.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from sys import _current_frames as current_frames  # documented, in spite of its name
from types import CodeType, FrameType
from typing import Any
from weakref import ref

Ending = Callable[[], Any]


def at_exit(function: Ending) -> Ending:
    """*function*, which is called when Python ends: before those that were registered earlier."""
    atexit.register(function)
    return function


# Finalizers -------------------------------------------------------------------------


_LONGEST_WAIT = 2.0  # seconds; a driver that does not return must not keep the process


def end_finalizers(*classes: Any) -> None:
    """Let the ``__del__`` of *classes* do nothing from now on; wait for those that run.

    For the exit of the process. A daemon thread that waits for the GIL when Python
    ends is ended there (CPython before 3.14). If a destructor of C++ has called the
    ``__del__``, that aborts the process; so no bytecode of it may be running then.
    """
    codes: set[CodeType] = {cls.__del__.__code__ for cls in classes}
    nothing: Any = object.__hash__  # any method of C
    for cls in classes:
        cls.__del__ = nothing
    wait_for(codes)


def wait_for(codes: set[CodeType]) -> None:
    """Let other threads end the functions of *codes* that they run now; none is begun any more."""
    running = {frame for frame in _frames_of_other_threads() if frame.f_code in codes}
    end = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < end and not running.isdisjoint(_frames_of_other_threads()):
        time.sleep(0.001)


def _frames_of_other_threads() -> Iterator[FrameType]:
    for thread, top in current_frames().items():
        if thread == threading.get_ident():
            continue
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


class _Raising:
    """A callback of a weak reference that raises *error*; messages call it *what*."""

    __slots__ = ("__weakref__", "error", "what")

    def __init__(self, error: BaseException, what: str) -> None:
        self.error, self.what = error, what

    def __call__(self, _reference: object) -> None:
        raise self.error

    def __repr__(self) -> str:
        return self.what


def report(error: BaseException, what: str) -> None:
    """Give *error*, which came where nobody can catch it, to `sys.unraisablehook`.

    Python does that with the exceptions of a weak reference's callback. The hook's own
    argument can be made by C only.
    """
    ended = _Raising(error, what)
    watch = ref(ended, _Raising(error, what))
    del ended
    assert watch() is None
