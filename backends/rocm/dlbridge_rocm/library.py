"""Finds and opens libamdhip64, the HIP runtime: the only module that knows cffi's module.

Two HIP runtimes in one process do not know each other's streams and memory, so
one that is loaded already (torch's wheels for ROCm bring their own) is used
before any other is opened.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbridge.errors import BackendUnavailable

from ._cdefs import ffi

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["candidates", "constant", "ffi", "load", "loaded_already"]

NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
"""Names that the loader is asked for in the end, newest first; the last is that of a
development package, and of ROCm's own wheels."""

_MAPS = Path("/proc/self/maps")

constant = cache(ffi.integer_const)
"""The value of a constant of ``hip.h``; needs no library."""


@cache  # only success is kept: ROCm may be installed, or torch imported, later
def load() -> Any:
    """The HIP runtime, opened at the first call and never closed.

    BackendUnavailable, with every place that was tried, if there is none.
    """
    attempts = []
    for candidate in candidates():
        try:
            return ffi.dlopen(candidate)
        except OSError as exc:
            attempts.append(f"{candidate} ({exc})")
    raise BackendUnavailable(
        f"no HIP runtime: tried {'; '.join(attempts)}. Install ROCm (Debian, Ubuntu: apt install "
        "libamdhip64-5; or AMD's packages), or set ROCM_PATH to where it is"
    )


def candidates() -> Iterator[str]:
    """Give the places where a runtime may be, in the order in which they are tried."""
    yield from loaded_already()
    if os.environ.get("ROCM_PATH"):
        yield str(Path(os.environ["ROCM_PATH"], "lib", "libamdhip64.so"))
    yield from _rocm_sdk()
    yield from NAMES


def loaded_already() -> list[str]:
    """The paths of the HIP runtimes in this process, as the kernel maps them."""
    if not _MAPS.exists():
        return []
    lines = (line.split(None, 5) for line in _MAPS.read_text().splitlines())
    paths = (fields[5] for fields in lines if len(fields) == 6)
    return list(dict.fromkeys(path for path in paths if Path(path).name.startswith("libamdhip64")))


def _rocm_sdk() -> list[str]:
    """The runtime of ROCm's own wheels, asked from their package ``rocm_sdk`` if it is there."""
    try:
        found = importlib.import_module("rocm_sdk").find_libraries("amdhip64")
    except Exception:  # not installed, or broken: then the next place
        return []
    return [str(path) for path in found]
