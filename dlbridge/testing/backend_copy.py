"""Copies that stay in the backend: inside a device, between devices, strided."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dlbridge.protocol import Region, SupportsCopy, SupportsStridedCopy

from .backend_base import (
    OPERATIONS,
    RUNS,
    BackendCase,
    DeviceUnderTest,
    are_same,
    drawn,
    random_bytes,
)
from .backend_memory import CHUNKED

SHAPE = (3, 4, 2, 3, 2, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1)
"""Runs per strided dimension, innermost first; `lengths` says which of them at once."""

GAPS = [(0, 0), (3, 6), (8, 0)], [(5, 0), (4, 8), (0, 0)]
"""Unused bytes after each run, and after the last one of each row, in target and source."""

FAR = (1 << 16) + 5
"""An offset that does not fit into 16 bits."""

OFFSETS = [(0, 0), (1, 0), (0, 3), (256, 4096), (FAR, 1), (1, FAR)]
"""Offsets of the target and of the source."""


LONG = 128 << 20
"""Bytes of a copy that is long; a limit of a driver's may be there."""

MARK = 8
"""Bytes of what is looked for."""


def lengths(ndim: int) -> list[int]:
    """A shape, outermost first: at most three inner and two outer dimensions longer than 1.

    Thousands of runs take minutes where a validation layer looks at each.
    """
    long = [axis for axis in range(ndim) if SHAPE[axis] > 1]
    kept = {*long[:3], *long[-2:]}
    return [SHAPE[axis] if axis in kept else 1 for axis in reversed(range(ndim))]


def shapes(ndim: int) -> list[list[int]]:
    """`lengths`, and the same with one row, and with rows of one run each."""
    usual = lengths(ndim)
    return [usual] if ndim != 2 else [usual, [1, *usual[1:]], [*usual[:-1], 1]]


def strides_of(shape: list[int], run_nbytes: int, gaps: tuple[int, int]) -> list[int]:
    """Strides of a region of that shape, outermost first, with the *gaps* (`GAPS`)."""
    strides, extent = [run_nbytes + gaps[0]], run_nbytes
    for length in reversed(shape[1:]):
        extent += (length - 1) * strides[0]
        strides.insert(0, extent + gaps[1])
    return strides


def region(
    memory: bytearray, offset: int, strides: list[int], shape: list[int], run_nbytes: int
) -> Any:
    """The region as a numpy view on *memory*."""
    start = np.frombuffer(memory, "u1")[offset:]
    return np.lib.stride_tricks.as_strided(start, [*shape, run_nbytes], [*strides, 1])


class CopyTests(BackendCase):
    """`SupportsCopy` and `SupportsStridedCopy`."""

    @pytest.mark.parametrize("bits", [20, 24, 30, 32])
    def test_offsets_are_not_cut(self, device: DeviceUnderTest, bits: int) -> None:
        """Far bytes are written and read, and not those that a cut offset names.

        By each member, as far as `max_nbytes` or `huge_nbytes` allows.
        """
        far, nbytes = (1 << bits) + 8, 256
        if far + nbytes > (most := max(self.max_nbytes, self.huge_nbytes)):
            pytest.skip(f"no test allocates more than {most} bytes (huge_nbytes)")
        runs, head = Region((2,), (128,), 128), random_bytes(nbytes, seed=1)
        data, near = device.allocate(far + nbytes), device.allocate(nbytes)
        there, here = device.span(data, far, nbytes), device.span(near, 0, nbytes)
        device.write(data, 8, head)
        for seed, (operation, needs) in enumerate(OPERATIONS.items(), 2):
            if not isinstance(device.backend, needs):
                continue
            content = random_bytes(nbytes, seed)
            device.write(near, 0, content)
            host = memoryview(bytearray(content))
            if not operation.endswith("to_host"):
                device.run(operation, there, here, host, runs)
                want = b"\2" * nbytes if operation == "fill" else content
                assert device.read(data, far, nbytes) == want, f"{operation}, to it"
            if operation != "fill" and not operation.endswith("from_host"):
                device.write(data, far, content[::-1])
                device.run(operation, here, there, host, runs)
                device.synchronize()
                got = host if operation.endswith("to_host") else device.read(near, 0, nbytes)
                assert got == content[::-1], f"{operation}, from it"
            assert device.read(data, 8, nbytes) == head, f"{operation}: written at a cut offset"

    @pytest.mark.parametrize("operation", [each for each in OPERATIONS if "host" in each])
    def test_host_memory_at_any_address(self, device: DeviceUnderTest, operation: str) -> None:
        """It begins at any byte and has any length; the bytes beside it stay."""
        self.need(device.backend, OPERATIONS[operation])
        for start in range(1, 18):
            nbytes = drawn(1, 5000)
            content, beside = random_bytes(nbytes, start), b"-" * start
            data = device.filled(bytes(nbytes))
            span, whole = device.span(data, 0, nbytes), Region((1,), (nbytes,), nbytes)
            memory = bytearray(beside + content + beside)
            host = memoryview(memory)[start : start + nbytes]
            if operation.endswith("to_host"):
                device.write(data, 0, content)
                host[:] = bytes(nbytes)
            device.run(operation, span, span, host, whole)
            assert device.holds(data, content), f"host memory from byte {start} on"
            assert memory == beside + content + beside, f"host memory from byte {start} on"

    @pytest.mark.parametrize("operation", ["copy_from_host", "copy_to_host", "copy", "fill"])
    def test_large_copies_are_not_cut(self, device: DeviceUnderTest, operation: str) -> None:
        """Bytes at places that are drawn in all of a copy of up to `copied_nbytes` arrive."""
        self.need(device.backend, OPERATIONS[operation])
        most = min(self.copied_nbytes, self.huge_nbytes // 2)
        if most <= LONG:
            pytest.skip(f"no test copies more than {most} bytes (huge_nbytes, copied_nbytes)")
        nbytes = drawn(most - 1024, most)
        part = nbytes // 64
        marks = [0, nbytes - MARK, *(drawn(at, at + part - MARK) for at in range(0, nbytes, part))]
        marks = sorted(at for at in marks if at <= nbytes - MARK)
        want = [bytes(MARK) if operation == "fill" else random_bytes(MARK, at) for at in marks]
        target = device.span(device.allocate(nbytes), 0, nbytes)
        source = target if operation == "fill" else target._replace(data=device.allocate(nbytes))
        host = memoryview(bytearray(nbytes))
        for at in marks:
            if operation == "copy_from_host":
                host[at : at + MARK] = random_bytes(MARK, at)
            else:
                device.write(source.data, at, random_bytes(MARK, at))
        if operation == "fill":  # with zeros, as most memory has them already
            device.fill(target.data, 0, nbytes, 0)
        else:
            device.run(operation, target, source, host, RUNS)
        device.synchronize()
        if operation == "copy_to_host":
            seen = [bytes(host[at : at + MARK]) for at in marks]
        else:
            seen = [device.read(target.data, at, MARK) for at in marks]
        wrong = [at for at, mark, wanted in zip(marks, seen, want, strict=True) if mark != wanted]
        assert wrong == [], f"{operation} of {nbytes} bytes: other bytes at these places"

    @pytest.mark.parametrize(
        ("offset", "source_offset", "nbytes"),
        [(*offsets, nbytes) for offsets in OFFSETS for nbytes in (1, 3, 256, 4096, (1 << 20) + 3)]
        + [(to, 3, nbytes) for to, nbytes in CHUNKED],
    )
    def test_copy_inside(
        self, device: DeviceUnderTest, offset: int, source_offset: int, nbytes: int
    ) -> None:
        """Any offset of one buffer to any offset of another."""
        self.need(device.backend, SupportsCopy)
        nbytes = min(nbytes, self.max_nbytes - 64)
        before = random_bytes(offset + nbytes + 3, seed=1)
        content = random_bytes(source_offset + nbytes + 3, seed=2)
        target, source = device.filled(before), device.filled(content)
        device.copy(device.span(target, offset, nbytes), device.span(source, source_offset, nbytes))
        moved = content[source_offset : source_offset + nbytes]
        assert device.holds(target, before[:offset] + moved + before[offset + nbytes :])

    @pytest.mark.parametrize(
        ("offset", "source_offset"), [(4096, 0), (0, 4096), (8192, 4096), (4103, 1), (3, 4099)]
    )
    def test_copy_within_one_buffer(
        self, device: DeviceUnderTest, offset: int, source_offset: int
    ) -> None:
        """Two regions of the same memory that do not overlap, in both directions."""
        self.need(device.backend, SupportsCopy)
        content = bytearray(random_bytes(3 * 4096 + 16))
        data = device.filled(bytes(content))
        for nbytes in (4096, 256, 50):
            device.copy(device.span(data, offset, nbytes), device.span(data, source_offset, nbytes))
            content[offset : offset + nbytes] = content[source_offset : source_offset + nbytes]
            assert device.read(data, 0, len(content)) == content

    @pytest.mark.parametrize("nbytes", [4000, *(nbytes for _, nbytes in CHUNKED)])
    def test_copy_between_devices(self, devices: list[DeviceUnderTest], nbytes: int) -> None:
        """Every device to every device, also in pieces that no chunk size divides."""
        self.need(devices[0].backend, SupportsCopy)
        nbytes = min(nbytes, self.max_nbytes - 64)
        content = random_bytes(nbytes + 10)
        for source in devices:
            data = source.filled(content)
            for target in devices:
                into = target.filled(b"-" * (nbytes + 10))
                target.copy(target.span(into, 3, nbytes), source.span(data, 7, nbytes))
                want = b"---" + content[7 : nbytes + 7] + b"-" * 7
                assert target.holds(into, want)
                target.free(into)

    def test_strided_copies(self, device: DeviceUnderTest) -> None:
        """From the host, inside and to the host, in every number of dimensions, as numpy does.

        Strides descend and no runs overlap: a row begins behind the last run of the row
        before it at the earliest, which may be no multiple of the stride inside.
        """
        backend = device.backend
        self.need(backend, SupportsStridedCopy)
        assert backend.max_strided_ndim >= 1
        for ndim in range(1, min(backend.max_strided_ndim, len(SHAPE)) + 1):
            runs = [1, 4, 7, 64] if ndim < 4 else [4, 7]
            pairs = itertools.product(*GAPS) if ndim < 4 else zip(*GAPS, strict=True)
            equal = drawn(1, 9), drawn(0, 9)
            # With equal strides on both sides, a copy of all bytes would be the shorter way.
            cases = itertools.product(runs, [*pairs, (equal, equal)], shapes(ndim))
            for run_nbytes, (gaps, source_gaps), shape in cases:
                strides = strides_of(shape, run_nbytes, gaps)
                source_strides = strides_of(shape, run_nbytes, source_gaps)
                far = FAR if run_nbytes == 7 else 0
                for function in ("from_host", "inside", "to_host"):
                    got, want = self.strided(
                        device, function, strides, source_strides, shape, run_nbytes, far
                    )
                    assert are_same(got, want), (
                        f"{function}, {shape} runs of {run_nbytes}, {strides}"
                    )
                    device.close()

    @pytest.mark.parametrize(
        ("run_nbytes", "gap", "length"),
        [((1 << 16) + 5, 3, 3), (5, 2 << 20, 3), (12, 3, 300), (1, 2, 1537)],
        ids=["long runs", "far runs", "many runs", "many bytes"],
    )
    def test_strided_copies_are_not_cut(
        self, device: DeviceUnderTest, run_nbytes: int, gap: int, length: int
    ) -> None:
        """The same with runs of more than 64 KiB, runs 2 MiB apart, 300 runs, 1,537 bytes.

        With other strides on the two sides, and with equal ones.
        """
        self.need(device.backend, SupportsStridedCopy)
        stride = run_nbytes + gap
        if (nbytes := length * (stride + 5) + 32) > self.max_nbytes:
            pytest.skip(f"no test allocates {nbytes} bytes (max_nbytes)")
        cases = itertools.product((stride + 5, stride), ("from_host", "inside", "to_host"))
        for source_stride, function in cases:
            sides = [stride], [source_stride]
            got, want = self.strided(device, function, *sides, [length], run_nbytes, 0)
            assert are_same(got, want), f"{function}, {length} runs of {run_nbytes}, {sides}"
            device.close()

    @pytest.mark.parametrize("bits", [22, 31])
    def test_strides_are_not_cut(self, device: DeviceUnderTest, bits: int) -> None:
        """Two runs that are as far apart as `max_nbytes` or `huge_nbytes` allows, both ways."""
        self.need(device.backend, SupportsStridedCopy)
        far, nbytes = Region((2,), ((1 << bits) + 512,), 256), 512
        if far.extent + nbytes > (most := max(self.max_nbytes, self.huge_nbytes)):
            pytest.skip(f"no test allocates more than {most} bytes (huge_nbytes)")
        near = Region((2,), (256,), 256)
        data, small = device.allocate(far.extent), device.allocate(nbytes)
        there, here = device.span(data, 0, far.extent), device.span(small, 0, nbytes)
        content, ends = random_bytes(nbytes), (0, far.strides[0])
        host = memoryview(bytearray(content))
        for source in (host, here):
            device.write(small, 0, content)
            device.write(data, 0, bytes(1024))
            device.write(data, ends[1], bytes(256))
            device.copy(there, source, far, near)
            assert b"".join(device.read(data, at, 256) for at in ends) == content, "to far runs"
        for into in (host, here):
            host[:] = bytes(nbytes)
            device.write(small, 0, bytes(nbytes))
            device.copy(into, there, near, far)
            device.synchronize()
            got = host if into is host else device.read(small, 0, nbytes)
            assert got == content, "from far runs"

    def strided(
        self,
        device: DeviceUnderTest,
        function: str,
        strides: list[int],
        source_strides: list[int],
        shape: list[int],
        run_nbytes: int,
        far: int,
    ) -> tuple[bytes, bytes]:
        """The target after one strided copy, and after the same copy by numpy."""
        # Offsets exist on the device's side only.
        to = 0 if function == "to_host" else far + 5
        at = 0 if function == "from_host" else far + 6
        source = random_bytes(at + source_strides[0] * shape[0] + 16, seed=1)
        target = bytearray(random_bytes(to + strides[0] * shape[0] + 16, seed=2))
        want = bytearray(target)
        region(want, to, strides, shape, run_nbytes)[...] = region(
            bytearray(source), at, source_strides, shape, run_nbytes
        )
        steps = strides, source_strides
        regions = [Region(tuple(shape), tuple(each), run_nbytes) for each in steps]
        data = device.filled(bytes(target))
        into = device.span(data, to, regions[0].extent)
        origin = device.span(device.filled(source), at, regions[1].extent)
        device.copy(
            memoryview(target) if function == "to_host" else into,
            memoryview(source) if function == "from_host" else origin,
            *regions,
        )
        device.synchronize()
        got = bytes(target) if function == "to_host" else device.read(data, 0, len(target))
        return got, bytes(want)
