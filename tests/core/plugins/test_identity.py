"""What a device says of itself, in one form, and the same device under another backend."""

from __future__ import annotations

import pytest

import dlbridge as bridge
from dlbridge.errors import BackendError, BackendUnavailable, DeviceError, ExchangeError
from tests.support.scripts import run_script
from tests.support.stream_backend import Streams, installed

UUID = "0123abcd-4567-89ef-0123-456789abcdef"


class Described(Streams):
    """Two devices; *infos* is what they say of themselves."""

    def __init__(self, *infos):
        super().__init__()
        self.infos = infos

    def device_count(self):
        return len(self.infos)

    def device_info(self, device_id):
        found = self.infos[device_id]
        if isinstance(found, Exception):
            raise found
        return {"name": "a device", **found}

    def find_device(self, name):
        raise LookupError("by number")


@pytest.mark.parametrize(
    ("what", "said", "found"),
    [
        # Lowercase, 8-4-4-4-12, without a prefix; None for what is no UUID.
        ("uuid", UUID, UUID),
        ("uuid", f"GPU-{UUID.upper()}", UUID),
        ("uuid", f"MIG-{UUID}", UUID),
        ("uuid", UUID.replace("-", ""), UUID),
        # HIP's sixteen bytes are text.
        ("uuid", "GPU-9b1a0b2f3c4d5e6f", "39623161-3062-3266-3363-346435653666"),
        ("uuid", "00000000-0000-0000-0000-000000000000", None),
        *(("uuid", said, None) for said in ("GPU-ab", "", None, 7)),
        # domain:bus:device.function in hexadecimal; None for what is no address.
        ("pci", "0000:3B:00.0", "0000:3b:00.0"),
        ("pci", "00000000:3B:00.0", "0000:3b:00.0"),
        ("pci", "00010000:3B:1f.7", "10000:3b:1f.7"),
        ("pci", "3b:00.0", "0000:3b:00.0"),
        ("pci", "0000:3b:00", "0000:3b:00.0"),
        *(("pci", said, None) for said in ("PCI bus 7", "", None)),
    ],
)
def test_a_device_says_what_its_backend_says_in_one_form(what, said, found):
    with installed("cuda", Described({}, {what: said})):
        second = bridge.device("cuda:1")
        assert {"uuid": second.uuid, "pci": second.pci} == {"uuid": None, "pci": None, what: found}
        assert (bridge.device("cuda:0").uuid, bridge.device("cuda:0").pci) == (None, None)


def test_a_backend_without_device_info_says_nothing():
    with installed("cuda", Streams()):
        assert (bridge.device("cuda:1").uuid, bridge.device("cuda:1").pci) == (None, None)
    assert (bridge.device("cpu").uuid, bridge.device("cpu").pci) == (None, None)


def test_a_device_that_is_not_there_has_no_identity():
    """The error is that of any use of the device."""
    with installed("cuda", Streams()), pytest.raises(ExchangeError, match=r"no cuda:7"):
        _ = bridge.device("cuda:7").uuid
    with pytest.raises(BackendUnavailable, match="no backend for device 'maia'"):
        _ = bridge.device("maia").pci


@pytest.mark.parametrize(
    ("error", "raised"), [(DeviceError("lost"), DeviceError), (KeyError("x"), BackendError)]
)
def test_a_backend_that_fails_to_describe_a_device(error, raised):
    """Its own errors pass; any other names the backend and the member."""
    with installed("cuda", Described(error)), pytest.raises(raised):
        _ = bridge.device("cuda:0").uuid


def test_the_backend_is_asked_once():
    """A device_id means one device as long as the process lives (dlbridge.protocol)."""
    plugin = Described({"uuid": UUID})
    with installed("cuda", plugin):
        assert bridge.device("cuda:0").uuid == UUID
        plugin.infos = (DeviceError("asked again"),)
        assert bridge.device("cuda:0").pci is None
    with installed("cuda", Described({"pci": "1:0.0"})):
        assert bridge.device("cuda:0").uuid is None


def test_the_same_device_under_another_backend():
    """UUIDs decide; where one of the two says none, the PCI address does, if one has it."""
    other = "ffffffff-4567-89ef-0123-456789abcdef"
    cuda = Described({"uuid": UUID, "pci": "1:0.0"}, {"uuid": other, "pci": "2:0.0"}, {})
    opencl = Described({"uuid": other, "pci": "1:0.0"}, {"uuid": UUID, "pci": "2:0.0"})
    opencl.device_type = 4
    with installed("cuda", cuda), installed("opencl", opencl):
        assert bridge.device("cuda:0").same_device("opencl") is bridge.device("opencl:1")
        assert bridge.device("cuda:1").same_device("opencl") is bridge.device("opencl:0")
        assert bridge.device("opencl:1").same_device("cuda") is bridge.device("cuda:0")
        assert bridge.device("cuda:2").same_device("opencl") is None
        assert bridge.device("cpu").same_device("opencl") is None


def test_the_same_device_by_its_address():
    """Drivers of one vendor may number UUIDs differently; parts of a device share its address."""
    cuda = Described({"pci": "1:0.0"}, {"pci": "2:0.0"}, {"uuid": UUID, "pci": "3:0.0"})
    opencl = Described({"pci": "2:0.0"}, {"pci": "1:0.0"}, {"pci": "1:0.0"}, {"pci": "3:0.0"})
    opencl.device_type = 4
    with installed("cuda", cuda), installed("opencl", opencl):
        assert bridge.device("cuda:0").same_device("opencl") is None  # it may be either of two
        assert bridge.device("cuda:1").same_device("opencl") is bridge.device("opencl:0")
        assert bridge.device("cuda:2").same_device("opencl") is bridge.device("opencl:3")


def test_the_same_device_under_its_own_backend():
    with installed("cuda", Described({}, {})):
        assert bridge.device("cuda:1").same_device("cuda") is bridge.device("cuda:1")


def test_the_same_device_wants_the_name_of_a_backend():
    with installed("cuda", Described({"uuid": UUID})):
        with pytest.raises(BackendUnavailable, match="no backend for device 'maia'"):
            bridge.device("cuda:0").same_device("maia")
        with pytest.raises(TypeError, match="the name of a backend, such as 'vulkan', not 7"):
            bridge.device("cuda:0").same_device(7)
        with pytest.raises(ValueError, match="'vulkan:0' is a device; give the name of a backend"):
            bridge.device("cuda:0").same_device("vulkan:0")


def test_only_the_backends_that_are_named_are_loaded():
    run_script(
        """
        import dlbridge as bridge
        from dlbridge.extending import LOADED
        assert bridge.device("cpu").uuid is None
        bridge.device("cpu").same_device("ext_dev")
        assert sorted(LOADED) == ["cpu", "ext_dev"], LOADED
        """
    )
