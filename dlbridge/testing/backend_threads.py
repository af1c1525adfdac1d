"""Several threads at once, on memory of their own and on neighbouring bytes."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import mmap
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dlbridge
from dlbridge.conformance.cases import in_threads
from dlbridge.errors import Error
from dlbridge.protocol import (
    SupportsCopy,
    SupportsFill,
    SupportsMemoryExport,
)

from .backend_base import (
    ENDS,
    PAGES,
    DeviceUnderTest,
    are_same,
    catch,
    check_live,
    drawn,
    drop,
    live_allocations,
    random_bytes,
)
from .backend_members import each_member
from .backend_moves import PublicCase, numbers, on_host
from .backend_process import ends_well, is_silent

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from dlbridge.protocol import Allocation

    Line = tuple[CodeType, int]

THREADS = 8

BESIDE = 0.05
"""Seconds for which each member is tried beside other threads."""

FINALIZERS = """
import os
from dlbridge.testing.backend_base import DeviceUnderTest
from dlbridge.testing.backend_threads import free_in_finalizers

device = DeviceUnderTest(load(), device_id)
# On a slow device not all of it: two rounds of 2 ms for each piece of work take 5 s.
if not free_in_finalizers(device, [*range(1, 61)] * 12, patience, patience / 24):
    os._exit(3)
device.close()
"""


HANDLERS = """
import faulthandler, os, random, signal, threading, time
from dlbridge.testing.backend_base import DeviceUnderTest

device = DeviceUnderTest(load(), device_id)
held, chance, took = [], random.Random(1), 1e-3

def end():
    faulthandler.dump_traceback()
    os._exit(3)

def allocate():
    return device.backend.allocate(device_id, 100, 1, device.stream)

watch = threading.Timer(patience * 3 / 4, end)
watch.daemon = True
watch.start()
data = device.filled(bytes(1000))
signal.signal(signal.SIGALRM, lambda *_: held.clear())
stop = time.monotonic() + patience / 24
for turn in range(300):
    held.append(allocate())
    begun = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, took))
    device.write(data, 0, b"w" * 100)
    device.read(data, 0, 100)
    device.synchronize()
    allocate()
    signal.setitimer(signal.ITIMER_REAL, 0)
    took = min(took, time.perf_counter() - begun) * 1.1
    if time.monotonic() > stop:
        break
watch.cancel()
held.clear()
device.close()
"""


FIRST_CALLS = """
from dlbridge.testing.backend_threads import first_calls

if failures := first_calls(load(), device_id, patience):
    sys.exit(failures[0])
"""


def traced(see: Callable[[Line], object], call: Callable[[], object]) -> None:
    """Call *call*, and *see* before each line of it in this thread."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            see((frame.f_code, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)


def lines_of(call: Callable[[], object]) -> list[Line]:
    """The lines that *call* runs."""
    lines: dict[Line, None] = {}
    traced(lines.setdefault, call)
    return list(lines)


def at_line(line: Line, do: Callable[[], object], call: Callable[[], object]) -> None:
    """Call *call*, and *do* before each time that it runs *line*."""
    traced(lambda now: do() if now == line else None, call)


def maker(device: DeviceUnderTest, address: int) -> Callable[[], list[object]]:
    """What makes one memory of each kind that the backend has; pages of the host at *address*."""
    backend, device_id, stream = device.backend, device.device_id, device.stream
    imports = device.can_import(address)
    exports = isinstance(backend, SupportsMemoryExport)  # which needs SupportsMemoryImport
    exported = None
    if exports and not backend.memory_export_refusal(device_id, 0):
        block = device.hold(backend.allocate_exportable(device_id, PAGES, stream))
        exported = backend.export_memory(device_id, block)

    def made() -> list[object]:
        new: list[object] = [backend.allocate(device_id, 100, 1, stream)]
        if imports:
            with suppress(Error):  # a second import of the same pages may be refused
                new.append(backend.import_host(device_id, address, PAGES, False, stream))
        if exported is not None:
            new.append(backend.import_memory(device_id, exported, stream))
        return new

    return made


def free_in_finalizers(
    device: DeviceUnderTest,
    thresholds: list[int],
    patience: float,
    seconds: float,
    make_stream: Callable[[], object] = lambda: None,
) -> bool:
    """Have memory freed at any point of calls for other memory; False: a deadlock.

    A threshold is the number of objects until the next collection. Each moves it to another
    line of a call, and some to a line that holds a lock. Then it is freed at each line of a call.
    After so many *seconds* it is enough. A stream that *make_stream* makes ends with the memory.
    """
    held = device.filled(b"h" * 100)
    pages = mmap.mmap(-1, PAGES)
    pin = ctypes.c_char.from_buffer(pages)
    memory = maker(device, ctypes.addressof(pin))

    def made() -> list[object]:
        return [*memory(), make_stream()]

    class Owner:
        def __init__(self) -> None:
            self.cycle = self  # only the garbage collector can free it
            self.memory = made()

    def use() -> None:
        device.write(held, 0, b"w" * 100)
        device.read(held, 0, 100)
        device.synchronize()

    def work() -> None:
        end = time.monotonic() + seconds
        for threshold in thresholds:
            gc.set_threshold(threshold)
            for _ in range(5):
                Owner()
                use()
            if time.monotonic() > end:
                break
        gc.set_threshold(0)
        end = time.monotonic() + seconds
        for line in lines_of(use):
            new = made()
            at_line(line, new.clear, use)
            if time.monotonic() > end:
                break

    thread = threading.Thread(target=work, daemon=True)  # a deadlock must not hang pytest
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # each collection then visits little
    try:
        thread.start()
        thread.join(patience * 3 / 4)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    if thread.is_alive():
        faulthandler.dump_traceback()
        return False
    gc.collect()
    assert device.read(held, 0, 100) == b"w" * 100
    device.close()
    del pin
    pages.close()
    return True


def first_calls(backend: Any, device_id: int, patience: float) -> list[str]:
    """Have threads call a member at once, then the next; what goes wrong.

    Nobody has called it in this process. Python changes threads wherever it can: not between any
    two lines, as some code relies on what it does in one step.
    """
    together, failures = threading.Barrier(THREADS, timeout=patience / 2), list[str]()

    def work(_: int) -> None:
        name, pages = "allocate", mmap.mmap(-1, PAGES)
        device, first = DeviceUnderTest(backend, device_id), {}
        try:
            together.wait()
            at = ctypes.addressof(ctypes.c_char.from_buffer(pages))
            calls = each_member(device, at, pages)
            for name, call in calls.items():
                together.wait()
                first[name] = call()
            for name, call in calls.items():
                assert are_same(first[name], call()), "it gives something else than later"
        except threading.BrokenBarrierError:
            pass  # another thread has failed
        except BaseException as exc:
            failures.append(f"the first call of {name}, in several threads at once: {exc!r}")
            together.abort()
        device.close()

    sys.setswitchinterval(1e-6)
    in_threads(THREADS, work)
    return failures


def run_in_threads(work: Callable[[int], str | None]) -> None:
    """Fail for the failures of *work*, which gets its number in each of `THREADS` threads."""
    broken = "the barrier is broken"

    def run(number: int) -> str | None:
        try:
            return work(number)
        except threading.BrokenBarrierError:
            return broken

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # a gap between two steps shows in seconds, not in hours
    try:
        failures = set(in_threads(THREADS, run)) - {None}
    finally:
        sys.setswitchinterval(interval)
    # A thread that fails breaks the barrier of the others: that says less.
    assert (failures - {broken} or failures) == set()


def note(got: list[object], call: Callable[[], object]) -> None:
    """Keep what *call* returns."""
    got.append(call())


class ThreadTests(PublicCase):
    """Every member may be called from any thread, and from a finalizer."""

    def test_threads(self, backend: Any) -> None:
        """Eight threads at once each get their own bytes back, also of copies and of fills."""
        gc.collect()
        before = live_allocations(backend)

        def work(number: int) -> str | None:
            device = DeviceUnderTest(backend, self.device_id)
            for turn in range(25):
                nbytes = 1000 + 997 * turn
                want = bytearray(random_bytes(nbytes, number))
                data = device.filled(bytes(want))
                if not device.holds(data, want):
                    return f"turn {turn}: other bytes"
                if isinstance(backend, SupportsCopy):
                    source, data = data, device.allocate(nbytes)
                    device.copy(device.span(data, 0, nbytes), device.span(source, 0, nbytes))
                if isinstance(backend, SupportsFill):
                    device.fill(data, 7, 900, number + 1)
                    want[7:907] = bytes([number + 1]) * 900
                if not device.holds(data, want):
                    return f"turn {turn}: other bytes after a copy or a fill"
                device.close()
            return None

        run_in_threads(work)
        check_live(backend, before, "after threads have made and dropped memory")

    def test_neighbouring_bytes(self, backend: Any, device: DeviceUnderTest) -> None:
        """Each thread writes one byte of the same few, and reads no other value there.

        A driver that copies whole words only needs a read-modify-write of the word,
        which must be one step for all threads.
        """
        data = device.filled(bytes(THREADS))
        together = threading.Barrier(THREADS, timeout=self.patience)

        def work(number: int) -> str | None:
            own = DeviceUnderTest(backend, self.device_id)
            for turn in range(1, 41):
                together.wait()
                own.write(data, number, bytes([turn]))
                value = own.read(data, number, 1)[0]
                if value != turn:
                    together.abort()
                    return f"wrote {turn}, and found {value}: another thread wrote its old value"
            return None

        run_in_threads(work)
        assert device.read(data, 0, THREADS) == bytes([40]) * THREADS

    def test_neighbouring_elements(self, where: str) -> None:
        """The same with tensors: views of one tensor, filled from the host and the device."""
        tensor = dlbridge.zeros(3 * THREADS, "uint8", where)
        together = threading.Barrier(THREADS, timeout=self.patience)

        def work(number: int) -> str | None:
            view = tensor[3 * number : 3 * number + 3]
            for turn in range(1, 41):
                want = np.full(3, turn, "u1")
                source = want if turn % 4 else dlbridge.to_device(want, where, copy=True)
                together.wait()
                dlbridge.copy_(view, source)
                if not np.array_equal(on_host(view), want):
                    together.abort()
                    return f"wrote {turn}, and found {on_host(view)}"
            return None

        run_in_threads(work)

    def test_threads_move_tensors(self, where: str) -> None:
        """Eight threads at once each get their own elements back."""

        def work(number: int) -> str | None:
            for turn in range(20):
                array = numbers((10 + 100 * turn, 3)) * (number + 1)
                tensor = dlbridge.to_device(array, where, copy=True)
                again = dlbridge.from_dlpack(tensor.__dlpack__(max_version=(1, 3)))
                if not np.array_equal(on_host(again), array):
                    return f"turn {turn}: other elements"
            return None

        run_in_threads(work)

    def test_threads_copy_between_devices(self, devices: list[DeviceUnderTest]) -> None:
        """Two threads that copy in opposite directions: each gets its bytes, and none hangs."""
        backend = devices[0].backend
        self.need(backend, SupportsCopy)
        if len(devices) < 2:
            pytest.skip("there is one device")
        sizes = drawn(16, 4096), drawn((1 << 16) + 1, 1 << 18)
        failures: list[BaseException] = []

        def work(number: int, here: DeviceUnderTest, there: DeviceUnderTest) -> None:
            for nbytes in sizes:
                content = random_bytes(nbytes, number)
                data, into = there.filled(content), here.filled(bytes(nbytes))
                for turn in range(15):
                    here.write(into, 0, bytes(nbytes))
                    here.copy(here.span(into, 0, nbytes), there.span(data, 0, nbytes))
                    assert here.holds(into, content), (
                        f"turn {turn}: other bytes than were copied from the other device, while "
                        "other threads copied as well"
                    )

        threads = []
        for number in range(4):
            pair = [
                mine.on(mine.stream)  # each thread counts its own memory
                for each in (devices[:2] if number % 2 else devices[1::-1])
                for mine in self.each_stream(each)[-1:]
            ]
            given = failures, partial(work, number, *pair)
            threads.append(threading.Thread(target=catch, args=given, daemon=True))
        for thread in threads:
            thread.start()
        until = time.monotonic() + self.patience
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        if failures:
            raise failures[0]
        if any(thread.is_alive() for thread in threads):
            faulthandler.dump_traceback()
            pytest.fail(
                "deadlock: threads that copy between two devices in opposite directions wait for "
                "each other"
            )

    def test_free_anywhere_in_a_call(self, backend: Any) -> None:
        """A lock that the end of memory and another member take must not stop a finalizer.

        Nor a signal handler that drops memory. In processes of their own, as a deadlock never ends.
        """
        scenes = {"finalizer": FINALIZERS}
        if hasattr(signal, "setitimer"):
            scenes["signal handler"] = HANDLERS
        for who, scene in scenes.items():
            done = self.in_new_process(scene)
            assert done.returncode != 3, (
                f"deadlock: a {who} waits for a lock of its own thread\n{done.stderr}"
            )
            assert done.returncode == 0, done.stdout + done.stderr
            is_silent(done)

    def test_free_in_a_finalizer(self, backend: Any, device: DeviceUnderTest) -> None:
        """The garbage collector may free one tensor in the middle of any call for another."""
        gc.collect()
        before = live_allocations(backend)
        given = [1] * 40, self.patience, self.patience
        assert free_in_finalizers(device, *given), (
            "deadlock: a finalizer waits for a lock of its own thread"
        )
        for mine in self.each_stream(device)[1:]:
            # `limit` comes first: pytest could not end after a deadlock of streams.
            more = partial(self.make_stream, backend, device.device_id)
            free_in_finalizers(mine, [1] * 40, 8 * self.patience, self.patience, more)
        device.synchronize()
        check_live(backend, before, "after a finalizer in the middle of calls")

    @pytest.mark.parametrize("kind", ["memory", "host view", "host import"])
    def test_what_is_dropped_is_given_back(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap], kind: str
    ) -> None:
        """Twenty drops in this thread, in another one, by the collector, and in a callback."""
        made, content = self.makes(device, host_pages[0], kind), bytes(host_pages[1])
        gc.collect()
        before = live_allocations(device.backend)
        for way in ENDS:
            for _ in range(20):
                drop([made()], way, self.patience)
            gc.collect()
            device.synchronize()
            check_live(device.backend, before, f"after a {kind} was dropped {way}")
        assert are_same(bytes(host_pages[1]), content)
        assert device.read(device.filled(b"and on"), 0, 6) == b"and on"

    def test_each_member_in_another_thread(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """A thread that has not used the device before gets what this one gets."""
        for name, call in each_member(device, *host_pages).items():
            got: list[object] = [call()]
            failures: list[BaseException] = []
            given = failures, partial(note, got, call)
            thread = threading.Thread(target=catch, args=given, daemon=True)
            thread.start()
            thread.join(self.patience)
            assert not thread.is_alive(), f"{name} does not return in another thread"
            assert not failures, f"{name} fails in another thread: {failures[0]!r}"
            assert are_same(*got), f"{name} gives something else in another thread"

    def test_first_call_of_each_member_in_threads(self, backend: Any) -> None:
        """Threads that call a member for the first time get what they get later.

        What a member makes at its first call, such as a table, is not used before it is complete.
        """
        ends_well(self.in_new_process(FIRST_CALLS))

    def test_each_member_beside_other_threads(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """It gives what it gives alone, while two threads make memory and drop it."""
        calls = each_member(device, *host_pages)
        alone = {name: call() for name, call in calls.items()}
        stop, failures = threading.Event(), list[BaseException]()

        def others() -> None:
            own = DeviceUnderTest(device.backend, device.device_id)
            while not stop.is_set():
                held = [own.allocate(100 + turn) for turn in range(20)]
                for data in held:
                    own.free(data)
                own.synchronize()  # else there is always work on a stream that all of them use

        given = failures, others
        threads = [threading.Thread(target=catch, args=given, daemon=True) for _ in range(2)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # else the device's own threads hardly run
        try:
            for thread in threads:
                thread.start()
            for name, call in calls.items():
                until, turns = time.monotonic() + BESIDE, 0
                while turns < 2 or time.monotonic() < until:  # no verdict: how often it is tried
                    got = call()
                    assert are_same(got, alone[name]), f"{name} gives something else beside threads"
                    turns += 1
        finally:
            sys.setswitchinterval(interval)
            stop.set()
            for thread in threads:
                thread.join(self.patience)
        assert not any(thread.is_alive() for thread in threads), "a thread does not return"
        assert not failures, f"making memory fails in another thread: {failures[0]!r}"

    def makes(self, device: DeviceUnderTest, address: int, kind: str) -> Callable[[], Allocation]:
        """What makes one of the *kind*, or a skip with the reason that there is none."""
        backend: Any = device.backend
        device_id, stream = device.device_id, device.stream
        if kind == "memory":
            return lambda: backend.allocate(device_id, 1000, 256, stream)
        if kind == "host import" and device.can_import(address):
            return lambda: backend.import_host(device_id, address, PAGES, False, stream)
        span = device.span(device.filled(bytes(1000)), 0, 1000)
        if kind == "host view" and device.can_view(span.data):
            return lambda: backend.host_view(span, True, stream)
        pytest.skip(f"{self.name}: there is no {kind} here")
