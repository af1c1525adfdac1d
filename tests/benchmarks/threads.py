"""How much more is done in a second by four threads than by one, with the GIL and without it.

    python tests/benchmarks/threads.py [--turns 30] [--write] [PYTHON ...]

Each interpreter that is named (this one if none is) runs all operations in a process of its own; a
build that can do without the GIL in two, with ``PYTHON_GIL`` 0 and 1. They take short turns, of
which the best count. The threads share no tensor, array or function object. ``--write`` writes
docs/benchmarks/threads.md. Run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "threads.md"
COUNTS = (1, 4)
WINDOW = 0.02
"""Seconds of one turn, about."""
LIBRARIES: list[Any] = []
"""They are unloaded when nothing refers to them."""
ASK = """\
import json, platform, sysconfig
has_no_gil = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps([has_no_gil, platform.python_version()]))"""


def operations() -> dict[str, Callable[[], Callable[[], object]]]:
    """What makes the work of one thread, by the operation's name."""
    import numpy as np

    import dlbridge as bridge
    from dlbridge import ffi
    from dlbridge.abi import ffi as cffi  # the testing library is loaded by cffi alone

    path = Path(ffi.library_path)
    LIBRARIES.append(cffi.dlopen(str(path.with_stem(f"{path.stem}_testing")), cffi.RTLD_NOW))

    def imports() -> Callable[[], object]:
        array = np.zeros(8)
        return lambda: bridge.from_dlpack(array)

    def both() -> Callable[[], object]:
        array = np.zeros(8)
        return lambda: np.from_dlpack(bridge.from_dlpack(array))

    def copies(nbytes: int) -> Callable[[], object]:
        tensor = bridge.zeros(nbytes, "uint8")
        return lambda: bridge.to_device(tensor, "cpu", copy=True)

    def calls(name: str) -> Callable[[], object]:
        function = ffi.get_global_func(name)
        return lambda: function(1, 2, 3)

    def callbacks() -> Callable[[], object]:
        function = ffi.convert_func(lambda x: x)
        return lambda: function(1)

    return {
        "`from_dlpack` of a numpy array": imports,
        "the same, and back into numpy": both,
        "`to_device(t, 'cpu', copy=True)`, 64 bytes": lambda: copies(64),
        "the same, 64 KiB": lambda: copies(1 << 16),
        "a compiled function called with three integers": lambda: calls("testing.nop"),
        "one that makes an object of them (`ffi.Shape`)": lambda: calls("ffi.Shape"),
        "a Python function called through C": callbacks,
    }


def together(works: list[Callable[[], object]], calls: int) -> float:
    """Seconds in which each of the *works*, in a thread of its own, was done *calls* times."""
    barrier = threading.Barrier(len(works))
    times: list[float] = []

    def run(work: Callable[[], object]) -> None:
        loop = range(calls)
        barrier.wait()
        start = time.perf_counter()  # another thread may begin much later
        for _ in loop:
            work()
        times.extend((start, time.perf_counter()))

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(times) - min(times)


def serve() -> None:
    """Do a turn for each line of standard input, and print its calls per second."""
    made = operations()
    works = {name: [make() for _ in range(max(COUNTS))] for name, make in made.items()}
    calls = {}
    for name, (work, *_) in works.items():
        together([work], 100)
        calls[name] = max(1, int(WINDOW / together([work], 100) * 100))
    print(json.dumps(list(works)), flush=True)
    for line in sys.stdin:
        name, count = json.loads(line)
        each = max(1, calls[name] // count)
        print(count * each / together(works[name][:count], each), flush=True)


class Served:
    """A process that runs `serve`, and its best results."""

    def __init__(self, python: str, gil: str) -> None:
        asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
        self.can_do_without, version = json.loads(asked.stdout)
        variables = {"PYTHON_GIL": gil} if self.can_do_without else {}
        self.process = subprocess.Popen(
            [python, str(Path(__file__).resolve()), "--serve"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        switched = {"0": "t without the GIL", "1": "t with the GIL"}[gil]
        self.label = f"{version}{switched if self.can_do_without else ''}"
        self.names: list[str] = json.loads(self._line())
        self.best: dict[tuple[str, int], float] = {}

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def turn(self, name: str, count: int) -> None:
        """Do *name* in *count* threads; the best result is kept."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps([name, count]) + "\n")
        self.process.stdin.flush()
        self.best[name, count] = max(self.best.get((name, count), 0.0), float(self._line()))

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def measured(pythons: list[str], turns: int) -> list[Served]:
    """All processes after *turns* turns of each operation and number of threads."""
    served = []
    for python in pythons:
        first = Served(python, "1")
        served += [first, Served(python, "0")] if first.can_do_without else [first]
    for _ in range(turns):
        for name in served[0].names:
            for each in served:
                for count in COUNTS:
                    each.turn(name, count)
    for each in served:
        each.close()
    return served


def table(served: list[Served]) -> str:
    """Thousands of calls per second, and the ratio of four threads to one."""
    one, four = COUNTS
    lines = [
        "| operation | interpreter | 1 thread | 4 threads | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for name in served[0].names:
        for each in served:
            few, many = each.best[name, one] / 1000, each.best[name, four] / 1000
            lines.append(f"| {name} | {each.label} | {few:.0f} | {many:.0f} | {many / few:.2f}x |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the page if that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="this one if none is named")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.serve:
        serve()
        return
    served = measured(given.pythons or [sys.executable], given.turns)
    found = table(served)
    print(found)
    if given.write:
        head, _, _ = PAGE.read_text(encoding="utf-8").partition("| operation |")
        PAGE.write_text(f"{head}{found}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
