"""One storm in this process: random operations in threads, under all disturbances.

    python tests/storm/worker.py --seed 5 --seconds 10

The last line that it prints is a JSON object: what was done, and the findings.
`storm.py` starts it, and judges its exit status and stderr too. A thread of seed 5
makes the same choices in the same order each time; when the threads take turns, and
where a signal comes, differs.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import os
import random
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One storm in this process.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--threads", type=int, help="1 to 8; by the seed if not given")
    parser.add_argument("--switching", type=float, help="seconds; by the seed if not given")
    parser.add_argument("--threshold", type=int, help="of the collector; by the seed if not given")
    parser.add_argument("--only", default="", help="names of operations, with commas")
    parser.add_argument("--devices", default="", help="names of devices, with commas")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds until it counts as hanging"
    )
    parser.add_argument("--end", choices=["joined", "working"], help="of the threads at the exit")
    parser.add_argument("--without", default="", help="names of libraries, with commas")
    parser.add_argument("--simulated", action="store_true", help="with simulated CUDA and ROCm")
    parser.add_argument("--hole", default="", help="a name in holes.py: that fault is put back")
    return parser.parse_args()


class Storm:
    """The state of one storm."""

    def __init__(self, given: argparse.Namespace) -> None:
        pick = random.Random(given.seed)
        self.seed, self.seconds, self.patience = given.seed, given.seconds, given.patience
        self.threads = given.threads or pick.randrange(1, 9)
        self.switching = pick.choice([1e-6, 1e-6, 1e-4, 5e-3])
        self.switching = given.switching or self.switching
        self.threshold = given.threshold or pick.choice([7, 50, 700])
        self.end = given.end or pick.choice(["joined", "working"])
        # jax's threads do not survive a fork, and it says so at each.
        without = {name for name in given.without.split(",") if name}
        without |= {"jax"} if pick.random() < 0.7 else {"forks"}
        self.done: Counter[str] = Counter()
        self.findings: list[str] = []
        self.stopping = self.ending = False
        self.prepare(given, without)

    def prepare(self, given: argparse.Namespace, without: set[str]) -> None:
        libraries = {"", "torch", "jax", "tvm_ffi"} - without
        for name in sorted(libraries - {""}):
            try:
                importlib.import_module(name)
            except ImportError:
                libraries.discard(name)
        if "jax" in libraries:
            importlib.import_module("jax.dlpack")
        from tests.storm.operations import ROWS, Shared

        only = set(given.only.split(",")) if given.only else set(ROWS)
        if only - ROWS.keys():
            raise SystemExit(f"no such operation: {', '.join(only - ROWS.keys())}")
        self.table = [
            row
            for name, row in ROWS.items()
            if name in only and row.needs in libraries and name not in without
        ]
        self.devices = devices(given.devices)
        self.shared = Shared

    def choose(self, pick: random.Random, rows: list[Any]) -> tuple[Any, str]:
        row = pick.choices(rows, [row.weight for row in rows])[0]
        return row, pick.choice(self.devices) if row.devices else "cpu"

    def work(self, seed: str, rows: list[Any], run: Callable[..., None]) -> None:
        """Do random operations until the storm ends; *run* does one."""
        pick = random.Random(seed)
        while not self.stopping or (sum(self.done.values()) <= 20 and not self.findings):
            row, device = self.choose(pick, rows)
            try:
                run(pick, partial(row.function, pick, device))
            except BaseException as error:
                if self.ending:
                    return  # some drivers refuse work then
                if isinstance(error, SystemExit):
                    raise  # a forked child
                trace = "".join(traceback.format_exception(error))
                self.findings.append(f"{row.name} on {device}: {trace}")
                self.stopping = True
                return
            self.done[row.name] += 1

    def start(self, rows: list[Any], count: int) -> list[threading.Thread]:
        def plainly(_pick: random.Random, work: Callable[[], None]) -> None:
            work()

        threads = [
            threading.Thread(
                target=self.work, args=(f"{self.seed}.{number}", rows, plainly), daemon=True
            )
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        return threads


def simulate_drivers() -> None:
    """Load the simulated drivers of CUDA and ROCm, before anybody looks for real ones."""
    from tests.drivers import build

    build.load("cuda")
    build.load("hip")


def devices(wanted: str) -> list[str]:
    """The devices of this machine, those of simulators for drivers left out."""
    import dlbridge as bridge

    found = ["cpu"]
    for name in bridge.backends():
        try:
            plugin = bridge.backend(name)
            for index in range(plugin.device_count() if name != "cpu" else 0):
                info = plugin.device_info(index) if hasattr(plugin, "device_info") else {}
                if "Oclgrind" not in str(info.get("name")):  # a thousand times slower
                    found.append(f"{name}:{index}")
        except bridge.BackendUnavailable:
            continue
    return [name for name in found if not wanted or name in wanted.split(",")]


def live() -> dict[str, int]:
    """The number of things of each kind that exist: 0 once the storm is over."""
    from dlbridge.extending import LOADED
    from dlbridge.kit.resources import _all
    from tests.support.held_by_c import structs_in_capsules, structs_of_the_table

    # What an exception has cut off goes back at the end of the next of its kind, or by this.
    for resources in _all.copy():
        resources.sweep()
    counts = {
        f"allocations of {name}": plugin.live_allocations()
        for name, plugin in LOADED.items()
        if hasattr(plugin, "live_allocations")
    }
    counts["structs lent by the table"] = structs_of_the_table()
    counts["structs in capsules"] = structs_in_capsules()
    for module, names in (
        ("dlbridge_opencl.views", ["_resources"]),
        ("dlbridge.ffi.functions", ["_callables"]),
        ("dlbridge.ffi.objects", ["_kept"]),
    ):
        if module in sys.modules:
            for name in names:
                counts[f"{module}.{name}"] = len(getattr(sys.modules[module], name))
    return counts


def settle(storm: Storm) -> dict[str, int]:
    """The counts, once finalizers and streams have had time."""
    import dlbridge as bridge
    from tests.storm.operations import watched

    for _ in range(5):
        gc.collect()
    for device in storm.devices:
        bridge.synchronize(device)
    gc.collect()
    counts = live()
    for array in watched:
        name = f"host arrays of {array.made_by}"
        counts[name] = counts.get(name, 0) + (array() is not None)
    if "tests.support.raw_producer" in sys.modules:
        producer = sys.modules["tests.support.raw_producer"]
        counts["structs made by hand"] = len(producer.live)
        counts["deleted twice"] = len(producer.deleted_twice)
    return counts


def main() -> None:
    given = arguments()
    faulthandler.enable()
    warnings.filterwarnings("ignore", message=".*fork.*")  # we know
    if given.hole:
        from tests.storm import holes

        holes.put_back(given.hole)
    if given.simulated:
        simulate_drivers()
    storm = Storm(given)
    from tests.storm.disturbances import Interruptions

    interruptions = Interruptions()
    # Everything once, and calmly: what the first use of something keeps is no leak.
    for device in storm.devices:
        storm.shared.of(device)
    first = random.Random(0)
    for row in storm.table:
        for device in storm.devices if row.devices else ["cpu"]:
            row.function(first, device)
    storm.shared.tickets.clear()
    before = settle(storm)
    gc.freeze()  # else a collection takes as long as hundred operations

    sys.setswitchinterval(storm.switching)
    gc.set_threshold(storm.threshold)
    parallel = [row for row in storm.table if not row.main]
    threads = storm.start(parallel, storm.threads - 1) if parallel else []
    stop = threading.Timer(given.seconds, setattr, (storm, "stopping", True))
    stop.daemon = True
    stop.start()
    storm.work(f"{given.seed}.main", storm.table, interruptions.run)
    stop.cancel()
    storm.stopping = True
    end = time.monotonic() + storm.patience
    for thread in threads:
        thread.join(max(0.1, end - time.monotonic()))
        if thread.is_alive():
            storm.findings.append("a thread hangs")
            faulthandler.dump_traceback()
            report(storm, interruptions)
            os._exit(1)
    gc.set_threshold(700)
    judge(storm, interruptions, before)
    report(storm, interruptions)
    if storm.end == "working":
        work_until_the_end(storm, parallel)
    elif storm.findings:
        os._exit(1)


def judge(storm: Storm, interruptions: Any, before: dict[str, int]) -> None:
    """Compare the counts at the end with those after the first operations."""
    storm.shared.tickets.clear()
    for device in storm.devices:
        storm.shared.of(device)
    interruptions.look()
    after = settle(storm)
    interruptions.look()
    for name, count in after.items():
        if count != before.get(name, 0):
            storm.findings.append(f"{name}: {before.get(name, 0)} before, {count} after")
    for text in interruptions.others[:3]:
        storm.findings.append(f"printed by Python: {text}")
    for text in interruptions.lost[:3]:
        storm.findings.append(f"an exception of a handler arrived nowhere, raised at\n{text}")


def report(storm: Storm, interruptions: Any) -> None:
    done = {
        "seed": storm.seed,
        "threads": storm.threads,
        "switching": storm.switching,
        "devices": storm.devices,
        "end": storm.end,
        "operations": sum(storm.done.values()),
        "each": dict(storm.done),
        "interrupted": interruptions.heard,
        "printed": interruptions.printed,
        "findings": storm.findings,
    }
    print(json.dumps(done), flush=True)


def work_until_the_end(storm: Storm, rows: list[Any]) -> None:
    """Leave threads at work, and our tensors in everybody's hands, while Python ends."""
    # torch aborts the process then, with numpy's arrays too (docs/safety.md).
    storm.stopping, storm.ending = False, True
    storm.start([row for row in rows if row.needs not in ("torch", "jax")], storm.threads)
    time.sleep(0.1)


if __name__ == "__main__":
    main()
