"""Tensors between the processes of Dask and Ray, beside numpy's arrays: docs/benchmarks/clusters.md.

    python tests/clusters/bench.py           prints the tables
    python tests/clusters/bench.py --write   writes them

The kinds take turns, and each figure is the least of several. Memory is the growth of a process's
peak (VmHWM of Linux). Ray's part needs ``pip install ray``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import secrets
import shutil
import tempfile
import time
from pathlib import Path

import dask
import numpy as np
from dask.distributed import Client, LocalCluster, wait

import dlbridge as bridge

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "clusters.md"
NBYTES = 256 << 20
KINDS = {"numpy": None, "CPU": "cpu", "OpenCL": "opencl:0", "Vulkan": "vulkan:0"}
MIB = 1 << 20

HEAD = f"""# Dask and Ray: times and memory

Arrays of {NBYTES // MIB} MiB between processes of one machine: numpy's, and tensors of dlbridge on the CPU, on
OpenCL (PoCL) and on Vulkan (lavapipe). `python tests/clusters/bench.py --write` wrote this page.
[clusters.md](../clusters.md) explains what is copied.

Each figure is the best of {{rounds}} rounds, in which the kinds take turns; in brackets beside numpy's.
The second time is what all processes worked, which says more on a machine that does other things, too.
"MiB" is by how much the peak memory of a process grew. An OpenCL or Vulkan tensor that is received
exists twice for a moment: as the message, and on the device, whose memory is the host's here. Ray's
`get` copies nothing of a CPU tensor; what it costs more than for numpy is for each tensor, not for
each byte.

{{machine}}
"""


def array_of(kind):
    values = np.ones(NBYTES // 4, "float32")
    return values if kind == "numpy" else bridge.to_device(values, KINDS[kind], copy=True)


def resident(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    return 0


def forget_peak():
    """The peak begins anew; the memory in use now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def grown(before):
    return (resident("VmHWM") - before) // MIB


def worked(*, client=None, workers=()):
    """Milliseconds that this process has worked so far, or these workers."""
    if client is None:
        return time.process_time() * 1e3
    return sum(client.run(time.process_time, workers=list(workers)).values()) * 1e3


def touched(array):
    """A task on the array: what counts is that it is there."""
    return len(array.shape)


def best(rounds):
    """The least of each figure."""
    return tuple(min(figures) for figures in zip(*rounds, strict=True))


def turns(rounds):
    """Each kind in each round, and whether it counts: the first opens devices and connections.

    There and back: who comes after a slow one finds cold caches.
    """
    kinds = list(KINDS)
    for turn in range(rounds + 1):
        for kind in kinds[:: -1 if turn % 2 else 1]:
            yield kind, turn > 0


# Dask ---------------------------------------------------------------------------


def between_workers(client, kind, workers):
    """Milliseconds, and those worked; growth of the sender and of the receiver."""
    there = client.submit(array_of, kind, workers=workers[0], pure=False)
    wait(there)
    before = client.run(forget_peak, workers=workers)
    effort = worked(client=client, workers=workers)
    begin = time.perf_counter()
    client.submit(touched, there, workers=workers[1], pure=False).result()
    spent = (time.perf_counter() - begin) * 1e3
    effort = worked(client=client, workers=workers) - effort
    after = {each: client.run(grown, before[each], workers=[each])[each] for each in workers}
    return spent, effort, after[workers[0]], after[workers[1]]


def gathered(client, kind, workers, direct):
    """Milliseconds, and those worked; growth of the worker and of the client with its scheduler."""
    there = client.submit(array_of, kind, workers=workers[0], pure=False)
    wait(there)
    sender = client.run(forget_peak, workers=workers[:1])[workers[0]]
    before = forget_peak()
    effort = worked() + worked(client=client, workers=workers[:1])
    begin = time.perf_counter()
    here = client.gather(there, direct=direct)
    spent = (time.perf_counter() - begin) * 1e3
    effort = worked() + worked(client=client, workers=workers[:1]) - effort
    mine = grown(before)
    del here
    return spent, effort, client.run(grown, sender, workers=workers[:1])[workers[0]], mine


def through_scheduler(client, kind, workers):
    return gathered(client, kind, workers, direct=False)


def directly(client, kind, workers):
    return gathered(client, kind, workers, direct=True)


def bench_dask(rounds):
    """Rows for the table: what, the memory's names, and the figures of each kind."""
    rows = {
        "worker to worker": (between_workers, "sender, receiver"),
        "gather through the scheduler": (through_scheduler, "worker, client and scheduler"),
        "gather, `direct=True`": (directly, "worker, client"),
    }
    found = {row: {kind: [] for kind in KINDS} for row in rows}
    dask.config.set({"distributed.worker.memory.terminate": False})
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):
        workers = list(client.scheduler_info()["workers"])
        for row, (measure, _) in rows.items():
            for kind, counts in turns(rounds):
                figures = measure(client, kind, workers)
                if counts:
                    found[row][kind].append(figures)
    return {(row, rows[row][1]): found[row] for row in rows}


def sizes():
    from dask.sizeof import sizeof

    return {kind: sizeof(array_of(kind)) for kind in KINDS}


# Ray ----------------------------------------------------------------------------


def put(ray, kind):
    """Milliseconds, and those worked; growth."""
    array = array_of(kind)
    before, effort, begin = forget_peak(), worked(), time.perf_counter()
    ray.put(array)
    return (time.perf_counter() - begin) * 1e3, worked() - effort, grown(before)


def got(ray, reference):
    """Likewise."""
    before, effort, begin = forget_peak(), worked(), time.perf_counter()
    here = ray.get(reference)
    figures = (time.perf_counter() - begin) * 1e3, worked() - effort, grown(before)
    del here
    return figures


def bench_ray(rounds):
    """As `bench_dask`; nothing without Ray."""
    if importlib.util.find_spec("ray") is None:
        return {}
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)
    import ray

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    putting, getting = ({kind: [] for kind in KINDS} for _ in range(2))
    ray.init(
        address="local",
        num_cpus=1,
        object_store_memory=6 * NBYTES,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=folder,
    )
    try:
        for kind, counts in turns(rounds):
            figures = put(ray, kind)
            if counts:
                putting[kind].append(figures)
        stored = {kind: ray.put(array_of(kind)) for kind in KINDS}
        for kind, counts in turns(10 * rounds):  # microseconds, where nothing is copied
            figures = got(ray, stored[kind])
            if counts:
                getting[kind].append(figures)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    memory = "the store's memory counts"
    return {("Ray `put`", memory): putting, ("Ray `get`", memory): getting}


# The page -----------------------------------------------------------------------


def shown(milliseconds):
    """The time in words."""
    if milliseconds < 1:
        return f"{milliseconds * 1e3:.0f} us"
    return f"{milliseconds:.0f} ms"


def cells(found):
    """One cell for each kind: the time, and the memory."""
    beside = best(found["numpy"])[:2]
    made = []
    for kind, rounds in found.items():
        spent, effort, *memory = best(rounds)
        times = []
        for own, numpys in zip((spent, effort), beside, strict=True):
            ratio = f" ({own / numpys:.2f})" if kind != "numpy" and own < 100 * numpys else ""
            times.append(f"{shown(own)}{ratio}")
        made.append(f"{', '.join(times)}, {' + '.join(str(max(0, each)) for each in memory)} MiB")
    return made


def page(rows, weights, rounds, note):
    """The document."""
    versions = [f"Python {platform.python_version()}", f"numpy {np.__version__}"]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in ("dask", "distributed")]
    if importlib.util.find_spec("ray") is not None:
        versions.append(f"Ray {importlib.metadata.version('ray')}")
    machine = f"{os.cpu_count()} cores, {', '.join(versions)}. {note}".rstrip()
    lines = [HEAD.format(rounds=rounds, machine=machine)]
    lines.append(f"| way | {' | '.join(KINDS)} |")
    lines.append(f"|---|{'---|' * len(KINDS)}")
    for (row, memory), found in rows.items():
        lines.append(f"| {row} (MiB: {memory}) | {' | '.join(cells(found))} |")
    lines.append(f"| `dask.sizeof` | {' | '.join(str(weights[kind]) for kind in KINDS)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", default="", help="what to say of the machine")
    arguments = parser.parse_args()
    rows = {**bench_dask(arguments.rounds), **bench_ray(arguments.rounds)}
    text = page(rows, sizes(), arguments.rounds, arguments.note)
    print(text)
    if arguments.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
