"""Copies inside CUDA: the right call for each shape, and the bytes of numpy."""

import numpy as np
import pytest
from cuda_support import memory, read, stream

import dlbridge
from dlbridge.errors import DeviceError, ExchangeError

CALLS = ("cuMemcpyAsync", "cuMemcpy2DAsync", "cuMemcpy3DAsync")


def calls_for(fake, backend, shape, strides, source_strides, run):
    """How many of each call one strided copy takes, after checking its bytes."""
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + run
    source_reach = sum((n - 1) * s for n, s in zip(shape, source_strides, strict=True)) + run
    rng = np.random.default_rng(0)
    before = rng.integers(0, 256, reach, "u1")
    content = rng.integers(0, 256, source_reach, "u1")
    want = before.copy()
    window = np.lib.stride_tricks.as_strided
    window(want, [*shape, run], [*strides, 1])[...] = window(
        content, [*shape, run], [*source_strides, 1]
    )
    with memory(backend, before.tobytes()) as target, memory(backend, content.tobytes()) as source:
        counts = [fake.calls(name) for name in CALLS]
        backend.copy_strided(0, target, 0, strides, source, 0, source_strides, shape, run, 1)
        counts = [fake.calls(name) - count for name, count in zip(CALLS, counts, strict=True)]
        assert read(backend, target, reach) == want.tobytes()
    linear, flat, box = counts
    return linear, flat, box - flat  # the double makes 2-D copies by its 3-D one


@pytest.mark.parametrize(
    ("shape", "strides", "source_strides", "run", "want"),
    [
        ((5,), (10,), (16,), 8, (0, 1, 0)),
        ((3, 5), (50, 10), (160, 16), 8, (0, 0, 1)),
        ((3, 5), (60, 10), (96, 16), 8, (0, 0, 1)),
        ((3, 5), (55, 10), (160, 16), 8, (0, 3, 0)),  # planes that are no whole rows
        ((3, 5), (50, 10), (83, 16), 8, (0, 3, 0)),
        ((5, 3), (10, 50), (16, 160), 8, (0, 5, 0)),  # the outer dimension is the finer one
        ((1, 5), (7, 10), (3, 16), 8, (0, 1, 0)),  # one plane has no stride
        ((5, 1), (10, 7), (16, 3), 8, (0, 1, 0)),
        ((1, 1), (7, 7), (3, 3), 8, (1, 0, 0)),
        ((1,), (1,), (1,), 8, (1, 0, 0)),
        ((4,), (8,), (3,), 8, (4, 0, 0)),  # runs of the source overlap
    ],
)  # fmt: skip
def test_the_call_for_each_shape(fake, cuda, shape, strides, source_strides, run, want):
    assert calls_for(fake, cuda, shape, strides, source_strides, run) == want


def test_pitches_that_are_too_long(fake, cuda):
    fake.attribute("MAX_PITCH", 15)
    assert calls_for(fake, cuda, (3,), (16,), (10,), 8) == (3, 0, 0)


VIEWS = {
    "rows": lambda a: a[::2],
    "thirds": lambda a: a[:, ::3],
    "elements": lambda a: a[..., ::2],
    "box": lambda a: a[1:, 2:5, 1:7],
    "column": lambda a: a[:, :, 3],
    "transposed": lambda a: a.transpose(2, 0, 1),
}


@pytest.mark.parametrize("name", ["cuda", "cuda_managed"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strided_tensors_come_back_as_numpy_has_them(cuda, name, view):
    array = np.arange(4 * 6 * 8, dtype="i4").reshape(4, 6, 8)
    tensor = dlbridge.to_device(array, name)
    want = view(array)
    assert dlbridge.to_device(view(tensor), "cpu", copy=True).tolist() == want.tolist()
    copy = dlbridge.zeros(want.shape, "int32", name)
    dlbridge.copy_(copy, view(tensor))
    assert copy.tolist() == want.tolist()
    dlbridge.copy_(view(tensor), np.ascontiguousarray(want) + 1000)
    changed = array.copy()
    view(changed)[...] += 1000
    assert tensor.tolist() == changed.tolist()


# Between devices ----------------------------------------------------------------


def test_peer_access_is_enabled_once(fake, cuda, two_devices):
    from dlbridge_cuda import copies

    copies._let_see.cache_clear()
    enabled, allowed = fake.calls("cuCtxEnablePeerAccess"), fake.calls("cuMemPoolSetAccess")
    with memory(cuda, b"p" * 100) as source, memory(cuda, 100, device_id=1) as target:
        for _ in range(3):
            cuda.copy(1, target, 0, 0, source, 0, 100, 1)
            assert read(cuda, target, 100, device_id=1) == b"p" * 100
    assert fake.calls("cuCtxEnablePeerAccess") == enabled + 1
    assert fake.calls("cuMemPoolSetAccess") == allowed + 1


@pytest.mark.parametrize("code", [704, 711, 217])
def test_peer_access_that_is_not_to_be_had(fake, cuda, two_devices, code):
    """Enabled already, too many peers, not supported: the copy works in any case."""
    from dlbridge_cuda import copies

    copies._let_see.cache_clear()
    fake.fail("cuCtxEnablePeerAccess", code)
    with memory(cuda, b"p" * 100) as source, memory(cuda, 100, device_id=1) as target:
        cuda.copy(1, target, 0, 0, source, 0, 100, 1)
        assert read(cuda, target, 100, device_id=1) == b"p" * 100


def test_tensors_between_devices(cuda, two_devices):
    array = np.arange(1000.0)
    first = dlbridge.to_device(array, "cuda:0")
    second = dlbridge.to_device(first, "cuda:1")
    assert "peer copy" in dlbridge.explain(first, "cuda:1")
    assert second.tolist() == array.tolist()
    assert dlbridge.to_device(second[::2], "cuda:0").tolist() == array[::2].tolist()


def test_a_source_device_that_is_not_there(cuda):
    with memory(cuda, 8) as data, pytest.raises(ExchangeError, match="no cuda:99"):
        cuda.copy(0, data, 0, 99, data, 0, 8, 1)


def test_a_copy_past_the_end(fake, cuda):
    """The driver knows its allocations."""
    with (
        memory(cuda, 100) as data,
        stream() as own,
        pytest.raises(DeviceError, match="INVALID_VALUE"),
    ):
        cuda.fill(0, data, 50, 51, 0, own)


@pytest.mark.parametrize("source", ["cuda", "cuda_host", "cuda_managed", "cpu"])
@pytest.mark.parametrize("target", ["cuda", "cuda_host", "cuda_managed", "cpu"])
def test_every_kind_to_every_kind(cuda, source, target):
    array = np.arange(60_000, dtype="i4")
    here = dlbridge.to_device(array, source)
    there = dlbridge.to_device(here, target, copy=True)
    assert there.device.name == target
    assert np.array_equal(np.asarray(dlbridge.to_device(there, "cpu")), array)
    assert there.data_ptr() != here.data_ptr()
