"""The base of every part of the conformance kit: the backend, and a device under test."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import itertools
import mmap
import os
import random
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge import backend as load_backend
from dlbridge.errors import BackendUnavailable, DeviceLost
from dlbridge.protocol import (
    ADDRESS_DEVICES,
    Region,
    Span,
    SupportsCopy,
    SupportsDeviceInfo,
    SupportsFill,
    SupportsHostImport,
    SupportsHostView,
    SupportsStreams,
    SupportsStridedCopy,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from dlbridge.protocol import Allocation, ExportedMemory

PAGES = 4 * mmap.PAGESIZE
"""Bytes of the host memory that is imported."""

OPERATIONS = {
    "copy": SupportsCopy,
    "fill": SupportsFill,
    "copy_strided": SupportsStridedCopy,
    "copy_strided_from_host": SupportsStridedCopy,
    "copy_strided_to_host": SupportsStridedCopy,
    "copy_from_host": object,
    "copy_to_host": object,
}
"""The members that work on memory, and the capability that each needs."""

RUNS = Region((4,), (1024,), 512)
"""Runs of a strided copy, in 4096 bytes."""


SCENE = """
import sys
import dlbridge

name, device_id, patience = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def load():
    try:
        return dlbridge.backend(name)
    except dlbridge.BackendUnavailable as exc:
        print(exc)
        sys.exit(77)
"""
"""How a scene of `BackendCase.in_new_process` begins."""


def live_allocations(backend: Any) -> int:
    """The live allocations that the backend counts; 0 if it does not count."""
    count = getattr(backend, "live_allocations", None)
    return count() if count else 0


def check_live(backend: Any, before: int, after: str) -> None:
    """Fail if more or fewer allocations are live than *before*, and say what came *after* that."""
    now = live_allocations(backend)
    if now == before:
        return
    gc.collect()
    if live_allocations(backend) == before:
        pytest.fail(
            f"{after}, memory is freed by the garbage collector alone: an Allocation is part of a "
            "cycle of references, and must end with its last reference"
        )
    pytest.fail(f"{after}, live_allocations() is {now}; it was {before}, and should be again")


def open_files() -> int:
    """How many files and handles this process has open; 0 where that cannot be known."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def catch(failures: list[BaseException], work: Callable[[], object]) -> None:
    """Call *work* in a thread, and note what it raises, which Python would only print."""
    try:
        work()
    except BaseException as exc:
        failures.append(exc)


ENDS = ("here", "in another thread", "in a cycle", "in a callback")
"""Where something is dropped."""


def drop(held: list[Any], way: str, patience: float) -> None:
    """Drop what *held* has in one of the ways of `ENDS`."""
    if way == "here":
        held.clear()
    elif way == "in another thread":
        thread = threading.Thread(target=held.clear, daemon=True)
        thread.start()
        thread.join(patience)
        assert not thread.is_alive(), "the end of what is dropped in another thread hangs"
    elif way == "in a cycle":
        cycle: list[object] = [*held]
        cycle.append(cycle)
        held.clear()
        del cycle
        gc.collect(0)
    else:
        last = _Last()
        weakref.finalize(last, held.clear).atexit = False
        del last
        assert not held


class _Last:
    """What calls back when it ends."""


def end_quietly(end: Callable[[], object]) -> None:
    """Call *end*; fail for an exception that leaves a destructor, which Python only prints."""
    told: list[str] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda it: told.append(repr(it.exc_value))
    try:
        end()
    finally:
        sys.unraisablehook = before
    assert told == [], "a destructor has raised"


def random_bytes(nbytes: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat, so that a piece at the wrong offset is noticed."""
    return random.Random(seed).randbytes(nbytes)


SEED = int(os.environ.get("DLBRIDGE_KIT_SEED") or random.SystemRandom().getrandbits(32))
"""What the sizes of this run are drawn from."""


@functools.cache
def _chance(test: str) -> random.Random:
    return random.Random(f"{SEED} {test}")


def drawn(least: int, most: int) -> int:
    """A number of this run and test, from *least* to *most*, so that each run tries other sizes.

    pytest shows what is printed here where the test fails.
    """
    number = _chance(os.environ.get("PYTEST_CURRENT_TEST", "")).randint(least, most)
    print(f"{number} was drawn from {least} to {most} (DLBRIDGE_KIT_SEED={SEED})")
    return number


def drawn_sizes(least: int, most: int) -> list[int]:
    """A number of bytes from each doubling of *least* up to *most*, and one close to *most*."""
    steps = itertools.takewhile(lambda size: size < most, (least << bit for bit in range(64)))
    return [*(drawn(step, min(2 * step, most)) for step in steps), drawn(most - most // 16, most)]


def are_same(value: object, wanted: object) -> bool:
    """Whether the two are equal: pytest would print megabytes of difference for ``==``."""
    return value == wanted


def run_python(
    code: str, *arguments: object, limit: float = 120, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The result of *code* in a process of its own, with more variables in its *environment*."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, timeout=limit
    )


def side(
    device_id: int,
    data: int,
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
    run_nbytes: int,
) -> tuple[Span, Region]:
    """One side of a strided copy on a device: the region, and the span that it lies in."""
    region = Region(tuple(shape), tuple(strides), run_nbytes)
    return Span(device_id, data, offset, region.extent), region


STRANGE_STREAM = 0x7FF0_DEAD_BEE8_0000
"""A number that names no stream; `normalize_stream` asks no driver about it."""


class DeviceUnderTest:
    """One device of the backend, with allocations that are freed at the end of the test.

    All copies of the kit are made by its methods.
    """

    def __init__(self, backend: Any, device_id: int, stream: int | None = None) -> None:
        self.backend = backend  # Any: `need` has checked the capabilities that are used
        self.device_id = device_id
        self.stream = backend.current_stream(device_id) if stream is None else stream
        self._live: dict[int, Allocation] = {}  # data -> memory, or an import of some
        self._views: list[Allocation] = []
        self._others: list[DeviceUnderTest] = []

    def on(self, stream: int) -> DeviceUnderTest:
        """The same device, used on *stream*; what it allocates is freed with the rest."""
        other = DeviceUnderTest(self.backend, self.device_id, stream)
        self._others.append(other)
        return other

    def span(self, data: int, offset: int, nbytes: int) -> Span:
        """Bytes of *data* on this device."""
        return Span(self.device_id, data, offset, nbytes)

    def allocate(self, nbytes: int, alignment: int = 256) -> int:
        """New memory, freed by `free` or `close`."""
        return self.hold(self.backend.allocate(self.device_id, nbytes, alignment, self.stream))

    def made_with(self, content: memoryview) -> int:
        """New memory that the backend makes together with *content*."""
        given = self.device_id, len(content), 256, self.stream, content
        return self.hold(self.backend.allocate(*given))

    def import_host(self, address: int, nbytes: int, readonly: bool = False) -> tuple[int, int]:
        """``data`` and offset of host memory in place, until `free` or `close`."""
        given = self.device_id, address, nbytes, readonly, self.stream
        made = self.backend.import_host(*given)
        return self.hold(made), made.offset

    def import_memory(self, exported: ExportedMemory) -> tuple[int, int]:
        """``data`` and offset of memory that was exported, until `free` or `close`."""
        made = self.backend.import_memory(self.device_id, exported, self.stream)
        return self.hold(made), made.offset

    def hold(self, made: Allocation) -> int:
        """Keep *made* until `free` or `close`; its ``data``."""
        self._live[made.data] = made
        return made.data

    def filled(self, content: bytes) -> int:
        """New memory that holds *content*."""
        data = self.allocate(len(content))
        self.write(data, 0, content)
        return data

    def free(self, data: int, last: int | None = None) -> None:
        """Free before the end of the test, last used on the stream *last* or on this one."""
        self.take(data, last)

    def take(self, data: int, last: int | None = None) -> Allocation:
        """The allocation itself, which is then freed with its last reference."""
        made = self._live.pop(data)
        made.stream = self.stream if last is None else last
        return made

    def upload(self, data: int, offset: int, source: memoryview) -> None:
        """Enqueue a copy of all bytes of *source* to the device."""
        self.copy(self.span(data, offset, len(source)), source)

    def download(self, data: int, offset: int, into: memoryview) -> None:
        """Enqueue a copy of ``len(into)`` bytes to the host."""
        self.copy(into, self.span(data, offset, len(into)))

    def copy(self, target: Span | memoryview, source: Span | memoryview, *regions: Region) -> None:
        """Enqueue a copy by the member for it; one of the sides may be host memory.

        With *regions*, that of the target and that of the source, it is one of runs of bytes.
        """
        sides = list(itertools.zip_longest((target, source), regions))
        member = "copy_strided" if regions else "copy"
        if isinstance(source, memoryview):
            member += "_from_host"
        elif isinstance(target, memoryview):
            member += "_to_host"
            sides.reverse()
        given: list[object] = []
        for memory, region in sides:
            if region is None:
                given.append(memory)
            elif isinstance(memory, memoryview):
                given += memory[: region.extent], region
            else:
                given += memory._replace(nbytes=region.extent), region
        getattr(self.backend, member)(*given, self.stream)

    def run(
        self, operation: str, target: Span, source: Span, host: memoryview, region: Region
    ) -> None:
        """Enqueue one of the `OPERATIONS`; *host* is the side that is the host's, if one is."""
        if operation == "fill":
            self.backend.fill(target, 2, self.stream)
            return
        to: Span | memoryview = host if operation.endswith("to_host") else target
        origin: Span | memoryview = host if operation.endswith("from_host") else source
        self.copy(to, origin, *((region, region) if "strided" in operation else ()))

    def fill(self, data: int, offset: int, nbytes: int, value: int) -> None:
        """Enqueue a fill with one byte value."""
        self.backend.fill(self.span(data, offset, nbytes), value, self.stream)

    def host_view(self, span: Span, writable: bool = False) -> int:
        """The host address of the bytes."""
        view = self.backend.host_view(span, writable, self.stream)
        self._views.append(view)
        return int(view.data)

    def release_host_view(self, address: int) -> None:
        """End the last view that `host_view` gave at *address*."""
        at = [view.data for view in self._views]
        del self._views[len(at) - 1 - at[::-1].index(address)]

    def write(self, data: int, offset: int, content: bytes) -> None:
        """Copy *content* (read-only, as many sources are) to the device, and wait."""
        self.upload(data, offset, memoryview(content))
        self.synchronize()

    def read(self, data: int, offset: int, nbytes: int) -> bytes:
        """The bytes on the device once all work on the stream is done."""
        into = bytearray(nbytes)
        self.download(data, offset, memoryview(into))
        self.synchronize()
        return bytes(into)

    def holds(self, data: int, content: bytes | bytearray | memoryview, offset: int = 0) -> bool:
        """Whether these bytes are there once all work on the stream is done; as `are_same`."""
        return self.read(data, offset, len(content)) == content

    def can_view(self, data: int) -> bool:
        """Whether the host can address the memory."""
        if not isinstance(self.backend, SupportsHostView):
            return False
        return not self.backend.host_view_refusal(self.device_id, data)

    def can_import(self, address: int) -> bool:
        """Whether the device can use the `PAGES` there in place."""
        if not isinstance(self.backend, SupportsHostImport):
            return False
        return not self.backend.host_import_refusal(self.device_id, address, PAGES, True)

    def synchronize(self) -> None:
        """Wait for the stream, if there are streams."""
        if isinstance(self.backend, SupportsStreams):
            self.backend.synchronize(self.device_id, self.stream)

    def close(self) -> None:
        """Free what is left."""
        while self._others:
            self._others.pop().close()
        self._views.clear()
        while self._live:
            self.free(next(iter(self._live)))
        with suppress(DeviceLost):  # by the test, and this stream is of before
            self.synchronize()


class BackendCase:
    """The attributes and hooks of the kit; only ``name`` must be set."""

    name: str
    """The entry point's name, as in device strings."""

    def __init_subclass__(cls, needs: type | None = None) -> None:
        """Have the tests that *cls* defines skipped where a backend lacks what it *needs*."""
        super().__init_subclass__()
        for name, test in vars(cls).items() if needs else ():
            if name.startswith("test_"):
                test.needs = needs

    device_id = 0
    """The device that most tests use; every device gets a round trip."""

    max_nbytes = 64 << 20
    """Size (bytes) of the largest round trip; less for a small simulator."""

    huge_nbytes = 0
    """The bytes of one allocation for far offsets, a few of which are used.

    Give ``(1 << 32) + 4096`` where the device has as much, or has memory that nobody has written
    to for nothing: it shows offsets that are cut to 30 or 32 bits, and copies that are cut.
    """

    copied_nbytes = 320 << 20
    """The bytes of the longest copy, for copies that are cut; at most half of `huge_nbytes`.

    ``(1 << 31) + 2048`` shows lengths of 31 bits. Both sides are written: it takes twice as much.
    """

    may_fill = False
    """Whether tests may use all of ``device_info(device_id)["memory"]``, as of a simulator."""

    streams_end = True
    """Whether a stream that `make_stream` makes ends with its last reference. False where the
    library keeps its streams until the process ends, as torch does."""

    waits_alone = True
    """Whether a thread that waits does nothing else. False where the driver lets it take part in
    the work of other streams."""

    stream_nbytes = 0
    """Bytes that the driver itself keeps of each stream that was used and has ended."""

    most_streams = 160
    """How many streams the backend knows at once, where its documentation says a number."""

    thread_nbytes = 0
    """Bytes that the driver itself keeps of each thread that has used it and has ended."""

    refuses_writes = True
    """Whether the driver refuses a write to memory that is imported read-only. False where it has
    no such right, or where nobody asks for it, as nothing but dlbridge would write."""

    unknown_stream: int | None = None
    """A number that names no stream, where asking the driver about it crashes nothing."""

    without_driver: dict[str, str] | None = None
    """Environment variables with which the driver is missing, as on a machine without it."""

    without_package = ""
    """The Python package of the driver, which the process that asks for the device has not."""

    allocations = 4000
    """How often the leak test allocates; fewer only if one allocation takes milliseconds.

    It looks at the process's memory and open files, and asks
    ``backend.live_allocations()`` (what has not been freed) where the backend
    has that.
    """

    patience = 120
    """Seconds until something that does not return is a deadlock; no slow machine needs them.

    A test that takes three times as long ends pytest, which then says which test that was.
    """

    child_setup: str | None = ""
    """Python code that a new process runs before it uses the device.

    Some scenes (the exit of a process, a fork) need a process of their own, which
    loads the backend by its name. None leaves these tests out: for a class whose
    `backend` fixture returns an object that no other process can make.
    """

    light_imports: tuple[str, ...] = ()
    """Other packages that the backend's module may import at once, as they open no driver."""

    def make_stream(self, backend: Any, device_id: int) -> object | None:
        """A new stream as a user would pass it; None if the device has none."""
        return None

    def end_stream(self, backend: Any, device_id: int, stream: Any) -> None:
        """End *stream*, made by `make_stream`, where it does not end with its last reference."""

    def make_current(
        self, backend: Any, device_id: int, stream: Any
    ) -> AbstractContextManager[object] | None:
        """A block in which *stream*, made by `make_stream`, is the thread's current stream.

        None if no library of the device has a current stream.
        """
        return None

    def slow_work(self, backend: Any, device_id: int, stream: int) -> object | None:
        """Enqueue one piece of work of 50 ms or more on *stream*, without waiting for it.

        One piece, so that it may be the only work there is, and have begun. Returns an object that
        must stay alive until the work is done. None if such work cannot be made here; the kit then
        copies memory on the device, which is over too soon on a fast one.
        """
        return None

    def is_done(self, backend: Any, device_id: int, stream: int, work: object) -> bool | None:
        """Whether the *work* of `slow_work` is done, asked of the driver without waiting.

        None if that cannot be known. It is the probe that shows a `synchronize`
        which does nothing.
        """
        return None

    def lose_device(self, backend: Any, device_id: int) -> bool:
        """Make the driver lose the device, as if it had been removed; False where it cannot.

        The tests of lost devices are the only ones that call it. Return True only for a
        *backend* that no other test uses, or that can open the device again. It returns when
        the loss is known: from then on each call raises DeviceLost.
        """
        return False

    def lost_together(self, backend: Any, device_id: int) -> set[int]:
        """The devices that are lost with this one: those that share its context or its process.

        The contract lets a backend say which; all others must keep their memory.
        """
        return {device_id}

    def failing_work(self, backend: Any, device_id: int, stream: int) -> bool:
        """Enqueue work on *stream* that the device refuses later; False where there is none."""
        return False

    def make_native(self, backend: Any, device_id: int, content: bytes) -> object | None:
        """An array of the ecosystem, which its own library makes, with *content* as uint8.

        None if there is no such library. `from_native` gets it without a `to_native` before.
        """
        return None

    def memory_in_use(self, backend: Any, device_id: int) -> int | None:
        """The bytes of the device that this process has from the driver; None if nobody knows.

        Kept memory counts. It is ``memory_used`` of `SupportsDeviceInfo`, if that is there.
        """
        if not isinstance(backend, SupportsDeviceInfo):
            return None
        used: Any = backend.device_info(device_id).get("memory_used")
        return None if used is None else int(used)

    @pytest.fixture(autouse=True)
    def limit(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """End the whole run, and name the test, if it never returns."""
        capture = request.config.pluginmanager.getplugin("capturemanager")

        def end() -> None:
            if capture is not None:
                capture.suspend_global_capture(in_=True)
            print(f"\n{request.node.nodeid} does not end; its threads:", file=sys.stderr)
            faulthandler.dump_traceback(sys.__stderr__ or 2)
            os._exit(1)

        timer = threading.Timer(3 * self.patience, end)  # no verdict: it would never end
        timer.daemon = True
        timer.start()
        yield
        timer.cancel()

    @pytest.fixture(autouse=True)
    def _has_what_is_needed(self, request: pytest.FixtureRequest) -> None:
        needs = getattr(request.function, "needs", None)
        if needs is not None:
            self.need(request.getfixturevalue("backend"), needs)

    @pytest.fixture
    def backend(self) -> Any:
        """The backend, or a skip with the reason (a failure under DLBRIDGE_EXPECT)."""
        try:
            return load_backend(self.name)
        except BackendUnavailable as exc:
            if self.is_expected():
                raise
            pytest.skip(str(exc))

    @pytest.fixture
    def device(self, backend: Any) -> Iterator[DeviceUnderTest]:
        """The device under test."""
        device = DeviceUnderTest(backend, self.device_id)
        yield device
        device.close()

    @pytest.fixture
    def devices(self, backend: Any) -> Iterator[list[DeviceUnderTest]]:
        """All devices of the backend."""
        devices = [DeviceUnderTest(backend, i) for i in range(backend.device_count())]
        yield devices
        for device in devices:
            device.close()

    @pytest.fixture
    def host_pages(self) -> Iterator[tuple[int, mmap.mmap]]:
        """Address and bytes of four fresh pages."""
        pages = mmap.mmap(-1, PAGES)
        pages[:] = random_bytes(PAGES)
        pin = ctypes.c_char.from_buffer(pages)
        yield ctypes.addressof(pin), pages
        del pin
        pages.close()

    def is_expected(self) -> bool:
        """Whether DLBRIDGE_EXPECT forbids to go without this device."""
        expected = os.environ.get("DLBRIDGE_EXPECT", "")
        return self.name in [part.strip() for part in expected.split(",")]

    def need(self, backend: object, protocol: type) -> None:
        """Skip unless *backend* has the capability."""
        if not isinstance(backend, protocol):
            pytest.skip(f"{self.name} does not have {protocol.__name__}")

    def need_handles(self, backend: Any) -> None:
        """Skip where ``data`` is an address, so that nobody knows where its memory ends."""
        if backend.device_type in ADDRESS_DEVICES and self.name != "cpu":
            pytest.skip("data is an address, so the size of the memory is not known")

    def each_stream(self, device: DeviceUnderTest, more: int = 1) -> list[DeviceUnderTest]:
        """The device on its current stream, then on *more* new ones if there is a `make_stream`."""
        devices = [device]
        for _ in range(more if isinstance(device.backend, SupportsStreams) else 0):
            stream = self.make_stream(device.backend, device.device_id)
            if stream is None:
                break
            self.made = (*self.made, stream)
            devices.append(device.on(device.backend.normalize_stream(device.device_id, stream)))
        return devices

    def new_stream(self, backend: Any, device_id: int) -> object:
        """A new stream as a user would pass it, or a skip."""
        stream = self.make_stream(backend, device_id)
        if stream is None:
            pytest.skip("there is one stream (make_stream)")
        return stream

    def own(self, device: DeviceUnderTest) -> DeviceUnderTest:
        """The device on a new stream, or a skip."""
        mine = self.each_stream(device)[-1]
        if mine is device:
            pytest.skip("there is one stream (make_stream)")
        return mine

    made: tuple[object, ...] = ()
    """The streams of `each_stream`, which the fixtures still need after the test."""

    def busy(self, device: DeviceUnderTest) -> object:
        """Work on the device's stream that takes its time; keep the result until it is done."""
        work = self.slow_work(device.backend, device.device_id, device.stream)
        if work is None and isinstance(device.backend, SupportsCopy):
            nbytes = min(self.max_nbytes, 8 << 20)
            first, second = device.allocate(nbytes), device.allocate(nbytes)
            spans = device.span(first, 0, nbytes), device.span(second, 0, nbytes)
            for _ in range(5):
                device.copy(*spans)
                device.copy(*spans[::-1])
        return work

    def long_work(self, device: DeviceUnderTest) -> list[object]:
        """Work that takes longer than to queue thousands of pieces; as `busy`."""
        given = device.backend, device.device_id, device.stream
        return [self.busy(device), *(self.slow_work(*given) for _ in range(4))]

    def in_new_process(
        self, code: str, *arguments: object, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The result of *code* in a process of its own, after `child_setup` and `SCENE`.

        It is skipped if the device is missing there. The process has more variables in its
        *environment*.
        """
        if self.child_setup is None:
            pytest.skip("this kind of device exists in this process only (child_setup is None)")
        given = self.name, self.device_id, self.patience, *arguments
        try:
            whole = f"{self.child_setup}\n{SCENE}\n{code}"
            done = run_python(whole, *given, limit=self.patience, environment=environment)
        except subprocess.TimeoutExpired as exc:
            said = [
                bytes(each or b"").decode(errors="replace") for each in (exc.stdout, exc.stderr)
            ]
            pytest.fail(
                f"a process that uses the device has not ended after {self.patience} s (patience): "
                "a call does not return, or at the end of the process something waits, such as a "
                "thread that is no daemon\n" + "".join(said),
                pytrace=False,
            )
        if done.returncode == 77:
            assert not self.is_expected(), done.stdout
            pytest.skip(done.stdout)
        return done
