"""Copies: the bytes of numpy, between all kinds of memory and between devices."""

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import DeviceError, ExchangeError
from dlbridge.protocol import Region, Span
from dlbridge.testing import side

from .rig import default, memory, read, rig, stream

VIEWS = {
    "rows": lambda a: a[::2],
    "thirds": lambda a: a[:, ::3],
    "elements": lambda a: a[..., ::2],
    "box": lambda a: a[1:, 2:5, 1:7],
    "column": lambda a: a[:, :, 3],
    "transposed": lambda a: a.transpose(2, 0, 1),
}


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
    return tuple(counts)


def test_pitches_that_are_too_long(fake, device):
    fake.attribute(11, 15)  # MAX_PITCH
    assert calls_for(fake, device, (3,), (16,), (10,), 8)[0] == 3


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strided_tensors_come_back_as_numpy_has_them(kind, view):
    array = np.arange(4 * 6 * 8, dtype="i4").reshape(4, 6, 8)
    tensor = dlbridge.to_device(array, kind.name)
    want = view(array)
    assert dlbridge.to_device(view(tensor), "cpu", copy=True).tolist() == want.tolist()
    copy = dlbridge.zeros(want.shape, "int32", kind.name)
    dlbridge.copy_(copy, view(tensor))
    assert copy.tolist() == want.tolist()
    dlbridge.copy_(view(tensor), np.ascontiguousarray(want) + 1000)
    changed = array.copy()
    view(changed)[...] += 1000
    assert tensor.tolist() == changed.tolist()


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


def test_tensors_between_devices(device, two_devices):
    array, name = np.arange(1000.0), rig().device
    first = dlbridge.to_device(array, f"{name}:0")
    second = dlbridge.to_device(first, f"{name}:1")
    assert "peer copy" in dlbridge.explain(first, f"{name}:1")
    assert second.tolist() == array.tolist()
    assert dlbridge.to_device(second[::2], f"{name}:0").tolist() == array[::2].tolist()


def test_a_source_device_that_does_not_exist(device):
    with memory(device, 8) as data, pytest.raises(ExchangeError, match=r"no \w+:99"):
        device.copy(Span(0, data, 0, 8), Span(99, data, 0, 8), default())


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


def test_a_fill_past_the_end(fake, device):
    """The driver knows its allocations."""
    with memory(device, 100) as data, stream() as own, pytest.raises(DeviceError, match=r"(?i)inv"):
        device.fill(Span(0, data, 50, 51), 0, own)


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
