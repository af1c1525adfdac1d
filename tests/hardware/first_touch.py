"""Copies from the GPU into new host memory: who touches its pages first, and how fast that is.

    python tests/hardware/first_touch.py

GB/s of the driver's copy of 64 and 256 MiB into memory that is there, into new memory, and into new
memory whose pages several threads have had made before (MADV_POPULATE_WRITE, Linux 5.14).
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import dlbridge
from dlbridge.protocol import Span

POPULATE_WRITE = 23
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def populate(address: int, nbytes: int, pool: ThreadPoolExecutor, threads: int) -> None:
    """Have the pages of the memory made, by so many threads at once."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = address + -address % mmap.PAGESIZE
    step = (address + nbytes - start) // threads // mmap.PAGESIZE * mmap.PAGESIZE
    starts = range(start, start + threads * step, step)
    list(pool.map(lambda at: madvise(at, step, POPULATE_WRITE), starts))


def main() -> None:
    """Print a line for each size and way."""
    cuda = dlbridge.backend("cuda")
    print(HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else "no huge pages known")
    pool = ThreadPoolExecutor(16)
    for nbytes in (64 << 20, 256 << 20):
        source = cuda.allocate(0, nbytes, 256, 1)
        span = Span(0, source.data, source.offset, nbytes)
        kept = np.ones(nbytes, "u1")
        for threads in (None, 0, 1, 2, 4, 8, 16):
            times = []
            for _ in range(5):
                into = kept if threads is None else np.empty(nbytes, "u1")
                begin = time.perf_counter()
                if threads:
                    populate(into.ctypes.data, nbytes, pool, threads)
                cuda.copy_to_host(span, memoryview(into), 1)
                cuda.synchronize(0, 1)
                times.append(time.perf_counter() - begin)
            way = "memory that is there" if threads is None else f"new, {threads} threads before"
            print(f"{nbytes >> 20} MiB, {way}: {nbytes / statistics.median(times) / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
