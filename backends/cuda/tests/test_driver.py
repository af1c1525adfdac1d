"""Opening the driver, and what each refusal becomes."""

import re
from typing import ClassVar

import pytest

import dlbridge as bridge
from backends.cuda.tests.cuda_support import python
from dlbridge.errors import BackendUnavailable, ExchangeError
from tests.drivers.suite.rig import refusals

# On a machine with a driver the loader must not find it.
HIDE_DRIVER = """
from cuda.pathfinder import DynamicLibNotFoundError
from dlbridge_cuda import driver
def missing(*_):
    raise DynamicLibNotFoundError("no libcuda")
if os.path.exists("/proc/driver/nvidia"):
    driver.load_nvidia_dynamic_lib = missing
"""


def test_no_driver(fake):
    """No libcuda anywhere: said with the remedy, and nothing else is affected."""
    for said in refusals(HIDE_DRIVER, simulated=False):
        assert "no CUDA driver: libcuda could not be loaded; install" in said


def test_bindings_that_call_hip(fake):
    """hip-python-interop brings a package with the same name, and says so in this attribute.

    Run with the real one, too (version 10.0.0.0.1.2).
    """
    hip = "from cuda.bindings import driver; driver.HIP_PYTHON = True"
    for said in refusals(hip):
        assert "cuda.bindings that is here calls HIP, and is of hip-python-interop" in said


def test_a_driver_that_does_not_say_its_version(fake):
    from dlbridge_cuda.gpu import GPU

    gpu = GPU()
    fake.fail("cuDriverGetVersion", 999)
    with pytest.raises(BackendUnavailable, match=r"cuDriverGetVersion gave .*\(999\)"):
        gpu.device_count()
    fake.fail("cuDriverGetVersion", 0)
    assert gpu.device_count() >= 1


def test_driver_too_old(fake):
    for said in refusals(FAKE_CUDA_VERSION="11080"):
        assert "the CUDA driver is too old: it speaks CUDA 11.8" in said
        assert "needs 12.0; update" in said


def test_no_device(fake):
    for said in refusals(FAKE_CUDA_DEVICES="0", CUDA_VISIBLE_DEVICES=""):
        assert "no usable CUDA device: cuInit gave CUDA_ERROR_NO_DEVICE (100)" in said
        assert "(CUDA_VISIBLE_DEVICES='')" in said


def test_a_driver_that_comes_later_is_found(fake):
    """A refusal is not kept."""
    code = """
    import contextlib, dlbridge
    with contextlib.suppress(dlbridge.BackendUnavailable):
        dlbridge.backend("cuda")
    drivers()
    print("now:", dlbridge.backend("cuda").device_count())
    """
    done = python(code, simulated=False, FAKE_CUDA_DEVICES="3")
    assert "now: 3" in done.stdout, done.stdout + done.stderr


def test_no_managed_memory(fake):
    from dlbridge_cuda import CUDAManaged

    from dlbridge.errors import BackendUnavailable

    fake.attribute("MANAGED_MEMORY", 0)
    with pytest.raises(BackendUnavailable, match="no managed memory; use"):
        CUDAManaged()


def test_a_function_that_the_driver_has_not(fake):
    from dlbridge_cuda.gpu import GPU

    class Older(GPU):
        names: ClassVar = {**GPU.names, "trim_pool": "cuMemPoolTrimToNowhere_v3"}

    with pytest.raises(
        ExchangeError,
        match=r"cuMemPoolTrimToNowhere: CUDA_ERROR_NOT_SUPPORTED .*a newer driver may",
    ):
        Older().trim_pool(0)


def test_every_known_code_has_its_name(cuda):
    """Messages name the codes as NVIDIA's own bindings do."""
    from cuda.bindings.driver import CUresult
    from dlbridge_cuda.gpu import gpu

    for code, (kind, _) in gpu.table.meanings.items():
        with pytest.raises(kind, match=f"cuInit: {CUresult(code).name} \\({code}\\)"):
            gpu.check("init", code)
    gpu.table.lost = ""


def test_the_uuid_of_a_mig_device(fake):
    """A slice of a GPU has a UUID of its own, which nvidia-smi writes with MIG-."""
    code = "import dlbridge; print(dlbridge.backend('cuda').device_info(1)['uuid'])"
    done = python(code, FAKE_CUDA_NAME="NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert done.stdout.startswith("MIG-fafafafa"), done.stdout + done.stderr
    assert python(code).stdout.startswith("GPU-fafafafa")


def test_the_identity_of_a_device(cuda):
    """UUID and PCI address in the form that all backends share, and each its own."""
    devices = [bridge.device(f"cuda:{index}") for index in range(cuda.device_count())]
    for device in devices:
        info = cuda.device_info(device.index)
        assert info["uuid"].lower().endswith(device.uuid)
        assert len(device.uuid) == 36
        assert re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", device.pci)
    assert len({device.uuid for device in devices}) == len(devices)
    assert bridge.device("cuda:0").same_device("cuda_host") is bridge.device("cuda_host:0")
