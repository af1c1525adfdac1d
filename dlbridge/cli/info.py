"""info: versions, libraries, backends and their devices, for a bug report."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from typing import Any

from dlbridge import __version__, backend, backends

# Which distribution provides a backend has no public name: only this report and
# `new-backend` ask for it.
from dlbridge.core.plugins.registry import owner

from ..errors import BackendUnavailable, Error
from ..protocol import Backend, SupportsDeviceInfo

__all__ = ["add_arguments", "collect", "collect_packages", "run"]

PACKAGES = (
    "cffi",
    "numpy",
    "ml_dtypes",
    "torch",
    "jax",
    "apache-tvm-ffi",
    "cupy",
    "pyopencl",
    "cuda-bindings",
    "cuda-core",
    "mpi4py",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``info``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what `collect` finds."""
    found = collect()
    if arguments.json:
        json.dump(found, sys.stdout, indent=2, default=str)
        print()
        return 0
    print(f"dlbridge {found['dlbridge']}, Python {found['python']}, {found['platform']}")
    print(", ".join(f"{name} {version}" for name, version in found["packages"].items()))
    print(f"TVM-FFI: {found['tvm_ffi']}")
    for name, report in found["backends"].items():
        print(f"{name:13} {report['state']:12} {report['owner']}")
        for line in report.get("reason", "").splitlines():
            print(f"{'':13} {line}")
        for index, device in enumerate(report.get("devices", [])):
            details = ", ".join(f"{key} {value}" for key, value in device.items() if key != "name")
            print(f"  {name}:{index:<3} {device.get('name', '?')} ({details})")
    return 0


def collect() -> dict[str, Any]:
    """The whole report in plain values. Loads every backend; failures are reported."""
    return {
        "dlbridge": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "packages": collect_packages(),
        "tvm_ffi": _tvm_ffi(),
        "backends": {name: _backend(name) for name in backends()},
    }


def collect_packages() -> dict[str, str]:
    """Versions of the installed packages in `PACKAGES`; none of them is imported."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _tvm_ffi() -> str:
    from .. import ffi

    try:
        return f"{'.'.join(map(str, ffi.version))}, {ffi.library_path}"
    except Error as exc:
        return f"not usable: {exc}"


def _backend(name: str) -> dict[str, Any]:
    report: dict[str, Any] = {"owner": owner(name)}
    try:
        plugin = backend(name)
        devices = [_device(plugin, index) for index in range(plugin.device_count())]
        return {**report, "state": "usable", "devices": devices}
    except BackendUnavailable as exc:
        return {**report, "state": "unavailable", "reason": str(exc)}
    except Exception as exc:  # any failure of a backend is a line of the report
        return {**report, "state": "broken", "reason": f"{type(exc).__name__}: {exc}"}


def _device(plugin: Backend, index: int) -> dict[str, Any]:
    if isinstance(plugin, SupportsDeviceInfo):
        return dict(plugin.device_info(index))
    return {}
