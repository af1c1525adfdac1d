"""Which driver these tests run on: the double, or with `-m gpu` the real one.

With the double, tests that need a GPU are left out. With the real driver, every
test runs that does not steer the double (by the fixture `fake`), and all of
them count as `gpu`.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

import pytest

DRIVERS = Path(__file__).resolve().parents[3] / "tests" / "drivers" / "build.py"


def wants_gpu(config):
    return config.getoption("markexpr", "").strip() == "gpu"


def load_double():
    """The double, loaded before cuda.bindings looks for a libcuda; why not, if not."""
    spec = importlib.util.spec_from_file_location("dlbridge_test_drivers", DRIVERS)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    if build.compiler() is None and "cuda" not in os.environ.get("DLBRIDGE_EXPECT", ""):
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
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    if wants_gpu(config):
        for item in mine:
            if "fake" not in item.fixturenames:
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
        self.library.fake_cuda_memory(nbytes)

    def attribute(self, attribute, value):
        self.library.fake_cuda_attribute(int(attribute), value)

    def delay(self, microseconds):
        self.library.fake_cuda_delay(microseconds)

    def strict(self, on):
        self.library.fake_cuda_strict(on)


@pytest.fixture
def fake(pytestconfig):
    """The double, as the environment wants it again afterwards."""
    library = pytestconfig.dlbridge_fake_cuda
    library.fake_cuda_reset()
    yield Fake(library)
    library.fake_cuda_reset()
    from dlbridge_cuda import contexts

    contexts.attribute.cache_clear()  # what `Fake.attribute` pretended


@pytest.fixture(params=["at once", "delayed", "strict"])
def pace(request, pytestconfig):
    """How the double behaves; a real driver has its own pace, so it is one there."""
    library = pytestconfig.dlbridge_fake_cuda
    if library is None:
        if request.param != "at once":
            pytest.skip("only the double can be slowed down")
        yield
        return
    library.fake_cuda_reset()
    library.fake_cuda_delay(0 if request.param == "at once" else 50)
    library.fake_cuda_strict(request.param == "strict")
    yield
    library.fake_cuda_reset()
