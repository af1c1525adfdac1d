"""The UUID and the PCI address of a device, by the extensions that the layer plays."""

from __future__ import annotations

import pytest

import dlbridge as bridge

SAY = """
import dlbridge as bridge
device = bridge.device("opencl:0")
print(device.uuid, device.pci, bridge.backend("opencl").device_info(0).get("uuid"))
"""


@pytest.mark.parametrize(
    ("identity", "says"),
    [
        (
            1,
            "01234567-89ab-cdef-0123-456789abcdef 0007:3b:1f.2 01234567-89ab-cdef-0123-456789abcdef",
        ),
        (2, "None 0007:3b:1f.2 None"),
        (3, "None None None"),
    ],
    ids=["khronos", "nvidia", "fails"],
)
def test_a_driver_with_the_extensions(script, identity, says):
    """cl_khr_device_uuid, cl_khr_pci_bus_info, cl_nv_device_attribute_query."""
    assert script(SAY, identity=identity).strip() == says


def test_a_driver_without_the_extensions(opencl):
    """PoCL 3.1 and Oclgrind have none of them, and nothing is made up."""
    from dlbridge_opencl.devices import device

    named = device(0).handle.extensions.split()
    if {"cl_khr_device_uuid", "cl_khr_pci_bus_info", "cl_nv_device_attribute_query"} & set(named):
        pytest.skip("this driver says who its devices are")
    assert (bridge.device("opencl:0").uuid, bridge.device("opencl:0").pci) == (None, None)
