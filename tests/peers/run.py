"""Check libraries with large wheels: one environment each, made, used and removed in turn.

    python tests/peers/run.py                 all of them
    python tests/peers/run.py tensorflow mlx  only these
    python tests/peers/run.py test-packages   those of the environment that runs this
    python tests/peers/run.py --keep mlx      the environment stays in .venv-peers
    python tests/peers/run.py --write mlx     the results go into tests/peers/RESULTS.md

Not a part of ``make test``: it downloads gigabytes. An environment sees the
packages of the Python that runs this (cffi, numpy, pytest, dlbridge). It prints
how long each took, and ends with 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

from tests.peers.table import write_conformance, write_rows

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-peers"

# Name of the environment -> its packages, and the libraries that DLBRIDGE_EXPECT names.
PEERS = {
    "columns": (["polars", "pandas", "nanoarrow"], ["polars", "pandas", "nanoarrow"]),
    "arrays": (
        ["xarray", "dask[array]", "array-api-strict", "tinygrad", "sparse", "pint", "shapely"],
        ["xarray", "dask", "array_api_strict", "tinygrad", "sparse", "pint", "shapely"],
    ),
    "mlx": (["mlx[cpu]"], ["mlx"]),
    "warp": (["warp-lang"], ["warp"]),
    "onnxruntime": (["onnxruntime"], ["onnxruntime"]),
    "openvino": (["openvino"], ["openvino"]),
    "tensorflow": (["tensorflow-cpu"], ["tensorflow"]),
    "paddle": (["paddlepaddle"], ["paddle"]),
    "max": (["max"], ["max"]),
    "dali": (["nvidia-dali-cuda120"], ["nvidia.dali"]),
    "ray": (["ray"], ["ray"]),
    "dpnp": (["dpctl", "dpnp", "intel-opencl-rt"], ["dpnp", "dpctl"]),
}

CHECKS = {"ray": "tests/clusters/test_ray.py"}
"""What is run for a library that has no arrays."""

TEST_PACKAGES = ["numpy", "torch", "jax", "tvm_ffi", "pyarrow", "dlbridge"]
"""Those that the conformance command can check: they have `__dlpack__` or `from_dlpack`."""


def check(name: str, *, keep: bool, write: bool) -> bool:
    """Make the environment *name*, run the checks in it, and tell how long both took."""
    packages, libraries = PEERS[name]
    home = FOLDER / name
    start = time.monotonic()
    if not home.exists():
        venv.create(home, with_pip=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = home / "lib" / version / "site-packages"
        (site / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = home / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", *packages]
    passed = subprocess.run(install, check=False).returncode == 0
    made = time.monotonic()
    if passed:
        for library in libraries:
            environment = {"DLBRIDGE_EXPECT": library, "TF_CPP_MIN_LOG_LEVEL": "3"}
            # oneAPI's CPU device, from here or from the environment that is seen through.
            for folder in (home, Path(sys.prefix)):
                runtime = folder / "lib" / "libintelocl.so"
                if runtime.exists():
                    environment["OCL_ICD_FILENAMES"] = str(runtime)
            checks = CHECKS.get(library, "tests/peers/check_peers.py")
            passed &= _run(python, environment, checks, [library], write=write)
    print(
        f"{name}: {'passed' if passed else 'FAILED'}; "
        f"installed in {made - start:.0f} s, checked in {time.monotonic() - made:.0f} s",
        flush=True,
    )
    if not keep:
        shutil.rmtree(home)
    return passed


def check_test_packages(*, write: bool) -> bool:
    """The same checks for the libraries of this environment."""
    return _run(
        Path(sys.executable),
        {"DLBRIDGE_EXPECT": "peers,opencl,vulkan"},
        "tests/interop/test_cells.py",
        TEST_PACKAGES,
        write=write,
    )


def _run(
    python: Path, extra: dict[str, str], checks: str, libraries: list[str], *, write: bool
) -> bool:
    """Whether the *checks* passed; *write* puts what they found into tests/peers/RESULTS.md."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "cells"
        found.touch()
        # An editable install is seen from its own environment only.
        folders = [ROOT, *ROOT.glob("backends/*"), *filter(None, [os.environ.get("PYTHONPATH")])]
        paths = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        environment = {**os.environ, **extra, **paths, "DLBRIDGE_CELLS": str(found)}
        command = [str(python), "-m", "pytest", "-q", "-rf", "--tb=short", "-p", "no:cacheprovider"]
        command.append(checks)
        passed = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0
        if write:
            write_rows(found.read_text(encoding="utf-8").splitlines())
            for library in libraries:
                command = [str(python), "-m", "dlbridge", "conformance", library, "--json"]
                done = subprocess.run(
                    command, cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE
                )
                if done.returncode == 0:
                    write_conformance(json.loads(done.stdout))
    return passed


def main() -> int:
    """Check the environments that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    choices = ["test-packages", *PEERS, []]
    parser.add_argument("names", nargs="*", choices=choices, help="default: all")
    parser.add_argument("--keep", action="store_true", help="do not remove the environments")
    parser.add_argument("--write", action="store_true", help="write tests/peers/RESULTS.md")
    arguments = parser.parse_args()
    passed = True
    for name in arguments.names or choices[:-1]:
        if name == "test-packages":
            passed &= check_test_packages(write=arguments.write)
        else:
            passed &= check(name, keep=arguments.keep, write=arguments.write)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
