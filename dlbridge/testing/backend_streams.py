"""Streams: the valid ones, and the order of the work on them."""

from __future__ import annotations

from typing import Any

import pytest

from dlbridge.protocol import SupportsCopy, SupportsStreams

from .backend_base import BackendCase, DeviceUnderTest, random_bytes

__all__ = ["StreamTests"]

FORBIDDEN_STREAMS = {
    "cpu": [0, 1, 2, -2],
    "cuda": [0, -2],
    "cuda_managed": [0, -2],
    "rocm": [1, 2, -2],
}
"""Integers that the array API (2024.12, ``__dlpack__``) forbids."""


class StreamTests(BackendCase):
    """`SupportsStreams`, and the order of work that every backend keeps."""

    def streams(self, device: DeviceUnderTest) -> tuple[int, int]:
        """Two streams if the backend's author has written `make_stream`, else one stream twice."""
        backend = device.backend
        self.need(backend, SupportsStreams)
        self.made = [self.make_stream(backend, device.device_id) for _ in range(2)]
        if self.made[0] is None:
            return device.stream, device.stream
        first, second = (backend.normalize_stream(device.device_id, s) for s in self.made)
        assert first != second
        return first, second

    def test_work_on_one_stream_is_in_order(self, device: DeviceUnderTest) -> None:
        """Work on a stream is done in order, without any wait in between."""
        backend, device_id, stream = device.backend, device.device_id, device.stream
        data = device.allocate(100_000)
        contents = [memoryview(random_bytes(100_000, seed)) for seed in range(20)]
        results = [bytearray(100_000) for _ in contents]
        for content, result in zip(contents, results, strict=True):
            backend.copy_from_host(device_id, data, 0, content, stream)
            backend.copy_to_host(device_id, data, 0, memoryview(result), stream)
        device.synchronize()
        assert [result == content for content, result in zip(contents, results, strict=True)] == (
            [True] * 20
        )

    def test_free_waits_for_queued_work(self, device: DeviceUnderTest) -> None:
        """Freed memory is not handed out again before the work on it is done."""
        self.need(device.backend, SupportsCopy)
        backend = device.backend
        device_id, stream = device.device_id, device.stream
        contents = [memoryview(random_bytes(1 << 20, seed)) for seed in range(10)]
        kept = [device.allocate(1 << 20) for _ in contents]
        for content, keep in zip(contents, kept, strict=True):
            passing = device.allocate(1 << 20)
            backend.copy_from_host(device_id, passing, 0, content, stream)
            backend.copy(device_id, keep, 0, device_id, passing, 0, 1 << 20, stream)
            device.free(passing)
        for content, keep in zip(contents, kept, strict=True):
            same = device.read(keep, 0, 1 << 20) == content
            assert same

    def test_wait_orders_two_streams(self, device: DeviceUnderTest) -> None:
        """Work after `wait` sees the results of all earlier work on the other stream."""
        backend = device.backend
        self.need(backend, SupportsCopy)
        first, second = self.streams(device)
        device_id = device.device_id
        new = memoryview(random_bytes(1 << 16))
        source, target = device.filled(b"o" * (1 << 16)), device.allocate(1 << 16)
        into = bytearray(1 << 16)
        alive = self.slow_work(backend, device_id, first)
        backend.copy_from_host(device_id, source, 0, new, first)
        backend.wait(device_id, second, first)
        backend.copy(device_id, target, 0, device_id, source, 0, 1 << 16, second)
        backend.copy_to_host(device_id, target, 0, memoryview(into), second)
        backend.synchronize(device_id, second)
        assert into == new
        backend.synchronize(device_id, first)
        del alive

    def test_wait_on_itself_is_nothing(self, device: DeviceUnderTest) -> None:
        """A stream that waits for itself does not deadlock."""
        backend = device.backend
        first, _ = self.streams(device)
        backend.wait(device.device_id, first, first)
        backend.synchronize(device.device_id, first)

    def test_synchronize_waits(self, device: DeviceUnderTest) -> None:
        """After `synchronize` the result of slow work is on the host."""
        backend = device.backend
        stream, _ = self.streams(device)
        data, into = device.filled(b"o" * 1000), bytearray(1000)
        new = memoryview(random_bytes(1000))
        alive = self.slow_work(backend, device.device_id, stream)
        backend.copy_from_host(device.device_id, data, 0, new, stream)
        backend.copy_to_host(device.device_id, data, 0, memoryview(into), stream)
        backend.synchronize(device.device_id, stream)
        assert into == new
        backend.synchronize(device.device_id, stream)  # with nothing left to do
        del alive

    def test_current_stream_is_a_stream(self, backend: Any, devices: list[DeviceUnderTest]) -> None:
        """The current stream can be waited for, on every device."""
        for device in devices:
            stream = backend.current_stream(device.device_id)
            assert isinstance(stream, int)
            if isinstance(backend, SupportsStreams):
                backend.synchronize(device.device_id, stream)

    def test_none_is_a_stream(self, device: DeviceUnderTest) -> None:  # S1 S2 S11 S16
        """None means the default stream."""
        backend = device.backend
        self.need(backend, SupportsStreams)
        stream = backend.normalize_stream(device.device_id, None)
        assert isinstance(stream, int)
        assert stream != -1
        backend.synchronize(device.device_id, stream)

    def test_minus_one_is_no_order(self, backend: Any) -> None:  # S1 S3 S11 S16
        """-1, which means no ordering, is returned unchanged."""
        self.need(backend, SupportsStreams)
        assert backend.normalize_stream(self.device_id, -1) == -1

    @pytest.mark.parametrize(  # S9 S10
        "stream",
        [True, False, 1.5, "1", b"", [], {}, object(), int],
        ids=["True", "False", "1.5", "text", "bytes", "list", "dict", "object", "class"],
    )
    def test_no_stream_at_all(self, backend: Any, stream: object) -> None:
        """A bool is refused, because True would be CUDA's legacy stream."""
        self.need(backend, SupportsStreams)
        with pytest.raises(TypeError, match="stream"):
            backend.normalize_stream(self.device_id, stream)

    @pytest.mark.parametrize("stream", [-2, -(1 << 40)])
    def test_negative_streams(self, backend: Any, stream: int) -> None:  # S8
        """Only -1 has a meaning."""
        self.need(backend, SupportsStreams)
        with pytest.raises((ValueError, TypeError), match="stream"):
            backend.normalize_stream(self.device_id, stream)

    def test_forbidden_streams(self, backend: Any) -> None:  # S1 S7 S8 S11
        """The integers that the standard forbids for this device."""
        for stream in FORBIDDEN_STREAMS.get(self.name, []):
            with pytest.raises(ValueError, match="stream"):
                backend.normalize_stream(self.device_id, stream)
