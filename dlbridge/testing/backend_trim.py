"""Giving back kept memory: what is freed works anew, and what is in use does not change."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dlbridge.errors import ExchangeError
from dlbridge.protocol import SupportsCopy, SupportsDeviceInfo, SupportsTrim

from .backend_base import BackendCase, DeviceUnderTest, live_allocations, random_bytes

__all__ = ["TrimTests"]

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
        """The bytes of memory that exists are the same; freed memory is there again when asked."""
        content = random_bytes(NBYTES)
        data = device.filled(content)
        for size in (NBYTES, NBYTES // 2, 64, 4 * NBYTES):
            device.free(device.filled(random_bytes(size, seed=1)))
            device.backend.trim(device.device_id)
            again = device.filled(content[:64])
            assert device.read(again, 0, 64) == content[:64]
        device.backend.trim(device.device_id)
        assert device.holds(data, content)

    def used(self, device: DeviceUnderTest) -> int:
        """`memory_in_use`, or a skip where nobody knows."""
        used = self.memory_in_use(device.backend, device.device_id)
        if used is None:
            pytest.skip("nothing says how much memory is in use (memory_used, memory_in_use)")
        return used

    def test_trim_gives_memory_back(self, device: DeviceUnderTest) -> None:
        """What was freed, and only that, goes back to the driver."""
        device.backend.trim(device.device_id)
        before = self.used(device)
        held = [device.filled(bytes(NBYTES)) for _ in range(8)]
        assert self.used(device) >= before + 8 * NBYTES
        for data in held:
            device.free(data)
        device.synchronize()
        device.backend.trim(device.device_id)
        assert self.used(device) < before + NBYTES

    def test_pool_limit_is_kept(self, backend: Any) -> None:
        """No more freed memory is kept than ``DLBRIDGE_POOL_LIMIT`` says."""
        self.need(backend, SupportsDeviceInfo)
        if "memory_used" not in backend.device_info(self.device_id):
            pytest.skip("device_info does not say how much memory is in use (memory_used)")
        done = self.in_new_process(LIMIT, NBYTES)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_trim_counts_nothing_as_freed(self, device: DeviceUnderTest) -> None:
        """Memory in use stays allocated, and a second call has nothing to do."""
        device.allocate(NBYTES)
        before = live_allocations(device.backend)
        device.backend.trim(device.device_id)
        device.backend.trim(device.device_id)
        assert live_allocations(device.backend) == before

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
        failures: list[BaseException] = []
        trims: list[None] = []
        stop = threading.Event()

        def work(seed: int) -> None:
            try:
                own = DeviceUnderTest(device.backend, device.device_id)
                content = random_bytes(NBYTES, seed)
                for _ in range(20):
                    data = own.filled(content)
                    seen = len(trims)  # of the next two one begins after this
                    while len(trims) < seen + 2 and not failures and not stop.is_set():
                        time.sleep(0)
                    assert own.holds(data, content)
                    own.free(data)
            except BaseException as exc:
                failures.append(exc)

        def trim() -> None:
            try:
                while not stop.is_set():
                    device.backend.trim(device.device_id)
                    trims.append(None)
            except BaseException as exc:
                failures.append(exc)

        workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(2)]
        trimmer = threading.Thread(target=trim, daemon=True)
        for thread in (trimmer, *workers):
            thread.start()
        for thread in workers:
            thread.join(self.patience)
        stop.set()
        trimmer.join(self.patience)
        assert not any(thread.is_alive() for thread in (trimmer, *workers)), "a deadlock"
        assert failures == []

    def test_trim_refuses_other_devices(self, device: DeviceUnderTest) -> None:
        """A device that there is not, named."""
        backend: Any = device.backend
        for device_id in (-1, backend.device_count(), 1 << 30):
            with pytest.raises(ExchangeError, match=str(device_id)):
                backend.trim(device_id)
