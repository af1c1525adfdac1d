"""What `dlbridge.watch` costs: ``python tests/benchmarks/watching.py [--write]``.

The processor time of the thread, so that other processes do not count; the least of fifteen rounds
each, watched and not watched in turns. `--write` writes docs/benchmarks/watch.md: run it by each
CPython that has torch.
"""

from __future__ import annotations

import platform
import re
import sys
import time
from importlib.util import find_spec
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


def exchange(call, x, of="", **names):
    """A loop of *call*, whose result goes into a variable; its name says what *x* is *of*."""
    scope = {"np": np, "torch": torch, "x": x, **names}
    text = f"def loop(n=10_000, x=x):\n for _ in range(n):\n  y = {call}\n return y"
    exec(compile(text, "loop.py", "exec"), scope)
    return f"`{call}`" + (of and f", of {of}"), scope["loop"]


def rows():
    """What is measured; of libraries that are not here nothing."""
    yield "a Python function in a loop", global_function
    yield "the same, `f = abs` before the loop", hoisted_function
    yield "the same, of a parameter", parameter
    yield "operations of torch on 4 numbers", torch_calls
    yield exchange("torch.from_numpy(x)", ARRAY)
    yield exchange("x.item()", NUMBER)
    yield exchange("np.asarray(x)", TENSOR, "torch")
    yield exchange("np.asarray(x)", ARRAY, "numpy: no exchange")
    yield exchange("bridge.asarray(x)", ARRAY, bridge=bridge)
    if find_spec("jax"):
        import jax

        yield exchange("np.asarray(x)", jax.numpy.ones(1000), "jax")
    if find_spec("tvm_ffi"):
        import tvm_ffi

        yield exchange("tvm_ffi.from_dlpack(x)", TENSOR, tvm_ffi=tvm_ffi)
    if find_spec("pyarrow"):
        import pyarrow

        yield exchange("x.to_numpy()", pyarrow.array(ARRAY), "pyarrow")
    if find_spec("pandas"):
        import pandas

        frame = pandas.DataFrame({"a": ARRAY, "b": ARRAY})
        yield exchange("x.to_numpy()", pandas.Series(ARRAY), "a pandas.Series")
        yield exchange("x.to_numpy()", frame, "a pandas.DataFrame")
    if find_spec("polars"):
        import polars

        yield exchange("x.to_numpy()", polars.Series(ARRAY), "polars")
    if find_spec("PIL"):
        import PIL.Image

        yield exchange("np.asarray(x)", PIL.Image.new("RGB", (64, 64)), "PIL")
    if find_spec("tensorflow"):
        import tensorflow

        yield exchange("np.asarray(x)", tensorflow.ones(1000), "tensorflow")


def seconds(function):
    start = time.thread_time()
    function()
    return (time.thread_time() - start) / function.__defaults__[0]


def measured(function):
    """Nanoseconds for each turn, not watched and watched."""
    rounds = []
    for _ in range(15):
        alone = seconds(function)
        with bridge.watch():
            rounds.append((alone, seconds(function)))
    return [1e9 * min(each) for each in zip(*rounds, strict=True)]


def main():
    lines = ["| a turn of a loop with | ns | watched | more | ratio |", "|---|--:|--:|--:|--:|"]
    for name, function in rows():
        alone, watched = measured(function)
        numbers = f"{alone:.0f} | {watched:.0f} | {watched - alone:.0f} | {watched / alone:.2f}"
        lines.append(f"| {name} | {numbers} |")
        print(lines[-1], flush=True)
    if "--write" in sys.argv:
        version = platform.python_version()
        parts = re.split(r"(?m)^## ", PAGE.read_text(encoding="utf-8"))
        kept = [part.rstrip() for part in parts[1:] if not part.startswith(f"CPython {version}\n")]
        new = f"CPython {version}\n\n" + "\n".join(lines)
        PAGE.write_text("\n\n## ".join([parts[0].rstrip(), *sorted([*kept, new])]) + "\n")


if __name__ == "__main__":
    main()
