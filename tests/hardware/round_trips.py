"""Bytes to each kind of CUDA memory and back: 1 B, 64 KiB, 1, 40 and 200 MiB."""

from __future__ import annotations

import sys
import time

import numpy as np

import dlbridge

SIZES = [1, 64 << 10, 1 << 20, 40 << 20, 200 << 20]


def main() -> int:
    """Print a line for each size and kind; exit 1 if a byte was wrong."""
    wrong = 0
    for name in ("cuda", "cuda_host", "cuda_managed"):
        for nbytes in SIZES:
            values = np.random.default_rng(nbytes).integers(0, 256, nbytes, "u1")
            start = time.perf_counter()
            there = dlbridge.to_device(values, name, copy=True)
            back = np.asarray(dlbridge.to_device(there, "cpu"))
            milliseconds = (time.perf_counter() - start) * 1e3
            right = np.array_equal(back, values)
            wrong += not right
            print(f"{name:13} {nbytes:10} B {milliseconds:9.2f} ms {'ok' if right else 'WRONG'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
