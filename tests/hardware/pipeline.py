"""Frames from torch through a Vulkan shader and back to torch: in place, and through the host.

    python tests/hardware/pipeline.py

In place, the frames lie in memory that Vulkan exports and CUDA uses: torch writes one, the shader
scales it where it is, torch adds to it. Through the host, each frame is copied to Vulkan and back.
A frame is float32; each figure is the best of five times ten frames, beside the copies of OpenCL.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DLBRIDGE_VULKAN_EXPORT", "1")  # before the first use of Vulkan

import numpy as np
import torch

import dlbridge as bridge

ROOT = Path(__file__).resolve().parents[2]
SCALE = ROOT / "backends" / "vulkan" / "tests" / "shaders" / "scale.spv"
SIZES = (1 << 20, 8 << 20, 32 << 20, 128 << 20)
"""Bytes of a frame."""
FRAMES = 10


def best(frames: Callable[[], object]) -> float:
    """Seconds of one frame."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(FRAMES):
            frames()
        found.append((time.perf_counter() - start) / FRAMES)
    return min(found)


class Shader:
    """``x *= factor`` on every element of a Vulkan tensor."""

    def __init__(self, index: int) -> None:
        self.kernel: Any = bridge.backend("vulkan").kernel(
            SCALE.read_bytes(), buffers=1, push_nbytes=12, device_id=index
        )

    def __call__(self, tensor: bridge.Tensor, factor: float) -> None:
        count = tensor.shape[0]
        # All along x: of several rows of groups this shader writes the first one's results only.
        push = struct.pack("=IIf", count, 1, factor)
        self.kernel(tensor, groups=(-(-count // 64), 1), push=push)


def in_place(count: int, device: bridge.Device, shader: Shader) -> Callable[[], Any]:
    """A frame without a copy; who waits for whom is in docs/vulkan.md, "With CUDA"."""
    there = bridge.empty(count, "float32", device)
    here = bridge.to_device(there, "cuda:0", copy=False)
    frame = torch.from_dlpack(here)
    assert frame.data_ptr() == here.data_ptr()

    def run() -> Any:
        frame.fill_(3)
        bridge.synchronize("cuda:0")
        torch.cuda.synchronize()
        shader(there, 2)
        bridge.synchronize(device)
        frame.add_(1)
        torch.cuda.synchronize()
        return frame

    return run


def through(count: int, device: bridge.Device, shader: Shader) -> Callable[[], Any]:
    """The same with copies: to Vulkan and back, as `to_device` makes them."""
    source = torch.empty(count, device="cuda")

    def run() -> Any:
        source.fill_(3)
        there = bridge.to_device(source, device, copy=True)
        shader(there, 2)
        frame = torch.from_dlpack(bridge.to_device(there, "cuda:0", copy=True))
        frame.add_(1)
        torch.cuda.synchronize()
        return frame

    return run


def by_opencl(count: int) -> Callable[[], Any]:
    """torch to OpenCL and back; no kernel between."""
    source = torch.empty(count, device="cuda")

    def run() -> Any:
        source.fill_(7)
        there = bridge.to_device(source, "opencl:0", copy=True)
        frame = torch.from_dlpack(bridge.to_device(there, "cuda:0", copy=True))
        torch.cuda.synchronize()
        return frame

    return run


def main() -> int:
    """Print a table."""
    device = bridge.device("cuda:0").same_device("vulkan")
    if device is None:
        print("cuda:0 is not found under vulkan")
        return 1
    shader = Shader(device.index)
    print("| frame | in place | through the host | times | by OpenCL, copies only |")
    print("|---|---|---|---|---|")
    wrong = 0
    for nbytes in SIZES:
        count, seconds = nbytes // 4, []
        for make in (in_place, through):
            run = make(count, device, shader)
            wrong += not bool((run() == 7).all())
            seconds.append(best(run))
            wrong += not bool((run() == 7).all())
        cells = [f"{s * 1e3:.2f} ms, {nbytes / s / 1e9:.2f} GB/s" for s in seconds]
        cells.append(f"{seconds[1] / seconds[0]:.1f}")
        if "opencl" in bridge.backends():
            run = by_opencl(count)
            wrong += not bool((run() == 7).all())
            taken = best(run)
            cells.append(f"{taken * 1e3:.2f} ms, {nbytes / taken / 1e9:.2f} GB/s")
        print(f"| {nbytes >> 20} MiB | {' | '.join(cells)} |", flush=True)
    host = np.ones(SIZES[-1], "u1")
    into = np.empty_like(host)
    taken = best(lambda: np.copyto(into, host))
    print(f"memcpy of the host, {SIZES[-1] >> 20} MiB: {SIZES[-1] / taken / 1e9:.2f} GB/s")
    print(f"{wrong} frames wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
