"""Memory: allocating, filling it from the host and reading it back, freeing."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dlbridge.errors import DeviceError, DeviceMemoryError, Error
from dlbridge.protocol import ADDRESS_DEVICES, SupportsFill

from .backend_base import BackendCase, DeviceUnderTest, random_bytes

__all__ = ["MemoryTests"]

SIZES = [1, 2, 255, 256, 4095, 4096, (1 << 20) + 3]
OFFSETS = [0, 1, 3, 4096]


class MemoryTests(BackendCase):
    """`allocate`, `free`, `copy_from_host`, `copy_to_host` and `fill`."""

    @pytest.mark.parametrize("offset", OFFSETS)
    @pytest.mark.parametrize("nbytes", SIZES)
    def test_round_trip(self, device: DeviceUnderTest, nbytes: int, offset: int) -> None:
        """The same bytes come back; bytes before and after them do not change."""
        around = random_bytes(offset + nbytes + 5, seed=1)
        content = random_bytes(nbytes, seed=2)
        data = device.filled(around)
        device.write(data, offset, content)
        assert device.read(data, offset, nbytes) == content
        assert device.read(data, 0, len(around)) == (
            around[:offset] + content + around[offset + nbytes :]
        )

    def test_large_round_trip(self, device: DeviceUnderTest) -> None:
        """`max_nbytes` at once: more than every staging buffer and inline limit."""
        content = random_bytes(self.max_nbytes)
        same = device.read(device.filled(content), 0, len(content)) == content
        assert same  # not in one line: pytest would print 64 MiB of difference

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

    def test_source_and_target_may_lie_anywhere(self, device: DeviceUnderTest) -> None:
        """Host memory may be unaligned, read-only, or a slice of a larger buffer."""
        content = random_bytes(5000)
        data = device.allocate(5000)
        view = memoryview(b"-" + content + b"-")[1:-1]
        device.backend.copy_from_host(device.device_id, data, 0, view, device.stream)
        device.synchronize()
        into = bytearray(5002)
        target = memoryview(into)[1:-1]
        device.backend.copy_to_host(device.device_id, data, 0, target, device.stream)
        device.synchronize()
        assert bytes(into) == b"\0" + content + b"\0"

    @pytest.mark.parametrize("value", [0, 1, 0x80, 0xFF])
    @pytest.mark.parametrize(("offset", "nbytes"), [(0, 256), (0, 1), (1, 2), (3, 130), (64, 64)])
    def test_fill(self, device: DeviceUnderTest, offset: int, nbytes: int, value: int) -> None:
        """A region is filled, and only that; regions need not be aligned."""
        self.need(device.backend, SupportsFill)
        around = random_bytes(256)
        data = device.filled(around)
        device.backend.fill(device.device_id, data, offset, nbytes, value, device.stream)
        want = around[:offset] + bytes([value]) * nbytes + around[offset + nbytes :]
        assert device.read(data, 0, 256) == want

    def test_threads(self, backend: Any) -> None:
        """Eight threads at once each get their own bytes back."""
        failures: list[object] = []

        def work(seed: int) -> None:
            try:
                device = DeviceUnderTest(backend, self.device_id)
                for turn in range(25):
                    content = random_bytes(1 + 997 * turn, seed)
                    data = device.filled(content)
                    if device.read(data, 0, len(content)) != content:
                        failures.append(f"thread {seed}, turn {turn}: other bytes")
                    device.free(data)
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_many_allocations_leak_nothing(self, backend: Any, device: DeviceUnderTest) -> None:
        """Memory and handles are back after `allocations` times allocate, write, free."""

        def turn(count: int) -> None:
            for _ in range(count):
                data = device.allocate(16384)
                device.write(data, 0, content)
                device.free(data)
            gc.collect()

        content = bytes(16384)
        turn(self.allocations // 10)  # pools and caches fill up
        live, before = live_allocations(backend), resident_bytes()
        turn(self.allocations)
        assert live_allocations(backend) == live
        # If every one leaked, it would be 156 MiB; for handles of 1 KiB, 10 MiB.
        assert resident_bytes() - before < 8 << 20

    def test_free_in_a_finalizer(self, backend: Any, device: DeviceUnderTest) -> None:
        """The garbage collector may free one tensor in the middle of any call for another."""
        held = device.filled(b"h" * 100)
        before = live_allocations(backend)

        class Owner:
            def __init__(self) -> None:
                self.cycle = self  # only the garbage collector can free it
                self.data = backend.allocate(device.device_id, 100, 1, device.stream)

            def __del__(self) -> None:
                backend.free(device.device_id, self.data, device.stream)

        def work() -> None:
            for _ in range(200):
                Owner()
                device.write(held, 0, b"w" * 100)

        thread = threading.Thread(target=work, daemon=True)  # a deadlock must not hang pytest
        threshold = gc.get_threshold()
        gc.collect()
        gc.freeze()  # otherwise each collection visits everything that pytest has imported
        gc.set_threshold(1)
        try:
            thread.start()
            thread.join(self.patience)
        finally:
            gc.set_threshold(*threshold)
            gc.unfreeze()
        assert not thread.is_alive(), "deadlock: a finalizer waits for a lock of its own thread"
        gc.collect()
        device.synchronize()
        assert device.read(held, 0, 100) == b"w" * 100
        assert live_allocations(backend) == before

    @pytest.mark.parametrize("nbytes", [1 << 50, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
    def test_too_much_is_refused(self, device: DeviceUnderTest, nbytes: int) -> None:
        """Lack of memory raises an error that names the requested size; later calls work."""
        with pytest.raises((DeviceMemoryError, DeviceError), match=str(nbytes)):
            device.allocate(nbytes)
        assert device.read(device.filled(b"still here"), 0, 10) == b"still here"

    @pytest.mark.parametrize(("offset", "nbytes"), [(1, 100), (100, 1), (1 << 40, 1), (-1, 10)])
    def test_out_of_bounds_is_refused(
        self, backend: Any, device: DeviceUnderTest, offset: int, nbytes: int
    ) -> None:
        """If ``data`` is a handle, no copy reaches outside its memory."""
        if backend.device_type in ADDRESS_DEVICES and self.name != "cpu":
            pytest.skip("data is an address, so the size of the memory is not known")
        data = device.filled(b"d" * 100)
        into = bytearray(nbytes)
        for call, host in (
            (backend.copy_from_host, memoryview(bytes(nbytes))),
            (backend.copy_to_host, memoryview(into)),
        ):
            with pytest.raises((Error, ValueError)):
                call(self.device_id, data, offset, host, device.stream)
        device.synchronize()
        assert device.read(data, 0, 100) == b"d" * 100
        assert bytes(into) == bytes(nbytes)


def live_allocations(backend: Any) -> int:
    """The live allocations that the backend counts; 0 if it does not count."""
    count = getattr(backend, "live_allocations", None)
    return count() if count else 0


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
