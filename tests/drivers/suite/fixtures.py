"""Hooks and fixtures of the common tests; a backend's conftest imports them all."""

import inspect

import pytest

from tests.support.expected_parts import backend_or_skip, expected  # noqa: F401 - also for the conftests
from tests.support.frozen_objects import older_objects_are_frozen  # noqa: F401 - for pytest to find

from .rig import GLOBAL, RELAXED, rig, settle

PACES = ["delayed", "strict"]


def fits_real_driver(item):
    """Whether the test *item* does not steer the simulated driver, but for its first pace."""
    callspec = getattr(item, "callspec", None)
    pace = callspec.params.get("pace") if callspec else None
    return "fake" not in item.fixturenames and pace in (None, PACES[0])


class CommonModule(pytest.Module):
    """A module of the common tests, inside the test module that imports it."""

    def _getobj(self):
        return getattr(self.parent.obj, self.name)


def pytest_pycollect_makeitem(collector, name, obj):
    """Collect a module of this package as a class is: ``test_common.py::streams::test_...``."""
    if not inspect.ismodule(obj) or obj.__package__ != __package__:
        return None
    nodeid = f"{collector.nodeid}::{name}"  # else that of the file
    return CommonModule.from_parent(collector, path=collector.path, name=name, nodeid=nodeid)


def pytest_generate_tests(metafunc):
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "kind" in metafunc.fixturenames and "kind" not in own:  # each of the backends
        metafunc.parametrize("kind", rig().kinds, indirect=True)
    for name in rig().rows.keys() & set(metafunc.fixturenames):
        metafunc.parametrize(name, rig().rows[name])


@pytest.fixture
def kind(request):
    return backend_or_skip(request.param)


@pytest.fixture
def device():
    """The backend for device memory."""
    return backend_or_skip(rig().device)


@pytest.fixture
def pinned():
    """The backend for pinned memory."""
    return backend_or_skip(rig().host)


@pytest.fixture
def two_devices():
    if backend_or_skip(rig().device).device_count() < 2:
        pytest.skip("one device here")


@pytest.fixture
def fake(pytestconfig):
    """The simulated driver, as the environment wants it again afterwards."""
    control = pytestconfig.dlbridge_fake
    backend_or_skip(rig().device)
    control.reset()
    settle()  # frees of the last test are on their way, or wait for their turn
    yield control
    control.reset()


@pytest.fixture(params=PACES)
def pace(request, pytestconfig):
    """How the driver behaves: 50 us before each piece of work; if strict, pageable copies too."""
    control = pytestconfig.dlbridge_fake
    if control is None:  # a real driver has its own pace
        yield
        return
    control.reset()
    control.delay(50)
    control.strict(request.param == "strict")
    yield request.param
    control.reset()


@pytest.fixture(params=[GLOBAL, RELAXED], ids=["global", "relaxed"])
def mode(request):
    """A mode of capture."""
    return request.param
