"""The kit's small parts: the list of all, the status of a driver, the gate before a library."""

import random
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

import dlbridge.kit
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.kit.gate import Gate
from dlbridge.kit.status import StatusTable
from tests.support.scripts import run_script
from tests.support.threads import in_threads


def test_the_list_of_parts_is_complete():
    modules = {path.stem for path in Path(dlbridge.kit.__file__).parent.glob("*.py")}
    listed = re.findall(r"^`(\w+)`", dlbridge.kit.__doc__, re.MULTILINE)
    assert set(listed) == modules - {"__init__"}


# status ------------------------------------------------------------------------------


def test_the_first_fatal_error_is_kept():
    table = StatusTable({}, str, fatal=frozenset({7, 8}))
    for code in (1, 7, 8):
        with pytest.raises(DeviceError):
            table.check("call", code)
    assert table.lost == "call: 7"


# gate --------------------------------------------------------------------------------


class LibraryError(Exception):
    pass


class NoRoomError(LibraryError):
    pass


def fail(exc):
    raise exc


@pytest.fixture
def gate():
    return Gate("SIM", None, {NoRoomError: DeviceMemoryError, LibraryError: DeviceError})


@pytest.mark.parametrize(
    ("its", "ours"),
    [(NoRoomError("full\n here"), DeviceMemoryError), (LibraryError("full here"), DeviceError)],
)
def test_the_librarys_exceptions_become_ours(gate, its, ours):
    words = r"^sim:0: copying: full here$"
    with pytest.raises(ours, match=words) as caught:
        gate.run("sim:0: copying", fail, its)
    assert type(caught.value) is ours
    assert caught.value.__cause__ is its


def test_other_exceptions_pass_the_gate_as_they_are(gate):
    for exc in (ExchangeError("ours"), KeyError("a mistake"), KeyboardInterrupt()):
        with pytest.raises(type(exc)) as caught:
            gate.run("sim:0: copying", fail, exc)
        assert caught.value is exc


def test_one_thread_at_a_time_is_inside(gate):
    entered, order, threads = threading.Event(), [], []

    def first():
        gate.run("a finalizer of the same thread", begin)
        order.append("first")

    def begin():
        threads.append(threading.Thread(target=gate.run, args=("second", order.append, "second")))
        threads[0].start()
        entered.wait(0.05)  # no verdict: who does not wait may come later, unseen

    gate.run("first", first)
    threads[0].join()
    assert order == ["first", "second"]


def test_an_interrupted_call_leaves_the_gate_open(gate):
    """Also while the exception is kept, as a traceback keeps the frames."""

    def strike(_number, _frame):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    def use():
        while armed:  # in a function: 3.13 leaves a try around a loop (python/cpython#130279)
            gate.run("work", int)

    armed, kept, pick = [], None, random.Random(5)
    before = signal.signal(signal.SIGALRM, strike)
    try:
        with ThreadPoolExecutor(1) as other:
            for _ in range(1000):
                try:
                    armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, pick.uniform(1e-6, 3e-5))
                    use()
                except KeyboardInterrupt as exc:
                    kept = exc
                finally:
                    armed.clear()
                entered = other.submit(gate.run, "work", int)
                done, _ = wait([entered], timeout=100)
                if not done:
                    kept = None  # else the thread waits for the lock for ever
                    pytest.fail("the gate stays closed")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert kept is not None


def test_several_threads_may_be_inside():
    gate, both = Gate("SIM", None, {}, several=True), threading.Barrier(2)
    assert in_threads(lambda _: gate.run("work", both.wait, 100), 2) == []


def test_a_thread_of_the_library_is_refused():
    class ItsThread(threading.Thread):
        def run(self):
            words = "copying: SIM cannot be used in a thread of its own"
            with pytest.raises(DeviceError, match=words):
                gate.run("copying", entered.append, True)
            done.append(True)

    gate = Gate("SIM", None, {}, its_threads=__name__)
    entered, done, thread = [], [], ItsThread()
    thread.start()
    thread.join()
    assert (entered, done) == ([], [True])
    gate.run("copying", entered.append, True)
    assert entered


@pytest.mark.parametrize("several", [False, True])
def test_the_end_of_the_process_waits_for_the_thread_inside_and_lets_no_other_in(several):
    code = (
        f"several = {several}\n"
        """
import atexit, threading, time
@atexit.register  # after the gate's: the last registered runs first
def after():
    print("left" if left.is_set() else "still inside")
    try:
        gate.run("late", print, "entered")
    except Exception as exc:
        print(exc)
from dlbridge.kit import gate as module
module.PATIENCE = 1000
gate = module.Gate("SIM", None, {}, several=several)
inside, left = threading.Event(), threading.Event()
def work():
    inside.set()
    while not gate._ending: time.sleep(0.001)
    time.sleep(0.1)  # who does not wait sees that it is inside
    left.set()
threading.Thread(target=gate.run, args=("work", work), daemon=True).start()
inside.wait()
"""
    )
    assert run_script(code) == "left\nlate: SIM cannot be used while the process ends\n"


@pytest.mark.parametrize(("patience", "answers"), [(1000, [False, False, True]), (0, [False])])
def test_the_end_of_the_process_waits_for_work_but_not_for_ever(patience, answers):
    """Also where a device is lost; a child of fork() waits for none of its parent's."""
    code = f"""
import os
from dlbridge.kit import gate
gate.PATIENCE, answers = {patience}, {answers}
def lost():
    raise RuntimeError
def done():
    print("asked", os.getpid() == parent, flush=True)
    return answers.pop(0)
parent = os.getpid()
gate.wait_at_exit(lambda: [lost, done])
if hasattr(os, "fork") and (child := os.fork()):
    assert os.waitpid(child, 0)[1] == 0
"""
    assert run_script(code) == "asked True\n" * len(answers)
