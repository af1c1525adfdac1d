"""Refusals: bytes outside of memory, devices that are not there or lost, handles of strangers."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dlbridge
from dlbridge.abi import capsule_pointer
from dlbridge.errors import DeviceLost, Error, ExchangeError
from dlbridge.protocol import (
    ADDRESS_DEVICES,
    NativeArray,
    Region,
    Span,
    SupportsCopy,
    SupportsDeviceInfo,
    SupportsForeignData,
    SupportsHostImport,
    SupportsHostView,
    SupportsMemoryExport,
    SupportsMemoryImport,
    SupportsNative,
    SupportsStreams,
    SupportsTrim,
)

from .backend_base import (
    OPERATIONS,
    PAGES,
    RUNS,
    STRANGE_STREAM,
    BackendCase,
    DeviceUnderTest,
    are_same,
    catch,
    check_live,
    end_quietly,
    live_allocations,
)
from .backend_moves import PublicCase, numbers, on_host
from .backend_walk import goes_on

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from .backend_base import DeviceUnderTest

PARTS, PART = 1 << 18, 4  # more bytes than a driver stages at once
"""The memory that the operations must not leave has so many parts, of so many bytes each."""

OUTSIDE = [(1, PARTS), (PARTS, 2), (0, PARTS + 1), (-1, 10), (1 << 40, 2), ((1 << 62) - 2, 4)]
"""Offset and length, in parts."""


class Calls:
    """The operations of a device on one span: those that the backend has."""

    def __init__(self, device: DeviceUnderTest) -> None:
        self.device, self.nbytes = device, PARTS * PART
        self.other = device.allocate(2 * self.nbytes)
        self.host = bytearray()

    @property
    def names(self) -> list[str]:
        """The operations that the backend can run."""
        return [name for name, needs in NEEDS.items() if isinstance(self.device.backend, needs)]

    def run(self, name: str, span: Span) -> None:
        """Run one on *span*, beside memory that is as it must be; `host` must not change."""
        if name == "host_view":
            self.device.host_view(span, writable=True)
            return
        self.host = bytearray(b"?" * span.nbytes)
        good = self.device.span(self.other, 0, span.nbytes)
        reads = name.endswith("to_host") or name == "copy from it"
        sides = (good, span) if reads else (span, good)
        ends = Region((2,), (span.nbytes - 1,), 1)  # the first byte and the last
        self.device.run(name, *sides, memoryview(self.host), ends)


NEEDS = {**OPERATIONS, "copy from it": SupportsCopy, "host_view": SupportsHostView}
"""The operations of `Calls`, and the capability that each needs."""

OF_A_DEVICE: list[tuple[str, type, tuple[object, ...]]] = [
    ("allocate", object, (16, 16, 0)),
    ("allocate", object, (4, 256, 0, memoryview(b"four"))),
    ("current_stream", object, ()),
    ("synchronize", SupportsStreams, (0,)),
    ("wait", SupportsStreams, (0, 0)),
    ("normalize_stream", SupportsStreams, (None,)),
    ("trim", SupportsTrim, ()),
    ("memory_export_refusal", SupportsMemoryExport, (0,)),
    ("allocate_exportable", SupportsMemoryExport, (4096, 0)),
    ("memory_import_refusal", SupportsMemoryImport, ()),
    ("device_info", SupportsDeviceInfo, ()),
]
"""Members, the capability that each needs, and arguments besides the device."""

STRANGERS = """
import ctypes
from dlbridge.errors import Error

is_address = sys.argv[4] == "True"
backend = load()
stream = backend.current_stream(device_id)
own = backend.allocate(device_id, 256, 256, stream)
mine = own.data
zeros = ctypes.create_string_buffer(4096)
itself = (ctypes.c_void_p * 512)()  # every word of it is an address that can be read
itself[:] = [ctypes.addressof(itself)] * 512
strangers = {
    "the address of zeros": ctypes.addressof(zeros),
    "the address of addresses": ctypes.addressof(itself),
    "the address of a Python object": id(zeros),
    "1": 1,
    "a large number": 0x7FF0_DEAD_BEE8_0000,
}
if not is_address:  # an address inside of an allocation is as good as its first one
    strangers |= {"0": 0, "the largest number": (1 << 64) - 1}
    strangers |= {f"one of ours + {n}": mine + n for n in (1, 8, 4096, 1 << 33)}
    strangers["memory of ours that was freed"] = backend.allocate(device_id, 512, 256, stream).data
for words, stranger in strangers.items():
    print("trying", words, flush=True)
    try:
        imported = backend.import_data(device_id, stranger, "somebody.else")
    except Error as exc:
        assert str(exc)
    else:
        sys.exit(f"import_data took {words} for memory of ours: {imported}")
for own in range(backend.device_count()):
    stream = backend.current_stream(own)
    memory = backend.allocate(own, 256, 256, stream)
    counted = backend.device_count()
    for named in (*range(counted), -1, counted, -(1 << 31), (1 << 31) - 1):  # others may count so
        imported = backend.import_data(named, memory.data, "somebody.else")
        assert imported == (own, memory.data), f"memory of device {own} was imported as {imported}"
print("all refused")
"""


class RefusalTests(PublicCase):
    """A request that cannot be right raises one of dlbridge's errors, and changes nothing."""

    def calls(self, device: DeviceUnderTest, operation: str) -> Calls:
        """The operations, or a skip if the backend lacks the one of that name."""
        self.need(device.backend, NEEDS[operation])
        return Calls(device)

    @pytest.mark.parametrize("operation", NEEDS)
    def test_out_of_bounds_is_refused(self, device: DeviceUnderTest, operation: str) -> None:
        """If ``data`` is a handle, no operation reaches outside its memory."""
        self.need_handles(device.backend)
        calls = self.calls(device, operation)
        for offset, length in OUTSIDE:
            self.check(calls, operation, device, device.device_id, PART * offset, PART * length)

    def check(
        self,
        calls: Calls,
        operation: str,
        owner: DeviceUnderTest,
        device_id: int,
        offset: int = 0,
        nbytes: int = PARTS * PART,
        error: type[Error] = Error,
    ) -> None:
        """An operation on memory of *owner* is refused, changes no bytes, and keeps no memory."""
        before, content = live_allocations(owner.backend), b"d" * calls.nbytes
        data = owner.filled(content)
        with pytest.raises(error, match=str(device_id) if error is ExchangeError else None):
            calls.run(operation, Span(device_id, data, offset, nbytes))
        calls.device.synchronize()
        assert are_same(calls.host, b"?" * len(calls.host))
        assert are_same(owner.read(data, 0, calls.nbytes), content)
        owner.free(data)
        check_live(owner.backend, before, f"after memory of a refused {operation} was dropped")

    @pytest.mark.parametrize(("member", "needs", "given"), OF_A_DEVICE)
    def test_unknown_device_is_refused(
        self, backend: Any, member: str, needs: type, given: tuple[object, ...]
    ) -> None:
        """ExchangeError that names the device, as the contract says."""
        self.need(backend, needs)
        if len(given) > 3 and not getattr(backend, "content_limit", 0):
            pytest.skip(f"{self.name} makes no memory together with its content (content_limit)")
        for device_id in (-1, backend.device_count(), backend.device_count() + 1000):
            with pytest.raises(ExchangeError, match=str(device_id)):
                getattr(backend, member)(device_id, *given)

    @pytest.mark.parametrize("operation", NEEDS)
    def test_unknown_device_is_refused_by_copies(
        self, device: DeviceUnderTest, operation: str
    ) -> None:
        """The same for each operation on memory."""
        unknown = device.backend.device_count() + 3
        self.check(self.calls(device, operation), operation, device, unknown, error=ExchangeError)

    def test_unknown_device_is_refused_by_imports(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """The same for host memory that a device is to share: nothing touches it."""
        backend, (address, pages) = device.backend, host_pages
        self.need(backend, SupportsHostImport)
        before = bytes(pages)
        for unknown in (-1, backend.device_count(), backend.device_count() + 1000):
            with pytest.raises(ExchangeError, match=str(unknown)):
                backend.import_host(unknown, address, PAGES, False, device.stream)
        assert bytes(pages) == before

    @pytest.mark.parametrize("operation", NEEDS)
    def test_memory_of_another_device_is_refused(
        self, devices: list[DeviceUnderTest], operation: str
    ) -> None:
        """If ``data`` is a handle: that of one device is none of another's.

        Nor is it where the other has another driver, which might take the handle for its own.
        """
        self.need_handles(devices[0].backend)
        if len(devices) < 2:
            pytest.skip("there is one device")
        for device, owner in itertools.permutations(devices, 2):
            self.check(self.calls(device, operation), operation, owner, device.device_id)

    @pytest.mark.parametrize("member", ["copy_from_host", "copy_to_host", "synchronize", "wait"])
    def test_unknown_streams_do_no_work(self, device: DeviceUnderTest, member: str) -> None:
        """A number that is no stream is refused: it is never stream 0."""
        backend, stream = device.backend, self.unknown_stream
        if stream is None or not isinstance(backend, SupportsStreams):
            pytest.skip("no number is safely no stream (unknown_stream)")
        span, host = device.span(device.filled(b"four"), 0, 4), memoryview(bytearray(b"host"))
        given: dict[str, tuple[Any, ...]] = {
            "synchronize": (device.device_id, stream),
            "wait": (device.device_id, 0, stream),
        }
        with pytest.raises((Error, ValueError)):
            getattr(backend, member)(*given.get(member, (span, host, stream)))
        assert device.read(span.data, 0, 4) == b"four"

    def test_strangers_handles_are_refused(self, backend: Any) -> None:
        """`import_data` recognises its own memory, and neither reads nor takes anything else.

        Memory that was freed is its own no more. In a process of its own, as a backend
        that follows a wrong pointer crashes.
        """
        self.need(backend, SupportsForeignData)
        is_address = backend.device_type in ADDRESS_DEVICES
        done = self.in_new_process(STRANGERS, is_address)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_strangers_tensors_are_refused(self, backend: Any, where: str) -> None:
        """A capsule with another library's handle is refused; it may be imported afterwards."""
        if backend.device_type in ADDRESS_DEVICES:
            pytest.skip("data is an address")
        self.need(backend, SupportsForeignData)
        tensor = dlbridge.to_device(numbers((10,)), where, copy=True)
        capsule = tensor.__dlpack__()
        struct, own = capsule_pointer(capsule, b"dltensor"), tensor.operand().data
        field = ctypes.c_void_p.from_address(struct)  # ``data`` is the first
        field.value = own ^ (1 << 40) ^ 2
        try:
            with pytest.raises(BufferError):
                dlbridge.from_dlpack(capsule)
        finally:
            field.value = own
        del capsule
        gc.collect()
        assert on_host(tensor)[9] == 10

    def test_refusals_keep_nothing(self, backend: Any, device: DeviceUnderTest, where: str) -> None:
        """What a call has got is let go when the call was refused, with what its error refers to.

        So is what was no object of the backend's ecosystem.
        """
        data = device.filled(bytes(64))
        outside, unknown = device.span(data, 0, 5001), backend.device_count() + 3
        array = NativeArray(
            *(device.device_id, data, 0, "float32", (2, 3), (20, 8)), readonly=True, owner=None
        )
        tried: dict[str, Callable[[Any], object]] = {
            "host memory that is imported": lambda it: dlbridge.to_device(it, where, copy=False),
            "host memory at an odd address": lambda it: dlbridge.to_device(
                it[1:], where, copy=False
            ),
            "host memory that is as long as no memory": lambda it: dlbridge.to_device(
                np.broadcast_to(it, (1 << 40, len(it))), where
            ),
        }
        if backend.device_type not in ADDRESS_DEVICES:  # else nobody knows whose memory it is
            tried |= {
                "host memory of an upload": lambda it: device.copy(outside, memoryview(it)),
                "host memory of a download": lambda it: device.copy(memoryview(it), outside),
                "the owner of unknown memory": lambda it: dlbridge.from_blob(
                    data ^ (1 << 40) ^ 2, (8,), "uint8", device=where, owner=it
                ),
            }
        if isinstance(backend, SupportsHostImport):
            tried["an import that nobody has asked about"] = lambda it: device.free(
                device.import_host(it.ctypes.data + 1, 5000)[0]
            )
        if isinstance(backend, SupportsNative):
            tried |= {
                "an object of another library": backend.from_native,
                "the owner of a read-only array": lambda it: backend.to_native(
                    array._replace(owner=it)
                ),
                "the owner of an array of an unknown device": lambda it: backend.to_native(
                    array._replace(device_id=unknown, owner=it)
                ),
            }
        for what, call in tried.items():
            given = np.zeros(5001, "u1")
            seen = weakref.ref(given)
            with suppress(Error, BufferError, MemoryError):
                call(given)
            del given
            device.synchronize()
            gc.collect()
            assert seen() is None, f"{what} is kept after the call"

    def test_errors_are_let_go(self, backend: Any, device: DeviceUnderTest) -> None:
        """An error keeps nothing once it is handled: whoever keeps it keeps the caller's frames."""
        device_id, unknown = device.device_id, backend.device_count() + 3
        data = device.filled(bytes(64))
        calls, beside = Calls(device), device.span(data, 0, 64)._replace(device_id=unknown)
        tried: dict[str, Callable[[], object]] = {
            f"{name} on an unknown device": partial(calls.run, name, beside) for name in calls.names
        }
        if backend.device_type not in ADDRESS_DEVICES:
            outside = device.span(data, 1, 64)
            tried |= {f"{name} outside": partial(calls.run, name, outside) for name in calls.names}
        tried["too much memory"] = lambda: device.allocate(1 << 62)
        for member, needs, given in OF_A_DEVICE:
            if isinstance(backend, needs) and len(given) < 4:
                tried[member] = partial(getattr(backend, member), unknown, *given)
        if isinstance(backend, SupportsStreams):
            tried |= self.no_streams(device)
        if isinstance(backend, SupportsDeviceInfo):
            tried["no name"] = partial(backend.find_device, "no such device, surely")
        if isinstance(backend, SupportsForeignData):
            tried["a stranger"] = partial(backend.import_data, device_id, 1, "somebody.else")
        if isinstance(backend, SupportsHostImport):
            tried["an odd import"] = lambda: backend.import_host(unknown, 1, 1, True, device.stream)
        if isinstance(backend, SupportsNative):
            array = NativeArray(unknown, data, 0, "uint8", (1,), None, readonly=False, owner=None)
            tried["no native object"] = partial(backend.to_native, array)
        for what, call in tried.items():
            seen = variable_of_the_caller(call)
            device.synchronize()
            if seen() is not None:
                gc.collect()
            assert seen() is None, f"{what}: the error is kept, and so are the caller's frames"

    def no_streams(self, device: DeviceUnderTest) -> dict[str, Callable[[], object]]:
        """Calls with what is no stream, and with work that fails on each stream."""
        backend, device_id, strange = device.backend, device.device_id, self.unknown_stream
        tried: dict[str, Callable[[], object]] = {
            f"failed work on {mine.stream:#x}": partial(self.fails, mine)
            for mine in self.each_stream(device)
        }
        for what in ("no stream", STRANGE_STREAM):
            tried[f"the stream {what!r}"] = partial(backend.normalize_stream, device_id, what)
        if strange is not None:
            tried["a wait for no stream"] = partial(backend.synchronize, device_id, strange)
            tried["memory for no stream"] = partial(backend.allocate, device_id, 64, 1, strange)
        return tried

    def fails(self, device: DeviceUnderTest) -> None:
        """Have work fail, and be told."""
        if self.failing_work(device.backend, device.device_id, device.stream):
            device.synchronize()


def variable_of_the_caller(call: Callable[[], object]) -> weakref.ref[object]:
    """It is the caller of *call*; what it returns lives as long as an error of *call* is kept."""

    def caller() -> None:
        kept = np.zeros(1)
        seen.append(weakref.ref(kept))
        call()

    seen: list[weakref.ref[object]] = []
    with suppress(Error, ValueError, TypeError, LookupError, MemoryError):
        caller()
    return seen[0]


AT_WORK = pytest.mark.parametrize("at_work", [False, True], ids=["rest", "work"])


class LostTests(BackendCase):
    """Tests of a device that `BackendCase.lose_device` has taken away."""

    def queue_on_each_stream(self, device: DeviceUnderTest) -> list[Callable[[], None]]:
        """Queue much work on each stream; what shows for each that it is lost.

        That keeps what the work needs, and frees the memory that it uses.
        """
        if type(self).lose_device is BackendCase.lose_device:
            self.lose(device)
        queued: list[Callable[[], None]] = []
        for mine in self.each_stream(device):
            backend, data = mine.backend, [mine.filled(bytes(4096)) for _ in range(3)]
            host = memoryview(bytearray(4096))
            busy = mine.on(mine.stream)  # with memory of its own where there is no `slow_work`
            work = self.long_work(busy)
            if not getattr(backend, "host_copies_block", False):  # else they wait for the work
                mine.upload(data[0], 0, host)
                mine.download(data[0], 0, host)
            target, source = (mine.span(each, 0, 4096) for each in data[1:])
            for name in ("copy", "fill"):
                if isinstance(backend, OPERATIONS[name]):
                    mine.run(name, target, source, host, RUNS)
            queued.append(partial(self.check_lost_work, mine, device, busy, data, (work, host)))
        return queued

    def check_lost_work(
        self,
        mine: DeviceUnderTest,
        device: DeviceUnderTest,
        busy: DeviceUnderTest,
        used: list[int],
        kept: object,
    ) -> None:
        """A stream with work is lost as one without, and the memory that its work uses ends."""
        end_quietly(partial(mine.free, used.pop(0)))
        if isinstance(mine.backend, SupportsStreams):
            with pytest.raises(DeviceLost):
                mine.synchronize()
            if mine is not device:
                with pytest.raises(DeviceLost):
                    mine.backend.wait(device.device_id, device.stream, mine.stream)
        with pytest.raises(DeviceLost):
            mine.read(used[0], 0, 4096)
        for each in used:
            end_quietly(partial(mine.free, each))
        end_quietly(busy.close)

    def lose(self, device: DeviceUnderTest) -> None:
        """Lose the device, or skip."""
        if not self.lose_device(device.backend, device.device_id):
            pytest.skip("this device cannot be lost on request (lose_device)")

    def reopen(self, device: DeviceUnderTest) -> None:
        """Open the device again for the next test, where the backend can."""
        with suppress(DeviceLost):
            device.free(device.allocate(256))

    @AT_WORK
    def test_lost_device(
        self, backend: Any, device: DeviceUnderTest, devices: list[DeviceUnderTest], at_work: bool
    ) -> None:
        """Each use raises DeviceLost; memory can be dropped, and never comes back.

        The device still counts as one, and the others keep their memory, but for those that are
        lost with it (`BackendCase.lost_together`). The second loss is as the first one.
        """
        for _ in range(2):
            if not self.comes_back(backend, device, devices, at_work):
                return
            goes_on(self, device)

    def comes_back(
        self, backend: Any, device: DeviceUnderTest, devices: list[DeviceUnderTest], at_work: bool
    ) -> bool:
        """Lose the device, and use it again; False where that needs a new process."""
        gc.collect()
        before, count = live_allocations(backend), backend.device_count()
        together = self.lost_together(backend, device.device_id)
        others = [each for each in devices if each.device_id != device.device_id]
        kept = [each.filled(b"other") for each in others]
        calls = Calls(device)
        data = device.filled(bytes(calls.nbytes))
        span, views = device.span(data, 0, calls.nbytes), device.can_view(data)
        queued = self.queue_on_each_stream(device) if at_work else []
        self.lose(device)
        for check in queued:
            check()
        assert backend.device_count() >= count
        _check_each_use_says_it(device, calls, span, views=views)
        for other, its in zip(others, kept, strict=True):
            self.look_at(other, its, other.device_id in together, span)
        assert backend.device_count() >= count
        before_the_loss = DeviceUnderTest(backend, device.device_id, device.stream)
        came_back = False
        try:
            device.stream = backend.current_stream(device.device_id)  # the last one has ended
            again = device.allocate(256)  # which may open the device again
        except DeviceLost as exc:
            reason = str(exc)
            assert reason
        else:
            device.write(again, 0, b"n" * 256)
            assert device.read(again, 0, 256) == b"n" * 256
            with pytest.raises(DeviceLost):
                before_the_loss.read(data, 0, calls.nbytes)
            device.free(again)
            came_back = True
        for each in (data, calls.other):
            end_quietly(partial(device.free, each))
        check_live(backend, before, "after memory of a lost device was dropped")
        for other in devices:
            self.reopen(other)
        return came_back

    def look_at(self, other: DeviceUnderTest, data: int, is_lost: bool, gone: Span) -> None:
        """Read the memory of another device, copy what is *gone* to it, and free it."""
        try:
            assert other.read(data, 0, 5) == b"other"
        except DeviceLost:
            assert is_lost, f"device {other.device_id} was lost, too (lost_together)"
        else:
            assert not is_lost, f"device {other.device_id} goes on, and is lost (lost_together)"
        if isinstance(other.backend, SupportsCopy):
            with pytest.raises(DeviceLost):
                other.copy(other.span(data, 0, 5), gone._replace(nbytes=5))
        end_quietly(partial(other.free, data))

    @AT_WORK
    def test_lost_device_with_views_and_imports(
        self,
        backend: Any,
        device: DeviceUnderTest,
        host_pages: tuple[int, mmap.mmap],
        at_work: bool,
    ) -> None:
        """They end without an error and without a wait, and nothing new is made."""
        gc.collect()
        before, device_id, address = live_allocations(backend), device.device_id, host_pages[0]
        data = device.filled(b"d" * 256)
        views, imports = device.can_view(data), device.can_import(address)
        if not views and not imports:
            pytest.skip("host and device share no memory")
        view = device.host_view(device.span(data, 0, 256), writable=True) if views else 0
        imported = device.import_host(address, PAGES)[0] if imports else 0
        queued = self.queue_on_each_stream(device) if at_work else []
        self.lose(device)
        if imports:
            with pytest.raises(DeviceLost):
                device.read(imported, 0, 16)
            with pytest.raises(DeviceLost):
                backend.import_host(device_id, address, PAGES, False, device.stream)
        if views:
            end_quietly(partial(device.release_host_view, view))
        if imports:
            end_quietly(partial(device.free, imported))
        end_quietly(partial(device.free, data))
        for check in queued:
            check()
        check_live(backend, before, "after views and imports of a lost device were dropped")
        self.reopen(device)

    def test_lost_device_ends_a_wait(self, backend: Any, device: DeviceUnderTest) -> None:
        """A thread that waits in `synchronize` while the device is lost comes back, by DeviceLost.

        Or by nothing, where its work was done first.
        """
        self.need(backend, SupportsStreams)
        data, came = device.filled(b"d" * 256), threading.Event()
        work = self.busy(device)
        raised: list[BaseException] = []

        def wait() -> None:
            came.set()
            device.synchronize()

        thread = threading.Thread(target=catch, args=(raised, wait), daemon=True)
        thread.start()
        assert came.wait(self.patience)
        try:
            self.lose(device)
        finally:
            thread.join(self.patience)
        assert not thread.is_alive(), "the wait for a lost device never ends"
        assert all(isinstance(each, DeviceLost) for each in raised), raised
        device.free(data)
        del work
        try:
            device.synchronize()
        except Error:  # reports the loss
            self.reopen(device)


def _check_each_use_says_it(
    device: DeviceUnderTest, calls: Calls, span: Span, *, views: bool
) -> None:
    """Each use of a device that is lost raises DeviceLost."""
    backend = device.backend
    for name in calls.names:
        if name == "host_view" and not views:
            continue
        try:
            calls.run(name, span)
        except DeviceLost:
            continue
        pytest.fail(f"{name} goes on with a device that is lost")
    if isinstance(backend, SupportsHostView):  # `explain` asks, and answers as before
        assert isinstance(backend.host_view_refusal(*span[:2]), str)
    if isinstance(backend, SupportsStreams):
        with pytest.raises(DeviceLost):
            device.synchronize()
    if isinstance(backend, SupportsNative):
        array = NativeArray(
            *span[:3], "uint8", (calls.nbytes,), None, readonly=False, owner=object()
        )
        with pytest.raises(DeviceLost):  # an object over memory that is not there is no use
            backend.to_native(array)
