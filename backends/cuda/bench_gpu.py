"""Copies between host and GPU beside torch, cupy and the plain driver call.

    python backends/cuda/bench_gpu.py [--most 4G] [--output FILE]

Writes docs/benchmarks/cuda-gpu.md: GB/s for pageable and pinned memory, both
ways, from 64 B to 4 GiB. Libraries that are missing leave their column empty.
Each figure is the median of the repetitions that fit in a quarter of a second (3 to 200),
the first one left out; the source's pages exist, each target is new except
for the plain call, which copies into memory that it has.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "cuda-gpu.md"
SIZES = [
    64,
    4 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
    4 << 30,
]
COLUMNS = ["plain cuMemcpy", "dlbridge", "torch", "cupy"]

SECONDS = 0.25
Copy = Callable[[], Any]


def library(name: str) -> Any:
    """Torch or cupy with a GPU; None without."""
    try:
        module = importlib.import_module(name)
        has_gpu = module.cuda.is_available()
    except Exception:  # not installed, or its own driver trouble: the column stays empty
        return None
    return module if has_gpu else None


def seconds(copy: Copy) -> float:
    """The median time of *copy*, which is complete when it returns."""
    copy()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < SECONDS and len(times) < 200):
        start = time.perf_counter()
        result = copy()
        times.append(time.perf_counter() - start)
        del result
    return statistics.median(times)


def host_array(nbytes: int, pinned: bool) -> Any:
    """Bytes whose pages exist, pageable or page-locked by us."""
    if not pinned:
        return np.ones(nbytes, "u1")
    array = dlbridge.empty(nbytes, "uint8", "cuda_host").numpy()
    array[:] = 1
    return array


def plain(array: Any, to_device: bool) -> Copy:
    """The driver's call and a synchronisation."""
    cuda: Any = dlbridge.backend("cuda")
    from cuda.bindings import driver

    memory = cuda.allocate(0, array.nbytes, 256, 1)
    (error, context) = driver.cuDevicePrimaryCtxRetain(0)
    assert not error, error

    def copy() -> None:
        driver.cuCtxPushCurrent(context)
        if to_device:
            (error,) = driver.cuMemcpyHtoDAsync(memory.data, array.ctypes.data, array.nbytes, 1)
        else:
            (error,) = driver.cuMemcpyDtoHAsync(array.ctypes.data, memory.data, array.nbytes, 1)
        assert not error, error
        (error,) = driver.cuStreamSynchronize(1)
        assert not error, error
        driver.cuCtxPopCurrent()

    return copy


def ours(array: Any, to_device: bool) -> Copy:
    """`to_device`, complete on return in both directions."""
    if to_device:
        return lambda: dlbridge.to_device(array, "cuda:0")
    there = dlbridge.to_device(array, "cuda:0")
    if array.flags.owndata:
        return lambda: dlbridge.to_device(there, "cpu")
    into = dlbridge.from_dlpack(array)  # pinned memory is not made anew each time
    return lambda: dlbridge.copy_(into, there)


def torchs(torch: Any, array: Any, to_device: bool) -> Copy:
    """``.to("cuda")`` and ``.cpu()``; pinned: into memory that is there, as with ours."""
    pinned = not array.flags.owndata
    host = torch.empty(array.nbytes, dtype=torch.uint8, pin_memory=pinned)
    host.fill_(1)

    def done(result: Any) -> Any:
        torch.cuda.synchronize()
        return result

    if to_device:
        return lambda: done(host.to("cuda", non_blocking=pinned))
    there = host.to("cuda")
    if pinned:
        return lambda: done(host.copy_(there, non_blocking=True))
    return lambda: done(there.cpu())


def cupys(cupy: Any, array: Any, to_device: bool) -> Copy:
    """``asarray`` and ``asnumpy``."""

    def done(result: Any) -> Any:
        cupy.cuda.Device().synchronize()
        return result

    if to_device:
        return lambda: done(cupy.asarray(array))
    there = cupy.asarray(array)
    out = None if array.flags.owndata else array
    return lambda: done(cupy.asnumpy(there, out=out))


def row(nbytes: int, pinned: bool, to_device: bool, peers: dict[str, Any]) -> dict[str, float]:
    """Bytes per second of every column."""
    array = host_array(nbytes, pinned)
    copies = {"plain cuMemcpy": plain(array, to_device), "dlbridge": ours(array, to_device)}
    if peers["torch"] is not None:
        copies["torch"] = torchs(peers["torch"], array, to_device)
    if peers["cupy"] is not None:
        copies["cupy"] = cupys(peers["cupy"], array, to_device)
    return {name: nbytes / seconds(copy) for name, copy in copies.items()}


def table(pinned: bool, to_device: bool, sizes: Sequence[int], peers: dict[str, Any]) -> list[str]:
    """One table in Markdown."""
    memory = "pinned" if pinned else "pageable"
    way = "host to device" if to_device else "device to host"
    head = ["size", *(f"{name} GB/s" for name in COLUMNS), "of plain", "of torch"]
    lines = [f"## {way}, {memory} memory", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for nbytes in sizes:
        rates = row(nbytes, pinned, to_device, peers)
        cells = [f"{rates[name] / 1e9:.3g}" if name in rates else "" for name in COLUMNS]
        shares = [
            f"{rates['dlbridge'] / rates[name]:.2f}" if name in rates else ""
            for name in ("plain cuMemcpy", "torch")
        ]
        lines.append(f"| {size_text(nbytes)} | {' | '.join([*cells, *shares])} |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def heading(peers: dict[str, Any]) -> list[str]:
    """The head of the page: the measurement, the machine, the date."""
    cuda: Any = dlbridge.backend("cuda")
    info = cuda.device_info(0)
    versions = ", ".join(
        f"{name} {module.__version__}" for name, module in peers.items() if module is not None
    )
    return [
        "# Copies between host and GPU",
        "",
        "Written by `make bench-gpu` (`backends/cuda/bench_gpu.py`, which says how it measures).",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}; {info['name']}, {info['driver']}, "
        f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}; "
        f"Python {platform.python_version()}, dlbridge {dlbridge.__version__}"
        + (f", {versions}" if versions else ""),
        "",
    ]


def size_text(nbytes: int) -> str:
    """``64 KiB``."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes} {unit}"
        nbytes //= 1024
    return f"{nbytes} GiB"


def size_of(text: str) -> int:
    """Bytes of ``64K``, ``1M``, ``4G``."""
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1].upper()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure everything and write the file."""
    parser = argparse.ArgumentParser(description="Copies between host and GPU")
    parser.add_argument("--most", type=size_of, default=SIZES[-1], help="largest size, as 4G")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    chosen = parser.parse_args(arguments)
    try:
        dlbridge.backend("cuda")
    except dlbridge.BackendUnavailable as exc:
        print(f"nothing measured: {exc}", file=sys.stderr)
        return 1
    peers = {name: library(name) for name in ("torch", "cupy")}
    sizes = [size for size in SIZES if size <= chosen.most]
    lines = heading(peers)
    for pinned in (False, True):
        for to_device in (True, False):
            lines += table(pinned, to_device, sizes, peers)
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text("\n".join(lines))
    print(f"written: {chosen.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
