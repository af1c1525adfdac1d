"""The fastest way to stage pageable copies on this machine, measured once."""

from __future__ import annotations

import mmap
import os
import time
from contextlib import ExitStack
from ctypes import c_uint64

from _cffi_backend import FFI

from dlbridge.errors import Error

from .claims import uninterrupted
from .driver import StreamDriver
from .staging import ARENA, DIRECT, Plan, Stager

__all__ = ["CANDIDATES", "DEFAULT", "SAMPLE", "Tuning"]

SAMPLE = 32 << 20
"""Bytes copied for a measurement, and the smallest copy that asks for one. All
candidates together take about as long as a dozen such copies."""

DEFAULT = Plan(2 << 20, 2)
CANDIDATES = (
    DIRECT,  # the driver's own staging may be the fastest
    Plan(1 << 20, 1),
    DEFAULT,
    Plan(4 << 20, 2),
    Plan(2 << 20, 4),
    Plan(4 << 20, 4),
    Plan(2 << 20, 8),
)

_ffi = FFI()


class Tuning:
    """Measures each direction of each device when a copy is first large enough to pay for it.

    Parameters
    ----------
    driver : StreamDriver
        The driver; it needs a pool, as a plain free may wait for everybody's work.
    """

    def __init__(self, driver: StreamDriver) -> None:
        self._driver = driver
        self._measured: dict[tuple[int, bool], Plan] = {}
        self._claims: dict[str, object] = {}
        self._spare: dict[int, list[int]] = {}

    def plan(self, device_id: int, nbytes: int, to_host: bool) -> Plan:
        """The plan for pageable copies of *nbytes*.

        The first large copy in each direction measures; others meanwhile, and small ones before,
        use `DEFAULT`.

        Parameters
        ----------
        device_id : int
            The device.
        nbytes : int
            Size of the copy.
        to_host : bool
            Its direction.

        Returns
        -------
        Plan
            `staging.DIRECT` if the driver's own way is the fastest.
        """
        found = self._measured.get((device_id, to_host))
        if found is not None:
            return found
        if nbytes < SAMPLE or self._driver.pool(device_id) is None:
            return DEFAULT
        mine = object()
        try:
            if self._claims.setdefault("measuring", mine) is not mine:  # one atomic step
                return DEFAULT
            found = self._measured.get((device_id, to_host))
            if found is None:
                uninterrupted(lambda: self._note(device_id, to_host))
                found = self._measured[device_id, to_host]
            return found
        except (Error, OSError):  # no room to measure in, on the device or the host
            return DEFAULT
        finally:
            if self._claims.get("measuring") is mine:
                self._claims.clear()

    def spare(self, device_id: int) -> list[int]:
        """Pinned memory that measurements have left, each of `ARENA` bytes, for rings to take.

        A free would wait for all work on the device: 0.9 s beside a kernel of a second, measured
        on an H100 (tests/hardware/streams.py).
        """
        return self._spare.setdefault(device_id, [])

    def measured(self) -> dict[tuple[int, bool], Plan]:
        """The plans so far, by device and direction (a copy)."""
        return dict(self._measured)

    def _note(self, device_id: int, to_host: bool) -> None:
        self._measured[device_id, to_host] = self.measure(device_id, to_host)

    def measure(self, device_id: int, to_host: bool) -> Plan:
        """Find the fastest of `CANDIDATES` with no more threads than this process has cores.

        On a stream of its own and memory of the pool, so that nobody's work is waited for, and
        relaxed, so that no capture of another thread is ended.
        """
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        plans = [plan for plan in CANDIDATES if plan.threads <= max(cores or 1, 1)]
        driver = self._driver
        with ExitStack() as cleanup:
            host = cleanup.enter_context(mmap.mmap(-1, SAMPLE))
            host[::] = bytes(SAMPLE)  # pages exist before the clock runs
            view = cleanup.enter_context(_ffi.from_buffer(host))
            address = int(_ffi.cast("uintptr_t", view))
            cleanup.enter_context(driver.at(driver.place(device_id)))
            cleanup.enter_context(driver.relaxed())
            stream = driver.create_stream()
            cleanup.callback(driver.destroy_stream, stream)
            cell = c_uint64()
            driver.allocate_async(driver.pool(device_id), SAMPLE, stream, cell)
            data = cell.value
            cleanup.callback(driver.free_async, data, stream, [])
            spare = self.spare(device_id)
            if not spare:
                driver.allocate_pinned(ARENA, cell)
                spare.append(cell.value)
            times: dict[Plan, float] = {}
            for plan in plans:
                stager = Stager(driver, device_id, spare)
                try:  # closed before the next, which takes the same pinned memory
                    both = (
                        self.seconds(stager, plan, to_host, data, address, stream) for _ in "12"
                    )
                    times[plan] = min(both)
                finally:
                    stager.close()
        return min(times, key=lambda plan: times[plan])

    def seconds(
        self, stager: Stager, plan: Plan, to_host: bool, data: int, address: int, stream: int
    ) -> float:
        """Measure one copy of `SAMPLE` bytes, to its end on the device."""
        driver = self._driver
        start = time.perf_counter()
        try:
            if to_host:
                if plan == DIRECT:
                    driver.copy_to_host(address, data, SAMPLE, stream)
                else:
                    stager.to_host(address, data, SAMPLE, stream, plan)
            elif plan == DIRECT:
                driver.copy_from_host(data, address, SAMPLE, stream)
            else:
                stager.to_device(data, address, SAMPLE, stream, plan)
        finally:
            driver.wait_for_stream(stream)  # also after a failure: its memory is freed next
        return time.perf_counter() - start
