"""The runtime that these tests run on: the shim over the simulated driver, or a real one.

`tests/drivers/hipshim.c` is a libamdhip64 over any libcuda. With `-m gpu` that is a real NVIDIA
driver; with `-m amd` there is no shim, but AMD's own library. Then every test runs that does not
steer the simulated driver (by the fixture `fake`).
"""

import ctypes
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
pytest.register_assert_rewrite("tests.drivers.suite")  # and all of its modules

from backends.rocm.tests.rocm_support import RocmRig  # noqa: E402
from tests.drivers import build  # noqa: E402
from tests.drivers.suite import (  # noqa: E402
    rig as rigs,
)
from tests.drivers.suite.fixtures import (  # noqa: E402, F401 - for pytest to find
    backend_or_skip,
    device,
    expected,
    fake,
    fits_real_driver,
    kind,
    mode,
    older_objects_are_frozen,
    pace,
    pinned,
    pytest_generate_tests,
    pytest_pycollect_makeitem,
    two_devices,
)
from tests.support.nightly_parts import pytest_itemcollected  # noqa: E402, F401 - for pytest to find
from tests.support.not_run import pytest_terminal_summary  # noqa: E402, F401 - for pytest to find
from tests.support.temporary_folders import pytest_sessionfinish  # noqa: E402, F401 - for pytest to find

rigs.use(RocmRig())


class Fake(rigs.Fake):
    """The controls of the shim (hipshim.c) and of the driver below it (fakecuda/control.c)."""

    prefix = "fake_hip"

    def version(self, major, minor=0):
        """Let hipRuntimeGetVersion say so, and the shim do as that version would."""
        self.top.fake_hip_version(major * 10_000_000 + minor * 100_000)
        self.forget()

    def shift(self, nbytes):
        """Let GPUs see registered host memory so many bytes further than the host does."""
        self.top.fake_hip_shift(ctypes.c_size_t(nbytes))

    def reset(self):
        self.top.fake_hip_reset()
        super().reset()


def real(config):
    """``"gpu"`` or ``"amd"``, if the tests are to run on real hardware; else None."""
    wanted = config.getoption("markexpr", "").strip()
    return wanted if wanted in ("gpu", "amd") else None


def load_simulated(real):
    """The shim, over the simulated driver or a real one; None without gcc, or on AMD hardware."""
    if real == "amd" or (build.compiler() is None and not expected("rocm")):
        return None
    cuda = None if real else build.load("cuda")
    hip = build.load("hip")
    hip.fake_hip_calls.restype = ctypes.c_ulong
    if cuda is None:
        return None
    cuda.fake_cuda_live.restype = ctypes.c_size_t
    return Fake(cuda, hip)


def pytest_configure(config):
    config.dlbridge_fake = load_simulated(real(config))


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    mine = [item for item in items if HERE in item.path.parents]
    if real(config):
        for item in mine:
            if fits_real_driver(item):
                item.add_marker(real(config))
    elif config.dlbridge_fake is None:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="the shim needs gcc"))


@pytest.fixture
def rocm():
    return backend_or_skip("rocm")


@pytest.fixture
def rocm_host():
    return backend_or_skip("rocm_host")
