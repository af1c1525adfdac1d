"""A lost device: errors that say so, memory that stays lost, and ends that are harmless."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import DeviceError, DeviceLost, Error
from dlbridge.protocol import SupportsStreams

from .backend_base import PAGES, BackendCase, end_quietly, live_allocations
from .backend_refusals import Calls

if TYPE_CHECKING:
    import mmap

    from .backend_base import DeviceUnderTest

__all__ = ["LostTests"]


class LostTests(BackendCase):
    """Tests of a device that `BackendCase.lose_device` has taken away."""

    def lose(self, device: DeviceUnderTest) -> None:
        """Lose the device, or skip."""
        if not self.lose_device(device.backend, device.device_id):
            pytest.skip("this device cannot be lost on request (lose_device)")

    def test_lost_device(self, backend: Any, device: DeviceUnderTest) -> None:
        """Each use raises DeviceLost; memory can be dropped, and never comes back."""
        gc.collect()
        before = live_allocations(backend)
        calls = Calls(device)
        data = device.filled(bytes(calls.nbytes))
        span, views = device.span(data, 0, calls.nbytes), device.can_view(data)
        self.lose(device)
        for name in calls.names:
            if name == "host_view" and not views:
                continue
            try:
                getattr(calls, name)(span)
            except DeviceLost:
                continue
            pytest.fail(f"{name} goes on with a device that is lost")
        if isinstance(backend, SupportsStreams):
            with pytest.raises(DeviceLost):
                device.synchronize()
        try:
            device.stream = backend.current_stream(device.device_id)  # the last one has ended
            again = device.allocate(256)  # which may open the device again
        except DeviceLost as exc:
            reason = str(exc)
            assert reason
        else:
            device.write(again, 0, b"n" * 256)
            assert device.read(again, 0, 256) == b"n" * 256
            with pytest.raises(DeviceLost):
                calls.download(span)
            device.free(again)
        for each in (data, calls.other):
            end_quietly(partial(device.free, each))
        assert live_allocations(backend) == before

    def test_lost_device_with_views_and_imports(
        self, backend: Any, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """They end without an error and without a wait, and nothing new is made."""
        gc.collect()
        before, device_id, address = live_allocations(backend), device.device_id, host_pages[0]
        data = device.filled(b"d" * 256)
        views, imports = device.can_view(data), device.can_import(address)
        if not views and not imports:
            pytest.skip("host and device share no memory")
        view = device.host_view(device.span(data, 0, 256), writable=True) if views else 0
        imported = device.import_host(address, PAGES)[0] if imports else 0
        self.lose(device)
        if imports:
            with pytest.raises(DeviceLost):
                device.read(imported, 0, 16)
            with pytest.raises(DeviceLost):
                backend.import_host(device_id, address, PAGES, False, device.stream)
        if views:
            end_quietly(partial(device.release_host_view, view))
        if imports:
            end_quietly(partial(device.free, imported))
        end_quietly(partial(device.free, data))
        assert live_allocations(backend) == before
        try:
            device.free(device.allocate(256))  # opens it again for the next test, where it can
        except DeviceLost:
            return

    def test_lost_device_ends_a_wait(self, backend: Any, device: DeviceUnderTest) -> None:
        """A thread that waits in `synchronize` while the device is lost comes back."""
        self.need(backend, SupportsStreams)
        data, came = device.filled(b"d" * 256), threading.Event()
        work = self.busy(device)
        raised: list[BaseException] = []

        def wait() -> None:
            came.set()
            try:
                device.synchronize()
            except BaseException as exc:
                raised.append(exc)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert came.wait(self.patience)
        try:
            self.lose(device)
        finally:
            thread.join(self.patience)
        assert not thread.is_alive(), "the wait for a lost device never ends"
        assert all(isinstance(each, (DeviceLost, DeviceError)) for each in raised), raised
        device.free(data)
        del work
        try:
            device.synchronize()
        except Error:  # reports the loss
            try:
                device.free(device.allocate(256))
            except DeviceLost:
                return
