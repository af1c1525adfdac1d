"""The thread's current device is left as it was found; names and descriptions of devices."""

import threading

import pytest
from rocm_support import stream

import dlbridge
from dlbridge.errors import DeviceError, Error

HOST_MEMORY_SHARED = 18  # CUdevice_attribute INTEGRATED, below the shim


def current_device():
    from dlbridge_rocm.driver import answer

    return answer("hipGetDevice", "int")


def uses(backend):
    """Every member that talks to the runtime, once; frees what it makes."""
    data = backend.allocate(0, 4096, 256, 0)
    other = backend.allocate(0, 4096, 4096, 0)
    source, into = bytearray(4096), bytearray(4096)  # alive until the copies are done
    backend.copy_from_host(0, data, 0, memoryview(source), 0)
    backend.copy(0, other, 0, 0, data, 0, 100, 0)
    backend.fill(0, other, 0, 50, 7, 0)
    backend.copy_to_host(0, other, 0, memoryview(into), 0)
    with stream() as handle:
        backend.wait(0, handle, 0)
        backend.wait(0, 0, handle)
        backend.synchronize(0, handle)
    if hasattr(backend, "host_view"):
        backend.host_view(0, data, 0, 10, True, 0)
    backend.device_info(0)
    backend.import_data(0, data, "test")
    with pytest.raises(Error):
        backend.allocate(0, 1 << 60, 256, 0)
    with pytest.raises(Error):
        backend.synchronize(0, 0xBAD)
    backend.free(0, data, 0)
    backend.free(0, other, 0)
    backend.synchronize(0, 0)


@pytest.mark.parametrize("device_id", [None, 0, 1])
def test_the_current_device_stays(fake, kind, two_devices, device_id):
    """That of a new thread (None), device 0, another one; also when a member fails."""
    results = []

    def work():
        from dlbridge_rocm.driver import call

        if device_id is not None:
            call("hipSetDevice", device_id)
        uses(kind)
        results.append(current_device())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [device_id or 0]


def test_a_device_that_cannot_be_had(fake, rocm, two_devices):
    """The runtime's refusal is ours, and the thread's device is what it was."""
    before = current_device()
    fake.fail("hipSetDevice", 101)
    with pytest.raises(DeviceError, match=r"hipSetDevice: hipErrorInvalidDevice \(101\).*VISIBLE"):
        rocm.allocate(1 - before, 64, 256, 0)
    fake.fail("hipSetDevice", 0)
    assert current_device() == before


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
    from dlbridge_rocm.devices import attribute

    fake.fail("hipDeviceGetAttribute", 1)
    attribute.cache_clear()
    assert attribute(0, "PageableMemoryAccess") == 0
    attribute.cache_clear()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"00a1b2c3d4e5f607", "GPU-00a1b2c3d4e5f607"),  # AMD's runtime gives characters
        (bytes(range(16)), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ],
)
def test_uuids(rocm, raw, text):
    from dlbridge_rocm.info import _uuid

    assert _uuid(raw) == text


def test_devices_by_name(fake, rocm, two_devices):
    uuid = rocm.device_info(1)["uuid"]
    assert uuid != rocm.device_info(0)["uuid"]
    assert rocm.find_device(uuid.upper()) == 1
    assert dlbridge.zeros(3, device=f"rocm:{uuid}").device.index == 1
    with pytest.raises(LookupError, match=r"no ROCm device is called 'Voodoo'; there are 0: Fake"):
        rocm.find_device("Voodoo")
