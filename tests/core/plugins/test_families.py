"""Families: one entry point for backends whose names a library knows, of any device type."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from dlbridge_fake import Fake

import dlbridge as bridge
from dlbridge.errors import BackendError, BackendUnavailable, ExchangeError
from dlbridge.extending import LOADED, all_backends, provider_of
from tests.support.known_backends import forget_registered

CPU = type(bridge.backend("cpu"))
HOST = np.arange(12, dtype="f4")


class Toy(Fake):
    def __init__(self, start, device_type=12):
        super().__init__()
        self.handles = itertools.count(start, 2)
        self.device_type = device_type


class Family:
    asked: list[str]
    here = ("toy-a", "toy-b")

    def __init__(self):
        self.asked.append("class")

    def names(self):
        self.asked.append("names")
        return self.here

    def open(self, name):
        self.asked.append(name)
        if name not in self.here:
            raise BackendUnavailable(f"{name}: toys are {self.here}")
        return Toy(0x5_0000_0001 if name == "toy-a" else 0x6_0000_0001)


@pytest.fixture
def family(monkeypatch):
    """A family ``toy-`` of two backends, and what it was asked; nothing of it stays."""
    monkeypatch.setattr(Family, "asked", [], raising=False)
    forget_registered(monkeypatch)
    bridge.register_backend("toy-", Family)
    before = dict(LOADED)
    yield Family.asked
    LOADED.clear()
    LOADED.update(before)


def test_nothing_is_asked_before_a_device_is_named(family):
    bridge.backends()
    bridge.device("cpu")
    with pytest.raises(ValueError, match="no device is called 'toy'"):
        bridge.device("toy:0")
    assert family == []
    there = bridge.to_device(HOST, "toy-a:1")
    assert str(there.device) == "toy-a:1"
    assert family == ["class", "toy-a"]
    assert "toy-a" in bridge.backends()
    assert "toy-b" not in bridge.backends()
    assert np.array_equal(bridge.to_device(there, "cpu").numpy(), HOST)


def test_all_devices_are_listed(family, monkeypatch):
    monkeypatch.setenv("DLBRIDGE_BACKENDS", "cpu,toy-")
    assert [str(each) for each in bridge.devices()] == [
        "cpu:0", "toy-a:0", "toy-a:1", "toy-b:0", "toy-b:1"
    ]  # fmt: skip
    assert bridge.devices("toy-b") == [bridge.device("toy-b:0"), bridge.device("toy-b:1")]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("cpu,toy-", ["toy-a", "toy-b"]),
        ("cpu,toy-b", ["toy-b"]),
        ("-toy-a", ["toy-b"]),
        ("-toy-", []),
        ("cpu", []),
    ],
)
def test_the_variable_names_some_of_a_family(family, monkeypatch, chosen, names):
    monkeypatch.setenv("DLBRIDGE_BACKENDS", chosen)
    assert [name for name in all_backends() if name.startswith("toy")] == names
    for name in {"toy-a", "toy-b"} - set(names):
        with pytest.raises(BackendUnavailable, match="is switched off by DLBRIDGE_BACKENDS"):
            bridge.backend(name)


def test_a_family_that_has_none_says_why(family, monkeypatch):
    monkeypatch.setattr(Family, "here", ())
    report = bridge.info().backends
    assert report["toy-"]["reason"] == "toy-: toys are ()"
    with pytest.raises(BackendUnavailable, match=r"toy-a: toys are \(\)"):
        bridge.zeros(2, device="toy-a")


def test_a_name_that_no_family_has(family):
    with pytest.raises(BackendUnavailable, match=r"toy-c: toys are"):
        bridge.zeros(2, device="toy-c:0")
    with pytest.raises(ValueError, match="no device is called 'other-a'"):
        bridge.zeros(2, device="other-a:0")


def test_a_beginning_is_registered_once(family):
    with pytest.raises(BackendError, match=r"'toy-' is already provided by .*Family"):
        bridge.register_backend("toy-", Toy)
    for name in ("toy-a", "-", "9-"):
        with pytest.raises(TypeError, match="a backend's name is an identifier"):
            bridge.register_backend(name, Toy)


def test_a_member_is_owned_by_the_family(family):
    assert "Family (registered by hand)" in provider_of("toy-a")


def test_pickles_name_the_device(family):
    there = bridge.to_device(HOST, "toy-b:1")
    again = pickle.loads(pickle.dumps(there))
    assert str(again.device) == "toy-b:1"
    assert pickle.loads(pickle.dumps(there.device)) is there.device


def test_memory_of_two_backends_of_one_type_finds_its_own(family, monkeypatch):  # P14
    """Of OneAPI, the backend that DLPack names knows all memory; a family's knows its own."""

    class OneAPI(CPU):
        device_type = 14

        def import_data(self, device_id, data, module):
            return device_id, data

    class ToyOneAPI(CPU):
        device_type = 14

        def allocate(self, *given):
            made = super().allocate(*given)
            own.add(made.data)
            return made

        def import_data(self, device_id, data, module):
            if data not in own:
                raise ExchangeError(f"{data:#x} is not of this toy")
            return device_id, data

    own = set()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])  # ours may be installed
    monkeypatch.setattr(Family, "open", lambda self, name: ToyOneAPI())
    bridge.register_backend("oneapi", OneAPI)
    LOADED.pop("oneapi", None)
    for name in ("toy-a", "oneapi"):
        there = bridge.to_device(HOST, f"{name}:0", copy=True)
        assert there.device.type == 14
        again = bridge.from_dlpack(there.__dlpack__())
        assert str(again.device) == f"{name}:0"


def test_a_type_that_dlpack_does_not_list_is_refused(family, monkeypatch):
    monkeypatch.setattr(Family, "open", lambda self, name: Toy(1, 99))
    with pytest.raises(BackendError, match="99, which is no DLDeviceType that this dlbridge knows"):
        bridge.backend("toy-a")
