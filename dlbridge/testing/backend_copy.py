"""Copies that stay in the backend: inside a device, between devices, strided."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dlbridge.errors import Error
from dlbridge.protocol import ADDRESS_DEVICES, SupportsCopy, SupportsStridedCopy

from .backend_base import BackendCase, DeviceUnderTest, random_bytes

__all__ = ["CopyTests"]

SHAPE = (3, 4, 2, 3, 2)
"""Runs per strided dimension, innermost first."""

GAPS = [0, 3, 8], [0, 4, 5]
"""Unused bytes after each run and row, in the target and in the source."""


def strides_of(ndim: int, run_nbytes: int, gap: int) -> list[int]:
    """Strides of a region of `SHAPE`, outermost first, *gap* bytes after each row of each dim."""
    strides = [run_nbytes + gap]
    for length in SHAPE[: ndim - 1]:
        strides.insert(0, strides[0] * length + gap)
    return strides


def region(
    memory: bytearray, offset: int, strides: list[int], shape: list[int], run_nbytes: int
) -> Any:
    """The region as a numpy view on *memory*."""
    start = np.frombuffer(memory, "u1")[offset:]
    return np.lib.stride_tricks.as_strided(start, [*shape, run_nbytes], [*strides, 1])


class CopyTests(BackendCase):
    """`SupportsCopy` and `SupportsStridedCopy`."""

    @pytest.mark.parametrize("nbytes", [1, 3, 256, 4096, (1 << 20) + 3])
    @pytest.mark.parametrize(("offset", "source_offset"), [(0, 0), (1, 0), (0, 3), (256, 4096)])
    def test_copy_inside(
        self, device: DeviceUnderTest, nbytes: int, offset: int, source_offset: int
    ) -> None:
        """Any offset of one buffer to any offset of another."""
        self.need(device.backend, SupportsCopy)
        before = random_bytes(offset + nbytes + 3, seed=1)
        content = random_bytes(source_offset + nbytes + 3, seed=2)
        target, source = device.filled(before), device.filled(content)
        device_id = device.device_id
        device.backend.copy(
            device_id, target, offset, device_id, source, source_offset, nbytes, device.stream
        )
        moved = content[source_offset : source_offset + nbytes]
        assert device.read(target, 0, len(before)) == (
            before[:offset] + moved + before[offset + nbytes :]
        )

    def test_copy_within_one_buffer(self, device: DeviceUnderTest) -> None:
        """Two regions of the same memory that do not overlap."""
        self.need(device.backend, SupportsCopy)
        data = device.filled(b"a" * 100 + b"b" * 100)
        device.backend.copy(
            device.device_id, data, 100, device.device_id, data, 0, 50, device.stream
        )
        assert device.read(data, 0, 200) == b"a" * 150 + b"b" * 50

    def test_copy_between_devices(self, devices: list[DeviceUnderTest]) -> None:
        """Every device to every device."""
        self.need(devices[0].backend, SupportsCopy)
        content = random_bytes(5000)
        for source in devices:
            data = source.filled(content)
            for target in devices:
                into = target.filled(b"-" * 5010)
                target.backend.copy(
                    target.device_id, into, 3, source.device_id, data, 7, 4000, target.stream
                )
                want = b"---" + content[7:4007] + b"-" * 1007
                assert target.read(into, 0, 5010) == want

    @pytest.mark.parametrize(("offset", "source_offset"), [(1, 0), (0, 1), (-1, 0), (1 << 40, 0)])
    def test_copy_out_of_bounds_is_refused(
        self, device: DeviceUnderTest, offset: int, source_offset: int
    ) -> None:
        """If ``data`` is a handle, neither side may reach outside its memory."""
        self.need(device.backend, SupportsCopy)
        if device.backend.device_type in ADDRESS_DEVICES and self.name != "cpu":
            pytest.skip("data is an address, so the size of the memory is not known")
        target, source = device.filled(b"t" * 100), device.filled(b"s" * 100)
        device_id = device.device_id
        with pytest.raises((Error, ValueError)):
            device.backend.copy(
                device_id, target, offset, device_id, source, source_offset, 100, device.stream
            )
        assert device.read(target, 0, 100) == b"t" * 100

    def test_strided_copies(self, device: DeviceUnderTest) -> None:
        """From the host, inside and to the host, in every number of dimensions, as numpy does.

        Strides descend; with a gap in every dimension the outer ones are no
        multiples of the inner ones.
        """
        backend = device.backend
        self.need(backend, SupportsStridedCopy)
        assert backend.max_strided_ndim >= 1
        for ndim in range(1, min(backend.max_strided_ndim, len(SHAPE)) + 1):
            for run_nbytes, gap, source_gap in itertools.product([1, 4, 7, 64], *GAPS):
                shape = list(reversed(SHAPE[:ndim]))
                strides = strides_of(ndim, run_nbytes, gap)
                source_strides = strides_of(ndim, run_nbytes, source_gap)
                for function in ("from_host", "inside", "to_host"):
                    got, want = self.strided(
                        device, function, strides, source_strides, shape, run_nbytes
                    )
                    assert got == want, f"{function}, {shape} runs of {run_nbytes}, {strides}"
                    device.close()

    def strided(
        self,
        device: DeviceUnderTest,
        function: str,
        strides: list[int],
        source_strides: list[int],
        shape: list[int],
        run_nbytes: int,
    ) -> tuple[bytes, bytes]:
        """The target after one strided copy, and after the same copy by numpy."""
        backend = device.backend
        source = random_bytes(source_strides[0] * shape[0] + 16, seed=1)
        target = bytearray(random_bytes(strides[0] * shape[0] + 16, seed=2))
        want = bytearray(target)
        # Offsets exist on the device's side only.
        to, at = (0 if function == "to_host" else 5), (0 if function == "from_host" else 6)
        region(want, to, strides, shape, run_nbytes)[...] = region(
            bytearray(source), at, source_strides, shape, run_nbytes
        )
        device_id, tail = device.device_id, (shape, run_nbytes, device.stream)
        if function == "to_host":
            view = memoryview(target)
            data = device.filled(source)
            backend.copy_strided_to_host(device_id, data, at, source_strides, view, strides, *tail)
            device.synchronize()
            return bytes(target), bytes(want)
        data = device.filled(bytes(target))
        if function == "from_host":
            host = memoryview(source)
            backend.copy_strided_from_host(
                device_id, data, to, strides, host, source_strides, *tail
            )
        else:
            origin = device.filled(source)
            backend.copy_strided(device_id, data, to, strides, origin, at, source_strides, *tail)
        return device.read(data, 0, len(target)), bytes(want)
