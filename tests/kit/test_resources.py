"""The owners of dlbridge.kit.resources: nothing that can be counted is lost, or given back twice.

The resources are the two descriptors of a pipe, which the C library writes into a cell.
"""

import ctypes
import gc
import os
import random
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from dlbridge.kit.resources import Owner, Resources, call, shared_lock
from tests.support.scripts import run_script
from tests.support.threads import in_threads

libc = ctypes.CDLL(None)
PIPE, CLOSE = libc.pipe, libc.close
Cell = ctypes.c_int * 2


def close(cell):
    for index in 0, 1:
        number, cell[index] = cell[index], -1
        if number >= 0:
            CLOSE(number)
    return True


def count():
    return len(list(Path("/proc/self/fd").iterdir()))


def new(pipes):
    owner = Owner(pipes, Cell(-1, -1))
    assert PIPE(owner.resource) == 0
    return owner


class Struck(Exception):
    """Of a signal handler."""


@pytest.mark.parametrize("others", [0, 3])
def test_signals_lose_nothing(others, monkeypatch):
    """Objects in cycles too; 191 of 9,757 exceptions lost a pipe with a cell and ``__del__``."""

    def strike(*_):
        if armed:
            armed.clear()
            raise Struck

    def work():
        for index in range(20):
            owner = new(pipes)
            if index % 10 == 0:
                circle = [owner]
                circle.append(circle)

    def work_on():
        while not stop:
            new(pipes)

    before, pipes, armed, stop, heard = count(), Resources(close), [], [], 0
    pick = random.Random(others)
    threads = [threading.Thread(target=work_on) for _ in range(others)]
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # prints those in destructors
    old = signal.signal(signal.SIGALRM, strike)
    try:
        for thread in threads:
            thread.start()
        while heard < 2000:
            try:
                armed.append(1)
                signal.setitimer(signal.ITIMER_REAL, pick.uniform(1e-6, 3e-4))
                work()
                armed.clear()
            except Struck:
                heard += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        stop.append(1)
        for thread in threads:
            thread.join()
    gc.collect()
    pipes.sweep()
    assert (len(pipes), count()) == (0, before)


def interrupted(moment):
    """How many steps an end has until *moment*, where an exception comes; what it released."""
    released, steps = [], []

    def release(once):
        released.extend(once)  # in one step
        return True

    def trace(frame, event, _argument):
        frame.f_trace_opcodes = True
        steps.append(event)
        if len(steps) == moment:
            sys.settrace(None)
            raise Struck
        return trace

    kind = Resources(release)
    owner = Owner(kind, iter([1]))
    sys._getframe().f_trace_opcodes = True  # CPython 3.12 looks for one when tracing begins
    before = sys.gettrace()
    sys.settrace(trace)
    del owner
    sys.settrace(before)
    kind.sweep()
    return len(steps), len(released), len(kind)


def test_an_exception_at_each_step_of_an_end(monkeypatch):
    """`__del__`, `sweep` and `release`: what it cuts off, the next sweep does, once."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # prints those in destructors
    steps, *_ = interrupted(0)
    assert steps > 50
    for moment in range(1, steps):
        assert interrupted(moment) == (moment, 1, 0)


def begun(moment):
    """How many steps the beginning of an owner has until *moment*, where an exception comes."""
    released, steps = [], []

    def trace(frame, event, _argument):
        frame.f_trace_opcodes = True
        if frame.f_code is Owner.__init__.__code__:
            steps.append(event)
            if len(steps) == moment:
                sys.settrace(None)
                raise Struck
        return trace

    kind = Resources(lambda name: released.append(name) or True)
    owner = None
    before = sys.gettrace()
    sys.settrace(trace)
    with suppress(Struck):
        owner = Owner(kind, "cut off")
    sys.settrace(before)
    del owner
    other = Owner(kind, "other")
    del other
    kind.sweep()
    assert {"other"} <= {*released} <= {"other", "cut off"}
    return len(steps), len(released), len(kind)


def test_an_exception_at_each_step_of_a_beginning(monkeypatch):
    """Of a tracer, for example: what it leaves does not stop the ends of others."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: printed.append(given.exc_value))
    steps, *_ = begun(0)
    assert steps > 20
    for moment in range(1, steps):
        assert begun(moment) in ((moment, 1, 0), (moment, 2, 0))
    assert printed == []


def test_what_is_in_use_is_asked_for_again():
    busy, order = [1], []
    kind = Resources(lambda name, wait=False: order.append(name) or wait or not busy)
    owners = [Owner(kind, name) for name in "ab"]
    owners.clear()
    assert len(kind.all()) == len(kind) == 2
    order.clear()
    kind.sweep()
    assert (sorted(order), len(kind)) == (["a", "b"], 2)
    kind.sweep(wait=True)
    assert len(kind) == 0


def test_a_failed_release_is_made_again(monkeypatch):
    failures = [OSError("not now")]

    def release(_resource):
        if failures:
            raise failures.pop()
        return True

    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: printed.append(given.exc_type))
    kind = Resources(release)
    owner = Owner(kind, "x")
    assert kind.all() == ["x"]
    failures.append(OSError("not now either"))
    del owner
    assert (kind.all(), printed) == (["x"], [OSError])
    with pytest.raises(OSError, match="not now"):
        kind.sweep()
    assert kind.all() == ["x"]
    kind.sweep()
    assert kind.all() == []


def test_a_cycle_is_released_once():
    """The collector notes its end before it calls `__del__`."""
    released = []
    kind = Resources(lambda name: released.append(name) or True)
    circle = [Owner(kind, "x")]
    circle.append(circle)
    del circle
    gc.collect()
    assert (released, kind.all()) == (["x"], [])


def test_one_thread_at_a_time_releases_a_resource():
    """And a finalizer that runs within finds other work, or none."""
    inside, both = [], threading.Barrier(2, timeout=60)

    def release(name):
        inside.append(name)
        assert inside.count(name) == 1
        both.wait()
        kind.sweep()
        inside.remove(name)
        return True

    kind = Resources(release)
    lives = [Owner(kind, name) for name in "ab"]
    assert in_threads(lambda _: lives.pop() and None, 2) == []
    assert (inside, len(kind)) == ([], 0)


def test_a_lock_is_free_after_the_exception_of_a_signal_handler():
    """On CPython 3.14 a plain `threading.RLock` stays locked in one round of four."""
    lock, armed, pick = shared_lock(), [], random.Random(5)

    def strike(_number, _frame):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    def use():
        while armed:  # in a function: 3.13 leaves a try around a loop (python/cpython#130279)
            with lock:
                pick.random()

    def is_free(_number):
        return [] if lock.acquire(blocking=False) and not lock.release() else ["locked"]

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(300):
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, pick.uniform(1e-6, 3e-5))
                use()
            except KeyboardInterrupt:
                pass
            finally:
                armed.clear()
            assert in_threads(is_free, 1) == []
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_a_function_of_c_returns_is_noted():
    results = []
    assert call(results, divmod, 7, 3) == (2, 1)
    assert results == [(2, 1)]
    with pytest.raises(ZeroDivisionError):
        call(results, divmod, 7, 0)
    assert results == [(2, 1)]


def test_a_child_of_fork_gives_back_its_own_only():
    """In a process of its own: others' threads open descriptors, and others' hooks close some."""
    assert run_script("from tests.kit import test_resources; test_resources.fork()") == "ends\n"


def fork():
    pipes = Resources(close)
    kept, gone = new(pipes), [new(pipes)]
    before = count()
    child = os.fork()
    if not child:
        try:
            gone.clear()
            del kept
            gc.collect()
            own = new(pipes)
            right = len(pipes) == 1 and count() == before + 2
            del own
            right = right and len(pipes) == 0 and count() == before
        finally:
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gone.clear()
    assert count() == before - 2
    del kept
    assert count() == before - 4
    print("ends")


def test_nothing_is_given_back_at_exit():
    script = """
    import atexit
    released, owners = [], []

    @atexit.register
    def end():  # after the end of all owners, which is registered by the import
        owners.clear()
        kind.sweep()
        kind.sweep(wait=True)
        print(released)

    from dlbridge.kit.resources import Owner, Resources
    kind = Resources(lambda name: released.append(name) or True)
    owners += [Owner(kind, "late"), Owner(kind, "before")]
    owners.pop()
    """
    assert run_script(script) == "['before']\n"
