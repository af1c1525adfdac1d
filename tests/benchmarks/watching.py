"""What `dlbridge.watch` costs: ``python tests/benchmarks/watching.py [--write]``.

The processor time of the thread, so that other processes do not count; the least of five rounds
each, watched and not watched in turns. `--write` writes docs/benchmarks/watch.md: run it by each
CPython that has torch.
"""

from __future__ import annotations

import platform
import re
import sys
import time
from pathlib import Path

import numpy as np
import torch

import dlbridge as bridge

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "watch.md"


ARRAY, TENSOR = np.zeros(1000, "float32"), torch.zeros(1000)
SMALL, NUMBER = torch.zeros(4), torch.zeros(())


def plain(x):
    return x


def global_function(n=200_000):
    for _ in range(n):
        plain(1)


def hoisted_function(n=200_000):
    f = abs
    for _ in range(n):
        f(1)


def parameter(n=200_000, f=plain):
    for _ in range(n):
        f(1)


def torch_calls(n=20_000, x=SMALL):
    for _ in range(n):
        x = torch.relu(x + 1).abs()


def from_numpy(n=30_000, x=ARRAY):
    for _ in range(n):
        y = torch.from_numpy(x)
    return y


def item(n=30_000, x=NUMBER):
    for _ in range(n):
        x.item()


def asarray(n=30_000, x=TENSOR):
    for _ in range(n):
        y = np.asarray(x)
    return y


def own_array(n=30_000, x=ARRAY):
    for _ in range(n):
        y = np.asarray(x)
    return y


ROWS = [
    ("a Python function in a loop", global_function),
    ("the same, `f = abs` before the loop", hoisted_function),
    ("the same, of a parameter", parameter),
    ("operations of torch on 4 numbers", torch_calls),
    ("`torch.from_numpy(a)`", from_numpy),
    ("`t.item()`", item),
    ("`np.asarray(t)`, of torch", asarray),
    ("`np.asarray(a)`, no exchange", own_array),
]


def seconds(function):
    start = time.thread_time()
    function()
    return (time.thread_time() - start) / function.__defaults__[0]


def measured(function):
    """Nanoseconds for each turn, not watched and watched."""
    rounds = []
    for _ in range(5):
        alone = seconds(function)
        with bridge.watch():
            rounds.append((alone, seconds(function)))
    return [1e9 * min(each) for each in zip(*rounds, strict=True)]


def main():
    lines = ["| a turn of a loop with | ns | watched | ratio |", "|---|--:|--:|--:|"]
    for name, function in ROWS:
        alone, watched = measured(function)
        lines.append(f"| {name} | {alone:.0f} | {watched:.0f} | {watched / alone:.2f} |")
        print(lines[-1], flush=True)
    if "--write" in sys.argv:
        version = platform.python_version()
        parts = re.split(r"(?m)^## ", PAGE.read_text(encoding="utf-8"))
        kept = [part.rstrip() for part in parts[1:] if not part.startswith(f"CPython {version}\n")]
        new = f"CPython {version}\n\n" + "\n".join(lines)
        PAGE.write_text("\n\n## ".join([parts[0].rstrip(), *sorted([*kept, new])]) + "\n")


if __name__ == "__main__":
    main()
