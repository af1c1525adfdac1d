"""Memory that host and device share, and native objects on device memory."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import Error
from dlbridge.protocol import NativeArray, SupportsHostImport, SupportsHostView, SupportsNative

from .backend_base import BackendCase, DeviceUnderTest, random_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HostTests"]

PAGES = 4 * mmap.PAGESIZE


class HostTests(BackendCase):
    """`SupportsHostView`, `SupportsHostImport` and `SupportsNative`."""

    @pytest.fixture
    def host_pages(self) -> Iterator[tuple[int, mmap.mmap]]:
        """Address and bytes of four fresh pages."""
        pages = mmap.mmap(-1, PAGES)
        pages[:] = random_bytes(PAGES)
        pin = ctypes.c_char.from_buffer(pages)
        yield ctypes.addressof(pin), pages
        del pin
        pages.close()

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
                backend.host_view(device.device_id, data, 0, 9, False, device.stream)
        assert device.read(data, 0, 9) == b"as before"

    def test_host_view_reads(self, device: DeviceUnderTest) -> None:
        """The host reads in place the bytes that the device wrote."""
        content = random_bytes(5000)
        data = self.viewable(device, content)
        backend, where = device.backend, (device.device_id, data)
        for offset, nbytes in [(0, 5000), (1, 1), (3, 130), (4096, 904)]:
            address = backend.host_view(*where, offset, nbytes, False, device.stream)
            assert ctypes.string_at(address, nbytes) == content[offset : offset + nbytes]
            backend.release_host_view(*where, address, device.stream)
            assert device.read(data, 0, 5000) == content

    def test_host_view_writes(self, device: DeviceUnderTest) -> None:
        """The device reads, after the release, the bytes that the host wrote."""
        want = bytearray(random_bytes(5000))
        data = self.viewable(device, bytes(want))
        backend, where = device.backend, (device.device_id, data)
        for offset, nbytes in [(3, 130), (4096, 904), (0, 5000)]:
            want[offset : offset + nbytes] = content = random_bytes(nbytes, seed=offset)
            address = backend.host_view(*where, offset, nbytes, True, device.stream)
            ctypes.memmove(address, content, nbytes)
            backend.release_host_view(*where, address, device.stream)
            assert device.read(data, 0, 5000) == want

    def test_host_view_waits_for_queued_work(self, device: DeviceUnderTest) -> None:
        """No call of `synchronize` is needed; later work sees what the host wrote."""
        data = self.viewable(device, b"old" * 10_000)
        backend = device.backend
        where, into = (device.device_id, data), bytearray(30_000)
        for seed in range(5):
            content = memoryview(random_bytes(30_000, seed))
            backend.copy_from_host(*where, 0, content, device.stream)
            address = backend.host_view(*where, 0, 30_000, True, device.stream)
            assert ctypes.string_at(address, 30_000) == content
            ctypes.memmove(address, b"host", 4)
            backend.release_host_view(*where, address, device.stream)
            backend.copy_to_host(*where, 0, memoryview(into), device.stream)
            device.synchronize()
            assert into == b"host" + content[4:]

    def test_two_host_views_at_once(self, device: DeviceUnderTest) -> None:
        """Two consumers may have the same memory; the release of one does not affect the other."""
        content = random_bytes(5000)
        data = self.viewable(device, content)
        backend = device.backend
        where = (device.device_id, data)
        first = backend.host_view(*where, 0, 5000, False, device.stream)
        second = backend.host_view(*where, 100, 200, False, device.stream)
        backend.release_host_view(*where, first, device.stream)
        assert ctypes.string_at(second, 200) == content[100:300]
        backend.release_host_view(*where, second, device.stream)
        assert device.read(data, 0, 5000) == content

    @pytest.mark.parametrize("nbytes", [2 * mmap.PAGESIZE, 1000, 1])
    @pytest.mark.parametrize("misaligned", [0, 64, 1])
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
        refusal = backend.host_import_refusal(device.device_id, address, nbytes)
        assert refusal == refusal.strip()
        if refusal:
            with pytest.raises(Error):
                backend.import_host(device.device_id, address, nbytes, False)
            assert bytes(pages) == before
            return
        data, offset = backend.import_host(device.device_id, address, nbytes, False)
        try:
            assert device.read(data, offset, nbytes) == ctypes.string_at(address, nbytes)
            device.write(data, offset, b"D")
            assert ctypes.string_at(address, 1) == b"D"
            ctypes.memmove(address + nbytes - 1, b"H", 1)
            assert device.read(data, offset + nbytes - 1, 1) == b"H"
        finally:
            backend.free(device.device_id, data, device.stream)
            device.synchronize()
        after = bytes(pages)
        assert after[:misaligned] == before[:misaligned]
        assert after[misaligned + nbytes :] == before[misaligned + nbytes :]

    @pytest.mark.skipif(sys.platform == "win32", reason="mmap has no prot there")
    def test_host_import_of_read_only_memory(self, device: DeviceUnderTest) -> None:
        """Pages that may not be written (a mapped file) can be read, or are refused."""
        backend = device.backend
        self.need(backend, SupportsHostImport)
        with mmap.mmap(-1, PAGES, prot=mmap.PROT_READ) as pages:
            import numpy as np

            address = np.frombuffer(pages, "u1").__array_interface__["data"][0]
            try:
                data, offset = backend.import_host(device.device_id, address, PAGES, True)
            except Error:
                return
            assert device.read(data, offset, PAGES) == bytes(PAGES)
            backend.free(device.device_id, data, device.stream)
            device.synchronize()

    def test_native_round_trip(self, device: DeviceUnderTest) -> None:
        """Our memory as a native object and back is the same memory."""
        backend = device.backend
        self.need(backend, SupportsNative)
        content = random_bytes(4 * 6)
        data = device.filled(content)
        owner = object()
        array = NativeArray(
            device.device_id, data, 0, "float32", (2, 3), None, readonly=False, owner=owner
        )
        native = backend.to_native(array)
        assert native is not None
        again = backend.from_native(native)
        assert again is not None
        assert (again.device_id, again.data, again.offset) == (device.device_id, data, 0)
        assert (again.dtype, tuple(again.shape)) == ("float32", (2, 3))
        assert again.strides in (None, (12, 4))
        assert device.read(again.data, again.offset, 24) == content

    def test_strangers_are_not_native(self, backend: Any) -> None:
        """For memory of others the result is None, not an error."""
        self.need(backend, SupportsNative)
        for stranger in (None, 1, b"bytes", [1.0], object(), int):
            assert backend.from_native(stranger) is None
