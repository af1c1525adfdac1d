"""Put the wheels that a GPU machine without a network lacks into ``.wheels/``.

    python tests/hardware/pack.py [--python 3.12] [NAME ...]

They are for Linux on x86-64. ``tests/hardware/run.py`` installs them on that machine, which
must have torch, numpy and pytest. With apt here, the loaders that Vulkan's driver needs come too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".wheels"
NAMES = [
    *("cffi", "pycparser"),
    *("cuda-bindings", "cuda-core", "cuda-pathfinder"),
    "apache-tvm-ffi==0.1.15.post2",
    *("pyopencl", "pytools", "platformdirs", "siphash24"),
    *("pytest-xdist", "execnet", "pytest-timeout", "hypothesis", "sortedcontainers", "tqdm"),
]
WARP = "warp-lang==1.2.2"
"""The newest whose library for the GPU (110 MB) is small enough to be carried, without its CPU's."""
OLDER = ["numpy==2.4.*"]
"""For libraries that the machine's own version is too new for (numba); into a folder of its own."""
LOADERS = ["libvulkan1", "libegl1", "libglvnd0", "libopengl0", "libgl1", "libglx0", "libgles2"]
# pip takes only wheels whose tag is named: manylinux_2_5 to manylinux_2_39, and the old names.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)]
PLATFORMS += [f"manylinux{year}_x86_64" for year in (2014, 2010, 1)]


def pack_warp() -> None:
    """``.wheels/warp.tar.xz``: what it needs to run on the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        subprocess.run([*pip, "--only-binary=:all:", WARP], check=True)
        (Path(folder) / "warp" / "bin" / "warp-clang.so").unlink()
        for part in ("examples", "tests"):
            shutil.rmtree(Path(folder) / "warp" / part)
        command = ["tar", "-C", folder, "-cJf", FOLDER / "warp.tar.xz", "warp"]
        subprocess.run(command, check=True)


def main() -> int:
    """Fetch everything; the exit code of the first command that fails."""
    parser = argparse.ArgumentParser(description="wheels for a GPU machine without a network")
    parser.add_argument("--python", default="3.12", help="the Python of that machine")
    parser.add_argument("names", nargs="*", default=NAMES, help="what to fetch instead")
    chosen = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    # One call for each: pip would look for one set that fits, and needs are not followed here.
    for name in [*chosen.names, *OLDER]:
        folder = FOLDER / "older" if name in OLDER else FOLDER
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        version = ["--python-version", chosen.python, "--implementation", "cp"]
        subprocess.run([*pip, *version, *platforms, "-d", folder, name], check=True)
    if chosen.names is NAMES:
        pack_warp()
    if shutil.which("apt-get"):
        subprocess.run(["apt-get", "-q", "download", *LOADERS], cwd=FOLDER, check=False)
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    print(f"{FOLDER}: {len(files)} files, {sum(f.stat().st_size for f in files) >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
