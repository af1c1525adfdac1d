"""What a trial does with each device of one backend, in the process that `trials` starts for it.

A device works if memory comes back from it as it was sent and, where the backend runs the
filter of the demo, its kernels are built, run, and compute what numpy computes.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import dlbridge as bridge
from dlbridge.errors import BackendError, BackendUnavailable, Error
from dlbridge.protocol import Span, SupportsDemo, SupportsDeviceInfo

__all__ = ["MARK", "blurred", "main"]

MARK = "trial: "
"""Begins the lines that are meant for `trials`: drivers write on standard output, too."""

SHAPE, RADIUS = (12, 16, 3), 2


def main(name: str, first: int) -> None:
    """Try the devices of the backend *name*, from number *first* on: two lines for each."""
    try:
        devices = bridge.devices(name)
    except Exception as exc:  # the trial is there to find out what goes wrong
        _say(name, _state(exc), str(exc))
        return
    for device in devices[first:]:
        place, what = f"{name}:{device.index}", f"{name}:{device.index}"
        try:
            plugin = bridge.backend(name)
            if isinstance(plugin, SupportsDeviceInfo):
                info = plugin.device_info(device.index)
                title = [str(info[key]) for key in ("name", "platform") if key in info]
                what += f" ({', '.join(title)})" if title else ""
            _say(what)  # a driver that ends the process is found by it
            wrong = _wrong(place)
            _say(what, "broken" if wrong else "works", wrong)
        except Exception as exc:  # as above
            said = str(exc) if isinstance(exc, Error) else f"{type(exc).__name__}: {exc}"
            _say(what, _state(exc), said)


def _say(what: str, state: str = "", said: str = "") -> None:
    print(MARK + json.dumps([what, state, said]), flush=True)


def _state(exc: Exception) -> str:
    """Whose fault an exception is: the backend translates what its driver refuses."""
    if isinstance(exc, BackendUnavailable):
        return "unavailable"
    return "fails" if isinstance(exc, Error) and not isinstance(exc, BackendError) else "broken"


def _wrong(device: str) -> str:
    """What the device did wrong; empty if it works."""
    sent = np.frombuffer(bytes(range(256)) * 64, "u1")
    source = bridge.to_device(sent, device, copy=True)
    bridge.synchronize(device)
    if bridge.to_device(source, "cpu", copy=True).tobytes() != sent.tobytes():
        return "gave other bytes back than it was sent"
    name, _, index = device.partition(":")
    plugin = bridge.backend(name)
    if not isinstance(plugin, SupportsDemo):
        return ""
    image = sent[: np.prod(SHAPE)].reshape(SHAPE)
    target = bridge.empty(SHAPE, "uint8", device)
    read, written = source.operand(), target.operand()
    image_out, image_in = (
        Span(int(index), operand.data, operand.byte_offset, image.nbytes)
        for operand in (written, read)
    )
    plugin.box_blur(image_out, image_in, SHAPE, RADIUS, written.stream)
    bridge.synchronize(device)
    if bridge.to_device(target, "cpu", copy=True).tobytes() != blurred(image, RADIUS):
        return "its kernels compute other values than numpy does"
    return ""


def blurred(image: np.ndarray, radius: int) -> bytes:
    """`SupportsDemo.box_blur`, pixel by pixel."""
    result = np.empty_like(image)
    for y, x in np.ndindex(image.shape[:2]):
        rows, columns = (slice(max(n - radius, 0), n + radius + 1) for n in (y, x))
        around = image[rows, columns].reshape(-1, image.shape[2])
        result[y, x] = (around.sum(0, dtype="u4") + len(around) // 2) // len(around)
    return result.tobytes()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
