"""Memory that host and device share."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random
import sys
from contextlib import suppress
from typing import Any

import pytest

from dlbridge.errors import Error
from dlbridge.protocol import (
    ADDRESS_DEVICES,
    Region,
    SupportsCopy,
    SupportsHostImport,
    SupportsHostView,
)

from .backend_base import (
    ENDS,
    OPERATIONS,
    PAGES,
    BackendCase,
    DeviceUnderTest,
    are_same,
    drawn,
    drawn_sizes,
    drop,
    random_bytes,
)

VIEWED = [(0, 70_000), (1, 1), (3, 130), (4096, 904), ((1 << 16) + 3, 904)]
"""Offset and size of host views."""

LARGE = 16 << 20
"""Bytes of the largest memory that is tried in place."""


class HostTests(BackendCase):
    """`SupportsHostView` and `SupportsHostImport`."""

    def viewable(self, device: DeviceUnderTest, content: bytes) -> int:
        """Memory with *content* that the host can address, or a skip with the refusal."""
        self.need(device.backend, SupportsHostView)
        data = device.filled(content)
        refusal = device.backend.host_view_refusal(device.device_id, data)
        if refusal:
            pytest.skip(f"no host views: {refusal}")
        return data

    def test_host_view_refusal(self, device: DeviceUnderTest) -> None:
        """A refusal says why, `host_view` refuses too, and the call changes nothing."""
        backend = device.backend
        self.need(backend, SupportsHostView)
        data = device.filled(b"as before")
        refusal = backend.host_view_refusal(device.device_id, data)
        assert isinstance(refusal, str)
        assert refusal == refusal.strip()
        if refusal:
            with pytest.raises(Error):
                device.host_view(device.span(data, 0, 9))
        assert device.read(data, 0, 9) == b"as before"

    def test_host_views(self, device: DeviceUnderTest) -> None:
        """The host has in place what the device wrote before, and the device then what it wrote."""
        want = bytearray(70_000)
        data = self.viewable(device, bytes(want))
        for seed, (writable, (offset, nbytes)) in enumerate(
            2 * list(itertools.product((False, True), VIEWED))  # no view has the bytes of the first
        ):
            want[:] = random_bytes(70_000, seed)
            device.write(data, 0, bytes(want))
            address = device.host_view(device.span(data, offset, nbytes), writable=writable)
            assert are_same(ctypes.string_at(address, nbytes), want[offset : offset + nbytes])
            if writable:
                want[offset : offset + nbytes] = new = random_bytes(nbytes, -1 - seed)
                ctypes.memmove(address, new, nbytes)
            device.release_host_view(address)
            assert device.holds(data, want)

    def test_host_view_waits_for_queued_work(self, device: DeviceUnderTest) -> None:
        """No call of `synchronize` is needed; later work sees what the host wrote.

        The work may be on any stream: the view is asked for with that one.
        """
        data = self.viewable(device, b"old" * 10_000)
        into, span = bytearray(30_000), device.span(data, 0, 30_000)
        for mine in self.each_stream(device):
            for seed in range(5):
                content = memoryview(random_bytes(30_000, seed))
                writable, begin = seed != 1, bytes(content[:4])
                work = self.busy(mine) if seed < 2 else None
                mine.upload(data, 0, content)
                address = mine.host_view(span, writable=writable)
                assert are_same(ctypes.string_at(address, 30_000), content)
                if writable:
                    ctypes.memmove(address, begin := b"host", 4)
                mine.release_host_view(address)
                mine.download(data, 0, memoryview(into))
                mine.synchronize()
                assert are_same(into, begin + content[4:])
                del work

    def test_many_host_views_at_once(self, device: DeviceUnderTest) -> None:
        """All of them are the memory, and end in any order and in any thread."""
        count = drawn(40, 200)
        data = self.viewable(device, bytes(16 * count))
        views: list[Any] = []
        want = bytearray()
        for at in range(count):
            given = device.span(data, 16 * at, 16), True, device.stream
            views.append(device.backend.host_view(*given))
            want += b"%16d" % at
        for at, view in enumerate(views):
            ctypes.memmove(view.data, bytes(want[16 * at :][:16]), 16)
        del view
        random.Random(count).shuffle(views)
        for way in itertools.islice(itertools.cycle(ENDS), count):
            drop([views.pop()], way, self.patience)
        assert device.holds(data, want), f"{count} host views at once are not all the memory"

    def test_many_imports_at_once(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """The same: pages of the host, each of which is imported for itself, while all live."""
        count, step = drawn(40, 150), mmap.PAGESIZE
        self.imported(device, host_pages[0])
        with mmap.mmap(-1, count * step) as pages:
            pin = ctypes.c_char.from_buffer(pages)
            address, imports = ctypes.addressof(pin), list[Any]()
            try:
                with suppress(Error):  # the driver has no room for more
                    for at in range(count):
                        given = device.device_id, address + at * step, step, False, device.stream
                        imports.append(device.backend.import_host(*given))
                if not imports:
                    pytest.skip(f"{self.name} imports no single page")
                contents = [b"%16d" % at for at in range(len(imports))]
                for made, content in zip(imports, contents, strict=True):
                    device.upload(made.data, made.offset, memoryview(content))
                del made
                random.Random(count).shuffle(imports)
                for way in itertools.islice(itertools.cycle(ENDS), len(imports)):
                    drop([imports.pop()], way, self.patience)
                got = [pages[at * step :][:16] for at in range(len(contents))]
            finally:
                imports.clear()
                del pin
        assert got == contents, "imports that live at once are not all the host's memory"

    def test_two_host_views_at_once(self, device: DeviceUnderTest) -> None:
        """Two consumers may have the same memory; the end of one does not affect the other."""
        content = random_bytes(5000)
        data = self.viewable(device, content)
        spans = device.span(data, 0, 5000), device.span(data, 100, 200)
        first, second = map(device.host_view, spans)
        device.release_host_view(first)
        assert ctypes.string_at(second, 200) == content[100:300]
        device.release_host_view(second)
        assert device.read(data, 0, 5000) == content

    @pytest.mark.parametrize("first_is", ["read-only", "writable"])
    def test_two_host_views_are_one_memory(self, device: DeviceUnderTest, first_is: str) -> None:
        """What is written through one view is what the other one shows, and what stays."""
        data = self.viewable(device, random_bytes(5000))
        span, writable = device.span(data, 0, 5000), first_is == "writable"
        first, second = (
            device.host_view(span, writable=is_so) for is_so in (writable, not writable)
        )
        to, other = (first, second) if writable else (second, first)
        ctypes.memmove(to, new := random_bytes(5000, seed=1), 5000)
        assert are_same(ctypes.string_at(other, 5000), new), "each view has bytes of its own"
        device.release_host_view(first)
        assert are_same(ctypes.string_at(second, 5000), new)
        device.release_host_view(second)
        assert device.holds(data, new), "the end of a view has changed what another has written"

    @pytest.mark.parametrize("nbytes", [2 * mmap.PAGESIZE, 1000, 1])
    @pytest.mark.parametrize("misaligned", [0, *(1 << bit for bit in range(12))])
    def test_host_import(
        self,
        device: DeviceUnderTest,
        host_pages: tuple[int, mmap.mmap],
        misaligned: int,
        nbytes: int,
    ) -> None:
        """Imported memory is shared: each side reads the bytes that the other wrote."""
        backend = device.backend
        self.need(backend, SupportsHostImport)
        address, pages = host_pages
        address += misaligned
        before = bytes(pages)
        refusal = backend.host_import_refusal(device.device_id, address, nbytes, True)
        assert refusal == refusal.strip()
        drawback = backend.host_import_refusal(device.device_id, address, nbytes, False)
        assert drawback or not refusal, f"explain promises no copy, and it is refused: {refusal}"
        if refusal:
            with pytest.raises(Error):
                device.import_host(address, nbytes)
            assert bytes(pages) == before
            return
        data, offset = device.import_host(address, nbytes)
        try:
            assert device.read(data, offset, nbytes) == ctypes.string_at(address, nbytes)
            device.write(data, offset, b"D")
            assert ctypes.string_at(address, 1) == b"D"
            ctypes.memmove(address + nbytes - 1, b"H", 1)
            assert device.read(data, offset + nbytes - 1, 1) == b"H"
        finally:
            device.free(data)
            device.synchronize()
        after = bytes(pages)
        assert after[:misaligned] == before[:misaligned]
        assert after[misaligned + nbytes :] == before[misaligned + nbytes :]

    def test_large_host_imports(self, device: DeviceUnderTest) -> None:
        """The same from 64 KiB on: each part of the memory is the host's."""
        self.need(device.backend, SupportsHostImport)
        tried = 0
        for nbytes in drawn_sizes(1 << 16, min(self.max_nbytes, LARGE)):
            with mmap.mmap(-1, nbytes - nbytes % mmap.PAGESIZE) as pages:
                pin = ctypes.c_char.from_buffer(pages)
                at = ctypes.addressof(pin)
                refuses = device.backend.host_import_refusal
                try:
                    if not refuses(device.device_id, at, len(pages), True):
                        tried += 1
                        data, offset = device.import_host(at, len(pages))
                        for start in self.offsets(len(pages)):
                            self.is_shared(device, data, offset + start, at + start)
                        device.free(data)
                        device.synchronize()
                finally:
                    del pin  # else the failure is that the pages cannot be closed
        if not tried:
            pytest.skip(f"{self.name} imports no memory of this kind")

    def test_large_host_views(self, device: DeviceUnderTest) -> None:
        """Views from 64 KiB on, and each part of them: as `test_host_views`."""
        self.viewable(device, b"any")
        for nbytes in drawn_sizes(1 << 16, min(self.max_nbytes, LARGE)):
            data = device.allocate(nbytes)
            if device.backend.host_view_refusal(device.device_id, data):
                continue
            span, offsets = device.span(data, 0, nbytes), self.offsets(nbytes)
            for seed, start in enumerate(offsets):
                device.write(data, start, random_bytes(8, seed))
            address = device.host_view(span, writable=True)
            for seed, start in enumerate(offsets):
                there = ctypes.string_at(address + start, 8)
                assert there == random_bytes(8, seed), f"byte {start} of a view of {nbytes}"
                ctypes.memmove(address + start, there[::-1], 8)
            device.release_host_view(address)
            for seed, start in enumerate(offsets):
                there = device.read(data, start, 8)
                assert there == random_bytes(8, seed)[::-1], f"byte {start} of a view of {nbytes}"
            device.free(data)

    def offsets(self, nbytes: int) -> list[int]:
        """Offsets of eight bytes each: the first, the last, and one that is drawn in each part."""
        part = nbytes // 12
        between = [drawn(at, at + part - 8) for at in range(0, nbytes - part, part)]
        return [0, *(start for start in between if 8 <= start < nbytes - 16), nbytes - 8]

    def is_shared(self, device: DeviceUnderTest, data: int, offset: int, address: int) -> None:
        """Each side reads the eight bytes that the other wrote there."""
        ctypes.memmove(address, b"the host", 8)
        assert device.read(data, offset, 8) == b"the host", f"byte {offset} is another one"
        device.write(data, offset, b"a device")
        assert ctypes.string_at(address, 8) == b"a device", f"byte {offset} is another one"

    def imported(
        self, device: DeviceUnderTest, address: int, readonly: bool = False
    ) -> tuple[int, int]:
        """``data`` and offset of the `PAGES` in place, or a skip with the refusal."""
        self.need(device.backend, SupportsHostImport)
        try:
            return device.import_host(address, PAGES, readonly)
        except Error as exc:
            pytest.skip(f"no import: {exc}")

    @pytest.mark.parametrize("first_is", ["read-only", "writable"])
    def test_two_imports_of_one_address(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap], first_is: str
    ) -> None:
        """The second is refused, or may be written while the first is there, and lives on."""
        backend, (address, pages) = device.backend, host_pages
        first, _ = self.imported(device, address, first_is == "read-only")
        try:
            second = backend.import_host(device.device_id, address, PAGES, False, device.stream)
        except Error as exc:
            assert str(exc)  # noqa: PT017 - or it is not refused
            return
        if backend.device_type not in ADDRESS_DEVICES:
            assert second.data != first, "two imports have one handle"
        new = random_bytes(PAGES, seed=1)
        device.write(second.data, second.offset, new)
        assert are_same(bytes(pages), new), f"beside one that is {first_is} it is not written"
        device.free(first)
        device.synchronize()
        assert device.holds(second.data, new, second.offset)

    def test_read_only_import_is_not_written(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """Neither the import, nor a copy from it, nor its end changes a byte.

        dlbridge asks for no write; a driver that knows of the right to write refuses one.
        """
        address, pages = host_pages
        before, target = bytes(pages), device.allocate(PAGES)
        data, offset = self.imported(device, address, readonly=True)
        span, other = device.span(data, offset, PAGES), device.span(target, 0, PAGES)
        if isinstance(device.backend, SupportsCopy):
            device.copy(other, span)
            assert device.holds(target, before)
        device.write(target, 0, bytes(PAGES))
        host, run = memoryview(bytes(PAGES)), Region((1,), (PAGES,), PAGES)
        writes = [each for each in OPERATIONS if not each.endswith("to_host")]
        for member in writes if self.refuses_writes else ():
            if not isinstance(device.backend, OPERATIONS[member]):
                continue
            with suppress(Error):
                device.run(member, span, other, host, run)
                device.synchronize()
            assert are_same(bytes(pages), before), (
                f"{member} has written to a read-only import: `import_host` does not tell the "
                "driver (refuses_writes = False if there is nothing to tell it)"
            )
        device.free(data)
        device.synchronize()
        assert are_same(bytes(pages), before)

    def test_read_only_import_is_the_hosts_memory(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """Its owner may write to it: the device reads what is there now, and so does a host view.

        A view that ends changes nothing.
        """
        address, pages = host_pages
        data, offset = self.imported(device, address, readonly=True)
        for turn in range(3):
            pages[:] = now = random_bytes(PAGES, turn)
            assert device.holds(data, now, offset), "the import is a copy of the host's memory"
        if device.can_view(data):
            viewed = device.host_view(device.span(data, offset, PAGES))
            pages[:] = now = random_bytes(PAGES, seed=3)
            assert are_same(ctypes.string_at(viewed, PAGES), now), "the host view is a copy"
            device.release_host_view(viewed)
        device.synchronize()
        assert are_same(bytes(pages), now)
        assert device.holds(data, now, offset)

    def test_an_import_that_has_ended_is_left_alone(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """The memory is its owner's again: no memory that is made later has its address.

        A part of it is imported as well, and the later memory is as long, or shorter.
        """
        address, pages = host_pages
        data, _ = self.imported(device, address)
        for turn, nbytes in enumerate((PAGES, mmap.PAGESIZE, PAGES)):
            if turn and device.backend.host_import_refusal(device.device_id, address, nbytes, True):
                continue
            if turn:
                data, _ = device.import_host(address, nbytes)
            device.read(data, 0, 64)
            device.free(data)
            device.synchronize()
            pages[:] = now = random_bytes(PAGES, turn)
            for size in (nbytes, nbytes, nbytes - 1, nbytes // 2):
                later = device.filled(b"l" * size)
                assert are_same(bytes(pages), now), (
                    f"new memory of {size} bytes is in the host's memory, of which {nbytes} bytes "
                    "were imported before"
                )
                assert device.holds(later, b"l" * size)

    @pytest.mark.skipif(sys.platform == "win32", reason="mmap has no prot there")
    def test_host_import_of_read_only_memory(self, device: DeviceUnderTest) -> None:
        """Pages that may not be written (a mapped file) can be read, or are refused."""
        self.need(device.backend, SupportsHostImport)
        with mmap.mmap(-1, PAGES, prot=mmap.PROT_READ) as pages:
            import numpy as np

            address = np.frombuffer(pages, "u1").__array_interface__["data"][0]
            try:
                data, offset = device.import_host(address, PAGES, readonly=True)
            except Error:
                return
            assert device.read(data, offset, PAGES) == bytes(PAGES)
            device.free(data)
            device.synchronize()

    @pytest.mark.parametrize("way", ENDS)
    def test_end_of_an_import_waits(
        self, devices: list[DeviceUnderTest], host_pages: tuple[int, mmap.mmap], way: str
    ) -> None:
        """When the import has ended, the owner has its memory back: no work uses it any more.

        The work has written what it had to write, and has read what was there. It may be on
        another stream than the one that the import was made on, and the import may end anywhere.
        So it is on each device.
        """
        address, pages = host_pages
        device, *others = sorted(devices, key=lambda each: each.device_id != self.device_id)
        half, copies = PAGES // 2, isinstance(device.backend, SupportsCopy)
        pairs = itertools.product(self.each_stream(device), repeat=2)
        for other, mine in (*pairs, *((each, each) for each in others if each.can_import(address))):
            new, old = random_bytes(half, seed=1), bytes(pages[half:])
            source, sink, into = mine.filled(new), mine.filled(bytes(half)), bytearray(half)
            data, offset = self.imported(other, address)
            other.synchronize()
            first, second = mine.span(data, offset, half), mine.span(data, offset + half, half)
            work = self.busy(mine)
            if copies:
                mine.copy(first, mine.span(source, 0, half))
                mine.copy(mine.span(sink, 0, half), second)
            else:
                mine.upload(data, first.offset, memoryview(new))
                mine.download(data, second.offset, memoryview(into))
            drop([other.take(data, last=mine.stream)], way, self.patience)
            written = bytes(pages[:half])
            pages[:] = later = random_bytes(PAGES, seed=2)
            mine.synchronize()
            read = mine.read(sink, 0, half) if copies else bytes(into)
            assert [written == new, read == old, bytes(pages) == later] == [True] * 3
            del work
