"""The first calls of a process beside numpy's import: ``python tests/benchmarks/first_call.py``.

Each round is a new process; the smallest of the rounds is printed.
"""

import subprocess
import sys

CODE = """
import time
start = time.perf_counter()
import numpy
loaded = time.perf_counter()
import dlbridge
imported = time.perf_counter()
{use}
end = time.perf_counter()
print(loaded - start, imported - loaded, end - imported)
"""
USES = ("dlbridge.to_device(numpy.zeros(3), 'cpu')", "dlbridge.from_dlpack(numpy.zeros(3))")


def main(rounds: int = 7) -> None:
    for use in USES:
        command = [sys.executable, "-c", CODE.format(use=use)]
        times = [
            tuple(map(float, subprocess.check_output(command, text=True).split()))
            for _ in range(rounds)
        ]
        numpy, ours, call = (min(column) * 1e3 for column in zip(*times, strict=True))
        print(f"{use}: {call:.1f} ms, {call / numpy:.2f} of numpy's import ({numpy:.1f} ms)")
        print(f"    import dlbridge: {ours:.2f} ms")


if __name__ == "__main__":
    main()
