"""Compiles the simulated drivers of this folder with gcc, and loads them.

    from tests.drivers.build import load
    cuda = load("cuda")   # libcuda.so.1, before cuda.bindings is first used
    hip = load("hip")     # libamdhip64.so.6, over the libcuda.so.1 of the process

A library loaded here is what `dlopen("libcuda.so.1")` finds afterwards in this
process: the loader knows it by its SONAME. Subprocesses that inherit
`FOLDER` find the compiled libraries there instead of compiling again.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

FOLDER = "DLBRIDGE_TEST_DRIVERS"
"""Environment variable: the folder with the compiled libraries of this test run."""

HERE = Path(__file__).resolve().parent

# name: the sources, and the SONAME that the driver's users ask the loader for
DRIVERS = {
    "cuda": ("fakecuda/*.c", "libcuda.so.1"),
    "hip": ("hipshim.c", "libamdhip64.so.6"),
}


def compiler() -> str | None:
    """The C compiler of this machine, or None."""
    return shutil.which(os.environ.get("CC", "gcc"))


def library(name: str) -> Path:
    """The compiled driver *name* (a key of `DRIVERS`), compiled at first use.

    RuntimeError with the compiler's output if it fails or if there is none.
    """
    sources, soname = DRIVERS[name]
    target = _folder() / soname
    if target.exists():
        return target
    cc = compiler()
    if cc is None:
        raise RuntimeError(f"{sources} needs a C compiler: install gcc, or set CC")
    new = target.with_name(f"{soname}.{os.getpid()}")
    flags = ["-std=gnu17", "-O1", "-g", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{soname}"]
    command = [cc, *flags, "-o", str(new), *map(str, sorted(HERE.glob(sources))), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{sources} does not compile:\n{done.stderr}")
    new.replace(target)  # whole or not at all, also beside another test process
    return target


@cache
def load(name: str) -> ctypes.CDLL:
    """The driver *name*, loaded for this process; never unloaded."""
    return ctypes.CDLL(str(library(name)), mode=ctypes.RTLD_GLOBAL)


def _folder() -> Path:
    if FOLDER not in os.environ:
        from tests.support.temporary_folders import new_folder

        os.environ[FOLDER] = new_folder("drivers")
    return Path(os.environ[FOLDER])
