"""bench processes: tensors through a pipe and in shared memory, beside numpy and torch."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import dlbridge as bridge
from dlbridge.cli.bench import Row
from dlbridge.errors import BackendUnavailable
from tests.benchmarks.measuring import memory, reset_peak

NBYTES = 256 << 20
REPEATS = 5
MIB = 1 << 20


class _Receiver:
    """A process that takes what is sent, and says when it had it and what that cost."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_receive, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def take(self, thing: object) -> tuple[float, int, int]:
        """Ns until it was there, the peak of its memory and the bytes that were copied."""
        self._connection.recv()  # its memory is as before
        start = time.perf_counter_ns()
        self._connection.send(thing)
        end, peak, copied = self._connection.recv()
        return end - start, peak, copied

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._connection.recv()
            self._connection.send(None)
        self._process.join()


def _receive(connection: Any) -> None:
    """The receiver's loop. All processes of Linux have one clock: time.perf_counter."""
    while True:
        connection.send("ready")
        before = reset_peak()
        with bridge.trace() as trace:
            thing = connection.recv()
        end = time.perf_counter_ns()
        if thing is None:
            return
        peak = memory("VmHWM") - before
        del thing
        connection.send((end, peak, trace.nbytes))


def rows(wanted: Callable[[str], bool], _repeats: int) -> list[Row]:
    """One row per device and way. Peers: numpy; torch and SharedMemory for shared memory."""
    devices = ["cpu", *(f"{name}:0" for name in ("opencl", "vulkan") if _is_here(name))]
    ways = {f"{device}: Pipe (spawn), {NBYTES // MIB} MiB": (_pipe, device) for device in devices}
    ways |= {f"{device}: share, {NBYTES // MIB} MiB": (_shared, device) for device in devices}
    return [way(name, device) for name, (way, device) in ways.items() if wanted(name)]


def _is_here(name: str) -> bool:
    try:
        bridge.backend(name)
    except BackendUnavailable:
        return False
    return True


def _pipe(operation: str, device: str) -> Row:
    import numpy as np

    array = np.ones(NBYTES, "u1")
    tensor = bridge.to_device(array, device, copy=True)
    ns, peaks, _ = _measure({"dlbridge": tensor, "numpy": array}, warm=tensor[:1])
    note = f"the receiver's peak: +{peaks['dlbridge']} MiB, numpy +{peaks['numpy']} MiB"
    return Row(operation, ns.pop("dlbridge"), ns, note=note)


def _shared(operation: str, device: str) -> Row:
    from multiprocessing.shared_memory import SharedMemory

    import numpy as np

    tensor = bridge.share(np.ones(NBYTES, "u1"), device)
    things: dict[str, object] = {"dlbridge": tensor}
    with suppress(ImportError):
        torch = importlib.import_module("torch")
        importlib.import_module("torch.multiprocessing")  # it tells the pickler of its tensors
        things["torch.multiprocessing"] = torch.ones(NBYTES, dtype=torch.uint8).share_memory_()
    things["SharedMemory"] = block = SharedMemory(create=True, size=NBYTES)
    try:
        ns, peaks, copied = _measure(things, warm=tensor[:1])
    finally:
        block.close()
        block.unlink()
    note = f"bytes copied: {copied['dlbridge']}, the receiver's peak: +{peaks['dlbridge']} MiB"
    return Row(operation, ns.pop("dlbridge"), ns, note=note)


_Figures = dict[str, Any]


def _measure(things: dict[str, object], warm: object) -> tuple[_Figures, _Figures, _Figures]:
    """Of each thing, sent in turns: ns, the best; peak in MiB and bytes copied, the first."""
    receiver = _Receiver()
    try:
        for thing in (warm, *things.values()):  # imports, and drivers that are opened
            receiver.take(thing if thing is warm else _small(thing))
        found = {name: [receiver.take(thing)] for name, thing in things.items()}
        for _ in range(REPEATS - 1):
            for name, thing in things.items():
                found[name].append(receiver.take(thing))
    finally:
        receiver.close()
    return (
        {name: min(each[0] for each in taken) for name, taken in found.items()},
        {name: round(taken[0][1] / MIB) for name, taken in found.items()},
        {name: taken[0][2] for name, taken in found.items()},
    )


def _small(thing: Any) -> Any:
    """A part of *thing*, or all of what has no parts."""
    cut: Callable[[Any], Any] | None = getattr(type(thing), "__getitem__", None)
    return thing if cut is None else thing[:1]
