"""Memory: allocated, filled, read, freed; given back to the system; for other processes."""

from __future__ import annotations

import gc
import itertools
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.protocol import (
    ADDRESS_DEVICES,
    SupportsCopy,
    SupportsDeviceInfo,
    SupportsFill,
    SupportsForeignData,
    SupportsMemoryExport,
    SupportsMemoryImport,
    SupportsStreams,
    SupportsTrim,
)

from .backend_base import (
    ENDS,
    OPERATIONS,
    PAGES,
    RUNS,
    BackendCase,
    DeviceUnderTest,
    are_same,
    check_live,
    drawn,
    drawn_sizes,
    drop,
    live_allocations,
    open_files,
    random_bytes,
)

if TYPE_CHECKING:
    import mmap

    from dlbridge.protocol import ExportedMemory

SIZES = [1, 2, 255, 256, 4095, 4096, (1 << 20) + 3]
OFFSETS = [0, 1, 3, 4096, (1 << 16) + 3]
"""The last one does not fit into 16 bits."""

FILLED = [(0, 256), (0, 1), (1, 2), (3, 130), (64, 64), (5, (1 << 20) + 3), ((1 << 16) + 5, 130)]
"""Offset and size of what is filled."""

CHUNKED = [(7, 3 * (1 << 16) + 5), (7, 5 * (1 << 20) - 1), (7, 3 * (1 << 24) + 7)]
"""Odd offsets, and sizes of two chunks or more and a rest, whatever the size of a chunk:
64 KiB to 16 MiB."""


class MemoryTests(BackendCase):
    """`allocate`, the end of memory, `copy_from_host`, `copy_to_host`, `fill`."""

    @pytest.mark.parametrize(("offset", "nbytes"), [*itertools.product(OFFSETS, SIZES), *CHUNKED])
    def test_round_trip(self, device: DeviceUnderTest, offset: int, nbytes: int) -> None:
        """The same bytes come back; bytes before and after them do not change."""
        nbytes = min(nbytes, self.max_nbytes - 64)
        around = random_bytes(offset + nbytes + 5, seed=1)
        content = random_bytes(nbytes, seed=2)
        data = device.filled(around)
        device.write(data, offset, content)
        assert device.holds(data, content, offset)
        assert device.holds(data, around[:offset] + content + around[offset + nbytes :])

    def test_large_round_trip(self, device: DeviceUnderTest) -> None:
        """`max_nbytes` at once: more than every staging buffer and inline limit."""
        content = random_bytes(self.max_nbytes)
        assert device.holds(device.filled(content), content)

    def test_round_trip_on_every_device(self, devices: list[DeviceUnderTest]) -> None:
        """Each device has memory of its own."""
        contents = [random_bytes(1000, seed=i) for i in range(len(devices))]
        held = [device.filled(c) for device, c in zip(devices, contents, strict=True)]
        got = [device.read(data, 0, 1000) for device, data in zip(devices, held, strict=True)]
        assert got == contents

    def test_alignment(self, backend: Any, device: DeviceUnderTest) -> None:
        """If ``data`` is an address, it is aligned as requested."""
        if backend.device_type not in ADDRESS_DEVICES:
            pytest.skip("data is not an address")
        for alignment in (1, 64, 256, 4096, 1 << 16):
            for nbytes in (1, 100, 5000):
                assert device.allocate(nbytes, alignment) % alignment == 0

    def test_live_buffers_do_not_alias(self, device: DeviceUnderTest) -> None:
        """Twenty buffers hold twenty contents."""
        contents = [random_bytes(300, seed=i) for i in range(20)]
        held = [device.filled(content) for content in contents]
        assert len(set(held)) == len(held)
        assert [device.read(data, 0, 300) for data in held] == contents

    def test_many_memories_at_once(self, devices: list[DeviceUnderTest]) -> None:
        """A thousand memories and more that live hold as many contents, each on its device."""
        count, until, backend = drawn(1100, 3000), time.monotonic() + 3, devices[0].backend
        held: list[tuple[DeviceUnderTest, int]] = []
        contents: list[bytes] = []
        while len(held) < count and time.monotonic() < until:  # no verdict: a slow device has fewer
            device = devices[len(held) % len(devices)]
            held.append((device, device.allocate(16)))
            contents.append(b"%16d" % len(held))  # which may be read until synchronize()
            device.upload(held[-1][1], 0, memoryview(contents[-1]))
        results = [bytearray(16) for _ in held]
        for (device, data), result in zip(held, results, strict=True):
            device.download(data, 0, memoryview(result))
            if isinstance(backend, SupportsForeignData):
                known = backend.import_data(device.device_id, data, "somebody.else")
                assert known == (device.device_id, data)
        for device in devices:
            device.synchronize()
        assert len({(device.device_id, data) for device, data in held}) == len(held)
        wrong = [at for at, content in enumerate(contents) if results[at] != content]
        assert wrong == [], f"of {len(held)} memories these have other bytes"
        before = live_allocations(backend)
        for device, data in random.Random(count).sample(held, len(held)):
            device.free(data)
        for device in devices:
            device.synchronize()
        if hasattr(backend, "live_allocations"):
            check_live(backend, before - len(held), "after many memories were dropped")

    def test_handles_do_not_come_again(self, device: DeviceUnderTest) -> None:
        """More memory is made than 16 bits can number: no handle is that of memory that lives."""
        backend = device.backend
        if backend.device_type in ADDRESS_DEVICES:
            pytest.skip("data is an address")
        kept = {device.filled(b"kept %d" % seed): b"kept %d" % seed for seed in range(8)}
        given, until = (device.device_id, 16, 16, device.stream), time.monotonic() + 3
        for turn in range((1 << 16) + 100):
            made = backend.allocate(*given)
            assert made.data not in kept, (
                f"after {turn} allocations memory got the handle {made.data:#x}, which is that of "
                "other memory that lives"
            )
            if not turn % 256 and time.monotonic() > until:  # no verdict: a slow device tries fewer
                break
        del made
        for data, content in kept.items():
            assert device.read(data, 0, 6) == content

    @pytest.mark.parametrize("operation", ["fill", "copy", "copy_from_host", "copy_strided"])
    def test_reads_are_of_now(self, device: DeviceUnderTest, operation: str) -> None:
        """Bytes that were read before are read again after each kind of write to them."""
        self.need(device.backend, OPERATIONS[operation])
        target, source = (
            device.span(device.filled(bytes([value]) * RUNS.extent), 0, RUNS.extent)
            for value in (1, 2)
        )
        host = memoryview(b"\2" * RUNS.extent)
        for nbytes in (1, drawn(2, 64), drawn(65, RUNS.run_nbytes)):
            device.write(target.data, 0, b"\1" * RUNS.extent)
            assert device.read(target.data, 0, nbytes) == b"\1" * nbytes
            device.run(operation, target, source, host, RUNS)
            assert device.read(target.data, 0, nbytes) == b"\2" * nbytes, (
                f"after {operation} the bytes are read that were there before"
            )

    def test_free_and_reuse(self, device: DeviceUnderTest) -> None:
        """Memory that is reused after a free works like new memory; other memory is unchanged."""
        neighbour = device.filled(b"n" * 4096)
        for seed in range(50):
            content = random_bytes(4096, seed)
            data = device.filled(content)
            assert device.read(data, 0, 4096) == content
            device.free(data)
        assert device.read(neighbour, 0, 4096) == b"n" * 4096

    @pytest.mark.parametrize("nbytes", [1, 2, 3, 5000, (1 << 20) + 3])
    def test_source_and_target_may_lie_anywhere(self, device: DeviceUnderTest, nbytes: int) -> None:
        """Host memory may be unaligned, read-only, or a slice of a larger buffer.

        A copy changes neither its source nor the bytes around its target.
        """
        content = random_bytes(nbytes)
        data = device.allocate(nbytes)
        for kind in (bytes, bytearray):
            source = kind(b"-" + content + b"-")
            device.upload(data, 0, memoryview(source)[1:-1])
            device.synchronize()
            assert are_same(source, b"-" + content + b"-"), "the source has changed"
            into = bytearray(b"+" * (nbytes + 9))
            device.download(data, 0, memoryview(into)[1:-8])
            device.synchronize()
            assert are_same(into, b"+" + content + b"+" * 8)

    def content_limit(self, device: DeviceUnderTest) -> int:
        """`Facts.content_limit`, or a skip where the backend makes no memory with content."""
        limit: int = getattr(device.backend, "content_limit", 0)
        if not limit:
            pytest.skip(f"{self.name} makes no memory together with its content (content_limit)")
        return limit

    def test_memory_made_with_its_content(self, devices: list[DeviceUnderTest]) -> None:
        """It holds the bytes, is memory like any other, and keeps nothing of the source.

        On every device and stream: a backend that has a faster way on some of them only takes
        the usual one on the others.
        """
        limit = self.content_limit(devices[0])
        before = live_allocations(devices[0].backend)
        for on in [each for device in devices for each in self.each_stream(device)]:
            for nbytes in sorted({1, 3, min(4096, limit), limit}):
                content = random_bytes(nbytes)
                source = bytearray(b"-" + content + b"-")
                data = on.made_with(memoryview(source)[1:-1])
                source[:] = bytes(len(source))
                if on.backend.device_type in ADDRESS_DEVICES:
                    assert data % 256 == 0
                assert on.holds(data, content)
                on.write(data, nbytes - 1, b"!")
                assert on.read(data, 0, nbytes)[-1:] == b"!"
                on.free(data)
        for device in devices:
            device.synchronize()
        check_live(devices[0].backend, before, "after memory that was made with its content")

    def test_memory_made_with_its_content_does_not_alias(self, device: DeviceUnderTest) -> None:
        """Twenty buffers, of a read-only source that is the same object each time."""
        content = random_bytes(min(300, self.content_limit(device)))
        held = [device.made_with(memoryview(content)) for _ in range(20)]
        assert len(set(held)) == len(held)
        device.write(held[0], 0, bytes(len(content)))
        assert {device.read(data, 0, len(content)) for data in held[1:]} == {content}

    @pytest.mark.parametrize("value", [0, 1, 0x80, 0xFF])
    @pytest.mark.parametrize(("offset", "nbytes"), [*FILLED, *CHUNKED])
    def test_fill(self, device: DeviceUnderTest, offset: int, nbytes: int, value: int) -> None:
        """A region is filled, and only that; regions need not be aligned."""
        self.need(device.backend, SupportsFill)
        nbytes = min(nbytes, self.max_nbytes - 64)
        around = random_bytes(max(256, offset + nbytes + 3))
        data = device.filled(around)
        device.fill(data, offset, nbytes, value)
        want = around[:offset] + bytes([value]) * nbytes + around[offset + nbytes :]
        assert device.holds(data, want)

    def test_kept_memory_is_no_lack(self, device: DeviceUnderTest) -> None:
        """Freed memory that is kept is given back before a request is refused."""
        self.need(device.backend, SupportsDeviceInfo)
        memory: Any = device.backend.device_info(device.device_id).get("memory")
        if not self.may_fill or not memory:
            pytest.skip("tests may not use all the device's memory (may_fill)")
        for part in (2, 3, 5):  # of another size, so that what is kept does not fit
            held = [device.allocate(memory // (part + 1)) for _ in range(part)]
            for data in held:
                device.free(data)
            device.synchronize()
        device.free(device.allocate(memory * 3 // 4))

    @pytest.mark.parametrize("nbytes", [1 << 50, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
    def test_too_much_is_refused(self, device: DeviceUnderTest, nbytes: int) -> None:
        """Lack of memory raises an error that names the requested size; later calls work.

        However often that was: what is refused does not count as memory.
        """
        for _ in range(20):
            with pytest.raises((DeviceMemoryError, DeviceError), match=f"{nbytes}"):  # noqa: PT012 - says why
                device.allocate(nbytes)
                pytest.fail(f"{nbytes} bytes were given: the driver has got another size")
        assert device.read(device.filled(b"still here"), 0, 10) == b"still here"


NBYTES = 1 << 20

LIMIT = """
import os
nbytes = int(sys.argv[4])
os.environ["DLBRIDGE_POOL_LIMIT"] = str(2 * nbytes)
backend = load()
stream = backend.current_stream(device_id)
backend.allocate(device_id, 256, 256, stream)
before = backend.device_info(device_id)["memory_used"]
held = [backend.allocate(device_id, nbytes, 256, stream) for _ in range(8)]
del held[:]
if hasattr(backend, "synchronize"):
    backend.synchronize(device_id, stream)
backend.allocate(device_id, 256, 256, stream)
kept = backend.device_info(device_id)["memory_used"] - before
assert kept <= 3 * nbytes, f"{kept} bytes are kept of at most {2 * nbytes}"
"""


class TrimTests(BackendCase, needs=SupportsTrim):
    """`SupportsTrim`."""

    def test_trim_keeps_what_is_in_use(self, device: DeviceUnderTest) -> None:
        """The bytes of memory that exists are the same; freed memory is there again when asked.

        Memory of any size: a pool has others for large memory than for small.
        """
        content = random_bytes(NBYTES)
        sizes = 1, drawn(2, 63), drawn(64, 1 << 16), NBYTES
        larger = drawn_sizes(NBYTES, min(self.max_nbytes, 16 << 20))
        held = {size: device.filled(random_bytes(size, size)) for size in (*sizes, *larger)}
        for size in (NBYTES, NBYTES // 2, 64, 4 * NBYTES):
            device.free(device.filled(random_bytes(size, seed=1)))
            device.backend.trim(device.device_id)
            again = device.filled(content[:64])
            assert device.read(again, 0, 64) == content[:64]
        before = live_allocations(device.backend)
        for _ in range(2):  # the second time there is nothing to do
            device.backend.trim(device.device_id)
        for size, data in held.items():
            assert device.holds(data, random_bytes(size, size)), f"memory of {size} bytes is lost"
        check_live(device.backend, before, "after trim")

    def used(self, device: DeviceUnderTest) -> int:
        """`memory_in_use`, or a skip where nobody knows."""
        used = self.memory_in_use(device.backend, device.device_id)
        if used is None:
            pytest.skip("nothing says how much memory is in use (memory_used, memory_in_use)")
        return used

    def test_trim_gives_memory_back(self, devices: list[DeviceUnderTest]) -> None:
        """What was freed on the device, and only that, goes back to the driver."""
        empty: dict[int, int] = {}
        for device in devices:
            device.backend.trim(device.device_id)
            empty[device.device_id] = self.used(device)
        for device in devices:
            held = [device.filled(bytes(NBYTES)) for _ in range(8)]
            assert self.used(device) >= empty[device.device_id] + 8 * NBYTES
            for way, data in zip(itertools.cycle(ENDS), held, strict=False):  # whoever freed it
                drop([device.take(data)], way, self.patience)
            device.synchronize()
        kept = {device.device_id: self.used(device) for device in devices}
        for device in reversed(devices):
            device.backend.trim(device.device_id)
            kept.pop(device.device_id)
            assert self.used(device) < empty[device.device_id] + NBYTES
            for each in devices[: len(kept)]:
                assert self.used(each) > kept[each.device_id] - NBYTES, "of another device"

    def test_pool_limit_is_kept(self, backend: Any) -> None:
        """No more freed memory is kept than ``DLBRIDGE_POOL_LIMIT`` says."""
        self.need(backend, SupportsDeviceInfo)
        if "memory_used" not in backend.device_info(self.device_id):
            pytest.skip("device_info does not say how much memory is in use (memory_used)")
        done = self.in_new_process(LIMIT, NBYTES)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_trim_beside_queued_work(self, device: DeviceUnderTest) -> None:
        """Work that is queued on memory, freed meanwhile or not, is done as if nothing happened."""
        content = random_bytes(NBYTES)
        for each in self.each_stream(device):
            source, target = each.filled(content), each.allocate(NBYTES)
            work = self.busy(each)
            if isinstance(each.backend, SupportsCopy):
                each.copy(each.span(target, 0, NBYTES), each.span(source, 0, NBYTES))
            else:
                each.upload(target, 0, memoryview(content))
            each.free(source)
            each.backend.trim(each.device_id)
            assert each.holds(target, content)
            del work

    def test_trim_in_threads(self, device: DeviceUnderTest) -> None:
        """While others allocate, copy and free."""
        trims: list[None] = []
        stop = threading.Event()

        def trim() -> None:
            while not stop.is_set():
                device.backend.trim(device.device_id)
                trims.append(None)

        def work(seed: int) -> None:
            own = DeviceUnderTest(device.backend, device.device_id)
            content = random_bytes(NBYTES, seed)
            for _ in range(20):
                data = own.filled(content)
                seen = len(trims)  # of the next two one begins after this
                while len(trims) < seen + 2 and not trimmer.done():
                    time.sleep(0)
                assert own.holds(data, content)
                own.free(data)

        with ThreadPoolExecutor(3) as threads:
            trimmer = threads.submit(trim)
            try:
                for worker in [threads.submit(work, seed) for seed in (1, 2)]:
                    worker.result(self.patience)
            finally:
                stop.set()
            trimmer.result(self.patience)


BLOCK = 5000
"""Bytes of memory for other processes."""

TURNS = 50


class ExportableTests(BackendCase, needs=SupportsMemoryExport):
    """`SupportsMemoryExport`. The other process is this one, which opens the memory again."""

    def new_block(self, device: DeviceUnderTest) -> int:
        """New memory for other processes, or a skip with the reason that there is none."""
        backend, given = device.backend, (device.device_id, BLOCK, device.stream)
        refusal = backend.memory_export_refusal(device.device_id, 0)
        if refusal:
            with pytest.raises(ExchangeError):
                backend.allocate_exportable(*given)
            pytest.skip(refusal)
        return device.hold(backend.allocate_exportable(*given))

    def export(self, device: DeviceUnderTest, data: int) -> ExportedMemory:
        """The descriptor, of memory on which no work is left."""
        device.synchronize()
        exported: ExportedMemory = device.backend.export_memory(device.device_id, data)
        return exported

    def test_exportable_memory_needs_the_rest(self, device: DeviceUnderTest) -> None:
        """What can be allocated so can be exported, and opened again; the device has a UUID."""
        data, backend, device_id = self.new_block(device), device.backend, device.device_id
        for needed in (SupportsMemoryImport, SupportsDeviceInfo):
            assert isinstance(backend, needed)
        assert backend.memory_export_refusal(device_id, data) == ""
        assert backend.memory_import_refusal(device_id) == ""
        assert backend.device_info(device_id)["uuid"]

    def test_exported_memory_is_one_memory(self, devices: list[DeviceUnderTest]) -> None:
        """Each side reads what the other has written, on every device that has such memory."""
        refuses = devices[0].backend.memory_export_refusal
        able = [each for each in devices if not refuses(each.device_id, 0)]
        for device in able or devices[:1]:  # which says why
            block = self.new_block(device)
            first, second = random_bytes(BLOCK, seed=1), random_bytes(BLOCK, seed=2)
            device.write(block, 0, first)
            exported = self.export(device, block)
            start, whole = exported.offset, exported.nbytes
            data, offset = device.import_memory(exported)
            del exported
            assert device.holds(data, first, offset)
            device.write(data, offset, second)
            assert device.holds(block, second)
            assert offset == start <= whole - BLOCK

    def test_memory_is_imported_at_its_offset(self, device: DeviceUnderTest) -> None:
        """Also where that is not the one which this backend exports: another driver's may be."""
        block, content = self.new_block(device), random_bytes(BLOCK)
        device.write(block, 0, content)
        exported = self.export(device, block)
        for step in (256, 256 * drawn(2, BLOCK // 256 - 1)):
            later = exported._replace(offset=exported.offset + step)
            data, offset = device.import_memory(later)
            assert device.holds(data, content[step:], offset), f"the offset {later.offset}"

    @pytest.mark.parametrize("ends", ["maker", "opened", "both"])
    def test_exported_memory_lives_until_its_last_use(
        self, device: DeviceUnderTest, ends: str
    ) -> None:
        """The maker's free and the end of what was opened leave it to the others."""
        block, content = self.new_block(device), random_bytes(BLOCK)
        device.write(block, 0, content)
        exported = self.export(device, block)
        data, offset = device.import_memory(exported)
        if ends != "opened":
            device.free(block)
        if ends != "maker":
            device.free(data)
        device.filled(random_bytes(4 * BLOCK, seed=3))
        data, offset = device.import_memory(exported)  # the descriptor is a use as well
        del exported
        assert device.holds(data, content, offset)

    def test_end_of_opened_memory_waits(self, device: DeviceUnderTest) -> None:
        """It comes after the work on it: its maker, who knows nothing of that work, may go on."""
        self.need(device.backend, SupportsStreams)
        for each in self.each_stream(device):
            block, new = self.new_block(device), memoryview(random_bytes(BLOCK, seed=2))
            device.write(block, 0, bytes(BLOCK))
            data, offset = each.import_memory(self.export(device, block))
            work = self.busy(each)
            each.upload(data, offset, new)
            each.free(data)
            done = self.is_done(each.backend, each.device_id, each.stream, work)
            assert done in (True, None), "the end of opened memory came before the work on it"
            assert device.read(block, 0, BLOCK) == new, (
                f"the end of opened memory came before the work on stream {each.stream:#x}"
            )
            each.synchronize()
            del work

    def test_opened_memory_that_has_ended_is_left_alone(self, device: DeviceUnderTest) -> None:
        """It is its maker's: no memory that is made later has its address."""
        block, content = self.new_block(device), random_bytes(BLOCK)
        device.write(block, 0, content)
        exported = self.export(device, block)
        for size in (BLOCK, exported.nbytes, exported.nbytes - exported.offset, BLOCK // 2):
            data, offset = device.import_memory(exported)
            assert device.holds(data, content, offset)
            device.free(data)
            device.synchronize()
            held = [device.filled(b"l" * size) for _ in range(3)]
            assert device.holds(block, content), "new memory is in memory that was opened before"
            assert all(device.holds(each, b"l" * size) for each in held)

    @pytest.mark.parametrize("kind", ["allocated", "imported"])
    def test_other_memory_is_exported_or_refused(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap], kind: str
    ) -> None:
        """What was not made for others is refused with a reason, or is one memory: no copy."""
        backend, device_id, content = device.backend, device.device_id, random_bytes(BLOCK)
        self.new_block(device)
        if kind == "allocated":
            data, offset = device.filled(content), 0
        elif device.can_import(host_pages[0]):
            data, offset = device.import_host(host_pages[0], PAGES)
            device.write(data, offset, content)
        else:
            pytest.skip("the device uses no host memory in place")
        refusal = backend.memory_export_refusal(device_id, data)
        if refusal:
            with pytest.raises(ExchangeError):
                backend.export_memory(device_id, data)
            assert device.holds(data, content, offset)
            return
        exported = self.export(device, data)
        opened, start = device.import_memory(exported)
        for into, at, seen, there in ((data, offset, opened, start), (opened, start, data, offset)):
            content = content[::-1]
            device.write(into, at, content)
            assert device.holds(seen, content, there), "what is exported is a copy"

    def test_exported_memory_is_its_own(self, device: DeviceUnderTest) -> None:
        """Who writes all that it can reach changes no other memory."""
        content = random_bytes(BLOCK)
        around = [device.filled(content) for _ in range(2)]
        blocks = [self.new_block(device) for _ in range(3)]
        for block in blocks:
            device.write(block, 0, content)
        exported = self.export(device, blocks[1])
        data, _ = device.import_memory(exported)
        device.write(data, 0, b"\x5a" * exported.nbytes)
        del exported
        seen = [device.read(each, 0, BLOCK) for each in (*blocks, *around)]
        assert seen == [content, b"\x5a" * BLOCK, content, content, content]

    def test_an_exported_descriptor_ends_when_dropped(self, device: DeviceUnderTest) -> None:
        """Each export gives a new one, no import takes it over, and its owner closes it."""
        block = self.new_block(device)
        exports = [self.export(device, block) for _ in range(2)]
        numbers = [each.fd for each in exports]
        device.import_memory(exports[0])
        device.import_memory(exports[0])
        device.close()
        assert numbers[0] != numbers[1]
        for fd in numbers:
            os.fstat(fd)
        exports.clear()
        gc.collect()
        for fd in numbers:
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(fd)

    def test_exportable_memory_leaks_nothing(self, device: DeviceUnderTest) -> None:
        """Neither memory nor descriptors."""
        self.new_block(device)
        device.close()

        def counts() -> tuple[int, int]:
            return live_allocations(device.backend), open_files()

        before = counts()
        for _ in range(TURNS):
            device.import_memory(self.export(device, self.new_block(device)))
            device.close()
        now = counts()
        assert now == before, (
            f"after {TURNS} exports and imports there are {now[0]} live allocations and {now[1]} "
            f"open files; there were {before[0]} and {before[1]}"
        )
