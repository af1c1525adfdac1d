"""Questions that NVIDIA's documents leave open, put to the driver; each prints its answer.

tests/drivers/ASSUMPTIONS.md says what the backend takes for granted.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import dlbridge

ROOT = Path(__file__).resolve().parents[2]

SECOND = 1_700_000_000
"""Turns of a GPU's clock, about."""


def a_clone_on_a_side_stream_whose_source_dies() -> str:
    """torch clones our tensor on its side stream behind slow work; the tensor is dropped."""
    import torch

    wrong = 0
    side = torch.cuda.Stream()
    for turn in range(200):
        tensor = dlbridge.to_device(np.full(1 << 16, turn, "f4"), "cuda:0")
        with torch.cuda.stream(side):
            theirs = torch.from_dlpack(tensor)
            torch.cuda._sleep(300_000)
            clone = theirs.clone()
        del tensor, theirs
        other = dlbridge.to_device(np.full(1 << 16, -1, "f4"), "cuda:0")  # would take its place
        side.synchronize()
        wrong += not bool((clone == turn).all())
        del other
    return f"{wrong} of 200 wrong"


def a_read_only_memory_map_to_pinned_memory() -> str:
    """`to_device(np.memmap(mode="r"), "cuda_host")`: locked in place, or copied."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        mapped = np.memmap(file.name, np.uint8, "r")
        plan = str(dlbridge.explain(mapped, "cuda_host"))
        tensor = dlbridge.to_device(mapped, "cuda_host")
        there = dlbridge.to_device(tensor, "cuda:0")
        right = np.array_equal(np.asarray(dlbridge.to_device(there, "cpu")), mapped)
        shared = tensor.data_ptr() == mapped.ctypes.data
        return f"right: {right}, shared: {shared}, read-only: {tensor.readonly}\n{plan}"


def private_memory_in_place() -> str:
    """A page-aligned array of our own."""
    array = _aligned(1 << 20)
    tensor = dlbridge.to_device(array, "cuda_host")
    return f"shared: {tensor.data_ptr() == array.ctypes.data}"


def _aligned(nbytes: int) -> np.ndarray:
    raw = np.ones(nbytes + 4096, "u1")
    start = -raw.ctypes.data % 4096
    return raw[start : start + nbytes]


def a_long_kernel_beside_the_first_large_upload() -> str:
    """The upload that measures its ring must not wait for a kernel on another stream."""
    from backends.cuda.tests.cuda_support import stream
    from backends.cuda.tests.gpu_peers import Spin

    spin = Spin()
    values = np.random.default_rng(0).integers(0, 256, 64 << 20, "u1")
    with stream() as busy, stream() as free:
        spin(busy, 3 * SECOND)
        start = time.perf_counter()
        with dlbridge.use_stream("cuda:0", free):
            tensor = dlbridge.to_device(values, "cuda:0")
        upload = time.perf_counter() - start
        dlbridge.backend("cuda").synchronize(0, busy)
        kernel = time.perf_counter() - start
        with dlbridge.use_stream("cuda:0", free):
            right = np.array_equal(np.asarray(dlbridge.to_device(tensor, "cpu")), values)
        del tensor
    return f"upload of 64 MiB {upload:.3f} s beside a kernel of {kernel:.3f} s; right: {right}"


def a_plain_address_asked_for() -> str:
    """The memory type of host memory that the driver has not seen."""
    from cuda.bindings import driver

    array = np.ones(1 << 16, "u1")
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    driver.cuCtxPushCurrent(context)
    try:
        answer = driver.cuPointerGetAttribute(kind, array.ctypes.data)
    finally:
        driver.cuCtxPopCurrent()
    return str(answer)


def threads_at_once() -> str:
    """Eight threads copy to and fro; every byte is compared."""

    def wrong(seed: int) -> int:
        random = np.random.default_rng(seed)
        found = 0
        for _ in range(20):
            values = random.integers(0, 256, int(random.integers(1, 4 << 20)), "u1")
            there = dlbridge.to_device(values, "cuda:0")
            found += not np.array_equal(np.asarray(dlbridge.to_device(there, "cpu")), values)
        return found

    with ThreadPoolExecutor(8) as threads:
        return f"{sum(threads.map(wrong, range(8)))} of 160 wrong"


def no_memory_is_left() -> str:
    """Free memory of the GPU before and after a thousand tensors."""
    from cuda.bindings import driver

    def left() -> int:
        context = driver.cuDevicePrimaryCtxRetain(0)[1]
        driver.cuCtxPushCurrent(context)
        free = driver.cuMemGetInfo()[1]
        driver.cuCtxPopCurrent()
        return int(free)

    dlbridge.to_device(np.ones(1 << 20, "u1"), "cuda:0")
    before = left()
    for _ in range(1000):
        dlbridge.to_device(np.ones(1 << 20, "u1"), "cuda:0")
    gc.collect()
    dlbridge.synchronize("cuda:0")
    return f"free before {before >> 20} MiB, after {left() >> 20} MiB"


QUESTIONS: list[Callable[[], str]] = [
    a_long_kernel_beside_the_first_large_upload,
    a_clone_on_a_side_stream_whose_source_dies,
    a_read_only_memory_map_to_pinned_memory,
    private_memory_in_place,
    a_plain_address_asked_for,
    threads_at_once,
    no_memory_is_left,
]


def main() -> None:
    """Ask each; one that fails is printed and does not stop the others."""
    dlbridge.backend("cuda")
    for question in QUESTIONS:
        print(f"{question.__name__}:", flush=True)
        try:
            print(f"  {question()}", flush=True)
        except Exception:
            traceback.print_exc(limit=4)


if __name__ == "__main__":
    main()
