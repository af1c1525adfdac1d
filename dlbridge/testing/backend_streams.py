"""Streams: which values are one, and which is the current one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import Error
from dlbridge.protocol import SupportsStreams

from .backend_base import BackendCase, DeviceUnderTest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["StreamTests"]

FORBIDDEN_STREAMS = {
    "cpu": [0, 1, 2, -2],
    "cuda": [0, -2],
    "cuda_managed": [0, -2],
    "rocm": [1, 2, -2],
}
"""Integers that the array API (2025.12, ``__dlpack__``) forbids."""


class StreamTests(BackendCase, needs=SupportsStreams):
    """`SupportsStreams`, apart from the order of the work."""

    def current(self, backend: Any, device_id: int) -> tuple[Any, AbstractContextManager[object]]:
        """A new stream, and a block in which it is current; or a skip where there is none."""
        stream = self.make_stream(backend, device_id)
        block = None if stream is None else self.make_current(backend, device_id, stream)
        if block is None:
            pytest.skip("no stream can be made current here (make_current)")
        return stream, block

    def test_current_stream_is_the_threads_own(self, device: DeviceUnderTest) -> None:
        """A stream that one thread makes current is not the current one of another."""
        backend, device_id = device.backend, device.device_id
        stream, block = self.current(backend, device_id)
        with ThreadPoolExecutor(1) as other:

            def elsewhere() -> int:
                found = other.submit(backend.current_stream, device_id).result(self.patience)
                return int(found)

            before = elsewhere()
            with block:
                mine = backend.current_stream(device_id)
                assert mine == backend.normalize_stream(device_id, stream) != before
                assert elsewhere() == before
            assert elsewhere() == before

    def test_current_stream_is_the_devices_own(self, devices: list[DeviceUnderTest]) -> None:
        """A stream that is made current on one device is not the current one of another."""
        backend = devices[0].backend
        if len(devices) < 2:
            pytest.skip("there is one device")
        for device in devices:
            _, block = self.current(backend, device.device_id)
            others = [each.device_id for each in devices if each is not device]
            before = [backend.current_stream(other) for other in others]
            with block:
                assert [backend.current_stream(other) for other in others] == before

    def test_none_is_the_default_stream(self, device: DeviceUnderTest) -> None:
        """Whatever stream is the current one: None is no question about it."""
        backend, device_id = device.backend, device.device_id
        _, block = self.current(backend, device_id)
        before = backend.normalize_stream(device_id, None)
        with block:
            assert backend.normalize_stream(device_id, None) == before

    def test_none_is_a_stream(self, device: DeviceUnderTest) -> None:  # S1 S2 S11 S16
        """None means the default stream."""
        backend = device.backend
        stream = backend.normalize_stream(device.device_id, None)
        assert isinstance(stream, int)
        assert stream != -1
        backend.synchronize(device.device_id, stream)

    def test_minus_one_is_no_order(self, backend: Any) -> None:  # S1 S3 S11 S16
        """-1, which means no ordering, is returned unchanged."""
        assert backend.normalize_stream(self.device_id, -1) == -1

    @pytest.mark.parametrize(  # S9 S10
        "stream",
        [True, False, 1.5, "1", b"", [], {}, object(), int],
        ids=["True", "False", "1.5", "text", "bytes", "list", "dict", "object", "class"],
    )
    def test_no_stream_at_all(self, backend: Any, stream: object) -> None:
        """A bool is refused, because True would be CUDA's legacy stream."""
        with pytest.raises(TypeError, match="stream"):
            backend.normalize_stream(self.device_id, stream)

    @pytest.mark.parametrize("stream", [-2, -(1 << 40)])
    def test_negative_streams(self, backend: Any, stream: int) -> None:  # S8
        """Only -1 has a meaning."""
        with pytest.raises((ValueError, TypeError), match="stream"):
            backend.normalize_stream(self.device_id, stream)

    def test_unknown_streams(self, backend: Any) -> None:
        """A number that names no stream is refused, or stays itself: it becomes no other stream."""
        unknown = 0x7FF0_DEAD_BEE8_0000
        try:
            found = backend.normalize_stream(self.device_id, unknown)
        except (ValueError, TypeError):
            return
        assert found == unknown

    def test_streams_of_other_devices(self, backend: Any, devices: list[DeviceUnderTest]) -> None:
        """A stream of another device is refused, or keeps its handle, which is of no use here."""
        others = [each.device_id for each in devices if each.device_id != self.device_id]
        made = [(other, self.make_stream(backend, other)) for other in others]
        if not made or made[0][1] is None:
            pytest.skip("there are no streams of another device")
        for other, stream in made:
            theirs = backend.normalize_stream(other, stream)
            try:
                found = backend.normalize_stream(self.device_id, stream)
            except (ValueError, TypeError, Error):
                continue
            assert found == theirs

    def test_forbidden_streams(self, backend: Any) -> None:  # S1 S7 S8 S11
        """The integers that the standard forbids for this device."""
        for stream in FORBIDDEN_STREAMS.get(self.name, []):
            with pytest.raises(ValueError, match="stream"):
                backend.normalize_stream(self.device_id, stream)
