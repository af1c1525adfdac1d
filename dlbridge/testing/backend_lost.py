"""A lost device: errors that say so, memory that stays lost, and frees that are harmless."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import DeviceLost
from dlbridge.protocol import SupportsCopy, SupportsFill, SupportsStreams

from .backend_base import BackendCase, live_allocations

if TYPE_CHECKING:
    from collections.abc import Callable

    from .backend_base import DeviceUnderTest

__all__ = ["LostTests"]


class LostTests(BackendCase):
    """Tests of a device that `BackendCase.lose_device` has taken away."""

    def test_lost_device(self, backend: Any, device: DeviceUnderTest) -> None:
        """Each use raises DeviceLost; memory can be freed, and never comes back."""
        gc.collect()
        before = live_allocations(backend)
        data, other = device.filled(b"d" * 256), device.allocate(256)
        span, target = device.span(data, 0, 256), device.span(other, 0, 256)
        if not self.lose_device(backend, device.device_id):
            pytest.skip("this device cannot be lost on request (lose_device)")
        uses: dict[str, Callable[[], object]] = {
            "copy_to_host": lambda: device.download(data, 0, memoryview(bytearray(256))),
            "copy_from_host": lambda: device.upload(data, 0, memoryview(bytes(256))),
        }
        if isinstance(backend, SupportsCopy):
            uses["copy"] = lambda: device.copy(target, span)
        if isinstance(backend, SupportsFill):
            uses["fill"] = lambda: device.fill(data, 0, 256, 1)
        if isinstance(backend, SupportsStreams):
            uses["synchronize"] = device.synchronize
        for use in uses.values():
            with pytest.raises(DeviceLost):
                use()
        try:
            again = device.allocate(256)  # which may open the device again
        except DeviceLost as exc:
            reason = str(exc)
            assert reason
        else:
            device.write(again, 0, b"n" * 256)
            assert device.read(again, 0, 256) == b"n" * 256
            with pytest.raises(DeviceLost):
                uses["copy_to_host"]()
            device.free(again)
        device.free(data)
        device.free(other)
        assert live_allocations(backend) == before
