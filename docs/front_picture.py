"""Draw docs/front.png, the picture of the front page: `python docs/front_picture.py`.

A photograph goes from torch to an OpenCL kernel and back. Everything that the picture says of bytes
and addresses was measured by this run. It needs torch, pyopencl with a driver for the CPU,
matplotlib and pillow.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyopencl as cl
import torch
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch
from PIL import Image

import dlbridge as bridge

KERNEL = """\
kernel void edges(
    global const uchar *x,
    global uchar *y)
{
  int w = get_global_size(0);
  int i = get_global_id(0)
        + get_global_id(1) * w;
  int end = w * get_global_size(1);
  int a = x[i] - x[(i + 1) % end];
  int b = x[i] - x[(i + w) % end];
  int edge = max(abs(a), abs(b));
  y[i] = 255 - min(255, 6 * edge);
}
"""
INK, PAPER, GREEN = "#1b2733", "#ffffff", "#2f7d3b"


def photograph() -> torch.Tensor:
    """The sample photograph of matplotlib in grey, at the beginning of a page, as torch has it."""
    path = Path(mpl.get_data_path(), "sample_data", "grace_hopper.jpg")
    grey = np.asarray(Image.open(path).convert("L"))[:512]
    pixels = bridge.empty(grey.shape, "uint8", alignment=4096).numpy()
    pixels[:] = grey
    return torch.from_numpy(pixels)


def main() -> None:
    """Run the way of the front page once, and draw it."""
    photo = photograph()
    height, width = photo.shape
    with bridge.trace() as trace:
        source = bridge.to_device(photo, "opencl:0").to_native()
        target = bridge.empty((height, width), "uint8", "opencl:0").to_native()
        edges = cl.Program(source.context, KERNEL).build().edges
        edges(source.queue, (width, height), None, source.base_data, target.base_data)
        result = bridge.to_device(target, "cpu", like="torch")
    there, back = trace.plans
    assert (int(result.min()), int(result.max())) == (0, 255)

    figure = plt.figure(figsize=(9.6, 3.05), facecolor=PAPER)
    panels = [figure.add_axes((left, 0.03, 0.25, 0.84)) for left in (0.01, 0.375, 0.74)]
    device = f"{bridge.device('opencl:0')}"
    titles = ["a torch tensor, cpu:0", f"an OpenCL kernel, {device}", "a torch tensor, cpu:0"]
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, color=INK, fontsize=12, pad=8)
        panel.set_xticks([])
        panel.set_yticks([])
    panels[0].imshow(photo.numpy(), cmap="gray", vmin=0, vmax=255)
    panels[1].set_facecolor("#eef3f8")
    panels[1].set_box_aspect(1)
    panels[1].text(0.05, 0.5, KERNEL, family="monospace", fontsize=7.4, va="center", color=INK)
    panels[2].imshow(result.numpy(), cmap="gray", vmin=0, vmax=255)
    for left, plan in ((0.262, there), (0.627, back)):
        figure.add_artist(
            FancyArrowPatch((left, 0.46), (left + 0.111, 0.46), arrowstyle="-|>", mutation_scale=22)
        )
        step = str(plan.steps[0]).split(":")[0]
        color = GREEN if plan.nbytes == 0 else "#b03a2e"
        figure.text(left + 0.055, 0.53, step, ha="center", fontsize=10, color=INK)
        figure.text(
            left + 0.055, 0.34, f"{plan.nbytes:,} bytes\ncopied", ha="center", fontsize=11,
            color=color, weight="bold", va="center",
        )  # fmt: skip
    output = Path(__file__).with_name("front.png")
    figure.savefig(output, dpi=150)
    Image.open(output).quantize(96).save(output, optimize=True)
    print(f"{output}: {output.stat().st_size} bytes\n{trace}")


if __name__ == "__main__":
    main()
