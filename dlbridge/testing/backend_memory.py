"""Memory: allocating, filling it from the host and reading it back, freeing."""

from __future__ import annotations

from typing import Any

import pytest

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.protocol import ADDRESS_DEVICES, SupportsCopy, SupportsDeviceInfo, SupportsFill

from .backend_base import BackendCase, DeviceUnderTest, are_same, live_allocations, random_bytes

__all__ = ["CHUNKED", "MemoryTests"]

SIZES = [1, 2, 255, 256, 4095, 4096, (1 << 20) + 3]
OFFSETS = [0, 1, 3, 4096, (1 << 16) + 3]
"""The last one does not fit into 16 bits."""

CHUNKED = [3 * (1 << 16) + 5, 5 * (1 << 20) - 1, 3 * (1 << 22) + 7]
"""Sizes that are two chunks or more, and a rest, whatever the size of a chunk."""


class MemoryTests(BackendCase):
    """`allocate`, the end of memory, `copy_from_host`, `copy_to_host`, `fill`."""

    @pytest.mark.parametrize("offset", OFFSETS)
    @pytest.mark.parametrize("nbytes", SIZES)
    def test_round_trip(self, device: DeviceUnderTest, nbytes: int, offset: int) -> None:
        """The same bytes come back; bytes before and after them do not change."""
        around = random_bytes(offset + nbytes + 5, seed=1)
        content = random_bytes(nbytes, seed=2)
        data = device.filled(around)
        device.write(data, offset, content)
        assert device.holds(data, content, offset)
        assert device.holds(data, around[:offset] + content + around[offset + nbytes :])

    @pytest.mark.parametrize("nbytes", CHUNKED)
    def test_round_trip_of_chunks(self, device: DeviceUnderTest, nbytes: int) -> None:
        """Odd sizes at an odd offset, which no chunk size divides: none of the pieces is lost."""
        nbytes = min(nbytes, self.max_nbytes - 64)
        around = random_bytes(nbytes + 12, seed=1)
        content = random_bytes(nbytes, seed=2)
        data = device.filled(around)
        device.write(data, 7, content)
        assert device.holds(data, around[:7] + content + around[7 + nbytes :])
        assert device.holds(data, content[1:], 8)

    @pytest.mark.parametrize("nbytes", CHUNKED)
    def test_fill_of_chunks(self, device: DeviceUnderTest, nbytes: int) -> None:
        """The same for fills."""
        self.need(device.backend, SupportsFill)
        nbytes = min(nbytes, self.max_nbytes - 64)
        around = random_bytes(nbytes + 12)
        data = device.filled(around)
        device.fill(data, 7, nbytes, 0x5A)
        assert device.holds(data, around[:7] + b"\x5a" * nbytes + around[7 + nbytes :])

    @pytest.mark.parametrize("nbytes", CHUNKED)
    def test_copy_of_chunks(self, device: DeviceUnderTest, nbytes: int) -> None:
        """The same for copies on the device."""
        self.need(device.backend, SupportsCopy)
        nbytes = min(nbytes, self.max_nbytes - 64)
        content = random_bytes(nbytes)
        source, target = device.filled(content), device.filled(b"-" * 12 + bytes(nbytes))
        device.copy(device.span(target, 7, nbytes - 3), device.span(source, 3, nbytes - 3))
        assert device.holds(target, b"-" * 7 + content[3:] + bytes(12 + nbytes)[-8:])

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
        for alignment in (1, 64, 256, 4096):
            for nbytes in (1, 100, 5000):
                assert device.allocate(nbytes, alignment) % alignment == 0

    def test_live_buffers_do_not_alias(self, device: DeviceUnderTest) -> None:
        """Twenty buffers hold twenty contents."""
        contents = [random_bytes(300, seed=i) for i in range(20)]
        held = [device.filled(content) for content in contents]
        assert len(set(held)) == len(held)
        assert [device.read(data, 0, 300) for data in held] == contents

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
        assert live_allocations(devices[0].backend) == before

    def test_memory_made_with_its_content_does_not_alias(self, device: DeviceUnderTest) -> None:
        """Twenty buffers, of a read-only source that is the same object each time."""
        content = random_bytes(min(300, self.content_limit(device)))
        held = [device.made_with(memoryview(content)) for _ in range(20)]
        assert len(set(held)) == len(held)
        device.write(held[0], 0, bytes(len(content)))
        assert {device.read(data, 0, len(content)) for data in held[1:]} == {content}

    @pytest.mark.parametrize("beyond", [-1, 0])
    def test_memory_made_with_its_content_on_an_unknown_device(
        self, device: DeviceUnderTest, beyond: int
    ) -> None:
        """ExchangeError that names the device."""
        self.content_limit(device)
        device_id = beyond if beyond < 0 else device.backend.device_count()
        with pytest.raises(ExchangeError, match=str(device_id)):
            device.backend.allocate(device_id, 4, 256, 0, memoryview(b"four"))

    @pytest.mark.parametrize("value", [0, 1, 0x80, 0xFF])
    @pytest.mark.parametrize(
        ("offset", "nbytes"),
        [(0, 256), (0, 1), (1, 2), (3, 130), (64, 64), (5, (1 << 20) + 3), ((1 << 16) + 5, 130)],
    )
    def test_fill(self, device: DeviceUnderTest, offset: int, nbytes: int, value: int) -> None:
        """A region is filled, and only that; regions need not be aligned."""
        self.need(device.backend, SupportsFill)
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
        """Lack of memory raises an error that names the requested size; later calls work."""
        with pytest.raises((DeviceMemoryError, DeviceError), match=str(nbytes)):
            device.allocate(nbytes)
        assert device.read(device.filled(b"still here"), 0, 10) == b"still here"
