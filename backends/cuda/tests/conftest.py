"""The driver that these tests run on: a simulated one, or with `-m gpu` the real one.

With the simulated driver, tests that need a GPU are left out. With the real driver, every test
runs that does not steer the simulated one (by the fixture `fake`), and all of them count as `gpu`.
"""

import ctypes
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
pytest.register_assert_rewrite("tests.drivers.suite")  # and all of its modules

from backends.cuda.tests.cuda_support import CudaRig  # noqa: E402
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

rigs.use(CudaRig())


class Fake(rigs.Fake):
    """The controls of the simulated driver (tests/drivers/fakecuda/control.c)."""

    def attribute(self, attribute, value):
        """From now on every device's *attribute* (a name or number of CUdevice_attribute)."""
        from cuda.bindings import driver as cu

        if isinstance(attribute, str):
            attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
        super().attribute(attribute, value)


def wants_gpu(config):
    return config.getoption("markexpr", "").strip() == "gpu"


def load_simulated():
    """The simulated driver, loaded before cuda.bindings looks for a libcuda; None without gcc."""
    if build.compiler() is None and not expected("cuda"):
        return None
    library = build.load("cuda")
    library.fake_cuda_calls.restype = ctypes.c_ulong
    library.fake_cuda_live.restype = ctypes.c_size_t
    return Fake(library, library)


def pytest_configure(config):
    config.dlbridge_fake = None if wants_gpu(config) else load_simulated()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    mine = [item for item in items if HERE in item.path.parents]
    if wants_gpu(config):
        for item in mine:
            if fits_real_driver(item):
                item.add_marker(pytest.mark.gpu)
        return
    unfit = {item for item in mine if item.get_closest_marker("gpu")}
    items[:] = [item for item in items if item not in unfit]
    config.hook.pytest_deselected(items=list(unfit))
    if config.dlbridge_fake is None:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="the simulated driver needs gcc"))


@pytest.fixture
def cuda():
    return backend_or_skip("cuda")


@pytest.fixture
def cuda_host():
    return backend_or_skip("cuda_host")


@pytest.fixture
def cuda_managed():
    return backend_or_skip("cuda_managed")
