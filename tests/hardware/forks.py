"""Whether a forked child ends after its parent used a device, and where it waits if it does not.

Each case is a process of its own: it uses the device, forks, and the child ends at once, by
``os._exit`` (no code of the driver runs at the end) or by ``sys.exit`` (the driver's own runs).

    python tests/hardware/forks.py
"""

from __future__ import annotations

import bisect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 8
"""So long a child may take to end."""
NAMES = ("opencl", "vulkan", "cuda")
ENDS: dict[str, Callable[[int], object]] = {"os._exit": os._exit, "sys.exit": sys.exit}


def fork(name: str, end: str) -> str:
    """What became of a child of this process, which has used the backend *name*."""
    import numpy as np

    import dlbridge

    values = np.arange(1000, dtype="f4")
    there = dlbridge.to_device(values, name, copy=True)
    dlbridge.synchronize(there.device)
    start = time.monotonic()
    child = os.fork()
    if not child:
        ENDS[end](0)
    while time.monotonic() < start + SECONDS:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            again = np.asarray(dlbridge.to_device(there, "cpu"))
            right = np.array_equal(again, values)
            code = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - start
            return f"the child's status {code} after {seconds:.2f} s; the parent reads: {right}"
        time.sleep(0.01)
    waits = "\n".join(f"    {line}" for line in threads_of(child))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"the child has not ended after {SECONDS} s:\n{waits}"


def threads_of(process: int) -> list[str]:
    """For each thread: the kernel's function that it waits in, its call, and what is on its stack."""
    places = sorted(libraries(process))
    return [
        f"thread {task.name}: {text(task / 'wchan')}, system call {text(task / 'syscall')}\n"
        + "\n".join(f"      {place}" for place in on_stack(process, task, places))
        for task in sorted(Path(f"/proc/{process}/task").iterdir())
    ]


def text(path: Path) -> str:
    """The file's text, or why it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError as exc:
        return str(exc)


def libraries(process: int) -> list[tuple[int, int, str]]:
    """First and last address, and name, of each piece of code that the process has mapped."""
    lines = [line.split() for line in text(Path(f"/proc/{process}/maps")).splitlines()]
    return [
        (*(int(word, 16) for word in words[0].split("-")), Path(words[5]).name)
        for words in lines
        if len(words) > 5 and "x" in words[1]
    ]


def on_stack(process: int, task: Path, places: list[tuple[int, int, str]]) -> list[str]:
    """The first 40 addresses of code among the words of the stack: callers, and old ones."""
    words = text(task / "syscall").split()
    if len(words) < 2 or not words[-2].startswith("0x"):
        return []
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        memory.seek(int(words[-2], 16))
        stack = memory.read(16 << 10)
    found = [
        words[-1],
        *(hex(address) for address in memoryview(stack[: len(stack) & -8]).cast("Q")),
    ]
    named = [named_address(int(address, 16), places) for address in found]
    return [name for name in named if name][:40]


def named_address(address: int, places: list[tuple[int, int, str]]) -> str:
    """The library and the offset in its code, or "" if it is no code."""
    index = bisect.bisect_right(places, (address, sys.maxsize, "")) - 1
    if index < 0 or address >= places[index][1]:
        return ""
    return f"{places[index][2]}+{address - places[index][0]:#x}"


def main() -> None:
    """Ask each case in a process of its own."""
    for name in NAMES:
        for end in ENDS:
            command = [sys.executable, __file__, name, end]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
            print(f"{name}, {end}: status {done.returncode}: {said}", flush=True)
            if "status -" in said:  # what the faults handler of Python has written
                print(done.stderr, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(fork(*sys.argv[1:]))
    else:
        main()
