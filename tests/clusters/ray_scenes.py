"""A Ray cluster of this machine, and what tensors do on it: a line of JSON for each scene.

Started by test_ray.py, which ends it with all its processes. The folder for Ray's files is its
argument. Ray's worker is told that it has no Vulkan.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings

import numpy as np
import psutil
import pytest
import ray

import dlbridge as bridge

SCENES = []
VALUES = np.arange(100_000, dtype="float32")
NO_VULKAN = {"env_vars": {"DLBRIDGE_BACKENDS": "cpu,opencl"}}


def scene(function):
    SCENES.append(function)
    return function


@ray.remote
def seen(tensor):
    values = bridge.to_device(tensor, "cpu").numpy()
    return str(tensor.device), tensor.readonly, bool((values == VALUES).all())


@scene
def only_the_loopback_interface_is_used():
    me = psutil.Process()
    found = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in [me, *me.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert found == {"127.0.0.1"}, found


@scene
def get_copies_nothing():
    reference = ray.put(bridge.asarray(VALUES))
    first, second = ray.get(reference), ray.get(reference)
    assert first.data_ptr() == second.data_ptr()
    assert first.data_ptr() != VALUES.ctypes.data
    assert first.tolist() == VALUES.tolist()


@scene
def put_copies_once():
    """As much memory as the store takes, and no more."""
    nbytes = 64 << 20
    tensor = bridge.to_device(np.ones(nbytes, "u1"), "cpu", copy=True)
    process = psutil.Process()
    before = process.memory_info()
    reference = ray.put(tensor)
    after = process.memory_info()
    own = (after.rss - after.shared) - (before.rss - before.shared)
    assert own < nbytes // 2, own
    del reference


@scene
def what_comes_is_read_only_and_stays_so():
    there = ray.get(ray.put(bridge.asarray(VALUES.copy())))
    assert there.readonly
    for view in (there[10:], there.reshape(2, -1), bridge.from_dlpack(there)):
        assert view.readonly
    array = np.from_dlpack(there)
    assert not array.flags.writeable
    with pytest.raises((bridge.Error, BufferError, ValueError), match="read-only"):
        bridge.copy_(there, VALUES + 1)
    assert there.tolist() == VALUES.tolist()


@scene
def like_torch_is_a_copy_that_may_be_written():
    reference = ray.put(bridge.asarray(VALUES))
    there = ray.get(reference)
    for own in (
        bridge.to_device(there, "cpu", like="torch"),
        bridge.from_dlpack(there, like="torch"),
    ):
        assert own.data_ptr() != there.data_ptr()
        own.add_(1)
    assert ray.get(reference).tolist() == VALUES.tolist()


@scene
def memory_of_the_store_begins_at_no_page():
    """A device that wants pages copies; one that wants 64 bytes may use it in place."""
    there = ray.get(ray.put(bridge.asarray(VALUES)))
    assert there.data_ptr() % 64 == 0
    assert there.data_ptr() % 4096
    for device in ("opencl:0", "vulkan:0"):
        moved = bridge.to_device(there, device)
        assert bridge.to_device(moved, "cpu").tolist() == VALUES.tolist()
    assert bridge.plan(there, "opencl:0").nbytes == 0
    assert bridge.plan(there, "vulkan:0").nbytes == VALUES.nbytes


@scene
def tensors_of_devices_are_copied():
    for device in ("opencl:0", "vulkan:0"):
        tensor = bridge.to_device(VALUES, device, copy=True)
        reference = ray.put(tensor)
        first, second = ray.get(reference), ray.get(reference)
        assert str(first.device) == device
        assert not first.readonly
        bridge.copy_(first, VALUES + 1)
        assert second.tolist() == VALUES.tolist()


@scene
def a_task_gets_tensors():
    cpu, opencl = (bridge.to_device(VALUES, where, copy=True) for where in ("cpu", "opencl:0"))
    assert ray.get(seen.remote(ray.put(cpu))) == ("cpu:0", True, True)
    assert ray.get(seen.remote(ray.put(opencl))) == ("opencl:0", False, True)


@scene
def a_worker_without_the_device_gets_the_tensor_on_its_cpu():
    tensor = bridge.to_device(VALUES, "vulkan:0", copy=True)
    where, _, same = ray.get(seen.remote(ray.put(tensor)))
    assert (where, same) == ("cpu:0", True)


def main(folder):
    warnings.simplefilter("ignore", FutureWarning)
    ray.init(
        address="local",
        num_cpus=1,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env=NO_VULKAN,
        _temp_dir=folder,
    )
    try:
        for each in SCENES:
            begin = time.monotonic()
            try:
                each()
                failure = ""
            except Exception:
                failure = traceback.format_exc()
            seconds = round(time.monotonic() - begin, 2)
            print(json.dumps([each.__name__, failure, seconds]), flush=True)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
