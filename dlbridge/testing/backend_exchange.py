"""Export and import of the device's tensors, as other libraries and threads do it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import dlbridge
from dlbridge import DLDeviceType
from dlbridge.protocol import ADDRESS_DEVICES, HOST_DEVICES, SupportsStreams

from .backend_moves import Lives, PublicCase, numbers, on_host

if TYPE_CHECKING:
    from .backend_base import DeviceUnderTest

__all__ = ["ExchangeTests"]

VERSIONS = [None, (1, 0), (1, 3)]
"""Values that consumers pass as ``max_version``: None gives the legacy capsule."""


class ExchangeTests(PublicCase):
    """Capsules, consumers' streams, host views, threads and errors."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_export_and_import(self, where: str, version: Any, lives: Lives) -> None:
        """The same memory comes back from a capsule, and lives as long as its last user."""
        array = numbers((6, 7))
        whole = dlbridge.to_device(array, where, copy=True)
        data, tensor = whole.operand().data, whole[1:, 2:5]
        kept = tensor.data_ptr(), tensor.byte_offset, tensor.shape, tensor.strides, tensor.device
        capsule = tensor.__dlpack__(max_version=version)
        again = dlbridge.from_dlpack(capsule)
        assert "used_dltensor" in repr(capsule)
        del whole, tensor, capsule
        gc.collect()
        assert (
            again.data_ptr(),
            again.byte_offset,
            again.shape,
            again.strides,
            again.device,
        ) == kept
        assert data in lives.live()
        assert np.array_equal(on_host(again), array[1:, 2:5])

    @pytest.mark.parametrize("version", VERSIONS)
    def test_deleters_run_once(self, where: str, version: Any, lives: Lives) -> None:
        """A capsule imported never, once, and twice, which fails."""
        for taken in (0, 1, 2):
            tensor = dlbridge.empty(100, "uint8", where)
            data = tensor.operand().data
            capsule = tensor.__dlpack__(max_version=version)
            del tensor
            users = [dlbridge.from_dlpack(capsule) for _ in range(min(taken, 1))]
            if taken == 2:
                with pytest.raises(BufferError):
                    dlbridge.from_dlpack(capsule)
            assert data in lives.live()
            del capsule
            assert (data in lives.live()) == bool(taken)
            users.clear()
            gc.collect()
            assert data not in lives.live()

    def test_offsets_of_views(self, backend: Any, where: str) -> None:
        """An offset is added to an address, and kept beside a handle."""
        tensor = dlbridge.to_device(numbers((100,), "uint8"), where, copy=True)
        view = tensor[3:]
        if backend.device_type in ADDRESS_DEVICES:
            assert (view.data_ptr(), view.byte_offset) == (tensor.data_ptr() + 3, 0)
        else:
            assert (view.data_ptr(), view.byte_offset) == (tensor.data_ptr(), 3)
        assert on_host(view)[0] == 4

    def test_dlpack_device(self, backend: Any, where: str) -> None:
        """Two plain ints, as consumers ask for them."""
        pair = dlbridge.empty(1, "uint8", where).__dlpack_device__()
        assert pair == (backend.device_type, self.device_id)
        assert [type(part) for part in pair] == [int, int]

    def test_export_to_the_host(self, backend: Any, where: str) -> None:  # S12
        """A consumer that asks for the CPU gets finished work there, and passes no stream."""
        tensor = dlbridge.to_device(numbers((6, 7)), where, copy=True)
        capsule = tensor.__dlpack__(dl_device=(1, 0), max_version=(1, 3))
        host = dlbridge.from_dlpack(capsule)
        assert str(host.device) == "cpu:0"
        assert np.array_equal(host.numpy(), numbers((6, 7)))
        if backend.device_type not in HOST_DEVICES:
            with pytest.raises(ValueError, match="stream"):
                tensor.__dlpack__(dl_device=(1, 0), stream=1)

    def test_consumers_streams(self, backend: Any, where: str) -> None:  # S3 S9 S10
        """None and -1 are accepted; an object that is not a stream is refused."""
        if self.name == "cpu":
            pytest.skip("CPU tensors are exported by numpy, which raises other errors for streams")
        tensor = dlbridge.to_device(numbers((10,)), where, copy=True)
        for stream in (None, -1):
            capsule = tensor.__dlpack__(max_version=(1, 3), stream=stream)
            assert dlbridge.from_dlpack(capsule).shape == (10,)
        if isinstance(backend, SupportsStreams):
            for no_stream in (True, object(), "0"):
                with pytest.raises(TypeError):
                    tensor.__dlpack__(stream=no_stream)

    def test_consumers_stream_waits(  # S17
        self, backend: Any, where: str, device: DeviceUnderTest
    ) -> None:
        """Work that a consumer queues on its own stream comes after ours."""
        self.need(backend, SupportsStreams)
        # An attribute: `device` is closed after this function, and may still need them.
        mine, theirs = (self.make_stream(backend, self.device_id) for _ in range(2))
        self.made = mine, theirs
        array = numbers((100_000,))
        source = dlbridge.to_device(array, where, copy=True)
        if source.device.is_host and source.device.type != DLDeviceType.kDLCUDAManaged:
            pytest.skip("the standard has no streams for host memory (S1)")
        with dlbridge.use_stream(where, mine) as handle:
            alive = self.busy(device.on(handle))
            tensor = dlbridge.to_device(source, where, copy=True)
            capsule = tensor.__dlpack__(stream=theirs)
        with dlbridge.use_stream(where, theirs):
            assert np.array_equal(on_host(dlbridge.from_dlpack(capsule)), array)
        del alive

    def test_host_view_of_a_tensor(self, device: DeviceUnderTest, where: str) -> None:
        """The device sees, after the block, the values that the host wrote in it."""
        tensor = dlbridge.to_device(numbers((6, 7)), where, copy=True)
        if not device.can_view(tensor.operand().data):
            with pytest.raises(BufferError), tensor.host_view():
                pytest.fail("there is no host view")
            return
        with tensor[1:, 2:5].host_view() as host:
            assert np.array_equal(host.numpy(), numbers((6, 7))[1:, 2:5])
            host.numpy()[:] = -1
            del host
        want = numbers((6, 7))
        want[1:, 2:5] = -1
        assert np.array_equal(on_host(tensor), want)

    def test_moving_leaks_nothing(self, where: str, lives: Lives) -> None:
        """A hundred moves to the device and back free all the memory that they used."""
        array = numbers((1000,))
        for _ in range(100):
            moved = dlbridge.to_device(array, where, copy=True)
            assert np.array_equal(on_host(dlbridge.to_device(moved[::2], where)), array[::2])
        del moved
        gc.collect()
        assert not lives.live()

    def test_errors_leave_all_in_order(self, where: str, lives: Lives) -> None:
        """Wrong shapes, read-only targets, no room: refused, and the device works on."""
        tensor = dlbridge.to_device(numbers((10,)), where, copy=True)
        with pytest.raises(ValueError, match="shape"):
            dlbridge.copy_(tensor, numbers((11,)))
        with pytest.raises(MemoryError):
            dlbridge.empty(1 << 60, "uint8", where)
        with pytest.raises(dlbridge.ExchangeError, match="there is no"):
            dlbridge.empty(1, "uint8", f"{self.name}:1000")
        assert np.array_equal(on_host(tensor), numbers((10,)))
