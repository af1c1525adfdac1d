"""demo: a photograph through every backend of this machine, filtered on each.

The filter is a box blur (``dlbridge/diagnosis/kernels.py``); every result is compared with numpy's,
byte by byte, and all of them go side by side into one picture.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dlbridge as bridge
from dlbridge.errors import Error

from ..diagnosis.kernels import KERNELS, by_numpy
from ..diagnosis.trials import FAILED, Trial, try_devices, way_out

if TYPE_CHECKING:
    import numpy as np

    Image = np.ndarray[Any, np.dtype[np.uint8]]

RADIUS = 5  # pixels

SAID = {
    "unavailable": "not usable here",
    "fails": "listed, but its driver fails",
    "broken": "broken",
}
"""The states of devices that do not work."""


@dataclass
class Result:
    """The filtered photograph of one device or library."""

    name: str
    image: Image
    filtered_by: str
    copied: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``demo``."""
    parser.add_argument("photo", nargs="?", help="a picture; matplotlib's portrait by default")
    parser.add_argument("--output", default="demo.png", help="the picture to write (demo.png)")
    parser.add_argument(
        "--expect",
        default="",
        metavar="NAMES",
        help="backends, such as opencl,vulkan: one that is absent or fails makes the demo fail",
    )


def run(arguments: argparse.Namespace) -> int:
    """Filter the photograph everywhere, compare, and write the picture."""
    photo = _photo(arguments.photo)
    expected = by_numpy(photo, RADIUS)
    print(f"photograph: {photo.shape[1]} x {photo.shape[0]}, {photo.nbytes} bytes")
    results = [Result("photograph", photo, ""), Result("numpy", expected, "numpy")]
    states = _everywhere(photo, results)
    if importlib.util.find_spec("torch") is not None:
        results.append(_in_torch(photo))
    wrong = [result.name for result in results[1:] if not _same(result.image, expected)]
    _picture(results, Path(arguments.output))
    print(f"\n{len(results) - 1} results, side by side in {arguments.output}")
    if wrong:
        raise Error(f"these differ from numpy's: {', '.join(wrong)}")
    print("every result equals numpy's, byte by byte")
    broken = [device for device, state in states.items() if state == "broken"]
    if broken:
        raise Error(f"these are broken: {', '.join(broken)}")
    for name in filter(None, map(str.strip, arguments.expect.split(","))):
        of_it = {state for device, state in states.items() if device.partition(":")[0] == name}
        if of_it != {"works"}:
            raise Error(f"{name} is expected, and is absent or fails")
    return 0


def _everywhere(photo: Image, results: list[Result]) -> dict[str, str]:
    """Add each device's result to *results*; the states of all devices (`Trial.state`).

    A device that its driver lists and cannot use is no failure of the demo.
    """
    states: dict[str, str] = {}
    names = bridge.backends()
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # which wait for processes
        tried = list(zip(names, threads.map(try_devices, names), strict=True))
    for name, trials in tried:
        for trial in trials:
            outcome, device = trial, trial.what.partition(" ")[0]
            if trial.state == "works":
                try:
                    results.append(_on_device(device, photo))
                except Exception as exc:  # a broken backend must not hide the others
                    outcome = Trial(trial.what, "broken", f"{type(exc).__name__}: {exc}")
            states[device] = outcome.state
            if outcome.state != "works":
                print(f"\n{outcome.what}: {SAID[outcome.state]}: {outcome.said}")
            if outcome.state in FAILED:
                print(f"  leave it out: {way_out(name)}")
    return states


def _photo(path: str | None) -> Image:
    import numpy as np

    try:
        from PIL import Image as PillowImage
    except ImportError as exc:
        raise ImportError(
            "the demo reads pictures with pillow, and its sample photograph is matplotlib's: "
            f"pip install pillow matplotlib ({exc})"
        ) from exc
    if path is None:
        try:
            from matplotlib import get_data_path
        except ImportError as exc:
            raise ImportError(
                "name a picture, or pip install matplotlib, whose sample photograph is the default"
            ) from exc
        path = str(Path(get_data_path(), "sample_data", "grace_hopper.jpg"))
    picture = np.asarray(PillowImage.open(path).convert("RGB"))
    # At the beginning of a page: devices that share the host's memory use it in place.
    photo: Image = bridge.empty(picture.shape, "uint8", alignment=4096).numpy()
    photo[:] = picture
    return photo


def _on_device(device: str, photo: Image) -> Result:
    """The photograph moved to a device, filtered there if it has a kernel, and moved back."""
    print(f"\n{device}")
    launch = KERNELS.get(device.partition(":")[0])
    names = ["photograph to the device"]
    with bridge.trace() as moves:
        source = bridge.to_device(photo, device)
        if launch is not None:
            target = bridge.empty(photo.shape, "uint8", device)
            launch(source, target, RADIUS)
            bridge.synchronize(device)
            filtered_by = device
        else:
            back = bridge.to_device(source, "cpu", like="numpy")
            blurred = bridge.empty(photo.shape, "uint8", alignment=4096).numpy()
            blurred[:] = by_numpy(back, RADIUS)
            target = bridge.to_device(blurred, device)
            filtered_by = "numpy, as this backend runs no kernels"
            names += ["photograph to numpy", "result to the device"]
        image = bridge.to_device(target, "cpu", like="numpy").copy()
    _print_hops(moves.plans, [*names, "result to the host"])
    print(f"  filtered by {filtered_by}")
    return Result(device, image, filtered_by, moves.nbytes)


def _print_hops(plans: list[bridge.Plan], names: list[str]) -> None:
    """One line for each step of the moves, which have *names*: where, at which cost, and why."""
    for plan, name in zip(plans, names, strict=True):
        for step in plan.steps:
            if step.kind == "as library" and not step.nbytes:
                continue  # another name for the same memory
            cost = f"{step.nbytes / 1024:,.0f} KiB copied" if step.nbytes else "no copy"
            hop = f"{step.source} -> {step.target}"
            print(f"  {name}: {hop}  {cost}, {step.kind}: {step.reason}")


def _in_torch(photo: Image) -> Result:
    import torch

    print("\ntorch")
    with bridge.trace() as moves:
        tensor = bridge.to_device(photo, "cpu", like="torch")
    print(f"  numpy {photo.ctypes.data:#x} -> torch {tensor.data_ptr():#x}")
    _print_hops(moves.plans, ["photograph to torch"])
    planes = tensor.permute(2, 0, 1).to(torch.float64)
    window = {"kernel_size": 2 * RADIUS + 1, "stride": 1, "padding": RADIUS, "divisor_override": 1}
    total = torch.nn.functional.avg_pool2d(planes, **window)
    count = torch.nn.functional.avg_pool2d(torch.ones_like(planes), **window)
    blurred = torch.floor((total + torch.floor(count / 2)) / count).to(torch.uint8)
    image = bridge.to_device(blurred.permute(1, 2, 0).contiguous(), "cpu", like="numpy")
    print("  filtered by torch")
    return Result("torch", image, "torch", moves.nbytes)


def _same(image: Image, expected: Image) -> bool:
    import numpy as np

    return bool(np.array_equal(image, expected))


TILE = 320
"""The width of one tile of the picture, in pixels."""


def columns_of(count: int) -> int:
    """How many tiles stand side by side, so that as few places as possible stay empty."""
    if count <= 5:
        return count
    return min((4, 3, 5), key=lambda columns: -count % columns)


def _picture(results: list[Result], path: Path) -> None:
    """All images side by side, each under its name."""
    from PIL import Image as PillowImage, ImageDraw, ImageFont

    height, width = results[0].image.shape[:2]
    size = (TILE, max(1, round(height * TILE / width)))
    head, gap = 48, 10
    columns = columns_of(len(results))
    rows = -(-len(results) // columns)
    page = gap + columns * (size[0] + gap), rows * (size[1] + head + gap)
    sheet = PillowImage.new("RGB", page, "white")
    draw = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(20), ImageFont.load_default(16)
    for number, result in enumerate(results):
        row, column = divmod(number, columns)
        left, top = gap + column * (size[0] + gap), row * (size[1] + head + gap)
        sheet.paste(PillowImage.fromarray(result.image).resize(size), (left, top + head))
        draw.text((left, top + 3), result.name, fill="black", font=large)
        draw.text((left, top + 27), _caption(result), fill="#555555", font=small)
    sheet.save(path)


def _caption(result: Result) -> str:
    """Who filtered, and how many bytes were copied on the way."""
    by = result.filtered_by.partition(",")[0]
    if not by:
        return "the original"
    if by == result.name == "numpy":
        return "filtered by numpy"
    copied = f"{result.copied / 2**20:.1f} MiB copied" if result.copied else "no copy"
    return f"filtered {'here' if by == result.name else f'by {by}'}, {copied}"
