"""What `explain` says of a library and what `to_device` does, for all types and layouts."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

import dlbridge as bridge

if TYPE_CHECKING:
    from collections.abc import Iterator


TYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128", "float32x4"),
    *(f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu", "e3m4")),
    *("float6_e2m3fn", "float4_e2m1fn"),
]


def readonly(tensor: bridge.Tensor) -> bridge.Tensor:
    array = tensor.numpy()[...]
    array.flags.writeable = False
    return bridge.from_dlpack(array)


def broadcast(tensor: bridge.Tensor) -> bridge.Tensor:
    return bridge.from_dlpack(np.broadcast_to(tensor.numpy()[:1], tensor.shape))


LAYOUTS: dict[str, Any] = {
    "rows and columns": lambda t: t,
    "one dimension": lambda t: t.reshape(-1),
    "no dimension": lambda t: t[0, 0],
    "three dimensions": lambda t: t.reshape(2, 2, 3),
    "nothing": lambda t: t[:0],
    "nothing in one dimension": lambda t: t.reshape(-1)[:0],
    "nothing, backwards": lambda t: t[:0, ::-1],
    "every second column": lambda t: t[:, ::2],
    "columns and rows": lambda t: t.mT,
    "backwards": lambda t: t[::-1],
    "read-only": readonly,
    "broadcast": broadcast,
    "at an odd place": lambda t: t.reshape(-1)[1:],
}


def cases(device: str) -> Iterator[tuple[str, bridge.Tensor]]:
    """A name and a tensor for each type and layout that a tensor can have."""
    for name in TYPES:
        whole = bridge.zeros((4, 3), name, device)
        for layout, view in LAYOUTS.items():
            try:
                yield f"{name}, {layout}", view(whole)
            except (BufferError, TypeError, ValueError, IndexError):
                continue  # a view of packed elements, or of a device's
    for name in ("int4", "float6_e2m3fn"):  # one in each byte
        padded = np.zeros((4, 3), bridge.dtype(name).numpy)
        yield f"{name}, padded", bridge.from_dlpack(padded)
        yield f"{name}, padded, every second column", bridge.from_dlpack(padded[:, ::2])


def _outcome(function: Any, *arguments: Any, **keywords: Any) -> str:
    """The text that *function* returns; of which kind the error is, and what it says."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result: str = function(*arguments, **keywords)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return result


def _traced(*arguments: Any, **keywords: Any) -> str:
    """What `to_device` does, as `explain` says it."""
    with bridge.trace() as trace:
        bridge.to_device(*arguments, **keywords)
    return "\n".join(map(str, trace.plans))


def disagreements(like: Any, device: str = "cpu", target: str = "") -> list[str]:
    """Where `explain` says something else than `to_device` does, from *device* to *target*."""
    found = []
    target = target or device
    for name, tensor in cases(device):
        for copy in (None, False):
            said = _outcome(bridge.explain, tensor, target, like=like, copy=copy)
            done = _outcome(_traced, tensor, target, like=like, copy=copy)
            if said != done:
                found.append(f"{name}, copy={copy}: said {said!r:.150}, did {done!r:.250}")
    return found
