"""Take out each wait of the backend in turn, and see a test fail.

What is taken out is every call that makes somebody wait, as `tests/support/mutate.py`
finds them in the source. The tests hold the other side back by a gate, so that
a missing wait shows for certain. A crash or a hang shows it too.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from rocm_support import HERE

TOOLS = HERE.parents[2] / "tests" / "support"

SHOWN_BY = {
    "base.Base.synchronize:streams.synchronize": "test_streams.py::test_synchronize_waits",
    "base.Base.wait:streams.wait": "test_streams.py::test_wait_orders_a_slow_stream_before_a_fast_one",
    "host.ROCMHost.copy:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.ROCMHost.copy_from_host:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.ROCMHost.copy_to_host:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.ROCMHost.fill:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.ROCMHost.host_view:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.wait_for_devices:streams.synchronize": "test_memory.py::test_the_host_waits_for_the_device",
    "memory.DeviceMemory._release:_wait_before_free": "test_memory.py::test_without_pools",
    "memory.Memory._trim:wait_on_host": "test_memory.py::test_no_room_waits_for_frees_on_the_way",
    "memory.PinnedMemory._release:_wait_before_free": "test_memory.py::test_free_waits_for_the_work_on_it",
    "memory._wait_before_free:hipDeviceSynchronize": "test_memory.py::test_free_waits_for_the_work_on_it",
    "memory._wait_before_free:wait_on_host": "test_memory.py::test_free_waits_for_the_work_on_it",
    "streams._record:hipEventRecord": "test_streams.py::test_wait_orders_a_slow_stream_before_a_fast_one",
    "streams.synchronize:wait_on_host": "test_streams.py::test_synchronize_waits",
    "streams.wait:wait_on_host": "test_streams.py::test_wait_between_devices",
    "streams.wait:hipStreamWaitEvent": "test_streams.py::test_wait_orders_a_slow_stream_before_a_fast_one",
    "streams.wait_on_host:hipStreamSynchronize": "test_streams.py::test_synchronize_waits",
}


@pytest.fixture(scope="module")
def waits():
    """The waits of this backend."""
    spec = importlib.util.spec_from_file_location("mutate", TOOLS / "mutate.py")
    mutate = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = mutate  # where dataclasses look
    spec.loader.exec_module(mutate)
    names = ["hipStreamWaitEvent", "hipStreamSynchronize", "hipEventRecord", "hipDeviceSynchronize"]
    names += [
        "wait_for_devices",
        "_wait_before_free",
        "streams.synchronize",
        "streams.wait",
        "wait_on_host",
    ]
    return mutate.Mutation("dlbridge_rocm", names, {"call": "None", "status": "0"})


def run(tests, mutation=""):
    """pytest on *tests* of this folder, with one wait taken out."""
    paths = os.pathsep.join([str(TOOLS), os.environ.get("PYTHONPATH", "")])
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "mutate"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(HERE / test) for test in tests)],
        cwd=HERE.parents[2],
        env={**os.environ, "DLBRIDGE_MUTATION": mutation, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_every_wait_has_its_test(fake, waits):
    assert waits.sites() == set(SHOWN_BY)


def test_with_all_waits_the_tests_pass(fake):
    done = run(sorted(set(SHOWN_BY.values())))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("site", SHOWN_BY)
def test_without_it_a_test_fails(fake, waits, site):
    try:
        done = run([SHOWN_BY[site]], replace(waits, site=site).encode())
    except subprocess.TimeoutExpired:
        return  # a hang shows that it is missed, too
    crashed = done.returncode < 0
    failed = done.returncode == 1 and " failed" in done.stdout
    assert crashed or failed, f"nothing misses {site}:\n{done.stdout}{done.stderr}"
