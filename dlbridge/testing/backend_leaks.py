"""Leaks: what a process holds may not grow with the number of allocations."""

from __future__ import annotations

import ctypes
import gc
import itertools
import statistics
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import Error
from dlbridge.protocol import ADDRESS_DEVICES, Span, SupportsStreams

from .backend_base import (
    OPERATIONS,
    PAGES,
    RUNS,
    DeviceUnderTest,
    live_allocations,
    open_files,
)
from .backend_moves import PublicCase, numbers, on_host
from .backend_refusals import PART, Calls

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

ROUNDS = 8

LIMITS = {"malloc's bytes": 512, "resident bytes": 4096}
"""Bytes per turn. One allocation of the test has 16384. Systems count resident pages in steps."""

MEASUREMENTS = 4
"""How often the bytes are measured while they grow, each time with twice the turns."""

KEPT = 4
"""So many buffers may be those of the last calls, which each thread or stream replaces."""


def slope(values: list[float]) -> float:
    """The growth per step: the median of all pairs, which single jumps do not move.

    Caches that fill up, and pages that the system takes back, are such jumps; a leak
    grows in every step.
    """
    pairs = itertools.combinations(enumerate(values), 2)
    return statistics.median((after - before) / (j - i) for (i, before), (j, after) in pairs)


def resident_bytes() -> int:
    """Memory of this process that is in use now; the highest ever where /proc is missing."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        import resource

        # glibc keeps freed memory resident, which would hide a leak.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    if sys.platform == "win32":
        return 0  # the standard library cannot measure it; live_allocations() still counts
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def threads_of_process() -> int:
    """How many threads the process has, those of libraries as well where /proc knows them."""
    folder = Path("/proc/self/task")
    return len(list(folder.iterdir())) if folder.exists() else threading.active_count()


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h (glibc 2.33)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def malloc_bytes() -> int:
    """Bytes that malloc has given and not got back, in all threads; 0 where glibc is missing.

    Resident pages alone may hide a leak: it first fills holes between what is in use.
    """
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


class LeakTests(PublicCase):
    """Memory, handles and files that are not given back."""

    def grows(
        self, backend: Any, turn: Callable[[], object], turns: int, of_driver: int = 0
    ) -> None:
        """Fail if something grows with the turns, by more bytes than the driver itself keeps.

        Allocations and files are counted exactly. Caches of limited size fill up at
        first: where memory grows, more turns decide.
        """
        each = max(turns // ROUNDS, 1)
        for attempt in range(MEASUREMENTS):
            seen, growth = self._measure(backend, turn, each << attempt)
            assert growth["live allocations"] == 0, seen["live allocations"]
            for name in ("open files", "threads"):
                assert growth[name] < 0.5 / (each << attempt), f"{name}: {seen[name]}"
            for name in LIMITS:
                growth[name] -= of_driver
            most = max(LIMITS, key=lambda name: growth[name] / LIMITS[name])
            if growth[most] < LIMITS[most]:
                return
        pytest.fail(f"{growth[most]:.0f} bytes stay after each turn: {seen[most]} {most}")

    def _measure(
        self, backend: Any, turn: Callable[[], object], each: int
    ) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Count what is held after each of the rounds of *each* turns, and the growth per turn."""
        counts: dict[str, Callable[[], float]] = {
            "live allocations": lambda: live_allocations(backend),
            "open files": open_files,
            "threads": threads_of_process,
            "resident bytes": resident_bytes,
            "malloc's bytes": malloc_bytes,
        }
        seen: dict[str, list[float]] = {name: [] for name in counts}
        for _ in range(ROUNDS + 1):
            for _ in range(each):
                turn()
            gc.collect()
            for name, count in counts.items():
                seen[name].append(count())
        return seen, {name: slope(values) / each for name, values in seen.items()}

    @pytest.mark.parametrize(
        "freed_by", ["this thread", "another thread", "new threads", "this thread, on a stream"]
    )
    def test_many_allocations_leak_nothing(
        self, backend: Any, device: DeviceUnderTest, freed_by: str
    ) -> None:
        """Memory and handles are back after each allocate, write and free.

        With new threads, also what a thread has for itself, such as a staging buffer. On a stream
        of the user's, who never waits for the default stream.
        """
        content, here = bytes(16384), freed_by.startswith("this thread")
        if freed_by.endswith("stream"):
            device = self.own(device)

        def use() -> None:
            data = device.allocate(16384)
            device.write(data, 0, content)
            device.read(data, 0, 16384)
            device.free(data)
            device.synchronize()

        def turn() -> None:
            if freed_by == "new threads":
                thread = threading.Thread(target=use)
                thread.start()
                thread.join()
                return
            data = device.allocate(16384)
            device.write(data, 0, content)
            if here:
                device.free(data)
            else:
                other.submit(device.free, data).result()
                device.synchronize()

        with ThreadPoolExecutor(1) as other:
            of_driver = self.thread_nbytes if freed_by == "new threads" else 0
            self.grows(backend, turn, self.allocations // (1 if here else 4), of_driver)

    @pytest.mark.parametrize("nbytes", [16, 4096, 1 << 16])
    def test_host_memory_is_let_go(self, device: DeviceUnderTest, nbytes: int) -> None:
        """After `synchronize` a backend refers to no more than the last of its host buffers."""
        for mine in self.each_stream(device)[::-1]:
            self.lets_go(mine, nbytes)

    def lets_go(self, device: DeviceUnderTest, nbytes: int) -> None:
        """The same on one stream."""
        data = device.allocate(nbytes)
        for copy in (device.upload, device.download):
            buffers: list[Any] = [np.zeros(nbytes, "u1") for _ in range(50)]
            for buffer in buffers:
                copy(data, 0, memoryview(buffer))
            device.synchronize()
            seen = [weakref.ref(buffer) for buffer in buffers]
            del buffer, buffers
            gc.collect()
            kept = sum(each() is not None for each in seen)
            assert kept <= KEPT, f"{kept} of {len(seen)} buffers are still referred to"

    def test_many_moves_leak_nothing(self, backend: Any, where: str) -> None:
        """The same with tensors: moved, exported, imported, and moved back."""

        def turn() -> None:
            tensor = dlbridge.to_device(array, where, copy=True)
            on_host(dlbridge.from_dlpack(tensor.__dlpack__(max_version=(1, 3)))[::2])

        array = numbers((32, 32))  # few runs: a validation layer looks at each
        self.grows(backend, turn, self.allocations // 8)

    def test_work_leaks_nothing(
        self, backend: Any, device: DeviceUnderTest, devices: list[DeviceUnderTest]
    ) -> None:
        """Copies, fills and waits between streams: whatever they need is given back."""
        away = next((each for each in devices if each.device_id != device.device_id), device)
        source, target = device.filled(bytes(4096)), device.allocate(4096)
        other = self.each_stream(device)[-1]
        whole, into = (device.span(data, 0, 4096) for data in (source, target))
        there = away.span(away.filled(bytes(4096)), 0, 4096)
        host = memoryview(bytearray(4096))
        known = [each for each, needs in OPERATIONS.items() if isinstance(backend, needs)]
        streams = isinstance(backend, SupportsStreams)

        def turn() -> None:
            for operation in known:
                device.run(operation, into, whole, host, RUNS)
            if "copy" in known:
                device.copy(into, there)
            if streams:
                backend.wait(device.device_id, other.stream, device.stream)
                backend.wait(device.device_id, device.stream, other.stream)
            device.synchronize()

        self.grows(backend, turn, self.allocations // 16)

    def test_streams_leak_nothing(self, backend: Any, device: DeviceUnderTest) -> None:
        """Neither threads nor files nor memory stay of streams that were used and have ended."""
        self.need(backend, SupportsStreams)
        if not self.streams_end:
            pytest.skip("the library keeps its streams until the process ends (streams_end)")
        self.new_stream(backend, device.device_id)
        data = device.allocate(4096)  # of the default stream: a pool may keep some of each stream

        def turn() -> None:
            stream = self.make_stream(backend, device.device_id)
            handle = backend.normalize_stream(device.device_id, stream)
            mine = DeviceUnderTest(backend, device.device_id, handle)
            mine.write(data, 0, bytes(4096))
            backend.wait(device.device_id, device.stream, handle)
            mine.synchronize()
            self.end_stream(backend, device.device_id, stream)

        self.grows(backend, turn, max(self.allocations // 32, ROUNDS), self.stream_nbytes)

    def test_shared_memory_leaks_nothing(
        self, backend: Any, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """Host views and imports of host memory are gone when they have ended."""
        address, _ = host_pages
        span = device.span(device.filled(bytes(4096)), 0, 4096)
        views, imports = device.can_view(span.data), device.can_import(address)
        if not views and not imports:
            pytest.skip("host and device share no memory")

        def turn() -> None:
            if views:
                device.release_host_view(device.host_view(span, writable=True))
            if imports:
                device.free(device.import_host(address, PAGES)[0])
            device.synchronize()

        self.grows(backend, turn, self.allocations // 16)

    def test_refusals_leak_nothing(self, backend: Any, device: DeviceUnderTest) -> None:
        """A call that fails leaves nothing behind: no room, no device, no stream, out of bounds."""
        calls = Calls(device)
        data = device.filled(bytes(calls.nbytes))
        bad = [Span(backend.device_count() + 3, data, 0, calls.nbytes)]
        if backend.device_type not in ADDRESS_DEVICES:  # else nobody knows where memory ends
            bad.append(device.span(data, PART, calls.nbytes))

        unknown = self.unknown_stream if isinstance(backend, SupportsStreams) else None

        def turn() -> None:
            with suppress(Error):
                device.allocate(1 << 62)
            if unknown is not None:
                with suppress(Error, ValueError):
                    backend.allocate(device.device_id, 16384, 256, unknown)
            for name, span in itertools.product(calls.names, bad):
                with suppress(Error):
                    calls.run(name, span)
            device.synchronize()

        self.grows(backend, turn, self.allocations // 16)
