"""Copies: the bytes of numpy, between all kinds of memory and between devices."""

import numpy as np
import pytest

import dlbridge
from dlbridge.protocol import Region, Span
from dlbridge.testing import side

from .rig import default, memory, read, rig, stream


def calls_for(fake, device, shape, strides, source_strides, run):
    """How many of each call of `Rig.copy_calls` one strided copy takes; its bytes are checked."""
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + run
    source_reach = sum((n - 1) * s for n, s in zip(shape, source_strides, strict=True)) + run
    rng = np.random.default_rng(0)
    before, content = (rng.integers(0, 256, n, "u1") for n in (reach, source_reach))
    want = before.copy()
    window = np.lib.stride_tricks.as_strided
    window(want, [*shape, run], [*strides, 1])[...] = window(
        content, [*shape, run], [*source_strides, 1]
    )
    with memory(device, before.tobytes()) as target, memory(device, content.tobytes()) as source:
        counts = [fake.calls(name) for name in rig().copy_calls]
        device.copy_strided(
            *side(0, target, 0, shape, strides, run),
            *side(0, source, 0, shape, source_strides, run),
            default(),
        )
        counts = [
            fake.calls(name) - count for name, count in zip(rig().copy_calls, counts, strict=True)
        ]
        assert read(device, target, reach) == want.tobytes()
    return rig().calls_of_a_copy(tuple(counts))


def test_the_call_for_each_shape(fake, device, copied):
    *region, want = copied
    assert calls_for(fake, device, *region) == want


def test_pitches_that_are_too_long(fake, device):
    fake.attribute(11, 15)  # MAX_PITCH
    assert calls_for(fake, device, (3,), (16,), (10,), 8)[0] == 3


def test_the_shortest_dimension_is_cut(fake, device):
    """Where a region is no box: rectangles over the long dimension, wherever it lies."""
    assert calls_for(fake, device, (50, 2), (10, 4), (15, 7), 3)[:2] == (0, 2)
    assert calls_for(fake, device, (2, 50), (307, 6), (407, 8), 3)[:2] == (0, 2)


# Between devices ----------------------------------------------------------------


def test_peer_access_is_enabled_once(fake, device, two_devices):
    enabled, allowed = fake.calls("peer access"), fake.calls("pool access")
    with memory(device, b"p" * 100) as source, memory(device, 100, device_id=1) as target:
        for _ in range(3):
            device.copy(Span(1, target, 0, 100), Span(0, source, 0, 100), default())
            assert read(device, target, 100, device_id=1) == b"p" * 100
    assert fake.calls("peer access") == enabled + 1
    assert fake.calls("pool access") == allowed + 1


@pytest.mark.parametrize("code", [704, 711, 217])
def test_peer_access_that_is_refused(fake, device, two_devices, code):
    """Enabled already, too many peers, not supported: the copy works in any case."""
    fake.fail("peer access", code)
    with memory(device, b"p" * 100) as source, memory(device, 100, device_id=1) as target:
        device.copy(Span(1, target, 0, 100), Span(0, source, 0, 100), default())
        assert read(device, target, 100, device_id=1) == b"p" * 100


def test_work_on_a_stream_of_another_device(device, two_devices):
    """Pool memory has no context of its own: the stream's is current, whatever the work is."""
    content = bytes(range(256)) * 16
    with stream(1) as other, memory(device, content) as source, memory(device, 4096) as target:
        device.copy(Span(0, target, 0, 4096), Span(0, source, 0, 4096), other)
        assert read(device, target, 4096, other) == content
        device.fill(Span(0, target, 0, 4096), 0, other)
        device.copy_strided(
            *side(0, target, 0, [128], [16], 8), *side(0, source, 0, [128], [32], 8), other
        )
        want = np.zeros((256, 16), "u1")
        want[:128, :8] = np.frombuffer(content, "u1").reshape(128, 32)[:, :8]
        assert read(device, target, 4096, other) == want.tobytes()
        half = memoryview(bytearray(b"h" * 64))
        device.copy_strided_from_host(
            *side(0, target, 0, [8], [32], 8), half, Region((8,), (8,), 8), other
        )
        device.synchronize(0, other)
        want.reshape(128, 32)[:8, :8] = ord("h")
        assert read(device, target, 4096, other) == want.tobytes()


def test_every_kind_to_every_kind(kind):
    array = np.arange(60_000, dtype="i4")
    here = dlbridge.to_device(array, kind.name)
    for name in [*rig().kinds, "cpu"]:
        there = dlbridge.to_device(here, name, copy=True)
        assert there.device.name == name
        assert np.array_equal(np.asarray(dlbridge.to_device(there, "cpu")), array)
        assert there.data_ptr() != here.data_ptr()
        back = dlbridge.to_device(np.asarray(dlbridge.to_device(there, "cpu")), kind.name)
        assert np.array_equal(np.asarray(dlbridge.to_device(back, "cpu")), array)
