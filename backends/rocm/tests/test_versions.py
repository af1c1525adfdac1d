"""HIP 5.2, 6.1 and 7.0: what differs between them, as the shim claims to be each."""

import ctypes

import numpy as np
import pytest

import dlbridge
from backends.rocm.tests.rocm_support import memory, read, stream
from dlbridge.errors import DeviceError, ExchangeError

VERSIONS = [(5, 2), (6, 1), (7, 0)]


@pytest.fixture(params=VERSIONS, ids=["5.2", "6.1", "7.0"])
def version(request, fake):
    fake.version(*request.param)
    return request.param


def test_the_version_is_read(version, rocm):
    assert rocm.driver.version() == version
    assert rocm.device_info(0)["driver"] == f"HIP {version[0]}.{version[1]}"


@pytest.mark.parametrize(
    ("number", "want"), [(50221153, (5, 2)), (60140092, (6, 1)), (70051831, (7, 0))]
)
def test_real_version_numbers(fake, rocm, number, want):
    """As releases said them: Debian's 5.2.3, ROCm 6.1, ROCm 7.0."""
    fake.top.fake_hip_version(number)
    fake.forget()
    assert rocm.driver.version() == want


def test_where_pointers_live(version, fake, rocm, rocm_host):
    """hipMemoryType was renumbered between 5 and 6: 1 is Device, then Host."""
    from dlbridge_rocm.gpu import gpu

    with memory(rocm, 64) as device, memory(rocm_host, 64) as host:
        assert gpu.locate(device, 0).kind == "device"
        assert gpu.locate(device + 63, 0).kind == "device"
        assert gpu.locate(host, 0).kind == "host"
    assert gpu.locate(ctypes.addressof(ctypes.create_string_buffer(8)), 0).kind == "pageable"


def test_the_numbers_do_differ(fake, rocm):
    """The shim's type of device memory, without our table."""
    from dlbridge_rocm.library import PointerAttributes

    attributes = PointerAttributes()
    with memory(rocm, 64) as data:
        types = []
        for version in VERSIONS:
            fake.version(*version)
            rocm.driver.call("locate", ctypes.byref(attributes), data)
            types.append(attributes.type)
    assert types == [1, 2, 2]


def test_managed_memory(version, rocm):
    from dlbridge_rocm.gpu import gpu

    from backends.rocm.tests.rocm_support import current, hip

    data = ctypes.c_void_p()
    with current(0):
        hip("hipMallocManaged", ctypes.byref(data), 64, 1)
    assert gpu.locate(data.value, 0).kind == "managed"
    assert rocm.import_data(0, data.value, "test") == (0, data.value)
    hip("hipFree", data.value)


def test_plain_host_memory_that_is_an_error(version, fake, kind):
    """As in HIP 5, and in releases of 6 and 7: their documentation says so."""
    data = ctypes.addressof(buffer := ctypes.create_string_buffer(64))
    fake.fail("hipPointerGetAttributes", 1)
    with pytest.raises(ExchangeError, match="it is pageable memory; its exporter mislabels it"):
        kind.import_data(0, data, "test")
    del buffer


def test_pools(version, fake, rocm):
    """Not those of HIP 5, which calls them beta."""
    pooled, plain = fake.calls("hipMallocFromPoolAsync"), fake.calls("hipMalloc")
    with memory(rocm, b"x" * 64) as data:
        assert read(rocm, data, 64) == b"x" * 64
    taken = fake.calls("hipMallocFromPoolAsync") - pooled, fake.calls("hipMalloc") - plain
    assert taken == ((0, 1) if version < (6, 0) else (1, 0))


def test_round_trips(version, fake, rocm):
    """All of it together: tensors, pinned memory, streams, two devices."""
    live = fake.live()
    array = np.arange(60, dtype="f4").reshape(3, 4, 5)
    with stream() as own, dlbridge.use_stream("rocm:0", own):
        tensor = dlbridge.to_device(array, "rocm:0")
        pinned = dlbridge.to_device(tensor[:, ::2], "rocm_host")
        other = dlbridge.to_device(tensor, "rocm:1")
        assert np.array_equal(np.asarray(pinned), array[:, ::2])
        assert np.array_equal(np.asarray(dlbridge.to_device(other, "cpu")), array)
        del tensor, pinned, other
        rocm.synchronize(0, own)
        rocm.synchronize(1, 0)
    assert fake.live() == live


def test_the_last_error_is_taken_off(version, fake, rocm):
    """Else the next check of another library in this thread would find ours."""
    from dlbridge_rocm.gpu import gpu
    from dlbridge_rocm.library import load

    fake.fail("hipPointerGetAttributes", 1)
    gpu.locate(0x1000, 0)
    assert load().hipGetLastError() == 0
    fake.fail("hipStreamQuery", 1)
    with stream() as own, pytest.raises(DeviceError):  # it is no capture
        gpu.is_idle(own)
    assert load().hipGetLastError() == 0
