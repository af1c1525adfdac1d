"""The backend as a plugin: installed, named, versioned, light to import, complete."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest

from dlbridge import DLDeviceType, protocol
from dlbridge.errors import ExchangeError

from .backend_base import BackendCase

__all__ = ["ContractTests"]

GROUP = "dlbridge.backends"
"""The group of entry points, as `dlbridge.protocol` names it."""

CAPABILITIES = [getattr(protocol, name) for name in protocol.__all__ if name.startswith("Supports")]

IMPORT_ALONE = """
import importlib, importlib.machinery, pathlib, sys, sysconfig
import ctypes, hashlib, decimal, mmap, cffi, dlbridge.protocol  # libraries that any plugin may use

def opened():
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    files = {getattr(m, "__file__", None) or "" for m in list(sys.modules.values())}
    files = {f for f in files if f.endswith(suffixes)}
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists():
        parts = [line.split(None, 5) for line in maps.read_text().splitlines()]
        files |= {p[5] for p in parts if len(p) == 6 and ".so" in p[5]}
    stdlib = str(pathlib.Path(sysconfig.get_path("stdlib")))
    return {f for f in files if not f.startswith(stdlib)}

before = opened()
importlib.import_module(sys.argv[1])
print("\\n".join(sorted(opened() - before)))
"""


def members(contract: type) -> dict[str, Any]:
    """Methods and attributes that a Protocol declares, except its own machinery."""
    methods = {name: value for name, value in vars(contract).items() if not name.startswith("_")}
    return {**dict.fromkeys(contract.__annotations__), **methods}


def parameters(function: Any) -> list[tuple[str, Any]]:
    """Names and kinds of what *function* is called with, self apart."""
    return [
        (parameter.name, parameter.kind)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    ]


class ContractTests(BackendCase):
    """The properties that the registry and the plans need before any memory is used."""

    def test_entry_point_is_installed(self) -> None:
        """Device strings find the backend by its entry point."""
        names = {point.name for point in entry_points(group=GROUP)}
        assert self.name in names, f"install the distribution: pip install -e . ({names})"

    def test_api_is_ours(self, backend: Any) -> None:
        """The backend was written for the version of the contract that this kit tests."""
        assert backend.api == protocol.API

    def test_name_and_device_type_match(self, backend: Any) -> None:
        """DLPack's names belong to DLPack's device types."""
        assert isinstance(backend.device_type, int)
        assert 0 < backend.device_type < 2**31
        known = {member.name[3:].lower(): member for member in DLDeviceType}
        assert known.get(self.name.replace("_", ""), backend.device_type) == backend.device_type

    def test_there_is_a_device(self, backend: Any) -> None:
        """A backend without a device raises BackendUnavailable instead."""
        assert backend.device_count() >= 1

    def test_import_opens_no_library(self) -> None:
        """Listing and importing plugins must cost nothing and touch no driver."""
        (point, *_) = entry_points(group=GROUP, name=self.name)
        command = [sys.executable, "-c", IMPORT_ALONE, point.module]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [], "import these when the class is called"

    def test_class_is_called_without_arguments(self) -> None:
        """The registry calls it so."""
        (point, *_) = entry_points(group=GROUP, name=self.name)
        cls = point.load()
        assert isinstance(cls, type)
        inspect.signature(cls).bind()

    @pytest.mark.parametrize("contract", [protocol.Backend, *CAPABILITIES])
    def test_signatures_are_the_contracts(self, backend: Any, contract: type) -> None:
        """Same names in the same order: dlbridge may call either way."""
        if contract is not protocol.Backend:
            self.need(backend, contract)
        for name, declared in members(contract).items():
            member = getattr(backend, name)
            if declared is not None:
                assert parameters(member) == parameters(declared), f"{contract.__name__}.{name}"

    @pytest.mark.parametrize("capability", CAPABILITIES)
    def test_no_capability_is_half_there(self, backend: Any, capability: type) -> None:
        """A misspelt member would make dlbridge use another way silently."""
        names = members(capability)
        missing = [name for name in names if not hasattr(backend, name)]
        assert len(missing) in (0, len(names)), f"{capability.__name__} lacks {missing}"

    @pytest.mark.parametrize("beyond", [-1, 0, 1000])
    def test_unknown_device_is_refused(self, backend: Any, beyond: int) -> None:
        """ExchangeError that names the device, as the contract says."""
        device_id = beyond if beyond < 0 else backend.device_count() + beyond
        with pytest.raises(ExchangeError, match=str(device_id)):
            backend.allocate(device_id, 16, 16, 0)

    def test_device_info_has_a_name(self, backend: Any) -> None:
        """The details that `info` prints for each device."""
        self.need(backend, protocol.SupportsDeviceInfo)
        for device_id in range(backend.device_count()):
            info = backend.device_info(device_id)
            assert isinstance(info["name"], str)
            assert info["name"]
            assert info.get("memory", 1) > 0
            assert isinstance(info.get("host_memory_shared", False), bool)

    def test_devices_are_found_by_name(self, backend: Any) -> None:
        """A part of a name finds a device; the error for an unknown name lists the devices."""
        self.need(backend, protocol.SupportsDeviceNames)
        with pytest.raises(LookupError, match=r"\w"):
            backend.find_device("no such device, surely")
        self.need(backend, protocol.SupportsDeviceInfo)
        for device_id in range(backend.device_count()):
            name = backend.device_info(device_id)["name"]
            assert backend.device_info(backend.find_device(name))["name"] == name
