"""bench copy: copies from, to and on each device of every backend that runs here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import dlbridge as bridge
from dlbridge.errors import BackendUnavailable

from .timing import Row, best_of

__all__ = ["rows"]

SIZES = (64, 64 << 10, 16 << 20)


def rows(wanted: Callable[[str], bool], repeats: int) -> list[Row]:
    """One row per device, way and size; the work is waited for. Peer: numpy on the host."""
    found = []
    for device in _devices():
        for nbytes in SIZES:
            for way, copy in _ways(device, nbytes).items():
                operation = f"{device}: {way}, {nbytes} bytes"
                if not wanted(operation):
                    continue
                contenders = {"dlbridge": copy, "numpy (host)": _on_host(nbytes)}
                times = best_of(contenders, repeats)
                found.append(Row(operation, times.pop("dlbridge"), times))
    return found


def _devices() -> Iterator[str]:
    for name in bridge.backends():
        if name == "cpu":
            continue  # `bench pack` has it
        try:
            count = bridge.backend(name).device_count()
        except BackendUnavailable as exc:
            print(f"no rows for {name}: {exc}", file=sys.stderr)
            continue
        yield from (f"{name}:{index}" for index in range(count))


def _ways(device: str, nbytes: int) -> dict[str, Callable[[], object]]:
    host = bridge.zeros(nbytes, "uint8")
    there, other = (bridge.zeros(nbytes, "uint8", device) for _ in range(2))

    def ready(target: bridge.Tensor, source: bridge.Tensor) -> Callable[[], object]:
        def copy() -> None:
            bridge.copy_(target, source)
            bridge.synchronize(device)

        return copy

    return {
        "from the host": ready(there, host),
        "to the host": ready(host, there),
        "on the device": ready(other, there),
    }


def _on_host(nbytes: int) -> Callable[[], object]:
    import numpy as np

    target, source = np.zeros(nbytes, "u1"), np.ones(nbytes, "u1")
    return lambda: np.copyto(target, source)
