"""The backend as a plugin: installed, named, versioned, light to import, complete."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pytest

from dlbridge import protocol
from dlbridge.extending import check_backend

from .backend_base import SCENE, BackendCase, DeviceUnderTest, check_live, run_python

AGAIN = f"""{SCENE}
try:
    dlbridge.backend(name)
except dlbridge.BackendUnavailable:
    load()
"""
"""The second time is as the first one: what failed has left nothing."""

GROUP = "dlbridge.backends"
"""The group of entry points, as `dlbridge.protocol` names it."""


IMPORT_ALONE = """
import importlib, importlib.machinery, os, pathlib, sys, sysconfig, threading
# Libraries that any plugin may use, as Python itself does.
import ctypes, hashlib, decimal, mmap, uuid, cffi, dlbridge.protocol, dlbridge.errors

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

def begun():
    folder = pathlib.Path("/proc/self/fd")
    known = folder.iterdir() if folder.exists() else ()
    files = [os.readlink(file) for file in known if os.path.islink(file)]
    sockets = {file for file in files if file.startswith("socket:")}
    return sockets | {f"thread:{thread.name}" for thread in threading.enumerate()}

done, outside = set(), ("socket.connect", "subprocess.Popen", "os.system", "os.posix_spawn")
sys.addaudithook(lambda event, _: done.add(f"call:{event}") if event in outside else None)
before, modules = opened() | begun(), set(sys.modules)
importlib.import_module(sys.argv[1])
packages = {name.partition(".")[0] for name in set(sys.modules) - modules}
packages -= set(sys.stdlib_module_names)
print("\\n".join(sorted(packages | done | (opened() | begun()) - before)))
"""

CAPABILITIES = [getattr(protocol, name) for name in protocol.__all__ if name.startswith("Supports")]
"""The protocols that a backend may satisfy beside `dlbridge.protocol.Backend`."""

KINDS = ("cpu", "gpu", "accelerator", "other")
"""The kinds of devices that the contract has."""

UUID = re.compile(r"((GPU|MIG)-)?([0-9a-f]{16}|([0-9a-f]-?){31}[0-9a-f])", re.IGNORECASE)

PCI = re.compile(r"([0-9a-f]+:)?[0-9a-f]{1,2}:[0-9a-f]{1,2}(\.[0-9a-f])?", re.IGNORECASE)

LIGHT = frozenset({"_cffi_backend", "cffi", "dlbridge", "pycparser", "typing_extensions"})
"""Packages beside the standard library that a backend's module may import at once."""


class ContractTests(BackendCase):
    """The properties that the registry and the plans need before any memory is used."""

    def test_entry_point_is_installed(self) -> None:
        """Device strings find the backend by its entry point."""
        names = {point.name for point in entry_points(group=GROUP)}
        assert self.provider() in names, f"install the distribution: pip install -e . ({names})"

    def test_contract(self, backend: Any) -> None:
        """What dlbridge checks when it loads a backend: its version and type, members and facts."""
        check_backend(backend, self.name, "the backend under test")

    def provider(self) -> str:
        """The name of the entry point: that of the backend, or the beginning that a family has."""
        first, dash, _ = self.name.partition("-")
        return first + dash

    def entry_point(self) -> EntryPoint:
        """The one that the registry would load."""
        (point, *_) = entry_points(group=GROUP, name=self.provider())
        return point

    def test_current_stream_is_a_stream(self, backend: Any, devices: list[DeviceUnderTest]) -> None:
        """The current stream can be waited for, on every device."""
        for device in devices:
            stream = backend.current_stream(device.device_id)
            assert isinstance(stream, int)
            if isinstance(backend, protocol.SupportsStreams):
                backend.synchronize(device.device_id, stream)

    def test_import_needs_no_driver(self) -> None:
        """Listing and importing plugins must cost nothing and touch no driver.

        A connection, a program that is run and a thread are no less, nor is the Python package of
        a driver, which may be missing or take a second: import it where it is used. A package that
        opens nothing, such as one that two of your backends share, is named in `light_imports`.
        """
        module = self.entry_point().module
        done = run_python(IMPORT_ALONE, module)
        assert done.returncode == 0, done.stderr
        own = {*LIGHT, *self.light_imports, module.partition(".")[0]}
        assert set(done.stdout.split()) <= own, "import these when the class is called"

    def test_class_is_called_without_arguments(self) -> None:
        """The registry calls it so."""
        cls = self.entry_point().load()
        assert isinstance(cls, type)
        inspect.signature(cls).bind()
        if self.provider() != self.name:  # a family names those that it opens
            names = list(cls().names())
            assert self.name in names
            assert all(name.startswith(self.provider()) for name in names)

    @pytest.mark.parametrize("capability", CAPABILITIES)
    def test_no_capability_is_half_there(self, backend: Any, capability: type) -> None:
        """A misspelt member would make dlbridge use another way silently."""
        names = {*capability.__annotations__, *vars(capability)}
        names = {name for name in names if not name.startswith("_")}
        missing = [name for name in names if not hasattr(backend, name)]
        assert len(missing) in (0, len(names)), f"{capability.__name__} lacks {missing}"

    def test_missing_driver_is_said(self) -> None:
        """Without the driver the class raises BackendUnavailable: what is missing, and what to do.

        And so again when it is asked again. A server that does not answer is a missing driver, too.
        """
        if self.without_driver is None and not self.without_package:
            pytest.skip("nothing says how to be without the driver (without_driver)")
        given = self.name, self.device_id, self.patience
        if self.without_driver is not None:
            code = f"{self.child_setup or ''}\n{AGAIN}"
            done = run_python(code, *given, limit=self.patience, environment=self.without_driver)
            assert done.returncode in (0, 77), done.stderr
            assert done.stdout.strip(), "the backend was loaded without its driver, or says nothing"
        if self.without_package:
            # Also where the backend is switched off: the question is what its class says.
            code = (
                "import os, sys\nos.environ.pop('DLBRIDGE_BACKENDS', None)\n"
                f"sys.modules[{self.without_package!r}] = None\n{AGAIN}"
            )
            done = run_python(code, *given, limit=self.patience)
            assert done.returncode in (0, 77), done.stderr
            assert "pip install" in done.stdout, "the error does not say how to install the package"

    def test_live_allocations_are_counted(self, device: DeviceUnderTest) -> None:
        """Where the backend counts them: one more for each, and one less when it is dropped."""
        backend = device.backend
        if not hasattr(backend, "live_allocations"):
            pytest.skip(f"{self.name} does not count what is alive (live_allocations)")
        device.synchronize()
        before = backend.live_allocations()
        held = [device.allocate(256) for _ in range(3)]
        assert backend.live_allocations() == before + 3
        for data in held:
            device.free(data)
        device.synchronize()
        check_live(backend, before, "after the memory was dropped")

    def test_uuids_are_the_devices_own(self, backend: Any) -> None:
        """Two devices with one UUID would be taken for one."""
        self.need(backend, protocol.SupportsDeviceInfo)
        uuids = [backend.device_info(each).get("uuid") for each in range(backend.device_count())]
        uuids = [str(uuid).replace("-", "").lower() for uuid in uuids if uuid]
        assert len(set(uuids)) == len(uuids), uuids

    def test_device_info_has_a_name(self, backend: Any) -> None:
        """The details that `info` prints, and programs choose by, in the contract's forms."""
        self.need(backend, protocol.SupportsDeviceInfo)
        for device_id in range(backend.device_count()):
            info = backend.device_info(device_id)
            assert isinstance(info["name"], str)
            assert info["name"]
            assert info.get("memory", 1) > 0
            assert info.get("memory_used", 0) >= 0
            assert isinstance(info.get("host_memory_shared", False), bool)
            assert info.get("kind", "other") in KINDS
            assert info.get("uuid") is None or UUID.fullmatch(info["uuid"]), info["uuid"]
            assert info.get("pci") is None or PCI.fullmatch(info["pci"]), info["pci"]

    def test_device_info_is_of_now(
        self, device: DeviceUnderTest, devices: list[DeviceUnderTest]
    ) -> None:
        """``memory_used``, where it is known, grows by what is allocated, and there alone."""
        self.need(device.backend, protocol.SupportsDeviceInfo)
        backend, device_id = device.backend, device.device_id
        if "memory_used" not in backend.device_info(device_id):
            pytest.skip("device_info does not say how much memory is in use (memory_used)")
        if isinstance(backend, protocol.SupportsTrim):
            backend.trim(device_id)  # memory that is kept counts, and would be used again
        nbytes = min(self.max_nbytes, 8 << 20)
        ids = [device_id, *(each.device_id for each in devices if each.device_id != device_id)]
        before = [backend.device_info(each).get("memory_used", 0) for each in ids]
        device.write(device.allocate(nbytes), 0, b"in use")
        now = [backend.device_info(each).get("memory_used", 0) for each in ids]
        assert now[0] >= before[0] + nbytes
        for each, was, used in zip(ids[1:], before[1:], now[1:], strict=True):
            assert used < was + nbytes, f"memory of device {device_id} counts on device {each}, too"

    def test_devices_are_found_by_name(self, backend: Any) -> None:
        """A name finds its device, no part of a word does, and errors list the devices."""
        self.need(backend, protocol.SupportsDeviceInfo)
        with pytest.raises(LookupError, match=r"\w"):
            backend.find_device("no such device, surely")
        names = [str(backend.device_info(each)["name"]) for each in range(backend.device_count())]
        for device_id, name in enumerate(names):
            if names.count(name) == 1:
                assert backend.find_device(name) == device_id
            else:
                with pytest.raises(LookupError, match=re.escape(name)):
                    backend.find_device(name)
        part = names[0][:1]
        if not any(re.search(rf"(?<!\w){part}(?!\w)", name, re.IGNORECASE) for name in names):
            with pytest.raises(LookupError, match=re.escape(names[0])):
                backend.find_device(part)
