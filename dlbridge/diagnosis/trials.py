"""Trials in processes of their own: a driver or a library that crashes ends only its trial.

A device works if memory comes back from it as it was sent and, where `kernels` has one for it, a
kernel is built, runs, and computes what numpy computes.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

import dlbridge as bridge
from dlbridge.errors import BackendError, BackendUnavailable, DeviceError, Error
from dlbridge.extending import provider_of
from dlbridge.protocol import SupportsDeviceInfo

from .files import Finding, driver_files
from .kernels import KERNELS, by_numpy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MARK = "trial: "
"""Begins the lines that are meant for us: drivers write on standard output, too."""

LIMIT = 60
"""Seconds after which a driver hangs, in a process that asks for its devices or tries one."""
SCRIPT_LIMIT = 120
"""Seconds for a script: the first start of a large library from a slow disk takes a minute."""

_LIST = """
import json, sys
from dlbridge.diagnosis.trials import MARK
from dlbridge.diagnosis.report import report_of
for name in sys.argv[1:]:
    print(MARK + json.dumps([name, None]), flush=True)
    print(MARK + json.dumps([name, report_of(name)], default=str), flush=True)
"""

_PEER = """
import sys
import dlbridge as bridge
array = bridge.to_device(bridge.full(3, 2.5), "cpu", like=sys.argv[1])
assert bridge.asarray(array).tolist() == [2.5, 2.5, 2.5]
print("takes tensors, gives them back, and ends in order")
"""

PEERS = {
    "numpy": "numpy",
    "torch": "torch",
    "jax": "jax",
    "apache-tvm-ffi": "tvm_ffi",
    "pyarrow": "pyarrow",
    "tensorflow": "tensorflow",
    "mlx": "mlx",
}
"""Distribution -> the library's name in ``like=``. Those that need a GPU are not tried."""


FAILED = ("fails", "broken")
"""The states of a `Trial` in which a device is not to be used."""


class Trial(NamedTuple):
    """What became of one device, or of a backend whose devices could not be listed."""

    what: str
    """``"opencl:0 (its name, its platform)"``, or ``"opencl"``."""
    state: Literal["works", "unavailable", "fails", "broken"]
    """*fails*: the driver refuses, or ends the process. *broken*: wrong results, or an exception
    that no driver is said to be the cause of."""
    said: str


@functools.cache
def try_devices(name: str, setting: str = "") -> tuple[Trial, ...]:
    """Try the backend *name*: move memory to each device and back, build kernels and run them.

    With *setting*, ``"VARIABLE=value"``, as if the environment had it. The result is kept.
    """
    variable, _, value = setting.partition("=")
    environment = {variable: value} if setting else {}
    trials: dict[str, Trial] = {}
    while True:
        ended = _run(
            ["-m", "dlbridge.diagnosis.trials", name, str(len(trials))], LIMIT, environment
        )
        state = ""
        for what, state, said in ended.marked:
            # Of a device with which the process ends there is one line, without a state.
            trials[what] = Trial(what, state or "fails", _one_line(said if state else ended.how))
        if ended.well:
            return tuple(trials.values())
        if state or not trials:
            return (*trials.values(), Trial(name, "fails", _one_line(ended.how)))


def way_out(name: str) -> str:
    """A setting, tried, that leaves the drivers out for which devices of *name* fail.

    ``"VARIABLE=value"``: the first driver that works alone, or else no device of that backend.
    """
    variable, files = driver_files(name)
    for file in files:
        setting = f"{variable}={file}"
        if {trial.state for trial in try_devices(name, setting)} == {"works"}:
            return setting
    return f"DLBRIDGE_BACKENDS=-{name}"


def list_devices(names: Collection[str]) -> dict[str, dict[str, Any]]:
    """What `dlbridge.info` says about each backend of *names*, found in a process of its own.

    After a driver that ends that process, the next process goes on with the rest.
    """
    reports: dict[str, dict[str, Any]] = {}
    while left := [name for name in names if name not in reports]:
        ended = _run(["-c", _LIST, *left], LIMIT)
        for name, report in ended.marked or [(name, None) for name in left]:
            reports[name] = report or {
                "owner": provider_of(name),
                "state": "broken",
                "reason": f"its driver lists no devices: {_one_line(ended.how)}; "
                f"leave it out: {way_out(name)}",
            }
    return reports


def try_backend(name: str) -> Finding:
    """Try each device of the backend *name* (`try_devices`)."""
    trials = try_devices(name)
    failing = [trial for trial in trials if trial.state in FAILED]
    what = f"backend {name}"
    if failing:
        said = "; ".join(f"{trial.what}: {trial.said}" for trial in failing)
        remedy = f"update the driver, or the package of {name}; or leave it out: {way_out(name)}"
        return Finding("problem", what, said, remedy)
    if any(trial.state == "unavailable" for trial in trials):
        return Finding("note", what, f"not usable here: {trials[0].said}")
    said = f"{len(trials)} device{'s' * (len(trials) != 1)}, memory went there and back"
    return Finding("ok", what, said)


def try_peer(distribution: str) -> Finding:
    """Exchange a tensor with a library, and end the process."""
    failed, said = try_script(_PEER, PEERS[distribution])
    if not failed:
        return Finding("ok", distribution, said)
    return Finding(
        "problem",
        distribution,
        said,
        f"try {distribution} alone (python -c 'import {PEERS[distribution]}'); if that fails, "
        f"install it again, otherwise report this with the output of python -m dlbridge info",
    )


def try_script(source: str, *arguments: str, limit: float = SCRIPT_LIMIT) -> tuple[bool, str]:
    """Whether a script failed in a Python of its own, and its last line, or how it ended."""
    ended = _run(["-c", source, *arguments], limit)
    if ended.well:
        return False, _last_line(ended.output) or "did nothing"
    return True, ended.how


class _Ended(NamedTuple):
    well: bool
    how: str
    output: str

    @property
    def marked(self) -> list[Any]:
        """What its lines with the `MARK` say: a driver may have printed others."""
        lines = self.output.splitlines()
        return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]


def _run(arguments: list[str], limit: float, environment: Mapping[str, str] = {}) -> _Ended:
    """What became of a Python of its own."""
    # The modules that this process sees, wherever it has them from.
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        printed = exc.stdout.decode(errors="replace") if isinstance(exc.stdout, bytes) else ""
        return _Ended(False, f"did not end within {limit:g} s", printed)
    # Before a driver ends the process, it says why; an exception has its last line.
    last = done.stderr.strip().splitlines()[-3 if done.returncode < 0 else -1 :]
    how = f"{_ending(done.returncode)}: {'; '.join(last)}".rstrip(": ")
    return _Ended(done.returncode == 0, how, done.stdout)


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def _one_line(text: str) -> str:
    """The beginning of *text*, such as a compiler's messages, without its line breaks."""
    line = " ".join(text.split())
    return line if len(line) <= 400 else f"{line[:400]} ..."


# In the process of a trial -------------------------------------------------------------

SHAPE, RADIUS = (12, 16, 3), 2


def main(name: str, first: int) -> None:
    """Try the devices of the backend *name*, from number *first* on: two lines for each."""
    try:
        devices = bridge.devices(name)
    except Exception as exc:  # the trial is there to find out what goes wrong
        _say(name, _state(exc), str(exc))
        return
    for device in devices[first:]:
        numbered, what = f"{name}:{device.index}", f"{name}:{device.index}"
        try:
            plugin = bridge.backend(name)
            if isinstance(plugin, SupportsDeviceInfo):
                info = plugin.device_info(device.index)
                title = [str(info[key]) for key in ("name", "platform") if key in info]
                what += f" ({', '.join(title)})" if title else ""
            _say(what)  # a driver that ends the process is found by it
            wrong = _wrong(numbered)
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
