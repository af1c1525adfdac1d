"""explain: the steps that would move a tensor from a library or device to another."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from typing import Any

from dlbridge import backends, device, empty, plan

# Public functions use it in their messages; it has no public name.
from dlbridge.core.values.suggestions import did_you_mean

__all__ = ["add_arguments", "run"]

LIBRARIES = ("numpy", "torch", "jax", "tvm_ffi", "cupy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``explain``."""
    places = f"a library ({', '.join(LIBRARIES)}) or a device ({', '.join(backends())})"
    parser.add_argument("source", help=places)
    parser.add_argument("target", help=places)
    parser.add_argument(
        "--shape", default="1024x1024", help="such as 3x4 or 3,4; 1024x1024 by default"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Make a tensor at the source, and print the plan for it."""
    shape = _shape_of(arguments.shape)
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


def _check(place: str) -> None:
    """ValueError or ModuleNotFoundError if *place* names nothing that there is here."""
    if place in LIBRARIES:
        if not _is_installed(place):
            here = ", ".join(filter(_is_installed, LIBRARIES))
            raise ModuleNotFoundError(
                f"{place} is not installed here: install it, or name a library that is ({here})",
                name=place,
            )
        return
    name = place.partition(":")[0]
    if name in backends():
        return
    try:
        device(place)  # one that DLPack knows, and no backend serves here
    except ValueError as exc:
        raise ValueError(
            f"{place!r} is neither a library nor a device"
            f"{did_you_mean(name, [*LIBRARIES, *backends()])}: the libraries are "
            f"{', '.join(LIBRARIES)}, and the names of devices begin with one of "
            f"{', '.join(backends())}"
        ) from exc


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _shape_of(text: str) -> tuple[int, ...]:
    """``3x4``, ``3,4``, ``(3, 4)``, or nothing for no dimensions."""
    parts = text.strip(" ()").replace("x", ",").split(",")
    try:
        return tuple([int(part) for part in parts if part.strip()])
    except ValueError as exc:
        raise ValueError(f"--shape {text!r} is not a shape: write 3x4 or 3,4") from exc


def _make(place: str, shape: tuple[int, ...], dtype: str) -> Any:
    if place not in LIBRARIES:
        return empty(shape, dtype, place)
    if place == "tvm_ffi":
        return importlib.import_module(place).from_dlpack(empty(shape, dtype))
    library = importlib.import_module("jax.numpy" if place == "jax" else place)
    kind = getattr(library, dtype, None)
    if kind is None:
        raise ValueError(f"{place} has no dtype {dtype!r}")
    return library.zeros(shape, dtype=kind)
