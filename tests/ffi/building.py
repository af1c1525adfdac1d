"""Builds kernels with the compiler that is there: plain gcc and g++, nothing linked."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dlbridge import ffi
from tests.support.expected_parts import compiler_or_skip

KERNELS = Path(__file__).parent / "kernels"
INCLUDE = Path(ffi.library_path).parents[1] / "include"


def build(source: Path, folder: Path) -> Path:
    """The shared library made of *source*, in *folder*."""
    library = folder / f"{source.stem}.so"
    cpp = source.suffix != ".c"
    compiler = [compiler_or_skip("g++" if cpp else "gcc"), *["-std=c++17"] * cpp]
    flags = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-Wall", "-Werror", f"-I{INCLUDE}"]
    subprocess.run([*compiler, *flags, source, "-o", library], check=True)
    return library
