"""bench pack: copies inside host memory of several layouts, beside numpy and torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from dlbridge.cli.bench import Row, best_of

# Not `dlbridge.copy_`: this compares the copy itself, without the checks of a public call.
from dlbridge.extending import copy_array

MIB = 1 << 20


def rows(wanted: Callable[[str], bool], repeats: int) -> list[Row]:
    """One row per layout that is wanted. Peers: ``numpy.copyto`` and torch's ``copy_``."""
    found = []
    for operation, target, source in _layouts():
        if wanted(operation):
            times = best_of(_contenders(target, source), repeats)
            found.append(Row(operation, times.pop("dlbridge"), times))
    return found


def _contenders(target: Any, source: Any) -> dict[str, Callable[[], object]]:
    import numpy as np

    contenders: dict[str, Callable[[], object]] = {
        "dlbridge": lambda: copy_array(target, source),
        "numpy": lambda: np.copyto(target, source),
    }
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return contenders
    there, here = torch.from_numpy(target), torch.from_numpy(source)
    contenders["torch"] = lambda: there.copy_(here)
    return contenders


def _layouts() -> Iterator[tuple[str, Any, Any]]:
    """``(operation, target, source)``, made one by one: together they would be large."""
    import numpy as np

    for nbytes in (64, 4096, MIB, 64 * MIB, 1024 * MIB):
        yield f"contiguous, {nbytes} bytes", np.ones(nbytes, "u1"), np.ones(nbytes, "u1")
    pairs = np.ones(32 * MIB, "u4")
    yield "every second uint32, 64 MiB", np.ones(16 * MIB, "u4"), pairs[::2]
    rows = pairs.reshape(-1, 512)[:, :256]
    yield "rows of 1 KiB out of 2, 64 MiB", np.ones(rows.shape, "u4"), rows
    yield from _transposed_layouts()


def _transposed_layouts() -> Iterator[tuple[str, Any, Any]]:
    """Those whose elements lie in another order."""
    import numpy as np

    for kind in ("u1", "i2", "i4", "i8", "c16"):
        for size in (1000, 1024, 4000, 4096):
            matrix = np.ones((size, size), kind)
            yield f"transpose {size}x{size} {matrix.dtype}", np.ones_like(matrix), matrix.T
    for kind, shape in (
        ("u1", (1, 3, 1024, 1024)),
        ("i4", (1, 3, 1024, 1024)),
        ("i4", (32, 64, 56, 56)),
        ("i4", (32, 64, 64, 64)),
        ("i4", (64, 256, 32, 32)),
    ):
        first = np.ones(shape, kind)
        last = np.ascontiguousarray(first.transpose(0, 2, 3, 1))
        name = f"{'x'.join(map(str, shape))} {first.dtype}"
        yield f"NCHW to NHWC {name}", last, first.transpose(0, 2, 3, 1)
        yield f"NHWC to NCHW {name}", first, last.transpose(0, 3, 1, 2)
