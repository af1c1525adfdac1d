"""Names and descriptions of devices."""

import pytest

from dlbridge.errors import DeviceError
from tests.drivers.suite.rig import rig

HOST_MEMORY_SHARED = 18  # CUdevice_attribute INTEGRATED, below the shim


def test_a_device_that_cannot_be_had(fake, rocm, two_devices):
    """The runtime's refusal is ours, and the thread's device is what it was."""
    before = rig().where()
    fake.fail("hipSetDevice", 101)
    with pytest.raises(DeviceError, match=r"hipSetDevice: hipErrorInvalidDevice \(101\).*VISIBLE"):
        rocm.allocate(1 - before, 64, 256, 0)
    fake.fail("hipSetDevice", 0)
    assert rig().where() == before


def test_device_info(fake, rocm, rocm_host):
    for backend in (rocm, rocm_host):
        info = backend.device_info(0)
        assert info["name"]
        assert info["memory"] > 1 << 20
        assert info["pci"].startswith("0000:")
        assert info["driver"] == "HIP 7.0"
        assert info["library"].endswith("/libamdhip64.so.6")
        assert info["host_memory_shared"] is False
        assert info["warp_size"] == 32
    fake.attribute(HOST_MEMORY_SHARED, 1)
    assert rocm.device_info(0)["host_memory_shared"] is True


def test_an_attribute_that_the_runtime_does_not_know(fake, rocm):
    fake.fail("hipDeviceGetAttribute", 1)
    fake.forget()
    assert rocm.driver.attribute(0, "pageable_memory_access") == 0
    fake.forget()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"00a1b2c3d4e5f607", "GPU-30306131-6232-6333-6434-653566363037"),  # AMD gives characters
        (bytes(range(16)), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ],
)
def test_uuids(rocm, raw, text):
    assert rocm.driver.uuid_text(raw, "Fake") == text
