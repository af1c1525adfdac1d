"""Copies: the right call for each shape, the bytes of numpy, and two devices."""

import numpy as np
import pytest
from rocm_support import memory, read, stream

import dlbridge
from dlbridge.errors import DeviceError, ExchangeError

MAX_PITCH = 11  # CUdevice_attribute, below the shim


def calls_for(fake, backend, shape, strides, source_strides, run):
    """(linear, 2-D) calls that one strided copy takes, after checking its bytes."""
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + run
    source_reach = sum((n - 1) * s for n, s in zip(shape, source_strides, strict=True)) + run
    rng = np.random.default_rng(0)
    before, content = (rng.integers(0, 256, n, "u1") for n in (reach, source_reach))
    want = before.copy()
    window = np.lib.stride_tricks.as_strided
    window(want, [*shape, run], [*strides, 1])[...] = window(
        content, [*shape, run], [*source_strides, 1]
    )
    with memory(backend, before.tobytes()) as target, memory(backend, content.tobytes()) as source:
        linear, flat = fake.calls("hipMemcpyAsync"), fake.calls("hipMemcpy2DAsync")
        backend.copy_strided(0, target, 0, strides, source, 0, source_strides, shape, run, 0)
        counts = fake.calls("hipMemcpyAsync") - linear, fake.calls("hipMemcpy2DAsync") - flat
        assert read(backend, target, reach) == want.tobytes()
    return counts


@pytest.mark.parametrize(
    ("shape", "strides", "source_strides", "run", "want"),
    [
        ((5,), (10,), (16,), 8, (0, 1)),
        ((3, 5), (50, 10), (160, 16), 8, (0, 3)),
        ((5, 3), (10, 50), (16, 160), 8, (0, 5)),  # the outer dimension is the finer one
        ((1, 5), (7, 10), (3, 16), 8, (0, 1)),
        ((1,), (1,), (1,), 8, (1, 0)),
        ((4,), (8,), (3,), 8, (4, 0)),  # runs of the source overlap
        ((2, 4), (40, 8), (12, 3), 8, (8, 0)),
    ],
)
def test_the_call_for_each_shape(fake, rocm, shape, strides, source_strides, run, want):
    assert calls_for(fake, rocm, shape, strides, source_strides, run) == want


def test_pitches_that_are_too_long(fake, rocm):
    fake.attribute(MAX_PITCH, 15)
    assert calls_for(fake, rocm, (3,), (16,), (10,), 8) == (3, 0)


VIEWS = {
    "rows": lambda a: a[::2],
    "thirds": lambda a: a[:, ::3],
    "elements": lambda a: a[..., ::2],
    "box": lambda a: a[1:, 2:5, 1:7],
    "column": lambda a: a[:, :, 3],
    "transposed": lambda a: a.transpose(2, 0, 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strided_tensors_come_back_as_numpy_has_them(rocm, view):
    array = np.arange(4 * 6 * 8, dtype="i4").reshape(4, 6, 8)
    tensor = dlbridge.to_device(array, "rocm:0")
    want = view(array)
    assert dlbridge.to_device(view(tensor), "cpu", copy=True).tolist() == want.tolist()
    copy = dlbridge.zeros(want.shape, "int32", "rocm:0")
    dlbridge.copy_(copy, view(tensor))
    assert copy.tolist() == want.tolist()
    dlbridge.copy_(view(tensor), np.ascontiguousarray(want) + 1000)
    changed = array.copy()
    view(changed)[...] += 1000
    assert tensor.tolist() == changed.tolist()


def test_peer_access_is_enabled_once(fake, rocm, two_devices):
    enabled, allowed = fake.calls("hipDeviceEnablePeerAccess"), fake.calls("hipMemPoolSetAccess")
    with memory(rocm, b"p" * 100) as source, memory(rocm, 100, device_id=1) as target:
        for _ in range(3):
            rocm.copy(1, target, 0, 0, source, 0, 100, 0)
            assert read(rocm, target, 100, device_id=1) == b"p" * 100
    assert fake.calls("hipDeviceEnablePeerAccess") == enabled + 1
    assert fake.calls("hipMemPoolSetAccess") == allowed + 1


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("hipDeviceEnablePeerAccess", 704),
        ("hipDeviceEnablePeerAccess", 217),
        ("hipMemPoolSetAccess", 801),
    ],
)
def test_peer_access_that_is_not_to_be_had(fake, rocm, two_devices, function, code):
    """Enabled already, not supported: the copy works in any case."""
    fake.fail(function, code)
    with memory(rocm, b"p" * 100) as source, memory(rocm, 100, device_id=1) as target:
        rocm.copy(1, target, 0, 0, source, 0, 100, 0)
        assert read(rocm, target, 100, device_id=1) == b"p" * 100


def test_tensors_between_devices(rocm, two_devices):
    array = np.arange(1000.0)
    first = dlbridge.to_device(array, "rocm:0")
    second = dlbridge.to_device(first, "rocm:1")
    assert "peer copy" in dlbridge.explain(first, "rocm:1")
    assert second.tolist() == array.tolist()
    assert dlbridge.to_device(second[::2], "rocm:0").tolist() == array[::2].tolist()


def test_a_source_device_that_is_not_there(rocm):
    with memory(rocm, 8) as data, pytest.raises(ExchangeError, match="no rocm:99"):
        rocm.copy(0, data, 0, 99, data, 0, 8, 0)


def test_a_fill_past_the_end(fake, rocm):
    """The runtime knows its allocations."""
    with memory(rocm, 100) as data, stream() as own, pytest.raises(DeviceError, match="Invalid"):
        rocm.fill(0, data, 50, 51, 0, own)


@pytest.mark.parametrize("source", ["rocm", "rocm_host", "cpu"])
@pytest.mark.parametrize("target", ["rocm", "rocm_host", "cpu"])
def test_every_kind_to_every_kind(rocm, source, target):
    array = np.arange(60_000, dtype="i4")
    here = dlbridge.to_device(array, source)
    there = dlbridge.to_device(here, target, copy=True)
    assert there.device.name == target
    assert np.array_equal(np.asarray(dlbridge.to_device(there, "cpu")), array)
    assert there.data_ptr() != here.data_ptr()
