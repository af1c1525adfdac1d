"""Trials in processes of their own: a driver or a library that crashes ends only its trial."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dlbridge.core.plugins.registry import owner

from .device_trial import MARK
from .display import Finding
from .files import driver_files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LIMIT = 60
"""Seconds after which a driver hangs, in a process that asks for its devices or tries one."""
SCRIPT_LIMIT = 120
"""Seconds for a script: the first start of a large library from a slow disk takes a minute."""

_LIST = """
import json, sys
from dlbridge.diagnosis.device_trial import MARK
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
    found: dict[str, Trial] = {}
    while True:
        ended = _run(
            ["-m", "dlbridge.diagnosis.device_trial", name, str(len(found))], LIMIT, environment
        )
        state = ""
        for what, state, said in ended.marked:
            # Of a device with which the process ends there is one line, without a state.
            found[what] = Trial(what, state or "fails", _one_line(said if state else ended.how))
        if ended.well:
            return tuple(found.values())
        if state or not found:
            return (*found.values(), Trial(name, "fails", _one_line(ended.how)))


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
    found: dict[str, dict[str, Any]] = {}
    while left := [name for name in names if name not in found]:
        ended = _run(["-c", _LIST, *left], LIMIT)
        for name, report in ended.marked or [(name, None) for name in left]:
            found[name] = report or {
                "owner": owner(name),
                "state": "broken",
                "reason": f"its driver lists no devices: {_one_line(ended.how)}; "
                f"leave it out: {way_out(name)}",
            }
    return found


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
