"""bench astype: conversions between dtypes on the host, beside ml_dtypes (with numpy) and torch."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import dlbridge as bridge
from dlbridge.cli.bench import Row, best_of

COUNT = 16 << 20

PAIRS = [
    ("float32", "bfloat16", False),
    ("bfloat16", "float32", False),
    ("float32", "float8_e4m3fn", False),
    ("float8_e4m3fn", "float32", False),
    ("float32", "float8_e5m2", False),
    ("float8_e5m2", "bfloat16", False),
    ("bfloat16", "float8_e4m3fn", False),
    ("float64", "float8_e4m3fn", False),
    ("float32", "float4_e2m1fn", False),
    ("float4_e2m1fn", "float32", False),
    ("int4", "float32", False),
    ("float32", "int4", False),
    ("int4", "int8", False),
    ("float16", "float32", False),
    ("float32", "float16", False),
    ("int8", "float32", False),
    ("float32", "int8", False),
    ("float64", "float32", False),
    ("float32", "float8_e4m3fn", True),
    ("float32", "int8", True),
]
"""Source, target, and whether values out of range saturate (the peers do not do that)."""


def rows(wanted: Callable[[str], bool], repeats: int) -> list[Row]:
    """One row per wanted pair of dtypes, of 16 Mi elements; the first with few elements, too.

    The result is a new array each time. Peers: ``astype`` of numpy with ml_dtypes, and
    torch with one thread, as dlbridge and numpy have. So the CPU time of this thread
    is measured, on which other work of the machine has less influence. Packed elements
    below a byte are unpacked, or packed, by hand in the peers.
    """
    import numpy as np

    numbers = np.random.default_rng(0).standard_normal(COUNT, dtype="float32") * 3
    cases = [(numbers[:1024], PAIRS[0], "1024 elements")]
    cases += [(numbers, pair, "16 Mi elements") for pair in PAIRS]
    cases.append((numbers.reshape(4096, 4096).T, PAIRS[0], "a transposed 4096x4096"))
    found = []
    for values, (source, target, saturate), what in cases:
        operation = f"{source} to {target}{', saturate' if saturate else ''}, {what}"
        if wanted(operation):
            functions = contenders(values, source, target, saturate)
            times = best_of(functions, repeats, clock=time.thread_time_ns)
            found.append(Row(operation, times.pop("dlbridge"), times))
    return found


def contenders(
    numbers: Any, source: str, target: str, saturate: bool
) -> dict[str, Callable[[], object]]:
    """Functions that convert the *numbers*, as *source*, to *target*: ours and the peers'."""
    start = numbers if source == "float32" else bridge.astype(numbers, source)
    ours: dict[str, Callable[[], object]] = {
        "dlbridge": lambda: bridge.astype(start, target, saturate=saturate)
    }
    if saturate:
        return ours
    return ours | _with_ml_dtypes(start, source, target) | _with_torch(start, source, target)


def _with_ml_dtypes(start: Any, source: str, target: str) -> dict[str, Callable[[], object]]:
    import numpy as np

    kind = bridge.dtype(target).numpy
    if bridge.dtype(source).bits < 8:
        packed = np.frombuffer(start.tobytes(), "u1")
        its_kind = bridge.dtype(source).numpy
        return {"ml_dtypes": lambda: _unpack(packed).view(its_kind).astype(kind)}
    array = np.asarray(start)
    if bridge.dtype(target).bits < 8:
        return {"ml_dtypes": lambda: _pack(array.astype(kind).view("u1"))}
    return {"ml_dtypes": lambda: array.astype(kind, order="C")}


def _unpack(packed: Any) -> Any:
    import numpy as np

    codes = np.empty((packed.size, 2), "u1")
    np.bitwise_and(packed, np.uint8(15), out=codes[:, 0])
    np.right_shift(packed, np.uint8(4), out=codes[:, 1])
    return codes.reshape(-1)


def _pack(codes: Any) -> Any:
    import numpy as np

    return codes[::2] & np.uint8(15) | codes[1::2] << np.uint8(4)


def _with_torch(start: Any, source: str, target: str) -> dict[str, Callable[[], object]]:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return {}
    torch.set_num_threads(1)
    convert = _of_torch(torch, start, source, target)
    return {} if convert is None else {"torch": convert}


def _of_torch(torch: Any, start: Any, source: str, target: str) -> Callable[[], object] | None:
    """The conversion in torch; None for types that it does not compute with."""
    if source == "int4":
        packed = torch.frombuffer(bytearray(start.tobytes()), dtype=torch.int8)
        kind = getattr(torch, target)
        # Both shifts extend the sign.
        return lambda: torch.stack((packed << 4 >> 4, packed >> 4), dim=-1).to(kind)
    if target == "int4":
        given = bridge.from_dlpack(start, like="torch")

        def to_int4() -> object:
            codes = given.to(torch.int8).view(torch.uint8).reshape(-1, 2)
            return codes[:, 0] & 15 | codes[:, 1] << 4

        return to_int4
    if "float4" in source + target:
        return None
    tensor = bridge.from_dlpack(start, like="torch")
    kind, form = getattr(torch, target), torch.contiguous_format
    return lambda: tensor.to(kind, memory_format=form)
