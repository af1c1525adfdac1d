"""One owner for each thing that a driver gives: nothing is lost, and nothing given back twice.

The exception of a signal handler may come at every call of a Python function, and after every call
of a C function; it may also cut off a destructor. Therefore:

- An `Owner`, and an object that says what there is to give back (its *resource*), exist before the
  driver is called. The driver writes into a cell of the resource, or `call` notes in C what it
  returns.
- The end of an owner is noted in C, and stays noted until the resource is back. What an exception
  cuts off is done at the end of the next owner, or by the next `Resources.sweep`.
- In a child of ``fork()`` nothing of its parent is given back, and at exit nothing at all: drivers
  may be unloaded by then, and the system reclaims what they gave.

Pipes, for example, which ``ffi`` opens and closes::

    PIPE, CLOSE = lib.pipe, lib.close  # `lib.pipe` itself runs Python code at its first use

    def close(cell):  # called again if an exception cuts it off
        for index in 0, 1:
            number, cell[index] = cell[index], -1
            if number >= 0:
                CLOSE(number)  # no call, and so no handler, comes between these lines
        return True

    pipes = Resources(close)
    owner = Owner(pipes, ffi.new("int[2]", [-1, -1]))
    check(PIPE(owner.resource))

The function may also return False, for what is still in use: it is asked again.

**The order at exit.** `atexit` runs first what was registered last, and what is used by others is
imported before them. So the order is:

1. `dlbridge.kit.gate`: no thread gets into a driver's library any more (OpenCL, oneAPI, WebGPU),
   those inside are waited for, and then queued work is (OpenCL, oneAPI, Vulkan): ``PATIENCE``
   seconds in all. It comes before what the libraries have registered when they were imported.
2. ``dlbridge.ffi``: destructors that C would call in Python, and deleters, become C functions
   without effect.
3. ``dlbridge.core``: the same with the deleters of exported tensors, and the memory of tensors is
   not given back any more.
4. This module: no release has an effect.
5. Python ends the daemon threads, and collects. What is locked then is free again (`shared_lock`).
6. Python clears its modules. Destructors run, and call no driver.

A handler that a user or a library registers later than these runs before all of them, while
everything still works. **In a forked child** `dlbridge.core.plugins.registry` puts a stub in the
place of every backend that the parent has used, and this module forgets what the parent holds,
both by `in_child`.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import operator
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Any, Generic, TypeVar
from weakref import WeakSet, ref

__all__ = [
    "AllocationOwner",
    "Descriptor",
    "Owner",
    "RLock",
    "Resources",
    "call",
    "do_all",
    "in_child",
    "join",
    "recall",
    "remember",
    "shared_lock",
]

R = TypeVar("R")


def call(results: list[Any], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call *function*, and add what it returns to *results* in the same step of C."""
    results.extend(starmap(function, (arguments,)))
    return results[-1]


def do_all(function: Callable[[Any], object], things: Iterable[Any]) -> None:
    """Call *function* for each until it has returned, the last first; then raise what came.

    For the end of work on memory that is somebody else's after this, whatever handlers raise.
    *function* itself must not fail: what it always raises would be tried for ever.
    """
    left = list(things)
    raised: list[BaseException] = []
    while left:
        try:
            function(left[-1])
            left.pop()
        except BaseException as exc:
            raised.append(exc)
    if raised:
        raise raised.pop()  # its traceback would keep it in the list


class _End(ref[Any]):
    """Notes an end, and knows what is to be given back then."""

    __slots__ = ("resource", "resources")

    resource: Any
    resources: Resources[Any]
    # By identity: a dead reference that nobody has asked before has no hash.
    __hash__, __eq__ = object.__hash__, object.__eq__


class Resources(Generic[R]):
    """Resources of one kind. Safe from any thread, finalizer and signal handler.

    Parameters
    ----------
    release : Callable[..., bool]
        Gives back what a resource says; False if it has to be asked again, later. It is called
        for one resource by one thread at a time, and again after any exception that leaves it.
        A finalizer may run it in the middle of any other call of the thread.
    """

    def __init__(self, release: Callable[..., bool]) -> None:
        self._release = release
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._held: set[_End] = set()
        self.ended: deque[_End] = deque()
        """Those that have lost their owner, and are not back."""

    def after_fork(self) -> None:
        """In a child: forget what the parent's owners have."""
        # A deliberate extra reference: the parent's objects may call the driver when they end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object((self._held, self.ended)))
        self._begin()

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[R]:
        """What is not back yet."""
        return [end.resource for end in self._held.copy()]

    def sweep(self, **how: Any) -> None:
        """Give back what has lost its owner; ``release`` gets *how* too."""
        ended = self.ended
        for _ in range(len(ended)):
            taken: list[_End] = []
            try:
                try:
                    taken.extend(starmap(ended.popleft, _NO_ARGUMENTS))
                except IndexError:  # another thread was faster
                    if not taken:
                        return
                    raise
                # One that is not held is back, or its owner was cut off before it had anything.
                if taken[0] not in self._held or self._release(taken[0].resource, **how):
                    self._held.discard(taken[0])
                    taken.clear()
            finally:
                ended.extend(taken)


_NO_ARGUMENTS = ((),)


class Owner(Generic[R]):
    """The owner of one resource, which goes back when this is dropped.

    Parameters
    ----------
    resources : Resources
        The others of its kind.
    resource : object
        What there is to give back: nothing yet. It must not refer to this object.
    """

    __slots__ = ("__weakref__", "_end", "resource")

    def __init__(self, resources: Resources[R], resource: R) -> None:
        self.resource = resource
        end = _End(self, resources.ended.append)
        end.resource, end.resources = resource, resources
        resources._held.add(end)
        self._end: _End | None = end

    def __del__(self) -> None:
        try:
            end = self._end
        except AttributeError:  # __init__ was cut off
            return
        if end is None:
            return
        resources = end.resources
        # In a cycle the end is noted before, and another thread may have begun. In a child of
        # fork() the parent's are not held.
        if end() is self and end in resources._held and resources._release(end.resource):
            resources._held.discard(end)
            self._end = None  # so that it is not noted after this
        if resources.ended:
            resources.sweep()


class AllocationOwner(Owner[R]):
    """An `dlbridge.protocol.Allocation` over a resource that has a ``stream``: that is its own.

    Parameters
    ----------
    resources : Resources
        The others of its kind; they give back what the resource says, behind its ``stream``.
    resource : object
        What there is to give back: nothing yet. `data` and `nbytes` are assigned once there is.
    """

    __slots__ = ("__dict__", "data", "nbytes")

    data: int
    nbytes: int
    offset: int = 0

    def _set_stream(self, stream: int) -> None:
        resource: Any = self.resource
        resource.stream = stream

    stream: int = property(attrgetter("resource.stream"), _set_stream)  # type: ignore[assignment]


class Descriptor(list[int]):
    """A file descriptor, which is closed when this is dropped.

    ``descriptor.extend(map(os.dup, [fd]))`` takes it in one step of C.
    """

    __slots__ = ()

    # The defaults outlive the module: its names are cleared when the process ends.
    def close(self, close: Callable[[int], None] = os.close, run: Any = deque) -> None:
        """Close it, once: it leaves the list in the call that closes it."""
        run(map(close, map(self.pop, [-1] * len(self))), maxlen=0)

    def __del__(self) -> None:  # where a signal handler has cut `close` off
        self.close()


# What is known as long as it lives --------------------------------------------------------

K = TypeVar("K")
T = TypeVar("T")


def remember(table: dict[K, ref[T]], key: K, thing: T) -> None:
    """Enter *thing* in *table* as long as it lives.

    Like a WeakValueDictionary, but C code removes the entry. Its own code in Python would let
    other threads run in a destructor of C++ that drops the thing, which ends the process if
    Python is ending; and an exception of a signal handler could prevent it. If two threads enter
    one key, the end of one thing may remove the entry of the other. Then `recall` does not find
    that one, which does no other harm.
    """
    table[key] = ref(thing, partial(table.pop, key))


def recall(table: dict[K, ref[T]], key: K) -> T | None:
    """What `remember` has entered, if it lives."""
    known = table.get(key)
    return None if known is None else known()


def join(members: set[ref[T]], thing: T) -> None:
    """Let *thing* be one of *members* as long as it lives: a WeakSet, as `remember`."""
    members.add(ref(thing, members.discard))


_all: WeakSet[Resources[Any]] = WeakSet()


# Forks ------------------------------------------------------------------------------------

_has_fork = hasattr(os, "register_at_fork")  # not on Windows, whose locks cannot be freed either
_in_child: list[Callable[[], Any]] = []
_after_forks: list[Callable[[], Any]] = [gc.isenabled]
"""What turns the collector on again, for each fork that is under way.

The first, which does nothing, is for a fork that waited for the import of this module.
"""


def in_child(function: Callable[[], Any]) -> Callable[[], Any]:
    """*function*, which is called in each child of ``fork()``, where the system has that.

    The collector is off from before the fork until all these functions have been called: a
    finalizer that it calls may use a device, whose driver the child must not call.
    """
    _in_child.append(function)
    return function


@in_child
def _forget() -> None:
    for each in _all:
        each.after_fork()


# Locks ------------------------------------------------------------------------------------

_locks: set[ref[Any]] = set()


class _Lock(type(threading.RLock())):  # type: ignore[misc]
    """A lock that an exception of a signal handler does not leave locked on CPython 3.14.

    There the handler may run between ``__enter__`` and the block of ``with``, if ``__enter__`` is
    of C: after 145 of 516 signals the lock stayed locked (3.14.10). After a function of Python it
    does not run. Before 3.14 and from 3.15 on it runs at neither (python/cpython#148874).
    """

    def __enter__(self) -> bool:
        before = self._recursion_count()
        try:
            acquired: bool = super().__enter__()
        except BaseException:
            if self._recursion_count() > before:
                self.release()
            raise
        return acquired


RLock: Callable[[], Any] = _Lock if sys.version_info[:2] == (3, 14) else threading.RLock


def shared_lock() -> Any:
    """A reentrant lock between threads: a finalizer may come while its thread is inside.

    It is free where the thread that held it does not exist any more: in a child of ``fork()``, and
    in the last collection of a process, in which a user's finalizer may use a device. Python has
    ended daemon threads by then, wherever they waited for the GIL.
    """
    lock: Any = RLock()
    join(_locks, lock)
    return lock


@in_child
def _free_locks() -> None:
    for each in list(_locks):
        lock = each()
        if lock is not None:
            lock._at_fork_reinit()


def _at_collection(phase: str, _info: object) -> None:
    if phase == "start" and sys.is_finalizing():
        _free_locks()


def _before_fork() -> None:
    _after_forks.append(gc.enable if gc.isenabled() else gc.isenabled)
    gc.disable()


def _after_fork() -> None:
    try:
        for function in _in_child:
            function()
    finally:
        enable = gc.enable in _after_forks
        _after_forks.clear()
        if enable:
            gc.enable()


@atexit.register
def _at_exit() -> None:
    without_effect: Any = dict  # of C
    Owner.__del__ = Resources.sweep = without_effect  # type: ignore[method-assign]
    if _has_fork:
        gc.callbacks.append(_at_collection)


if _has_fork:
    os.register_at_fork(
        before=_before_fork,
        # In C, as the exception of a signal handler would leave the collector off.
        after_in_parent=partial(next, map(operator.call, iter(_after_forks.pop, None))),
        after_in_child=_after_fork,
    )
