"""explain: the steps that would move a tensor from a library or device to another."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from functools import partial
from math import prod
from typing import Any

from dlbridge import (
    Error,
    ExchangeError,
    backends,
    device,
    dtype as as_dtype,
    empty,
    plan,
    to_device,
)
from dlbridge.extending import did_you_mean, known_libraries

LIBRARIES = tuple(
    name for name in known_libraries() if name not in ("dlbridge", "sparse", "scipy.sparse")
)
"""Those that ``like=`` knows and that have dense arrays."""

_COLUMNS = {"pandas", "polars", "pyarrow"}
_ON_CUDA = {"cupy", "numba"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``explain``."""
    choices = f"a library ({', '.join(LIBRARIES[:8])}, ...) or a device ({', '.join(backends())})"
    parser.add_argument("source", help=choices)
    parser.add_argument("target", help=choices)
    parser.add_argument(
        "--shape",
        help="such as 3x4 or 3,4; 1024x1024 by default, 1048576 where a library has columns only",
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Make a tensor at the source, and print the plan for it."""
    columns = _COLUMNS & {arguments.source, arguments.target}
    usual = "1048576" if columns else "1024x1024"
    shape = _shape_of(usual if arguments.shape is None else arguments.shape)
    _check(arguments.source)
    _check(arguments.target)
    source = _make(arguments.source, shape, arguments.dtype)
    like = arguments.target if arguments.target in LIBRARIES else None
    steps = plan(source, "cpu" if like else arguments.target, like=like)
    if arguments.json:
        json.dump(steps.as_dict(), sys.stdout, indent=2)
        print()
    else:
        print(steps)
    return 0


def _check(endpoint: str) -> None:
    """ValueError or ModuleNotFoundError if *endpoint* names nothing that there is here."""
    if endpoint in LIBRARIES:
        if not _is_installed(endpoint):
            here = ", ".join(filter(_is_installed, LIBRARIES))
            raise ModuleNotFoundError(
                f"{endpoint} is not installed here: install it, or name a library that is ({here})",
                name=endpoint,
            )
        return
    name = endpoint.partition(":")[0]
    if name in backends():
        return
    try:
        device(endpoint)  # one that DLPack knows, and no backend serves here
    except ValueError as exc:
        raise ValueError(
            f"{endpoint!r} is neither a library nor a device"
            f"{did_you_mean(name, [*LIBRARIES, *backends()])}: the libraries are "
            f"{', '.join(LIBRARIES)}, and the names of devices begin with one of "
            f"{', '.join(backends())}"
        ) from exc


def _is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _shape_of(text: str) -> tuple[int, ...]:
    """``3x4``, ``3,4``, ``(3, 4)``, ``(3,)``, or nothing for no dimensions."""
    inside = text.strip(" ()")
    if not inside:
        return ()
    if _SHAPE.fullmatch(inside):
        return tuple([int(extent) for extent in _EXTENT.findall(inside)])
    raise ValueError(
        f"--shape {text!r} is not a shape: write 3x4 or 3,4, with extents from 0 and of at most 18 "
        "digits"
    )


_EXTENT = re.compile(r"[0-9]{1,18}")
_SHAPE = re.compile(rf"{_EXTENT.pattern}(?: *[x,] *{_EXTENT.pattern})* *,?")


def _make(endpoint: str, shape: tuple[int, ...], dtype: str) -> Any:
    """An array of the library, or a tensor on the device; ValueError names the wrong option."""
    make = partial(_array, endpoint) if endpoint in LIBRARIES else partial(empty, device=endpoint)
    try:
        nbytes = as_dtype(dtype).nbytes(prod(filter(None, shape)))  # as libraries count
    except (ExchangeError, TypeError, ValueError) as exc:
        raise ValueError(
            f"--dtype {dtype!r}: {exc}; name a type that {endpoint} has, such as float32"
        ) from exc
    make((1,) * len(shape), dtype)  # an error here is not about the extents
    try:
        if nbytes >= 1 << 63:
            raise OverflowError("no computer can address them")
        return make(shape, dtype)
    except (Error, MemoryError, OverflowError, ValueError) as exc:
        why = str(exc).partition("\n")[0]
        raise ValueError(
            f"--shape {'x'.join(map(str, shape))}: {endpoint} cannot make an array of "
            f"{nbytes} bytes ({why}): choose fewer or smaller extents"
        ) from exc


def _array(library: str, shape: tuple[int, ...], dtype: str) -> Any:
    if library == "numpy":  # `plan` would call the memory that of `empty`
        import numpy as np

        return np.empty(shape, as_dtype(dtype).numpy)
    device = "cuda:0" if library in _ON_CUDA else "cpu"
    return to_device(empty(shape, dtype), device, like=library)
