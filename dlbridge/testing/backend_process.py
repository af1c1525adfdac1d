"""Processes: their first use of a device, their end, forks; each scene runs in one of its own."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from .backend_base import PAGES, BackendCase

if TYPE_CHECKING:
    import mmap
    import subprocess
    from pathlib import Path

    from .backend_base import DeviceUnderTest

START = """
import gc, os, signal, threading
import numpy as np
from dlbridge.errors import BackendUnavailable, DeviceError, Error

where = f"{name}:{device_id}"
array = np.arange(100_000, dtype="float32")
aligned = dlbridge.empty(100_000, "float32").numpy()

def start():
    load()
    return dlbridge.to_device(array, where, copy=True)

def on_host(tensor):
    host = np.zeros(array.shape, "float32")
    dlbridge.copy_(host, tensor)
    return host
"""

KEPT = """
import contextlib
tensor, viewed, kept, views = start(), start(), [], contextlib.ExitStack()
for make in (
    tensor.to_native,
    lambda: dlbridge.asarray(tensor.to_native()),
    lambda: views.enter_context(viewed.host_view()),
    lambda: dlbridge.to_device(aligned, where, copy=False),
    lambda: dlbridge.share(np.ones(5000), where),
):
    with contextlib.suppress(BufferError, Error, TypeError):  # not every device can
        kept.append(make())
"""
"""Memory that the device shares with others: with its ecosystem, the host, other processes."""

EXITS = {
    "tensors are alive": """
import builtins

class Owner:
    def __init__(self, tensor):
        self.tensor = tensor
    def __del__(self):
        del self.tensor

tensor = start()
view = tensor[5:]
capsule = view.__dlpack__()
taken = dlbridge.from_dlpack(view.__dlpack__(max_version=(1, 3)))
sys.modules["kept"] = tensor  # after the module's own names are gone
builtins.kept = Owner(start())  # at the last moment
cycle = [tensor]
cycle.append(cycle)
""",
    "memory is shared": f"""{KEPT}
sys.modules["kept"] = kept, views
""",
    "work is queued": """
tensor = start()
queued = [dlbridge.to_device(tensor, where, copy=True) for _ in range(20)]
del queued[::2]
""",
    "a thread is at work": """
tensor = start()
begun = threading.Event()
def work():
    try:
        while True:
            assert on_host(dlbridge.to_device(array, where, copy=True))[7] == 7
            begun.set()
    except Error:  # the backend may refuse work once the process ends
        assert begun.is_set()
threading.Thread(target=work, daemon=True).start()
assert begun.wait(patience)
""",
}
"""Scenes in which a process ends: nothing may crash or hang, and no error is printed."""

FAILS = {
    "sys.exit(3)": ("sys.exit(3)", 3),
    "a test that fails": (
        """
import pathlib, pytest

file = pathlib.Path(sys.argv[4], "test_fails.py")
lines = "def test_it():", "from __main__ import on_host, tensor", "assert on_host(tensor)[7] == 8"
file.write_text("\\n    ".join(lines))
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-c", os.devnull, str(file)]))
""",
        1,
    ),
}
"""How a process fails, and its status then: a program that starts it must hear of it."""

SAME = """
import json
backend = load()
names = ("name", "kind", "uuid", "pci", "memory", "driver")
known = getattr(backend, "device_info", lambda device_id: {})
print(json.dumps([
    {name: known(each).get(name) for name in names} for each in range(backend.device_count())
]))
"""
"""What the devices are."""

FIRST = """
opener = threading.Thread(target=load)
opener.start()
opener.join()
devices = range(load().device_count())
ready, failures = threading.Barrier(8), []

def work(number):
    try:
        ready.wait()
        on = f"{name}:{devices[number % len(devices)]}"
        tensor = dlbridge.to_device(array + number, on, copy=True)
        ready.wait()  # all of them have memory
        for turn in range(3):
            again = dlbridge.zeros(array.shape, "float32", on)
            dlbridge.copy_(again, tensor)
            assert (on_host(again) == array + number).all(), "other elements"
    except BaseException as exc:
        failures.append(exc)
        ready.abort()
        raise

sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(patience / 2)
if failures:
    sys.exit(f"the first use in several threads at once fails: {failures[0]!r}")
"""
"""Eight threads use the devices at once, which nobody has used in this process before.

The thread that opened the driver has ended.
"""

FORK = """
tensor = start() if "{before}" == "used before" else None
child = os.fork()
if not child:
    signal.alarm(patience // 2)  # for a child that hangs
    code = 1
    try:
        there = tensor if tensor is not None else dlbridge.to_device(array, where, copy=True)
        again = dlbridge.to_device(there, where, copy=True)
        fresh = dlbridge.to_device(array, where, copy=True)
        code = 10 if all((on_host(t) == array).all() for t in (there, again, fresh)) else 12
    except BackendUnavailable as exc:
        code = 77
    except Error as exc:
        print(exc)
        code = 11 if isinstance(exc, DeviceError) and "fork" in str(exc) else 13
    tensor = there = again = fresh = None
    gc.collect()
    sys.exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if tensor is not None:
    assert (on_host(tensor) == array).all(), "the parent's tensor has changed"
    assert (on_host(start()) == array).all(), "the parent cannot use the device any more"
sys.exit(code)
"""

SHARED = f"""{KEPT}
child = os.fork()
if not child:
    signal.alarm(patience // 2)
    tensor = viewed = None
    with contextlib.suppress(Error):
        views.close()
    kept.clear()
    gc.collect()
    sys.exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert (on_host(tensor) == array).all(), "the parent's tensor has changed"
kept.clear()
views.close()
assert (on_host(viewed) == array).all()
print("child:", code)
sys.exit(code)
"""
"""A child ends what its parent has shared with the device: nothing waits, and nothing raises."""

SIGNALS = """
import faulthandler, random, time

class Interrupt(BaseException):
    pass

def interrupt(*_):
    # Not in finalizers: Python only prints what leaves them.
    raise Interrupt

start()
backend = dlbridge.backend(name)
source = np.arange(3000, dtype="u1")
want = source.tobytes()
gc.collect()
live = getattr(backend, "live_allocations", lambda: 0)

def used():
    # What the driver has given, without what is kept to be used again.
    getattr(backend, "trim", lambda device_id: None)(device_id)
    info = getattr(backend, "device_info", lambda device_id: {})(device_id)
    return info.get("memory_used", 0)

before, given = live(), used()
signal.signal(signal.SIGALRM, interrupt)
sys.unraisablehook = lambda told: None
chance, cut, took = random.Random(1), 0, 1e-3
for turn in range(400):
    begun = time.perf_counter()
    try:
        # Mostly within the turn. Not in the first: cffi, by which drivers are called, keeps its
        # lock for ever if an exception comes while it parses a type (2.1.1, cparser.py).
        signal.setitimer(signal.ITIMER_REAL, turn and chance.uniform(1e-5, took))
        tensor = dlbridge.to_device(source, where, copy=True)
        again = dlbridge.zeros(3000, "uint8", where)
        dlbridge.copy_(again, tensor)
        for part in (slice(0, 1), slice(1, None)):
            dlbridge.copy_(again[part], source[part])
        dlbridge.synchronize(where)
        assert again.tobytes() == tensor.tobytes() == want
        signal.setitimer(signal.ITIMER_REAL, 0)
        took = min(took, time.perf_counter() - begun) * 1.1
    except Interrupt:
        cut += 1
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
faulthandler.dump_traceback_later(patience / 2, exit=True)  # for a lock that is still held
threads = [threading.Thread(target=start, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
tensor = start()
assert (on_host(tensor) == array).all()
again = None
del tensor, thread, threads
gc.collect()
for _ in range(100):
    start()  # sweeps up
    gc.collect()
    if live() <= before and used() <= given:
        break
    time.sleep(0.01)  # a thread of the driver may be the last to have it
faulthandler.cancel_dump_traceback_later()
if live() > before or used() > given:
    sys.exit(
        f"{live() - before} allocations and {used() - given} bytes of the driver are lost "
        f"after the exceptions of a signal handler, which came {cut} times"
    )
print("cut off:", cut)
"""
"""A signal handler's exceptions in the middle of calls: nothing stays locked, nothing is lost."""

FORKED = {
    1: "the child failed by an error that is not dlbridge's",
    12: "the child read other values, without an error",
    13: "the child's error is not a DeviceError that says that it was forked",
    242: "the child did not end",
}
"""What a child's status says, 0 to 255 as its parent passes it on: 242 is -14, by ``SIGALRM``."""


def ends_well(
    done: subprocess.CompletedProcess[str], cause: str = "", good: tuple[int, ...] = (0,)
) -> None:
    """Fail, with the *cause* first, unless the process has ended with one of the *good* codes."""
    if done.returncode not in good:
        *_, last = done.stderr.strip().splitlines() or [""]
        pytest.fail(f"{cause or last}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")


def is_silent(done: subprocess.CompletedProcess[str]) -> None:
    """Fail if Python printed an error, as it does where a finalizer raises one."""
    lines = done.stderr.splitlines()
    for word in ("Traceback", "Exception ignored", "Fatal Python error"):
        for line in lines:
            if word in line:
                pytest.fail(f"{line}\n{done.stdout}{done.stderr}")


class ProcessTests(BackendCase):
    """A process that ends while it uses the device, or that forks."""

    @pytest.mark.parametrize("scene", EXITS)
    def test_exit(self, backend: Any, scene: str) -> None:
        """The process ends with status 0, in time, and prints nothing."""
        end = "for out in (sys.stdout, sys.stderr):\n    print('the end', file=out, flush=True)"
        done = self.in_new_process(f"{START}{EXITS[scene]}\n{end}\n")
        ends_well(done)
        is_silent(done)
        for out in (done.stdout, done.stderr):
            before, end, after = out.partition("the end\n")
            assert end, before
            assert not after.strip(), "at its end the process prints what nobody has asked for"

    @pytest.mark.parametrize("how", FAILS)
    def test_exit_status(
        self, backend: Any, how: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        """A process that has used the device and fails ends with the status of its failure."""
        code, status = FAILS[how]
        done = self.in_new_process(f"{START}\ntensor = start()\n{code}\n", tmp_path)
        if done.returncode == 0:  # so would this process, and nobody would hear of the failure
            request.config.add_cleanup(lambda: os._exit(1))
        assert done.returncode == status, f"{done.stdout}{done.stderr}"

    def test_devices_are_the_same_in_each_process(self, backend: Any) -> None:
        """Their number and order, and what is known of them; a UUID is looked for by others."""
        said = set()
        for seed in (2, 3):  # with which sets have another order
            done = self.in_new_process(SAME, environment={"PYTHONHASHSEED": f"{seed}"})
            assert done.returncode == 0, done.stdout + done.stderr
            said.add(done.stdout)
        assert len(said) == 1, "".join(sorted(said))

    def test_first_use_in_threads(self, backend: Any) -> None:
        """What is made when the device is first used is made once, for all threads."""
        ends_well(self.in_new_process(START + FIRST))

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    def test_fork_with_shared_memory(self, backend: Any) -> None:
        """Views, imports and shared memory end in a forked child without a wait or an error."""
        done = self.in_new_process(START + SHARED)
        ends_well(done, FORKED.get(done.returncode, ""))
        is_silent(done)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child runs nothing else
    def test_fork_with_work_on_streams(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """What was last used on any stream ends in a child: there nothing does the work of streams.

        The child is of this process, which has the streams.
        """
        for mine in self.each_stream(device):
            data = [mine.filled(b"f" * 4096) for _ in range(2)]
            if device.can_import(host_pages[0]):
                data.append(mine.import_host(host_pages[0], PAGES)[0])
            work, content = self.busy(mine), b"n" * 4096
            mine.upload(data[1], 0, memoryview(content))
            child = os.fork()
            if not child:
                signal.alarm(max(int(self.patience) // 4, 1))  # for a child that hangs
                try:
                    for each in data[1:]:
                        mine.free(each)
                finally:
                    os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code == 0, FORKED.get(code % 256, f"status {code}")
            assert mine.read(data[0], 0, 4096) == b"f" * 4096
            assert mine.read(data[1], 0, 4096) == b"n" * 4096
            del work

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
    def test_signals_anywhere_in_a_call(self, backend: Any) -> None:
        """After the exceptions of a signal handler no lock is held, and nothing is lost."""
        done = self.in_new_process(START + SIGNALS)
        held = "a lock is still held after the exception of a signal handler"
        ends_well(done, held if done.stderr.startswith("Timeout (") else "")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    @pytest.mark.parametrize("before", ["used before", "not used before"])
    def test_fork(self, backend: Any, before: str) -> None:
        """A forked child can use the device, or gets an error that says why; its parent goes on.

        A child whose parent has not used the device can use it. Neither crashes nor
        hangs when it ends, and what is dropped in the child raises nothing.
        """
        code = START + FORK.format(before=before)
        done = self.in_new_process(code)
        good = (10, 11) if before == "used before" else (10,)
        ends_well(done, FORKED.get(done.returncode, ""), good)
        is_silent(done)
