"""What a backend must leave as it is: the process, and the exceptions of signal handlers."""

from __future__ import annotations

import decimal
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
import tracemalloc
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dlbridge

from .backend_base import (
    OPERATIONS,
    PAGES,
    RUNS,
    SCENE,
    DeviceUnderTest,
    random_bytes,
    run_python,
)
from .backend_members import each_member
from .backend_moves import PublicCase, numbers, on_host
from .backend_process import ends_well

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

SIGNALS = 40
"""How often each call is cut off."""

OPENED = """
import signal
from dlbridge.testing.backend_side_effects import state, use, what_differs

# A process in the background may be started with SIGINT ignored, and hands that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
arrived = []
names = ("SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGBREAK")
handled = [getattr(signal, each) for each in names if hasattr(signal, each)]
for each in handled:
    signal.signal(each, lambda number, _: arrived.append(number))
before = state(name)
print("used:", end="")
backend = load()
use(backend, f"{name}:{device_id}")
print(flush=True)
differs = what_differs(before, state(name))
if differs:
    sys.exit(f"the process is not as it was before the device was used: {differs}")
for each in handled:
    signal.raise_signal(each)
lost = [each.name for each in handled if each not in arrived]
if lost:
    sys.exit(f"the user's handlers are not called any more: {lost}")
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("the end")
else:
    sys.exit("Ctrl-C raises no KeyboardInterrupt any more")
"""
"""A process that opens the device and uses it."""

INTERRUPTED = """
import faulthandler
from dlbridge.testing.backend_base import DeviceUnderTest
from dlbridge.testing.backend_side_effects import not_cut_off

faulthandler.dump_traceback_later(patience * 3 / 4, exit=True)
missed = not_cut_off(DeviceUnderTest(load(), device_id), f"{name}:{device_id}")
if missed:
    sys.exit(f"a KeyboardInterrupt does not leave: {missed}")
"""
"""A process in which a signal handler raises KeyboardInterrupt in the middle of calls."""


def state(driver: str = "") -> dict[str, object]:
    """What belongs to the whole process, and what a library could change by mistake.

    Variables of the environment that have the *driver* in their name are its own.
    """
    own = driver.partition("-")[0].upper() or "\0"
    stack = threading.stack_size()
    threading.stack_size(stack)  # which the question has changed
    root, tiny = logging.getLogger(), np.array([1e-40], "f4")
    numpy_random: Any = np.random.get_state()
    state: dict[str, object] = {
        "the garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "the working directory": Path.cwd(),
        "random numbers": random.getstate(),
        "random numbers of numpy": (numpy_random[1].tobytes(), numpy_random[2:]),
        "numpy.seterr": np.geterr(),
        "numpy.set_printoptions": np.get_printoptions(),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
        "sys.stdin, stdout and stderr": (sys.stdin, sys.stdout, sys.stderr),
        "limits of the interpreter": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "sys.settrace and setprofile": (sys.gettrace(), sys.getprofile()),
        "the environment": {name: it for name, it in os.environ.items() if own not in name},
        "which warnings are shown": _shown(),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the root logger": (root.level, root.disabled, root.handlers[:], root.manager.disable),
        "numbers below the smallest normal one": (tiny * np.float32(0.5)).tobytes(),
        "signal handlers": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "gc.callbacks": gc.callbacks[:],
        "how processes are started": multiprocessing.get_start_method(allow_none=True),
        "threading.stack_size": stack,
        "sys.path": sys.path[:],
        "the decimal context": repr(decimal.getcontext()),
        "how sys.stdout and stderr write": [_writes(each) for each in (sys.stdout, sys.stderr)],
        "logging": [getattr(logging, name, None) for name in LOGGING],
        **{f"{module.__name__}.{name}()": getattr(module, name, int)() for module, name in GETTERS},
    }
    if threading.current_thread() is threading.main_thread():
        state["signal.set_wakeup_fd"] = woken = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(woken)
    return {**state, **inherited()}


def inherited() -> dict[str, object]:
    """What a process hands on to those that it starts."""
    umask = os.umask(0o22)
    os.umask(umask)
    handed: dict[str, object] = {"the umask": umask}
    if hasattr(os, "sched_getaffinity"):
        handed["the CPUs that the thread may use"] = os.sched_getaffinity(0)
    if hasattr(os, "getpriority"):
        handed["the priority"] = os.getpriority(os.PRIO_PROCESS, 0)
    if resource is not None:
        limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        handed["limits"] = {each: resource.getrlimit(getattr(resource, each)) for each in limits}
    if hasattr(signal, "pthread_sigmask"):
        handed["the signals that are blocked"] = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return handed


GETTERS: list[tuple[Any, str]] = [
    *((sys, name) for name in ("getdlopenflags", "get_int_max_str_digits", "get_asyncgen_hooks")),
    *((threading, name) for name in ("gettrace", "getprofile")),
    *((logging, name) for name in ("getLoggerClass", "getLogRecordFactory")),
    (gc, "get_freeze_count"),
    (socket, "getdefaulttimeout"),
    (faulthandler, "is_enabled"),
    (tracemalloc, "is_tracing"),
    (np, "geterrcall"),
    (np, "getbufsize"),
]
"""Functions that say how the process is set; not each system has all of them."""

LOGGING = ("raiseExceptions", "lastResort", "_warnings_showwarning", "_srcfile")
"""Settings of the module `logging`."""


def _writes(out: Any) -> object:
    names = ("encoding", "errors", "line_buffering", "write_through", "newlines")
    return [getattr(out, name, None) for name in names]


def _at_start() -> set[str]:
    """The names of the variables that this process was started with, as far as they are known."""
    file = Path("/proc/self/environ")
    words = file.read_bytes().split(b"\0") if file.exists() else list(map(os.fsencode, os.environ))
    return {os.fsdecode(word.partition(b"=")[0]) for word in words}


AT_START = _at_start()

AT_IMPORT = inherited()
"""What this process hands on, mostly from before a device is opened in it."""


def _shown() -> list[str]:
    """The kinds of warnings that a user's module would show, or raise as an error."""
    shown = []
    for kind in (UserWarning, DeprecationWarning, RuntimeWarning, FutureWarning, ResourceWarning):
        with warnings.catch_warnings(record=True) as seen:
            try:
                warnings.warn_explicit("a user's", kind, "user.py", 1, "__main__", {})
            except Warning:
                shown.append(f"{kind.__name__} raised")
        shown += [each.category.__name__ for each in seen]
    return shown


def what_differs(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """The names of what has changed, and of its parts."""
    differs = []
    for name, was in before.items():
        now: Any = after[name]
        if was == now:
            continue
        parts: list[str] = []
        if isinstance(was, dict):
            parts = sorted(str(each) for each in was.keys() | now if was.get(each) != now.get(each))
        differs.append(f"{name} ({', '.join(parts)})" if parts else name)
    return differs


def use(backend: Any, where: str) -> None:
    """Move a tensor to the device, use it there and bring it back, by the public functions."""
    array = numbers((6, 7))
    tensor = dlbridge.to_device(array, where, copy=True)
    assert np.array_equal(on_host(tensor[::2, 1:]), array[::2, 1:])
    dlbridge.copy_(dlbridge.zeros((7, 6), "float32", where).T, tensor)
    dlbridge.copy_(tensor[1::2], array[1::2])
    getattr(backend, "trim", lambda device_id: None)(tensor.device.index)


def _calls(device: DeviceUnderTest, where: str) -> dict[str, Callable[[], object]]:
    """What a program may be in the middle of when Ctrl-C is pressed."""
    content = random_bytes(PAGES)
    source, target = device.filled(content), device.allocate(PAGES)
    spans = device.span(target, 0, PAGES), device.span(source, 0, PAGES)
    host = memoryview(bytearray(PAGES))

    def operate(name: str) -> None:
        device.run(name, *spans, host, RUNS)
        device.synchronize()

    calls: dict[str, Callable[[], object]] = {
        name: partial(operate, name)
        for name, needs in OPERATIONS.items()
        if isinstance(device.backend, needs)
    }
    calls["the use of tensors"] = partial(use, device.backend, where)
    if device.can_view(source):
        given = spans[1], True, device.stream
        calls["host_view"] = lambda: device.backend.host_view(*given)
    return calls


def not_cut_off(device: DeviceUnderTest, where: str) -> list[str]:
    """The calls that go on, or raise something else, where a handler raises KeyboardInterrupt.

    Each is cut off `SIGNALS` times, at points that chance decides. What leaves a finalizer counts:
    Python hands it to `sys.unraisablehook`.
    """
    came: list[object] = []
    told: list[object] = []

    def interrupt(*_: object) -> None:
        came.append(None)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = told.append
    chance, missed = random.Random(1), []
    for name, call in _calls(device, where).items():
        call()
        begun = time.perf_counter()
        call()
        took, cut = time.perf_counter() - begun, 0
        for _ in range(50 * SIGNALS):
            came.clear()
            told.clear()
            raised: BaseException | None = None
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, took))
                    call()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except BaseException as exc:
                raised = exc
            cut += len(came)
            if came and not told and not isinstance(raised, KeyboardInterrupt):
                missed.append(f"{name} ({'no exception' if raised is None else repr(raised)})")
                break
            if cut >= SIGNALS:
                break
    return missed


class SideEffectTests(PublicCase):
    """The process belongs to its user, and so do the signals that it gets."""

    def test_the_process_stays_as_it_is(
        self,
        backend: Any,
        device: DeviceUnderTest,
        where: str,
        host_pages: tuple[int, mmap.mmap],
    ) -> None:
        """No member changes what the whole process has, such as the garbage collector."""
        calls = each_member(device, *host_pages)
        calls["the use of tensors"] = partial(use, backend, where)
        for name, call in calls.items():
            before = state()
            try:
                call()
                thread = threading.Thread(target=call, daemon=True)
                thread.start()
                thread.join()
                differs = what_differs(before, state())
            finally:
                gc.enable()
            assert not differs, f"{name} has changed {', '.join(differs)}"

    def test_the_process_is_as_before(self, backend: Any) -> None:
        """Nor does the driver's library, when it is opened; it prints nothing, and Ctrl-C works."""
        done = self.in_new_process(OPENED)
        gone = "Ctrl-C ends the process: a library has replaced Python's handler of SIGINT"
        ends_well(done, gone if done.returncode == -signal.SIGINT else "")
        assert done.stdout.split("\n") == ["used:", "the end", ""], (
            "the backend or its driver prints to sys.stdout, where programs have their results"
        )
        # The device was opened in this process, too, and the new one has got what that has set.
        differs = what_differs(AT_IMPORT, inherited())
        assert not differs, f"the use of the device has changed {differs}"
        added = set(os.environ) - AT_START
        added = {name for name in added if not name.startswith(("DLBRIDGE_", "PYTEST_"))}
        if added:
            forget = f"import os\nfor each in {added}:\n    os.environ.pop(each, None)\n"
            code = f"{self.child_setup}\n{SCENE}\n{forget}{OPENED}"
            done = run_python(code, self.name, self.device_id, self.patience, limit=self.patience)
            # Where the device is not there without them, they are the author's.
            assert done.returncode != 1 or "the environment (" not in done.stderr, done.stderr

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
    def test_interrupts_reach_the_caller(self, backend: Any) -> None:
        """A KeyboardInterrupt that comes in the middle of a call leaves it, as it is."""
        ends_well(self.in_new_process(INTERRUPTED))
