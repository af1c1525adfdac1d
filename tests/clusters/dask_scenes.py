"""A Dask cluster, and what tensors do on it: prints a line of JSON for each scene.

Started by test_dask.py, which ends it with all its processes. Three workers: two have an OpenCL
device each, the third has none.
"""

from __future__ import annotations

import json
import time
import traceback

import dask
import numpy as np
import psutil
from dask.distributed import Client, Nanny, Scheduler, SpecCluster, wait

import dlbridge as bridge

SECONDS = 200
"""Until something that does not come counts as lost."""

LOCAL = {"host": "127.0.0.1", "dashboard": False}
MEMORY = {"distributed.worker.memory.target": 0.4, "distributed.worker.memory.spill": 0.5}
MEMORY |= {"distributed.worker.memory.pause": 0.6, "distributed.worker.memory.terminate": False}
MEMORY |= {"distributed.worker.memory.monitor-interval": "50ms"}
SCENES = []


def scene(function):
    SCENES.append(function)
    return function


def worker(**options):
    return {"cls": Nanny, "options": {**LOCAL, "nthreads": 1, "memory_limit": 0, **options}}


def start(folder):
    dask.config.set(MEMORY)
    workers = {
        "first": worker(env={"POCL_DEVICES": "pthread pthread"}),
        "small": worker(memory_limit="500MiB", local_directory=folder),
        "no devices": worker(env={"DLBRIDGE_BACKENDS": "cpu"}),
    }
    scheduler = {"cls": Scheduler, "options": {**LOCAL, "port": 0}}
    return SpecCluster(scheduler=scheduler, workers=workers)


# On the workers ---------------------------------------------------------------


def made(device):
    return bridge.to_device(np.arange(700, dtype="float32").reshape(100, 7), device, copy=True)


def full(device, value, nbytes):
    return bridge.to_device(np.full(nbytes, value, "u1"), device, copy=True)


def seen(tensor):
    return str(tensor.device), bridge.to_device(tensor, "cpu").numpy().tolist()


# Scenes -----------------------------------------------------------------------


@scene
def only_the_loopback_interface_is_used(client):
    """By no process of the cluster is anything open to the network."""
    me = psutil.Process()
    found = {
        connection.laddr.ip
        for process in [me, *me.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert found == {"127.0.0.1"}


@scene
def the_scheduler_knows_the_sizes(client):
    for device in ("cpu", "opencl:0"):
        future = client.submit(full, device, 1, 1 << 20, workers="first")
        wait(future, SECONDS)
        assert client.nbytes([future.key], summary=False) == {future.key: 1 << 20}, device


@scene
def tensors_go_from_worker_to_worker_and_to_the_client(client):
    for device in ("cpu", "opencl:0"):
        future = client.submit(made, device, workers="first")
        want = device if ":" in device else "cpu:0", made("cpu").tolist()
        assert client.submit(seen, future, workers="small").result(SECONDS) == want
        for direct in (True, False):
            assert seen(client.gather(future, direct=direct)) == want


@scene
def tensors_go_from_the_client_to_a_worker(client):
    for device in ("cpu", "opencl:0"):
        tensor = made(device)
        want = str(tensor.device), made("cpu").tolist()
        assert client.submit(seen, tensor, workers="small").result(SECONDS) == want
        scattered = client.scatter(tensor, workers="small")
        assert client.submit(seen, scattered, workers="small").result(SECONDS) == want


@scene
def what_a_read_only_tensor_holds_stays_read_only(client):
    array = np.arange(1000)
    array.flags.writeable = False
    future = client.scatter(bridge.asarray(array), workers="first")
    assert client.submit(lambda t: t.readonly, future, workers="small").result(SECONDS)
    assert client.gather(future).readonly


@scene
def a_worker_without_the_device_gets_the_tensor_on_its_cpu(client):
    """It does not wait for ever, and the task is not lost."""
    future = client.submit(made, "opencl:0", workers="first")
    there = client.submit(seen, future, workers="no devices").result(SECONDS)
    assert there == ("cpu:0", made("cpu").tolist())
    again = client.submit(lambda t: t, future, workers="no devices")
    assert client.submit(lambda t: str(t.device), again, workers="first").result(SECONDS) == "cpu:0"


@scene
def a_task_that_wants_a_device_that_is_not_there_fails_and_says_so(client):
    future = client.submit(made, "opencl:0", workers="no devices", pure=False)
    failure = future.exception(SECONDS)
    assert isinstance(failure, bridge.BackendUnavailable)
    assert "DLBRIDGE_BACKENDS" in str(failure)


@scene
def spilled_memory_of_a_device_is_free(client):
    """Ten tensors of 32 MiB, on a worker that stops above 300 MiB: the driver's memory counts."""
    futures = [
        client.submit(full, "opencl:0", value, 32 << 20, workers="small") for value in range(10)
    ]
    wait(futures, SECONDS)
    assert [future.status for future in futures] == ["finished"] * 10
    assert max(client.run(spilled).values()) > 2
    for value in (0, 9):  # from the disk, and the last one
        future = futures[value]
        first = client.submit(lambda t: (t[:1].tolist(), str(t.device)), future, workers="small")
        assert first.result(SECONDS) == ([value], "opencl:0")


@scene
def all_workers_can_be_told_to_trim(client):
    assert list(client.run(bridge.trim).values()) == [None] * 3


def spilled(dask_worker):
    return len(getattr(dask_worker.data, "disk", ()))  # without a limit it is a plain dict


def main(folder):
    with start(folder) as cluster, Client(cluster) as client:
        client.wait_for_workers(3, SECONDS)
        for each in SCENES:
            begin = time.monotonic()
            try:
                each(client)
                failure = ""
            except Exception:
                failure = traceback.format_exc()
            seconds = round(time.monotonic() - begin, 2)
            print(json.dumps([each.__name__, failure, seconds]), flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
