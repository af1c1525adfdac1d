"""Which runtime these tests run on: the shim over the driver's double, or a real one.

`tests/drivers/hipshim.c` is a libamdhip64 over any libcuda. With `-m gpu` that
is a real NVIDIA driver; with `-m amd` there is no shim, but AMD's own library.
Then every test runs that does not steer the double (by the fixture `fake`).
"""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

import pytest

import dlbridge
from dlbridge.errors import BackendUnavailable

HERE = Path(__file__).resolve().parent
DRIVERS = HERE.parents[2] / "tests" / "drivers" / "build.py"
sys.path.insert(0, str(HERE))  # for rocm_support


def real(config):
    """``"gpu"`` or ``"amd"``, if the tests are to run on real hardware; else None."""
    wanted = config.getoption("markexpr", "").strip()
    return wanted if wanted in ("gpu", "amd") else None


def expected():
    return os.environ.get("DLBRIDGE_EXPECT", "").split(",")


def load_drivers(real):
    """The shim and the double below it, where each is wanted; None if neither can be compiled."""
    if real == "amd":
        return None, None
    spec = importlib.util.spec_from_file_location("dlbridge_test_drivers", DRIVERS)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    if build.compiler() is None and "rocm" not in expected():
        return None
    cuda = None if real else build.load("cuda")
    hip = build.load("hip")
    hip.fake_hip_calls.restype = ctypes.c_ulong
    if cuda:
        cuda.fake_cuda_live.restype = ctypes.c_size_t
        cuda.fake_cuda_memory.argtypes = [ctypes.c_size_t]
    return hip, cuda


def pytest_configure(config):
    config.dlbridge_drivers = load_drivers(real(config))


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    mine = [item for item in items if HERE in item.path.parents]
    if real(config):
        for item in mine:
            if "fake" not in item.fixturenames:
                item.add_marker(real(config))
    if config.dlbridge_drivers is None:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="the shim needs gcc"))


class Fake:
    """The controls of the shim (hipshim.c) and of the double below it (fakecuda/control.c)."""

    def __init__(self, hip, cuda):
        self.hip, self.cuda = hip, cuda

    def fail(self, function, error, skip=0):
        """Let *function* return the hipError_t *error* after *skip* calls that succeed."""
        self.hip.fake_hip_fail(function.encode(), error, skip)

    def calls(self, function):
        return self.hip.fake_hip_calls(function.encode())

    def version(self, major, minor=0):
        """What hipRuntimeGetVersion says, and what the shim does as that version would."""
        self.hip.fake_hip_version(major * 10_000_000 + minor * 100_000)
        forget()

    def live(self):
        """Allocations that are not freed."""
        return self.cuda.fake_cuda_live()

    def memory(self, nbytes):
        self.cuda.fake_cuda_memory(nbytes)

    def attribute(self, cuda_attribute, value):
        """From now on every device's *cuda_attribute* (a CUdevice_attribute) is *value*."""
        self.cuda.fake_cuda_attribute(cuda_attribute, value)
        forget()

    def reset(self):
        self.hip.fake_hip_reset()
        self.cuda.fake_cuda_reset()
        forget()


def forget():
    """What the backend remembers of a version and of attributes that tests change."""
    from dlbridge_rocm import copies, devices, driver, memory

    driver.version.cache_clear()
    devices.attribute.cache_clear()
    memory.default_pool.cache_clear()
    copies._let_see.cache_clear()


def backend_or_skip(name):
    try:
        return dlbridge.backend(name)
    except BackendUnavailable as exc:
        if name in expected():
            raise
        pytest.skip(str(exc))


@pytest.fixture
def rocm():
    return backend_or_skip("rocm")


@pytest.fixture
def rocm_host():
    return backend_or_skip("rocm_host")


@pytest.fixture(params=["rocm", "rocm_host"])
def kind(request):
    """Each of the two backends."""
    return backend_or_skip(request.param)


@pytest.fixture
def two_devices(rocm):
    if rocm.device_count() < 2:
        pytest.skip("one device here")


@pytest.fixture
def fake(pytestconfig, rocm):
    """The shim and the double, as the environment wants them again afterwards."""
    control = Fake(*pytestconfig.dlbridge_drivers)
    control.reset()
    yield control
    control.reset()


@pytest.fixture(params=["at once", "delayed", "strict"])
def pace(request, pytestconfig):
    """How the double behaves: 50 us before each piece of work; pageable copies too if strict."""
    cuda = pytestconfig.dlbridge_drivers[1]
    if cuda is None:
        if request.param != "at once":
            pytest.skip("only the double can be slowed down")
        yield 0
        return
    delay_us = 0 if request.param == "at once" else 50
    cuda.fake_cuda_delay(delay_us)
    cuda.fake_cuda_strict(request.param == "strict")
    yield delay_us
    cuda.fake_cuda_reset()
