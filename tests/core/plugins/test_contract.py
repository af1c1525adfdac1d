"""What is checked when a backend is loaded; each error names the package that provides it."""

from __future__ import annotations

import pydoc
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from dlbridge_fake import Fake

import dlbridge as bridge
from dlbridge import protocol
from dlbridge.core.plugins.contract import CONTRACTS
from dlbridge.errors import BackendError, DeviceMemoryError
from dlbridge.extending import LOADED
from tests.support.known_backends import forget_registered, replace_backend
from tests.support.scripts import run_scene

CPU = type(bridge.backend("cpu"))
NAME = "loaded_by_a_test"


@pytest.fixture
def load(monkeypatch):
    """Load a subclass of *base* with other attributes, as an installed package's."""
    forget_registered(monkeypatch)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])  # ours may be installed

    def load(base=Fake, name=NAME, **attributes):
        replace_backend(monkeypatch, name, type("Theirs", (base,), attributes))
        try:
            return bridge.backend(name)
        finally:
            LOADED.pop(name, None)

    return load


@pytest.mark.parametrize(
    ("api", "says"),
    [(1, "upgrade that backend"), (5, "upgrade dlbridge")],
    ids=["too old", "too new"],
)
def test_versions_outside_the_range_are_refused(load, monkeypatch, api, says):
    monkeypatch.setattr(protocol, "API", 4)
    monkeypatch.setattr(protocol, "MIN_API", 2)
    with pytest.raises(BackendError, match=f"speaks backend API {api}, .* 2 to 4; {says}"):
        load(api=api)


def test_the_oldest_version_is_taken_with_a_warning(load, monkeypatch):
    monkeypatch.setattr(protocol, "API", 4)
    monkeypatch.setattr(protocol, "MIN_API", 2)
    with pytest.warns(FutureWarning, match=f"Theirs .registered by hand.: .*{NAME}.* API 2"):
        assert load(api=2).device_count() == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(api=3)
        load(api=4)


def test_no_warning_while_there_is_one_version(load):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load().api == 2


def test_a_name_of_dlpack_with_its_device_type(load):
    assert load(name="hexagon", device_type=16).device_type == 16


def old_copy(self, device_id, data, offset, source, stream):
    """As it was before there were spans."""


def swapped(self, source, target, stream):
    """Same number of arguments."""


def keyword(self, target, source, *, stream):
    """Cannot be called by position."""


def too_many(self, target, source, stream, progress):
    """Needs one more."""


def one_keyword_more(self, target, source, stream, *, progress):
    """Needs one more, by its name."""


def broken(self):
    raise OSError("no bus")


REFUSED = [
    *(({"api": api}, f"api = {api!r}; .*literal: api = 2") for api in (None, True, "1", 1.0)),
    ({"device_type": "kDLWebGPU"}, "as a number, 15 for kDLWebGPU"),
    ({"device_type": None}, "as a number"),
    ({"device_type": True}, "device_type = True"),
    *(({"device_type": kind}, "a positive int32") for kind in (0, -4, 1 << 31)),
    # What it exports would come back as a tensor of the other.
    ({"device_type": 99}, "99, which is no DLDeviceType that this dlbridge knows; take 12"),
    ({"device_type": 8}, "8, which is kDLMetal, which belongs to the name 'metal'; take 12"),
    ({"name": "hexagon"}, r"'hexagon' belongs to kDLHexagon \(16\).* is 12"),
    ({"name": "type12"}, "'type12': typeN is a device type by its number"),
    ({"device_count": broken}, "failed in device_count: OSError: no bus"),
    *(
        ({"device_count": lambda self, count=count: count}, rf"count\(\) = {count!r}; it is a ")
        for count in ("1", 0, -1, True, 1.0, None)
    ),
    ({"host_copies_block": 1}, "host_copies_block is 1; it is True or False"),
    ({"max_strided_ndim": "2"}, "max_strided_ndim is '2'; .* dimensions, at least 1"),
    *(({"max_strided_ndim": n}, f"max_strided_ndim is {n}") for n in (0, True, 2.0)),
    ({"synchronize": 7}, "synchronize is 7, not a method"),
    *(
        ({member: function}, rf"{member} takes \(.*contract says \(target, source")
        for member in ("copy_from_host", "copy")
        for function in (old_copy, swapped, keyword, too_many, one_keyword_more)
    ),
]


@pytest.mark.parametrize(("attributes", "says"), REFUSED)
def test_what_cannot_be_is_refused(load, attributes, says):
    with pytest.raises(BackendError, match=f"Theirs .registered by hand.: .*{says}"):
        load(**attributes)


def test_more_parameters_with_defaults_are_the_backends_own_affair(load):
    def more(self, target, source, stream, progress=None):
        """Can be called as the contract says."""

    def by_keyword(self, target, source, stream, *, progress=None, **others):
        """As well."""

    def any_number(self, *arguments):
        """This, too."""

    for function in (more, by_keyword, any_number, staticmethod(lambda *arguments: None)):
        load(copy=function)
    load(base=CPU, device_type=12, copy=len)  # written in C: nothing can be read


def test_an_entry_point_that_no_device_string_can_name(monkeypatch):
    point = EntryPoint("Upper Dev", "upper:Dev", "dlbridge.backends")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [point])
    with pytest.raises(BackendError, match="upper:Dev provides a backend 'Upper Dev', which no"):
        bridge.backend("Upper Dev")


def test_every_fact_is_checked(load):
    """No declared attribute of the contract is taken whatever it is."""
    declared = {name for name in vars(protocol.Facts) if not name.startswith("_")}
    for contract in CONTRACTS:
        declared |= {name for name, function in CONTRACTS[contract].items() if function is None}
    assert {"host_copies_block", "api", "max_strided_ndim"} <= declared
    for name in declared:
        with pytest.raises(BackendError, match=name):
            load(**{name: "no such value"})


@pytest.mark.parametrize("start", [0x5AFE_0000_0000_0001, 1 << 40, 256])
def test_a_handle_on_a_device_that_the_host_reads(start):
    said = run_scene("backends.handles_for_addresses", start)
    assert "Handles (registered by hand): backend 'cuda_host'" in said
    assert "data must be an address" in said


def test_what_is_tried_on_a_device_that_the_host_reads(load):
    """What `Backend.device_type` says, and nothing more; a refusal there is no error."""
    calls = []

    class Written(CPU):
        def current_stream(self, device_id):
            calls.append(("current_stream", device_id))
            return super().current_stream(device_id)

        def allocate(self, *given):
            calls.append(("allocate", *given))
            return super().allocate(*given)

    load(base=Written, name="cuda_host", device_type=3)
    assert calls == [("current_stream", 0), ("allocate", 0, 256, 256, 0)]
    for said in ("``current_stream(0)``", "``allocate(0, 256, 256, stream)``"):
        assert said in Path(protocol.__file__).read_text(encoding="utf-8")

    def full(self, *given):
        raise DeviceMemoryError("no room")

    load(base=Written, name="cuda_host", device_type=3, allocate=full)


def test_help_shows_what_a_protocol_declares_and_nothing_of_typing():
    shown = pydoc.plain(pydoc.render_doc(protocol.Backend))
    assert "copy_to_host(" in shown
    assert "__init_subclass__" not in shown
    assert "_is_protocol" not in shown
