"""Files that drivers are found by, and files of devices: whether they are there and readable."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Finding(NamedTuple):
    """One thing that doctor has looked at.

    *state* is ``"ok"``, ``"note"`` for what is only missing, or ``"problem"``. *remedy* is
    what to do; empty if there is nothing to do.
    """

    state: Literal["ok", "note", "problem"]
    what: str
    said: str
    remedy: str = ""


DEVICES = {
    "/dev/nvidia[0-9]*": "ask the administrator of this machine for access to the GPU",
    "/dev/kfd": "sudo usermod -aG render,video $USER, and log in again",
    "/dev/dri/renderD*": "sudo usermod -aG render,video $USER, and log in again",
}
"""Files of GPUs, and what to do if they cannot be opened."""


def check_device_files(patterns: Mapping[str, str] = DEVICES) -> Iterator[Finding]:
    """A finding for each file of a GPU."""
    for pattern, remedy in patterns.items():
        for file in sorted(Path("/").glob(pattern.lstrip("/"))):
            name = str(file)
            if os.access(name, os.R_OK | os.W_OK):
                yield Finding("ok", name, "can be opened")
            else:
                yield Finding("problem", name, "is there, but this user may not open it", remedy)


def check_opencl_drivers(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """A finding for each file that names an OpenCL driver (an ICD)."""
    chosen = environment.get("OCL_ICD_VENDORS", "")
    files = _opencl_files(chosen)
    if chosen and not files:
        yield Finding(
            "problem",
            f"OCL_ICD_VENDORS={chosen}",
            "names no file *.icd, so no OpenCL driver is found",
            "unset OCL_ICD_VENDORS, or name a folder with *.icd files",
        )
    for file in files:
        yield _driver(file, str.strip, f"sudo chmod a+r {file}")


def _opencl_files(chosen: str) -> list[Path]:
    folder = Path(chosen or "/etc/OpenCL/vendors")
    return [folder] if folder.suffix == ".icd" else sorted(folder.glob("*.icd"))


def _driver(file: Path, library_in: Callable[[str], str], remedy: str) -> Finding:
    """What a *file* says that names a driver's library; *remedy* if it cannot be read."""
    try:
        library = Path(library_in(file.read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return Finding("problem", str(file), f"cannot be read: {exc!r}", remedy)
    # A bare name is looked for where the system's loader looks.
    if len(library.parts) > 1 and not (file.parent / library).exists():
        return Finding(
            "problem",
            str(file),
            f"names {library}, which does not exist",
            f"install that driver again, or remove {file}",
        )
    return Finding("ok", str(file), f"names {library}")


VULKAN_FOLDERS = ("/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d")


def check_vulkan_drivers(
    environment: Mapping[str, str] = os.environ, folders: tuple[str, ...] = VULKAN_FOLDERS
) -> Iterator[Finding]:
    """A finding for each file that names a Vulkan driver."""
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        chosen = [Path(name) for name in environment.get(variable, "").split(os.pathsep) if name]
        for file in chosen:
            if not file.exists():
                yield Finding(
                    "problem",
                    f"{variable}={file}",
                    "names a file that does not exist, and then no other driver is used",
                    f"unset {variable}",
                )
        if chosen:
            break
    else:
        chosen = [file for folder in folders for file in sorted(Path(folder).glob("*.json"))]
    for file in chosen:
        if file.exists():
            yield _driver(file, _library_in_manifest, f"install its driver again: {file}")


def _library_in_manifest(text: str) -> str:
    library: str = json.loads(text)["ICD"]["library_path"]
    return library


def driver_files(name: str) -> tuple[str, list[Path]]:
    """The files by which the loader of the backend *name* finds drivers, and its variable for one.

    The variable, set to such a file, makes the loader use that driver alone.
    """
    if name == "opencl":
        files = _opencl_files(os.environ.get("OCL_ICD_VENDORS", ""))
        # pyopencl's own loader lists the drivers of wheels, too.
        spec = importlib.util.find_spec("pyopencl")
        for folder in (spec and spec.submodule_search_locations) or []:
            wheels = sorted(Path(folder, ".libs").glob("*.icd"))
            files.extend(sorted(wheels, key=lambda file: file.stem == "oclgrind"))  # a simulator
        return "OCL_ICD_VENDORS", files
    if name == "vulkan":
        named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
        if named:
            return "VK_DRIVER_FILES", [Path(file) for file in named.split(os.pathsep)]
        folders = map(Path, VULKAN_FOLDERS)
        return "VK_DRIVER_FILES", [file for one in folders for file in sorted(one.glob("*.json"))]
    return "", []
