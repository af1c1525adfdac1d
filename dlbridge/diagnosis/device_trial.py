"""What a trial does with each device of one backend, in the process that `trials` starts for it.

A device works if memory comes back from it as it was sent and, where `kernels` has one for it, a
kernel is built, runs, and computes what numpy computes.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import dlbridge as bridge
from dlbridge.errors import BackendError, BackendUnavailable, DeviceError, Error
from dlbridge.protocol import SupportsDeviceInfo

from .kernels import KERNELS, by_numpy

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
    launch = KERNELS.get(source.device.name)
    if launch is None:
        return ""
    image = sent[: np.prod(SHAPE)].reshape(SHAPE)
    target = bridge.empty(SHAPE, "uint8", device)
    try:
        launch(source[: image.size].reshape(SHAPE), target, RADIUS)
    except Error:
        raise
    except Exception as exc:  # of pyopencl and the like: what their driver refuses
        raise DeviceError(f"{type(exc).__name__}: {exc}") from exc
    bridge.synchronize(device)
    if bridge.to_device(target, "cpu", copy=True).tobytes() != by_numpy(image, RADIUS).tobytes():
        return "its kernels compute other values than numpy does"
    return ""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
