"""Backends that share a device type, or a native class: who a handle or an object belongs to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dlbridge_fake import Array, Fake

import dlbridge as bridge
from dlbridge.errors import ExchangeError
from dlbridge.extending import LOADED
from tests.support.known_backends import forget_registered
from tests.support.raw_producer import Producer

CPU = type(bridge.backend("cpu"))
HOST = np.arange(12, dtype="f4")
FIRST, SECOND, SILENT = "first_of_a_test", "second_of_a_test", "silent_of_a_test"


def numbered(start):
    """A backend like the fake one, with handles of its own."""

    class Numbered(Fake):
        def __init__(self):
            super().__init__()
            self.handles = itertools.count(start, 2)

    return Numbered


@pytest.fixture(autouse=True)
def only_those_of_the_test(monkeypatch):
    """No other backend of kDLExtDev is installed, and nothing stays loaded."""
    monkeypatch.setenv("DLBRIDGE_BACKENDS", f"cpu,{FIRST},{SECOND},{SILENT}")
    forget_registered(monkeypatch)
    before = dict(LOADED)
    for name in before.keys() - {"cpu"}:
        del LOADED[name]
    yield
    LOADED.clear()
    LOADED.update(before)


def register(**classes):
    for name, cls in classes.items():
        bridge.register_backend(name, cls)


def foreign(handle):
    """A kDLExtDev tensor that some other library exports."""
    return Producer(data=handle, device=(12, 0), shape=(3,))


BOTH = {FIRST: numbered(0x1_0000_0001), SECOND: numbered(0x2_0000_0001)}


@pytest.mark.parametrize("loaded", [(), (FIRST,), (SECOND,), (FIRST, SECOND), (SECOND, FIRST)])
def test_a_handle_that_all_refuse_is_refused(loaded):
    """Whatever is loaded, in whatever order."""
    register(**BOTH)
    for name in loaded:
        bridge.backend(name)
    with pytest.raises(ExchangeError, match=f"no backend recognises .*{FIRST}: .*{SECOND}: "):
        bridge.from_dlpack(foreign(0x7777))


@pytest.mark.parametrize("loaded", [(), (FIRST,)])
def test_a_handle_that_the_only_backend_refuses(loaded):
    """Also one that is installed and not loaded."""
    register(**{FIRST: BOTH[FIRST]})
    for name in loaded:
        bridge.backend(name)
    with pytest.raises(ExchangeError, match=r"0x7777 from .* is not memory of"):
        bridge.from_dlpack(foreign(0x7777))


@pytest.mark.parametrize("name", [FIRST, SECOND])
@pytest.mark.parametrize("first_loaded", [FIRST, SECOND])
def test_a_handle_belongs_to_the_backend_that_made_it(name, first_loaded):
    register(**BOTH)
    bridge.backend(first_loaded)
    there = bridge.to_device(HOST, f"{name}:1")
    again = bridge.from_dlpack(there.__dlpack__())
    assert str(again.device) == f"{name}:1"
    assert (bridge.to_device(again, "cpu", like="numpy") == HOST).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0, 7)])
@pytest.mark.parametrize("version", [None, (1, 3)])
def test_a_tensor_of_no_elements_is_of_the_only_backend_that_is_there(shape, version):
    """Its ``data`` is NULL; and the backend that DLPack names may be switched off."""
    register(**{FIRST: BOTH[FIRST]})
    there = bridge.empty(shape, "float32", f"{FIRST}:1")
    again = bridge.from_dlpack(there.__dlpack__(max_version=version))
    assert str(again.device) == f"{FIRST}:1"
    assert bridge.to_device(again, "cpu", like="numpy").shape == shape
    assert bridge.to_device(again, f"{FIRST}:0").shape == shape


def test_a_backend_that_cannot_be_asked_takes_nothing_that_others_refused():
    class Silent(CPU):  # has no import_data
        device_type = 12

    register(**{FIRST: BOTH[FIRST], SILENT: Silent})
    bridge.backend(SILENT)
    with pytest.raises(ExchangeError, match="is not memory of"):
        bridge.from_dlpack(foreign(0x7777))


def test_a_handle_that_two_take_for_their_own_is_refused():
    class Credulous(BOTH[SECOND]):
        def import_data(self, device_id, data, module):
            return device_id, data

    register(**{FIRST: BOTH[FIRST], SECOND: Credulous})
    there = bridge.to_device(HOST, f"{FIRST}:0")
    with pytest.raises(ExchangeError, match=f"two backends, {FIRST} and {SECOND}"):
        bridge.from_dlpack(there.__dlpack__())


@pytest.mark.parametrize(
    ("kind", "name", "asked"), [(14, "oneapi", True), (2, "cuda", False)], ids=["OneAPI", "CUDA"]
)
def test_addresses_that_belong_to_a_context_are_asked_about(kind, name, asked, monkeypatch):
    """A USM pointer of SYCL may be of a context that is not ours; an address of CUDA is everybody's."""

    class Addresses(CPU):
        device_type = kind

        def device_count(self):
            return 6

        def import_data(self, device_id, data, module):
            if data == 0x7777:
                raise ExchangeError(f"{data:#x} of device {device_id} is of another context")
            return 3, data

    def found(data):
        return bridge.from_dlpack(Producer(data=data, device=(kind, 5 if asked else 0), shape=(3,)))

    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])  # ours may be installed
    monkeypatch.setenv("DLBRIDGE_BACKENDS", f"cpu,{name}")
    register(**{name: Addresses})
    bridge.backend(name)
    assert found(0x8888).device.dlpack == (kind, 3 if asked else 0)
    if asked:
        with pytest.raises(ExchangeError, match="0x7777 of device 5 is of another context"):
            found(0x7777)
    else:
        assert found(0x7777).data_ptr() == 0x7777


def test_a_handle_without_any_backend_stays_opaque():
    tensor = bridge.from_dlpack(foreign(0x7777))
    assert (tensor.device.type, tensor.data_ptr()) == (12, 0x7777)


def test_an_object_of_two_backends_is_asked_for_by_name():
    """Both would take the handle for their own."""
    register(**BOTH)
    array = bridge.to_device(HOST, f"{FIRST}:0").to_native()
    bridge.backend(SECOND).table.update(bridge.backend(FIRST).table)
    with pytest.raises(ExchangeError, match=f"of several backends, {FIRST} and {SECOND}; say"):
        bridge.asarray(array)
    with pytest.raises(ExchangeError, match="of several backends"):
        bridge.to_device(array, "cpu")
    for name in (FIRST, SECOND):
        assert str(bridge.asarray(array, device=f"{name}:0").device) == f"{name}:0"
        assert str(bridge.to_device(array, f"{name}:0").device) == f"{name}:0"
        assert bridge.plan(array, f"{name}:0").copies == 0
    bridge.backend(SECOND).table.clear()


def test_like_a_backend_is_an_object_of_its_own():
    register(**BOTH)
    array = bridge.to_device(HOST, f"{FIRST}:0", like=FIRST)
    assert isinstance(array, Array)
    assert array.description.shape == (12,)
    there = bridge.to_device(HOST, f"{FIRST}:0")
    assert bridge.from_dlpack(there, like=FIRST).description.data == there.operand().data
    steps = bridge.plan(there, f"{FIRST}:0", like=FIRST).steps
    assert (steps[-1].kind, steps[-1].nbytes) == ("as library", 0)


def test_like_a_backend_elsewhere_is_refused():
    register(**BOTH)
    bridge.backend(FIRST)
    message = rf"on cpu:0; move it first: dlbridge.to_device\(t, '{FIRST}:0', like='{FIRST}'\)"
    with pytest.raises(ExchangeError, match=message):
        bridge.to_device(HOST, "cpu", like=FIRST)
    with pytest.raises(ExchangeError, match=message):
        bridge.explain(HOST, "cpu", like=FIRST)
