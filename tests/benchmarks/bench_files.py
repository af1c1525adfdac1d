"""bench files: a safetensors file to each device, each way in a process of its own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dlbridge as bridge
from dlbridge.cli.bench import machine, versions
from dlbridge.errors import BackendUnavailable
from tests.benchmarks.measuring import memory, reset_peak

MIB = 1 << 20
TENSORS = 16
DEVICES = ("cpu", "opencl:0", "vulkan:0")

OURS = "load"
OTHERS_FILE = "load, file of safetensors"
COPY = "load(copy=True)"
BY_HAND = "readinto by hand"
PEER = "load_file and copies"
"""safetensors' own way: numpy arrays by its ``load_file``, and each to the device."""

COLUMNS = (
    *("device", "way", "ms", "/ by hand", "CPU ms", "/ by hand", "peak MiB", "/ file"),
    *("copied MiB", "with first use: ms", "peak MiB"),
)

WAYS = (BY_HAND, OURS, OTHERS_FILE, COPY, PEER)


def report(arguments: argparse.Namespace) -> None:
    """Measure, print the table, and write it where asked."""
    rows = list(_rows(arguments.mib, arguments.rounds))
    if arguments.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    else:
        print(_table(rows, arguments))
    if arguments.write:
        Path(arguments.write).write_text(_table(rows, arguments))


def _rows(mib: int, rounds: int) -> list[dict[str, Any]]:
    """One row for each device and way: the best time and the largest memory of all rounds."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = f"{folder}/ours.safetensors", f"{folder}/theirs.safetensors"
        _child("make", ours, theirs, str(mib))
        ways = [way for way in WAYS if Path(theirs).exists() or way not in (OTHERS_FILE, PEER)]
        for _ in range(rounds):
            for device in filter(_is_here, DEVICES):
                for way in ways:
                    file = theirs if way in (OTHERS_FILE, PEER) else ours
                    row = found.setdefault((device, way), {})
                    _merge(row, json.loads(_child("measure", way, device, file)))
    return [{"device": device, "way": way, **row} for (device, way), row in found.items()]


def _merge(row: dict[str, Any], new: Mapping[str, Any]) -> None:
    for name, value in new.items():
        best = min if name in ("seconds", "cpu", "used") else max
        row[name] = best(row.get(name, value), value)


def _is_here(device: str) -> bool:
    try:
        bridge.device(device)
        bridge.zeros(1, "uint8", device)
    except (BackendUnavailable, ValueError) as exc:
        print(f"no rows for {device}: {exc}", file=sys.stderr)
        return False
    return True


def _child(member: str, *arguments: str) -> str:
    """What a function of this module prints in a process of its own."""
    code = f"import sys; from {__name__} import {member}; "
    code += f"{member}(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


# In the processes of their own ------------------------------------------------------


def make(ours: str, theirs: str, mib: str) -> None:
    """Write the same tensors by `dlbridge.save` and by safetensors, if that is here."""
    import numpy as np

    size = int(mib) * MIB // TENSORS // 4
    arrays = {f"layer{i}.weight": np.full(size, i, "f4") for i in range(TENSORS)}
    bridge.save(ours, arrays)
    try:
        from safetensors.numpy import save_file
    except ImportError:
        return
    save_file(arrays, theirs)


def measure(way: str, device: str, path: str) -> None:
    """Print the seconds until the tensors are there and until all was read, and the memory."""
    load = _ways()[way]
    with open(path, "rb") as file:  # noqa: PTH123 - it is a str
        while file.read(MIB):  # into the page cache
            pass
    bridge.to_device(bridge.zeros(4096, "uint8"), device, copy=True)  # the backend is open
    if way == PEER:
        import safetensors.numpy  # noqa: F401 - not a part of the time
    before = reset_peak()
    start, busy = time.perf_counter(), time.process_time()
    with bridge.trace() as trace:
        tensors = load(path, device)
    seconds, cpu = time.perf_counter() - start, time.process_time() - busy
    peak = memory("VmHWM") - before
    for tensor in tensors.values():
        _read_once(tensor)
    used = time.perf_counter() - start
    most = memory("VmHWM") - before
    found = {"seconds": seconds, "cpu": cpu, "peak": peak, "used": used, "used_peak": most}
    print(json.dumps({**found, "copied": trace.nbytes}))


def _ways() -> dict[str, Callable[[str, str], Mapping[str, bridge.Tensor]]]:
    load = partial(bridge.load, names=True)  # imported here, before the time counts
    return {
        OURS: load,
        OTHERS_FILE: load,
        COPY: partial(load, copy=True),
        BY_HAND: _by_hand,
        PEER: _by_safetensors,
    }


def _by_hand(path: str, device: str) -> dict[str, bridge.Tensor]:
    """Every tensor allocated, and read into its host view."""
    found = {}
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - it is a str
        begin = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(begin - 8))
        for name, entry in header.items():
            tensor = found[name] = bridge.empty(entry["shape"], "float32", device)
            file.seek(begin + entry["data_offsets"][0])
            with tensor.host_view() as view:
                rest = view.numpy().view("u1").data
                while rest:
                    rest = rest[file.readinto(rest) :]
                del rest
    return found


def _by_safetensors(path: str, device: str) -> dict[str, bridge.Tensor]:
    from safetensors.numpy import load_file

    arrays = load_file(path)
    return {name: bridge.to_device(array, device) for name, array in arrays.items()}


def _read_once(tensor: bridge.Tensor) -> None:
    """Read every element on the host, in place."""
    with tensor.host_view() as view:
        view.numpy().max()


# The table ---------------------------------------------------------------------------


def _table(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    mib = arguments.mib
    lines = [
        f"# A safetensors file of {mib} MiB to each device",
        "",
        "Made by `python tests/benchmarks/measure.py files`; do not edit.",
        "",
        f"{time.strftime('%Y-%m-%d')}, {machine()}.",
        f"{versions()}.",
        "",
        f"{TENSORS} float32 tensors. Each way runs in a process of its own, in turns with the",
        f"others, {arguments.rounds} times; the best time counts and the largest memory. The file",
        "is in the page cache. *peak* is the growth of the process (VmHWM, so pages of the file",
        "count as well), *CPU* its processor time, which other work on the machine changes less;",
        "*first use* includes reading every element once on the host, in place.",
        "*copied* is what `dlbridge.trace()` says: what other code copies is not in it.",
        f"`{BY_HAND}`: `empty`, `host_view` and the file's `readinto`, for each tensor.",
        f"`{PEER}`: `safetensors.numpy.load_file`, and `to_device` for each array.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|---|---|{'---:|' * (len(COLUMNS) - 2)}",
    ]
    base = {row["device"]: row for row in rows if row["way"] == BY_HAND}
    for row in rows:
        by_hand = "-" if row["way"] == BY_HAND else f"{row['copied'] / MIB:.0f}"
        lines.append(
            f"| {row['device']} | {row['way']} | {row['seconds'] * 1e3:.1f} "
            f"| {row['seconds'] / base[row['device']]['seconds']:.2f} | {row['cpu'] * 1e3:.1f} "
            f"| {row['cpu'] / base[row['device']]['cpu']:.2f} | {row['peak'] / MIB:.0f} "
            f"| {row['peak'] / MIB / mib:.2f} | {by_hand} | {row['used'] * 1e3:.0f} "
            f"| {row['used_peak'] / MIB:.0f} |"
        )
    return "\n".join(lines) + "\n"
