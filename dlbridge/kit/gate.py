"""The end of the process: libraries that no thread enters then, and work that is waited for.

Many libraries of drivers crash if a thread is in one of their functions when the process ends, or
if they are unloaded while a device works. All that is waited for is waited for here, at most
`PATIENCE` seconds in all: first the threads inside the gates, then the work.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from dlbridge.errors import DeviceError, Error

from .resources import RLock

__all__ = ["PATIENCE", "Gate", "wait_at_exit"]

PATIENCE = 10.0
"""In seconds; work may never end, and a thread inside may wait for it."""

T = TypeVar("T")

Done = Callable[[], bool]

_gates: list[Gate] = []
_pending: list[tuple[int, Callable[[], Iterable[Done]]]] = []


def wait_at_exit(pending: Callable[[], Iterable[Done]]) -> None:
    """Wait for work when the process ends, but not in a forked child.

    Parameters
    ----------
    pending : Callable[[], Iterable[Callable[[], bool]]]
        Is called when no thread is inside a gate any more. It gives a function for each piece of
        work, which does not block and says whether that is done. If one raises an exception, its
        device is lost and has no work left.
    """
    _pending.append((os.getpid(), pending))
    _end_first()


def _end_first() -> None:
    """Let `_end` run before the handlers that the library has registered at its import."""
    atexit.unregister(_end)
    atexit.register(_end)


def _end() -> None:
    deadline = time.monotonic() + PATIENCE
    for gate in _gates:
        gate._ending = True
    process = os.getpid()
    _wait((gate._is_empty for gate in _gates if gate._process == process), deadline)
    for opened_by, pending in _pending:
        if opened_by == process:
            _wait(list(pending()), deadline)


def _wait(pending: Iterable[Done], deadline: float) -> None:
    for done in pending:
        with suppress(Exception):
            while not done() and time.monotonic() < deadline:
                time.sleep(0.001)


class Gate:
    """Calls a library's functions, and raises dlbridge's errors for its exceptions.

    At exit it lets no thread in any more, and those inside are waited for.

    Parameters
    ----------
    api : str
        The library's name, for messages.
    keep : object
        What owns the library's objects. It is never released: neither a forked child nor the end
        of the process, which clears all modules, may call the library by a destructor.
    meanings : Mapping[type[Exception], type[Error]]
        What the library raises, and what it becomes; the first that fits. Other exceptions stay
        as they are.
    its_threads : str
        How the names of the modules begin whose thread classes the library makes for its
        callbacks. A call in such a thread, by a finalizer, is refused: it would wait for the
        thread inside the gate, and that one for the callback.
    several : bool
        Whether several threads may be inside; if not, one waits for the other.
    """

    def __init__(
        self,
        api: str,
        keep: object,
        meanings: Mapping[type[Exception], type[Error]],
        its_threads: str = "",
        several: bool = False,
    ) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(keep))  # deliberate, see above
        self._process = os.getpid()
        self._api = api
        self._meanings = dict(meanings)
        self._its_threads = its_threads
        # Re-entrant: a finalizer may come in while its thread is inside.
        self._lock = None if several else RLock()
        self._inside: dict[object, str] = {}
        self._ending = False
        _gates.append(self)
        _end_first()

    @property
    def in_child(self) -> bool:
        """Whether the library was opened by a parent of this process."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Refuse work in a forked child, before the library is called.

        dlbridge refuses the calls of a backend there; this is for objects that users keep.

        Raises
        ------
        dlbridge.errors.DeviceError
            In a child process.
        """
        if self.in_child:
            raise DeviceError(
                f"{self._api} does not survive fork(), and this process was made by it: start "
                "processes with 'spawn', or open the device in the child only"
            )

    def run(self, call: str, function: Callable[..., T], /, *arguments: Any, **keywords: Any) -> T:
        """Call *function* inside, and return its result.

        This is not a context manager: a signal handler could raise between the entry of one that
        is written in Python and its block, and the lock would stay locked.

        Parameters
        ----------
        call : str
            What is done, for messages.
        function : Callable
            What to call, with *arguments* and *keywords*.

        Raises
        ------
        dlbridge.errors.DeviceError
            In a forked child, when the process is ending, and in a thread of the library.
        """
        self.check()
        if self._its_threads:
            self._refuse_its_threads(call)
        key = object()
        # In this order: `_end` sets the flag first, and then looks for threads inside.
        self._inside[key] = call
        try:
            if self._ending:
                raise DeviceError(f"{call}: {self._api} cannot be used while the process ends")
            if self._lock is None:
                return function(*arguments, **keywords)
            with self._lock:
                return function(*arguments, **keywords)
        except Error:
            raise
        except tuple(self._meanings) as exc:
            kind = next(ours for its, ours in self._meanings.items() if isinstance(exc, its))
            raise kind(f"{call}: {' '.join(str(exc).split())}") from exc
        finally:
            del self._inside[key]

    def _refuse_its_threads(self, call: str) -> None:
        thread = threading.current_thread()
        if type(thread).__module__.startswith(self._its_threads):
            raise DeviceError(
                f"{call}: {self._api} cannot be used in a thread of its own ({thread.name}), where "
                "a finalizer may run: use it from another thread"
            )

    def _is_empty(self) -> bool:
        return not self._inside
