"""Trials in processes of their own: a driver or a library that crashes ends only its trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from .findings import Finding

__all__ = ["PEERS", "try_backend", "try_peer", "try_script"]

LIMIT = 120
"""Seconds for one trial: the first start of a large library from a slow disk takes a minute."""

_BACKEND = """
import sys
import dlbridge as bridge
name = sys.argv[1]
try:
    devices = bridge.devices(name)
except bridge.BackendUnavailable as exc:
    print(f"unavailable: {exc}")
    sys.exit()
for device in devices:
    sent = bytes(range(256)) * 64
    there = bridge.to_device(sent, device, copy=True)
    bridge.synchronize(device)
    if bridge.to_device(there, "cpu", copy=True).tobytes() != sent:
        sys.exit(f"{device} gave other bytes back than it was sent")
    del there
print(f"{len(devices)} device{'s' * (len(devices) != 1)}, memory went there and back")
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


def try_backend(name: str) -> Finding:
    """Load the backend *name*, and move bytes to each of its devices and back."""
    failed, said = try_script(_BACKEND, name)
    what = f"backend {name}"
    if failed:
        remedy = f"the driver, or the package of {name}, is at fault: update it, or leave it out "
        return Finding("problem", what, said, f"{remedy}by DLBRIDGE_BACKENDS (without {name})")
    reason = said.removeprefix("unavailable: ")
    if reason != said:
        return Finding("note", what, f"not usable here: {reason}")
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


def try_script(source: str, *arguments: str, limit: float = LIMIT) -> tuple[bool, str]:
    """Whether a script failed in a Python of its own, and its last line, or how it ended."""
    # The modules that this process sees, wherever it has them from.
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", source, *arguments],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True, f"did not end within {limit:g} s"
    if done.returncode == 0:
        return False, _last_line(done.stdout) or "did nothing"
    return True, f"{_ending(done.returncode)}: {_last_line(done.stderr)}".rstrip(": ")


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
