"""An answer that a library in C gives by a callback, waited for without a lock of Python's."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

__all__ = ["Callback"]


class Callback:
    """A function for C that keeps the arguments of its one call, and a wait for that call.

    A wait by ``threading.Event`` can hang every later one: the exception of a signal handler that
    comes inside leaves its lock locked. A callback in Python can lose such an exception, and its
    own work with it. Here the call is one step in C, into which no handler comes, and the wait
    polls: an exception ends the wait, and nothing else.

    Parameters
    ----------
    make : Callable[[Callable[..., None]], object]
        Makes the pointer that C calls: ``partial(ffi.callback, "void (*)(int)")``. C calls it
        once, with one argument or more; the pointer lives until then, also without a wait.
    """

    _uncalled: ClassVar[dict[BaseException, object]] = {}

    def __init__(self, make: Callable[[Callable[..., None]], object]) -> None:
        # An exception's __init__ keeps what it is called with, and is written in C.
        self._call = BaseException()
        self.pointer: Any = make(partial(BaseException.__init__, self._call))
        """What to give to C."""
        self._uncalled[self._call] = self.pointer

    def wait(self, poll: Callable[[], object]) -> tuple[Any, ...]:
        """Block until C has called.

        Parameters
        ----------
        poll : Callable[[], object]
            Gives the library an opportunity to call, and does not block.

        Returns
        -------
        tuple
            The arguments. What they point to may be gone.
        """
        pause = 0.0
        poll()
        while not self._call.args:
            time.sleep(pause)  # short at first, then at most a millisecond
            pause = min(pause + 1e-5, 1e-3)
            poll()
        for call in list(self._uncalled):  # others too, which nobody waits for any more
            if call.args:
                self._uncalled.pop(call, None)
        return self._call.args
