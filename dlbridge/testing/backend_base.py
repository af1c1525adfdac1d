"""The base of every part of the conformance kit: the backend, and a device under test."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge import backend as load_backend
from dlbridge.errors import BackendUnavailable
from dlbridge.protocol import SupportsStreams

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BackendCase", "DeviceUnderTest", "random_bytes"]


def random_bytes(nbytes: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat, so that a piece in the wrong place is noticed."""
    return random.Random(seed).randbytes(nbytes)


class DeviceUnderTest:
    """One device of the backend, with allocations that are freed at the end of the test."""

    def __init__(self, backend: Any, device_id: int, stream: int | None = None) -> None:
        self.backend = backend  # Any: `need` has checked the capabilities that are used
        self.device_id = device_id
        self.stream = backend.current_stream(device_id) if stream is None else stream
        self._live: list[int] = []

    def allocate(self, nbytes: int, alignment: int = 256) -> int:
        """New memory, freed by `free` or `close`."""
        data: int = self.backend.allocate(self.device_id, nbytes, alignment, self.stream)
        self._live.append(data)
        return data

    def filled(self, content: bytes) -> int:
        """New memory that holds *content*."""
        data = self.allocate(len(content))
        self.write(data, 0, content)
        return data

    def free(self, data: int) -> None:
        """Free before the end of the test."""
        self._live.remove(data)
        self.backend.free(self.device_id, data, self.stream)

    def write(self, data: int, offset: int, content: bytes) -> None:
        """Copy *content* (read-only, as many sources are) to the device, and wait."""
        view = memoryview(content)
        self.backend.copy_from_host(self.device_id, data, offset, view, self.stream)
        self.synchronize()

    def read(self, data: int, offset: int, nbytes: int) -> bytes:
        """The bytes on the device once all work on the stream is done."""
        into = bytearray(nbytes)
        self.backend.copy_to_host(self.device_id, data, offset, memoryview(into), self.stream)
        self.synchronize()
        return bytes(into)

    def synchronize(self) -> None:
        """Wait for the stream, if there are streams."""
        if isinstance(self.backend, SupportsStreams):
            self.backend.synchronize(self.device_id, self.stream)

    def close(self) -> None:
        """Free what is left."""
        while self._live:
            self.backend.free(self.device_id, self._live.pop(), self.stream)
        self.synchronize()


class BackendCase:
    """The attributes and hooks of the kit; only ``name`` must be set."""

    name: str
    """The entry point's name, as in device strings."""

    device_id = 0
    """The device that most tests use; every device gets a round trip."""

    max_nbytes = 64 << 20
    """Size (bytes) of the largest round trip; less for a small simulator."""

    allocations = 10_000
    """How often the leak test allocates; fewer only if one allocation takes milliseconds.

    It looks at the process's memory, and asks ``backend.live_allocations()``
    (what has not been freed) where the backend has that.
    """

    patience = 60
    """Seconds until something that does not return counts as a deadlock."""

    def make_stream(self, backend: Any, device_id: int) -> object | None:
        """A new stream as a user would pass it; None if the device has none."""
        return None

    def slow_work(self, backend: Any, device_id: int, stream: int) -> object | None:
        """Enqueue work of 50 ms or more on *stream*, without waiting for it.

        Returns an object that must stay alive until the work is done. None if
        such work cannot be made here; the stream tests are weaker then.
        """
        return None

    @pytest.fixture
    def backend(self) -> Any:
        """The backend, or a skip with the reason (a failure under DLBRIDGE_EXPECT)."""
        try:
            return load_backend(self.name)
        except BackendUnavailable as exc:
            expected = os.environ.get("DLBRIDGE_EXPECT", "")
            if self.name in [part.strip() for part in expected.split(",")]:
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

    def need(self, backend: object, protocol: type) -> None:
        """Skip unless *backend* has the capability."""
        if not isinstance(backend, protocol):
            pytest.skip(f"{self.name} does not have {protocol.__name__}")
