"""info: versions, libraries, backends, their devices and the settings, for a bug report.

And how it and doctor lay out text: columns, wrapped lines, units, and colour for terminals.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

from dlbridge import backend, ffi
from dlbridge.errors import BackendUnavailable, Error
from dlbridge.extending import all_backends, bytes_text, html_table, provider_of, public_in
from dlbridge.protocol import Backend, SupportsDeviceInfo

from .trials import list_devices

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

PACKAGES = (
    "cffi",
    "numpy",
    "ml_dtypes",
    "torch",
    "jax",
    "apache-tvm-ffi",
    "cupy",
    "pyopencl",
    "wgpu",
    "dpctl",
    "cuda-bindings",
    "cuda-core",
    "hip-python-interop",  # a second cuda.bindings, over HIP
    "mpi4py",
)


@public_in("dlbridge")
class Info:
    """A report about this machine, made by `dlbridge.info`. It prints itself.

    Attributes
    ----------
    dlbridge, python, platform : str
        The versions of dlbridge and Python, and the system.
    packages : dict of str to str
        The installed packages that matter here, and their versions.
    tvm_ffi : str
        The version of libtvm_ffi and its path, or why it cannot be used.
    settings : dict of str to str
        The variables ``DLBRIDGE_...`` that are set in the environment.
    backends : dict of str to dict
        For each installed backend its ``state`` (``"usable"``, ``"unavailable"`` or
        ``"broken"``), its ``owner``, and its ``devices`` or the ``reason``.

    Examples
    --------
    >>> report = bridge.info()
    >>> report.backends["cpu"]["state"]
    'usable'
    """

    def __init__(self, backends: dict[str, dict[str, Any]]) -> None:
        from dlbridge import __version__

        self.dlbridge = __version__
        self.python = f"{platform.python_implementation()} {platform.python_version()}"
        self.platform = platform.platform()
        self.packages = packages()
        self.tvm_ffi = _tvm_ffi()
        self.settings = settings()
        self.backends = backends

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        rows = [
            *self._devices(),
            *((names, "", why, "", "") for names, why in self._refused(False)),
        ]
        title = f"dlbridge {self.dlbridge}, {self.python}, {self.platform}"
        return html_table(title, ("device", "kind", "name", "memory", "driver"), rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in plain values, for JSON.

        Returns
        -------
        dict
            The attributes by their names.

        Examples
        --------
        >>> sorted(bridge.info().as_dict())[:3]
        ['backends', 'dlbridge', 'packages']
        """
        return dict(vars(self))

    def text(self, *, verbose: bool = False, color: bool = False) -> str:
        """Return the report as text, in columns; the devices that can be used come first.

        Parameters
        ----------
        verbose : bool
            Whether every property of each device is in it, and the path of libtvm_ffi.
        color : bool
            Whether headings are marked for a terminal.

        Returns
        -------
        str
            Lines without a newline at the end.

        Examples
        --------
        >>> "cpu:0" in bridge.info().text()
        True
        """
        told = [f"dlbridge {self.dlbridge}, {self.python}, {self.platform}"]
        told += wrapped("packages", ", ".join(f"{k} {v}" for k, v in self.packages.items()))
        owners = {report["owner"] for report in self.backends.values()}
        told += wrapped("backends", ", ".join(sorted(owners - {"dlbridge (built in)"})) or "none")
        usable = self.tvm_ffi.partition(",")[0] if not verbose else self.tvm_ffi
        told += wrapped("TVM-FFI", usable)
        chosen = " ".join(f"{name}={value}" for name, value in self.settings.items())
        told += wrapped("settings", chosen or "none: no variable DLBRIDGE_... is set")
        told += ["", heading("Devices", color)]
        told += self._all_properties() if verbose else columns(self._devices())
        refused = self._refused(verbose)
        if refused:
            told += ["", heading("Not usable here", color)]
            for names, reason in refused:
                told += wrapped(names, reason)
        return "\n".join(told)

    def _devices(self) -> list[tuple[str, ...]]:
        """One row for each device: its number, kind, name, memory and driver."""
        rows: list[tuple[str, ...]] = []
        for name, report in self.backends.items():
            for index, device in enumerate(report.get("devices", ())):
                memory = value_text("memory", device.get("memory", ""))
                driver = str(device.get("driver", ""))
                kind, called = str(device.get("kind", "")), str(device.get("name", ""))
                rows.append((f"{name}:{index}", kind, called, memory, driver))
        return rows

    def _all_properties(self) -> list[str]:
        told = []
        for name, report in self.backends.items():
            for index, device in enumerate(report.get("devices", ())):
                told.append(f"{name}:{index}  {device.get('name', '')}  ({report['owner']})")
                told += columns(
                    [("", k, value_text(k, v)) for k, v in device.items() if k != "name"]
                )
        return told

    def _refused(self, verbose: bool) -> list[tuple[str, str]]:
        """The backends that cannot be used, with the reason; those with the same one together."""
        by_reason: dict[str, list[str]] = {}
        for name, report in self.backends.items():
            if "reason" in report:
                which = f" [{report['owner']}]" if verbose or report["state"] == "broken" else ""
                by_reason.setdefault(f"{report['reason']}{which}", []).append(name)
        return [(", ".join(names), reason) for reason, names in by_reason.items()]


@public_in("dlbridge")
def info() -> Info:
    """Return a report about this machine: versions, devices, and why others cannot be used.

    It loads every backend. ``print(info())`` prints the same as ``python -m dlbridge info``:
    paste it into a bug report.

    Returns
    -------
    Info
        The report, which prints itself.

    Examples
    --------
    >>> print(bridge.info())  # doctest: +ELLIPSIS
    dlbridge ...
    """
    # Mesa looks for a Wayland display at each start of a driver, and says on stderr, four times,
    # that the folder for it is not known. There is none in this one.
    absent = "XDG_RUNTIME_DIR" not in os.environ
    if absent:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        return Info({name: report_of(name) for name in all_backends()})
    finally:
        if absent:
            os.environ.pop("XDG_RUNTIME_DIR", None)


def packages() -> dict[str, str]:
    """Versions of the installed packages in `PACKAGES`; none of them is imported."""
    versions = {name: version_of(name) for name in PACKAGES}
    return {name: version for name, version in versions.items() if version}


def version_of(distribution: str) -> str:
    """The version of an installed *distribution*; empty if there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def settings() -> dict[str, str]:
    """The variables of the environment that are for dlbridge."""
    return {k: v for k, v in sorted(os.environ.copy().items()) if k.startswith("DLBRIDGE_")}


def _tvm_ffi() -> str:
    try:
        return f"{'.'.join(map(str, ffi.version))}, {ffi.library_path}"
    except Error as exc:
        return f"not usable: {exc}"


def report_of(name: str) -> dict[str, Any]:
    """What `Info.backends` says about the backend *name*."""
    report: dict[str, Any] = {"owner": provider_of(name)}
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


# The command ------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``info``."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every property of each device"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    report = Info(list_devices(all_backends()))
    if arguments.json:
        json.dump(report.as_dict(), sys.stdout, indent=2, default=str)
        print()
    else:
        print(report.text(verbose=arguments.verbose, color=shows_color(sys.stdout)))
    return 0


# Text for people ---------------------------------------------------------------------

WIDTH = 100
"""Columns at most."""


def width() -> int:
    """The columns of the terminal; 100 at most, and where there is none."""
    return max(30, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}


def shows_color(stream: TextIO) -> bool:
    """Whether *stream* is a terminal that wants colour (https://no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream.isatty()


def colored(text: str, how: str, color: bool) -> str:
    """*text*, marked for a terminal if *color* is true."""
    return f"\033[{_CODES[how]}m{text}\033[0m" if color else text


def heading(text: str, color: bool) -> str:
    """A heading."""
    return colored(text, "bold", color)


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """The *rows* as lines, each column as wide as its widest entry.

    In a narrow terminal each row is wrapped instead.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if WIDTH > width() < sum(widths) + 2 * (len(widths) - 1):
        return [
            line
            for first, *rest in rows
            for line in wrapped(first, ", ".join(entry for entry in rest if entry))
        ]
    return [
        "  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def wrapped(name: str, text: str) -> list[str]:
    """``name  text``, on as many lines as it takes; paths and names are not cut."""
    indent = 10
    first = f"{name:<{indent - 1}} " if len(name) < indent else f"{name}: "
    lines = textwrap.wrap(
        " ".join(text.split()),
        width(),
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [name]


def value_text(name: str, value: object) -> str:
    """The *value* of a device's property, with a unit if it counts bytes."""
    counts_bytes = name in _BYTES or name.startswith(("memory", "max_allocation", "max_buffer"))
    if counts_bytes and name != "max_allocations" and isinstance(value, int):
        return bytes_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


_BYTES = {"max_storage_buffer_range", "max_push_constants", "min_imported_host_pointer_alignment"}
