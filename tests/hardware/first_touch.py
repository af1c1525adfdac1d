"""Copies from the GPU into new host memory: who makes its pages, and how fast that is.

    python tests/hardware/first_touch.py

GB/s of copies of 64 and 256 MiB into memory that is there, and into new memory whose pages are made
by the copy itself, or by several threads before (`PLAN` in dlbridge/kit/staging.py says how many).
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np

import dlbridge
from dlbridge.kit import staging
from dlbridge.protocol import Span

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MAKES_PAGES = staging._madvise  # private: the call that is switched off


def main() -> None:
    """Print a line for each size and way."""
    cuda, plan = dlbridge.backend("cuda"), staging.PLAN
    print(HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else "no huge pages known")
    for nbytes in (64 << 20, 256 << 20):
        source = cuda.allocate(0, nbytes, 256, 1)
        span = Span(0, source.data, source.offset, nbytes)
        kept = np.ones(nbytes, "u1")
        for threads in (None, 0, 1, 2, 4, 8, 16):
            staging._madvise = MAKES_PAGES if threads else max
            staging.PLAN = plan._replace(threads=threads or 1)
            times = []
            for _ in range(5):
                into = kept if threads is None else np.empty(nbytes, "u1")
                begin = time.perf_counter()
                cuda.copy_to_host(span, memoryview(into), 1)
                cuda.synchronize(0, 1)
                times.append(time.perf_counter() - begin)
            way = "memory that is there" if threads is None else f"new, {threads} threads before"
            print(f"{nbytes >> 20} MiB, {way}: {nbytes / statistics.median(times) / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
