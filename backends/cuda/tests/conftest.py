"""Which driver these tests run on: the double, or with `-m gpu` the real one.

With the double, tests that need a GPU are left out. With the real driver, every
test runs that does not steer the double (by the fixture `fake`), and all of
them count as `gpu`.
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
PACES = ["delayed", "strict"]
sys.path.insert(0, str(HERE))  # for cuda_support


def wants_gpu(config):
    return config.getoption("markexpr", "").strip() == "gpu"


def pace_of(item):
    """The value of the fixture `pace` that *item* runs at, if any."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("pace") if callspec else None


def load_double():
    """The double, loaded before cuda.bindings looks for a libcuda; why not, if not."""
    spec = importlib.util.spec_from_file_location("dlbridge_test_drivers", DRIVERS)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    if build.compiler() is None and "cuda" not in os.environ.get("DLBRIDGE_EXPECT", "").split(","):
        return None
    library = build.load("cuda")
    library.fake_cuda_calls.restype = ctypes.c_ulong
    library.fake_cuda_live.restype = ctypes.c_size_t
    library.fake_cuda_memory.argtypes = [ctypes.c_size_t]
    return library


def pytest_configure(config):
    config.dlbridge_fake_cuda = None if wants_gpu(config) else load_double()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    mine = [item for item in items if HERE in item.path.parents]
    if wants_gpu(config):
        for item in mine:
            if "fake" not in item.fixturenames and pace_of(item) in (None, PACES[0]):
                item.add_marker(pytest.mark.gpu)
        return
    unfit = {item for item in mine if item.get_closest_marker("gpu")}
    items[:] = [item for item in items if item not in unfit]
    config.hook.pytest_deselected(items=list(unfit))
    if config.dlbridge_fake_cuda is None:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="the double of the driver needs gcc"))


class Fake:
    """The controls of the double (tests/drivers/fakecuda/control.c)."""

    def __init__(self, library):
        self.library = library

    def fail(self, function, error, skip=0):
        """Let *function* return the CUresult *error* after *skip* calls that succeed."""
        self.library.fake_cuda_fail(function.encode(), int(error), skip)

    def calls(self, function):
        return self.library.fake_cuda_calls(function.encode())

    def live(self):
        """Allocations that are not freed."""
        return self.library.fake_cuda_live()

    def memory(self, nbytes):
        """Leave device 0 this much room."""
        self.library.fake_cuda_memory(nbytes)

    def attribute(self, attribute, value):
        """From now on every device's *attribute* (its name in CUdevice_attribute) is *value*."""
        from dlbridge_cuda.driver import cu

        number = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
        self.library.fake_cuda_attribute(int(number), value)
        _forget_pretences()

    def delay(self, microseconds):
        self.library.fake_cuda_delay(microseconds)

    def strict(self, on):
        self.library.fake_cuda_strict(on)


def backend_or_skip(name):
    try:
        return dlbridge.backend(name)
    except BackendUnavailable as exc:
        if name in os.environ.get("DLBRIDGE_EXPECT", "").split(","):
            raise
        pytest.skip(str(exc))


@pytest.fixture
def cuda():
    return backend_or_skip("cuda")


@pytest.fixture
def cuda_host():
    return backend_or_skip("cuda_host")


@pytest.fixture
def cuda_managed():
    return backend_or_skip("cuda_managed")


@pytest.fixture(params=["cuda", "cuda_host", "cuda_managed"])
def kind(request):
    """Each of the three backends."""
    return backend_or_skip(request.param)


@pytest.fixture
def two_devices(cuda):
    if cuda.device_count() < 2:
        pytest.skip("one device here")


@pytest.fixture
def fake(pytestconfig):
    """The double, as the environment wants it again afterwards."""
    from dlbridge_cuda.contexts import current, primary
    from dlbridge_cuda.driver import call, device_count

    library = pytestconfig.dlbridge_fake_cuda
    devices = device_count()  # what opens it also resets it
    library.fake_cuda_reset()
    for device_id in range(devices):  # frees of the last test that are still on their way
        with current(primary(device_id)):
            call("cuCtxSynchronize")
    yield Fake(library)
    library.fake_cuda_reset()
    _forget_pretences()


def _forget_pretences():
    """What the backend remembers of attributes that `Fake.attribute` changed."""
    from dlbridge_cuda import contexts, copies, memory

    contexts.attribute.cache_clear()
    memory.default_pool.cache_clear()
    copies._let_see.cache_clear()


@pytest.fixture(params=PACES)
def pace(request, pytestconfig):
    """How the double behaves: 50 us before each piece of work; if strict, pageable copies too."""
    library = pytestconfig.dlbridge_fake_cuda
    if library is None:  # a real driver has its own pace
        yield
        return
    library.fake_cuda_reset()
    library.fake_cuda_delay(50)
    library.fake_cuda_strict(request.param == "strict")
    yield request.param
    library.fake_cuda_reset()
