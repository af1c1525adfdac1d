"""Kernels that run long, and what happens beside them: frees, exports, captures, full memory, kills.

    python tests/hardware/long_work.py [--rounds N] [NAME ...]

The names are those of the functions in `QUESTIONS`, by default all of them. Each runs in a process
of its own, since an answer can be a crash, and prints one line; 0 wrong is what is expected.
`compute-sanitizer` takes the processes with it.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import dlbridge

ROOT = Path(__file__).resolve().parents[2]

N = 1 << 14
CYCLES = 200_000
"""A tenth of a millisecond at 2 GHz."""
MEBIBYTE = 1 << 20


def free_bytes() -> int:
    """What the driver has to give on GPU 0."""
    from backends.cuda.tests.cuda_support import at, call

    with at(0):
        return int(call("cuMemGetInfo")[0])


def frees_copies_and_exports(rounds: int) -> str:
    """Four threads: a slow kernel writes, our copy, a peer's clone on its own stream, and frees."""
    import torch

    def run(seed: int) -> int:
        chance, wrong = random.Random(seed), 0
        ours, theirs = torch.cuda.Stream(), torch.cuda.Stream()
        for turn in range(seed, rounds, 4):
            value = turn % 1000
            with torch.cuda.stream(ours), dlbridge.use_stream("cuda:0", ours):
                source = torch.empty(N, device="cuda")
                torch.cuda._sleep(CYCLES)
                source.fill_(value)
                tensor = dlbridge.from_dlpack(source)
                if chance.random() < 0.7:
                    tensor = dlbridge.to_device(tensor, "cuda:0", copy=True)
                del source
            with torch.cuda.stream(theirs):
                taken = torch.from_dlpack(tensor)
                if chance.random() < 0.5:
                    torch.cuda._sleep(CYCLES)
                clone = taken.clone()
            del tensor, taken
            # New memory, which the last one's may become, is written on a third stream at once.
            other = dlbridge.to_device(np.full(N, -1, "f4"), "cuda:0")
            if chance.random() < 0.3:
                wrong += dlbridge.to_device(other, "cpu").tolist()[:1] != [-1.0]
            del other
            theirs.synchronize()
            wrong += not bool((clone == value).all())
        return wrong

    with ThreadPoolExecutor(4) as threads:
        wrong = sum(threads.map(run, range(4)))
    return f"{wrong} of {rounds} wrong"


def streams_destroyed_early(rounds: int) -> str:
    """A consumer's stream of the driver's own is destroyed while its copy waits; then we free."""
    from backends.cuda.tests.cuda_support import CudaRig, at, call, memory, read
    from backends.cuda.tests.gpu_peers import Spin
    from dlbridge.protocol import Span
    from tests.drivers.suite import rig

    rig.use(CudaRig())
    cuda, spin, wrong = dlbridge.backend("cuda"), Spin(), 0
    values = np.empty(N, "u1")
    for turn in range(rounds):
        values[:] = turn % 251
        with at(0):
            stream = int(call("cuStreamCreate", turn % 2))
        with memory(cuda, N) as copy:
            tensor = dlbridge.to_device(values, "cuda:0")
            capsule = tensor.__dlpack__(stream=stream)
            spin(stream, CYCLES)
            cuda.copy(Span(0, copy, 0, N), Span(0, tensor.data_ptr(), 0, N), stream)
            with at(0):
                call("cuStreamDestroy", stream)
            del tensor, capsule
            other = dlbridge.to_device(np.full(N, 255, "u1"), "cuda:0")
            with at(0):
                call("cuCtxSynchronize")
            wrong += read(cuda, copy, N) != values.tobytes()
            del other
    return f"{wrong} of {rounds} wrong"


def graphs_beside_everything(rounds: int) -> str:
    """torch captures and replays on one thread; two others copy, allocate, export and free."""
    import torch

    stop, refused = threading.Event(), 0

    def work(seed: int) -> tuple[int, int]:
        wrong = turns = 0
        side = torch.cuda.Stream()
        while not stop.is_set():
            turns += 1
            values = np.full(N, turns % 1000 + seed, "f4")
            with torch.cuda.stream(side), dlbridge.use_stream("cuda:0", side):
                there = dlbridge.to_device(values, "cuda:0")
                again = dlbridge.to_device(there, "cuda:0", copy=True)
                wrong += not np.array_equal(np.asarray(dlbridge.to_device(again, "cpu")), values)
                pinned = dlbridge.empty(N, device="cuda_host")
            del there, again, pinned
        return wrong, turns

    captured, broken = 0, []
    counter, ours = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    tensor, target = dlbridge.from_dlpack(counter), dlbridge.from_dlpack(ours)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(2) as threads:
        workers = [threads.submit(work, seed) for seed in (1, 2)]
        try:
            for turn in range(rounds):
                mode = ("global", "thread_local", "relaxed")[turn % 3]
                counter.zero_()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                try:
                    with torch.cuda.graph(graph, capture_error_mode=mode):
                        counter.add_(1)
                        with dlbridge.use_stream("cuda:0", torch.cuda.current_stream()):
                            dlbridge.copy_(target, tensor)
                            try:
                                dlbridge.empty(N, device="cuda:0")
                            except BufferError:
                                refused += 1
                except RuntimeError as exc:
                    broken.append(f"{mode}: {str(exc).splitlines()[0]}")
                    continue
                graph.replay()
                graph.replay()
                torch.cuda.synchronize()
                captured += bool((ours == 2).all())
        finally:
            stop.set()
        found = [worker.result() for worker in workers]
    wrong, turns = (sum(column) for column in zip(*found, strict=True))
    lines = f"{captured} of {rounds} graphs right, {refused} new tensors refused inside"
    lines += f"; beside them {wrong} of {turns} copies wrong"
    return lines + (f"; captures that ended: {len(broken)}, the first {broken[:2]}" * bool(broken))


def full_to_the_last_mebibyte(_: int) -> str:
    """Blocks down to 1 MiB until none is left; what is refused says so, and all comes back."""
    dlbridge.synchronize("cuda:0")
    before, held, said = free_bytes(), [], ""
    for nbytes in (1 << 30, 1 << 26, MEBIBYTE):
        while True:
            try:
                held.append(dlbridge.empty(nbytes, "uint8", "cuda:0"))
            except MemoryError as exc:
                said = f"{type(exc).__name__}: {exc}"
                break
    left = free_bytes() >> 20
    last = held[-1][:MEBIBYTE]
    dlbridge.copy_(last, np.full(MEBIBYTE, 7, "u1"))  # through memory that is there already
    right = dlbridge.to_device(last, "cpu").numpy().min() == 7
    count = sum(tensor.nbytes for tensor in held) >> 20
    del last
    held.clear()
    gc.collect()
    again = dlbridge.empty(before // 2, "uint8", "cuda:0")
    del again
    dlbridge.trim("cuda:0")
    back = free_bytes()
    return (
        f"{count} MiB in tensors, {left} MiB left; the last one works: {right}; freed again: "
        f"{back >> 20} of {before >> 20} MiB\n  {said}"
    )


def serve(connection: Connection) -> None:
    """In the child: read and write each tensor that comes, until the process is killed."""
    while True:
        tensor = connection.recv()
        dlbridge.copy_(tensor, dlbridge.to_device(tensor, "cuda:0", copy=True))
        connection.send(int(dlbridge.to_device(tensor, "cpu", copy=True).numpy()[0]))


def killed_at_every_moment(rounds: int) -> str:
    """Children use memory that is shared with them, and are killed; ours goes on, nothing is lost."""
    context = multiprocessing.get_context("spawn")
    values = np.full(N, 5, "i4")
    children, answers, wrong = max(4, rounds // 100), 0, 0
    chance, before = random.Random(0), 0
    for number in range(children + 1):
        ours, theirs = context.Pipe()
        child = context.Process(target=serve, args=(theirs,))
        child.start()
        theirs.close()
        tensor = dlbridge.share(values, "cuda:0")
        try:
            ours.send(tensor)
            wrong += ours.recv() != 5  # it has started
            killer = threading.Timer(chance.uniform(0, 0.3), child.kill)
            killer.start()
            while True:
                ours.send(tensor)
                wrong += ours.recv() != 5
                answers += 1
        except (OSError, EOFError):
            pass  # it is dead
        child.join()
        wrong += child.exitcode != -signal.SIGKILL
        wrong += not np.array_equal(np.asarray(dlbridge.to_device(tensor, "cpu")), values)
        ours.close()
        del tensor
        gc.collect()
        dlbridge.synchronize("cuda:0")
        if not number:
            before = free_bytes()  # what the first use allocates is there
    lost = (before - free_bytes()) >> 20
    return f"{children} children killed after {answers} answers: {wrong} wrong, {lost} MiB less"


QUESTIONS: dict[str, Callable[[int], str]] = {
    function.__name__: function
    for function in (
        frees_copies_and_exports,
        streams_destroyed_early,
        graphs_beside_everything,
        killed_at_every_moment,
        full_to_the_last_mebibyte,
    )
}


def main() -> int:
    """Ask each; the number of processes that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--inside", action="store_true", help="in this process")
    parser.add_argument("names", nargs="*", default=list(QUESTIONS), metavar="NAME")
    chosen = parser.parse_args()
    if chosen.inside:
        for name in chosen.names:
            start = time.monotonic()
            answer = QUESTIONS[name](chosen.rounds)
            print(f"{name}: {answer} ({time.monotonic() - start:.1f} s)", flush=True)
        return 0
    failed = 0
    for name in chosen.names:
        words = [sys.executable, __file__, "--inside", "--rounds", str(chosen.rounds), name]
        done = subprocess.run(words, env=os.environ, check=False)
        if done.returncode:
            failed += 1
            print(f"{name}: exit {done.returncode}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
