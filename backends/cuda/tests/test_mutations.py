"""Take out each wait of the kit and of this backend in turn, and see a test fail.

A wait is a call that makes somebody wait, or notes who is to be waited for; `tests/support/without_a_wait.py`
finds them in the source. The tests hold the other side back, so that a missing wait shows for
certain. A crash or a hang shows it too.
"""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from backends.cuda.tests.cuda_support import HERE
from tests.support.without_a_wait import Mutation

pytestmark = pytest.mark.exhaustive

OWNERS = ("driver", "self.driver", "self._driver")
WAITS = ["wait_event", "wait_for_event", "wait_for_stream", "wait_for_device", "record_event"]
WAITS = [f"{owner}.{name}" for owner in OWNERS for name in WAITS]
FUNCTIONS = ["wait_event", "wait_for_event", "wait_for_stream", "record_event"]
WAITS += [f"self.functions.{name}" for name in FUNCTIONS]
WAITS += [
    "ring.record",
    "ring.wait_for_dma",
    "self._mark",
    "self._has_passed",
    "self._memory.consumers.note",
    "self._remember",
    "self._wait_by_event",
    "self.synchronize",
    "wait_for_device",
    "do_all",
    "job.wait",
]
DRIVER_WAITS = ["self.synchronize", "self.driver.wait_for_stream"]
STREAMS, MEMORY, STAGING = (
    "test_common.py::streams::",
    "test_common.py::memory::",
    "test_staging.py::",
)
ORDER = f"{STREAMS}test_wait_orders_a_slow_stream_before_a_fast_one"
SYNCHRONIZE = f"{STREAMS}test_synchronize_waits_and_lets_other_threads_run"
PER_THREAD = "test_streams.py::test_synchronize_the_per_thread_stream_of_another_thread"
CONSUMER = f"{STREAMS}test_a_tensor_that_dies_while_a_consumer_reads_it"
GONE = "test_gone_streams.py::test_the_consumers_stream_is_destroyed"
FREE = f"{MEMORY}test_free_waits_for_the_work_on_it"
HOST = f"{MEMORY}test_the_host_waits_for_the_device"
ROOM = f"{MEMORY}test_no_room_waits_for_frees_on_the_way"
WAY_IN = f"{STAGING}test_chunks_wait_for_the_dma_that_reads_them"
EXTERNAL = "test_external.py::"

SHOWN_BY = {
    "dlbridge.kit": {
        "backend.StreamBackend._synchronize:driver.wait_for_event": PER_THREAD,
        "backend.StreamBackend._synchronize:driver.wait_for_stream": SYNCHRONIZE,
        "backend.StreamBackend._wait:self._memory.consumers.note": CONSUMER,
        "backend.StreamBackend._wait:self._memory.consumers.note#2": f"{STREAMS}test_a_consumer_that_was_waited_for",
        "backend.StreamBackend._wait:self._wait_by_event": ORDER,
        "backend.StreamBackend._wait_by_event:driver.wait_event": ORDER,
        "backend.DeviceBackend._copy_peer:self._memory.consumers.note": f"{STREAMS}test_a_peer_copy_whose_wait_failed_keeps_its_source",
        "backend.DeviceBackend._queue_here:driver.wait_for_stream": f"{STAGING}test_large_tensors",
        "driver.StreamDriver.record_event:self.functions.record_event": ORDER,
        "driver.StreamDriver.wait_event:self.functions.wait_event": ORDER,
        "driver.StreamDriver.wait_for_device:wait_for_device": GONE,
        "driver.StreamDriver.wait_for_event:self.functions.wait_for_event": PER_THREAD,
        "driver.StreamDriver.wait_for_stream:self.functions.wait_for_stream": SYNCHRONIZE,
        "order.EventPool.record_here:self._driver.record_event": ORDER,
        "backend.HostBackend._settled:self.synchronize": HOST,
        "devices.HostViews.host_view:self.synchronize": "test_memory.py::test_the_host_waits_for_managed_memory",
        "memory.Memory._free:self._has_passed": CONSUMER,
        "memory.Memory._free:self._mark": CONSUMER,
        "memory.Memory._has_passed:driver.wait_event": ROOM,
        "memory.Memory._record:driver.wait_for_device": GONE,
        "memory.Memory.trim:self.driver.wait_for_stream": ROOM,
        "memory.PinnedMemory.release:self.driver.wait_for_stream": FREE,
        "memory.PoolMemory.release:self._remember": ROOM,
        "memory.PoolMemory.release:driver.wait_for_stream": f"{EXTERNAL}test_memory_that_can_be_exported_is_freed_behind_the_work",
        "memory.PoolMemory.release:driver.wait_for_stream#2": f"{MEMORY}test_without_pools",
        "memory.PoolMemory.trim:driver.wait_event": ROOM,
        "memory.PoolMemory.trim:self._remember": f"{MEMORY}test_no_room_waits_for_the_last_free_on_another_stream",
        "staging.Ring.record:self._driver.record_event": WAY_IN,
        "staging.Ring.wait_for_dma:self._driver.wait_for_event": WAY_IN,
        "staging.StagedCopies._make_pages:job.wait": f"{STAGING}test_large_memory_of_the_host_has_its_pages_before",
        "staging.Stager._fill:ring.wait_for_dma": WAY_IN,
        "staging.Stager._fill:do_all": f"{STAGING}test_no_helper_works_on_after_a_failure",
        "staging.Stager._send:ring.record": WAY_IN,
        "staging.Stager._send:job.wait": f"{STAGING}test_dmas_wait_for_the_helpers",
        "staging.Stager.to_device:self._driver.wait_for_stream": f"{STAGING}test_a_dma_that_no_event_tells_of",
    },
    "dlbridge_cuda": {
        "backends.ManagedMemory.release:self.driver.wait_for_stream": FREE,
    },
}
# The first is for old versions of HIP alone: see test_wait_between_devices_by_version there. The
# next two are for backends with several devices and no copy between them: tests/kit has their test.
# No test shows the last two: small copies are read on return already, and an exception is rare.
ELSEWHERE = {
    "backend.StreamBackend._wait_by_event:driver.wait_for_stream",
    "devices.ThroughHost.copy:self.synchronize",
    "devices.ThroughHost.copy:self.synchronize#2",
    "backend.DeviceBackend._write:driver.wait_for_stream",
    "staging.StagedCopies._make_pages:do_all",
}
SITES = [(package, site) for package, sites in SHOWN_BY.items() for site in sites]


@pytest.fixture(scope="module")
def waits():
    """The waits of each package."""
    success = {"self.call": "None", **{f"self.functions.{name}": "0" for name in FUNCTIONS}}
    success["self._has_passed"] = success["self._mark"] = "True"
    return {
        "dlbridge.kit": Mutation("dlbridge.kit", WAITS, success),
        "dlbridge_cuda": Mutation("dlbridge_cuda", DRIVER_WAITS, {}),
    }


def run(tests, mutation="", timeout=100):
    """pytest on *tests* of this folder, with one wait taken out; then some hang."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "tests.support.without_a_wait"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(HERE / test) for test in tests)],
        cwd=HERE.parents[2],
        env={**os.environ, "DLBRIDGE_MUTATION": mutation},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def test_every_wait_has_its_test(fake, waits):
    mutated = {package: mutation.sites() - ELSEWHERE for package, mutation in waits.items()}
    assert mutated == {package: set(sites) for package, sites in SHOWN_BY.items()}


def test_with_all_waits_the_tests_pass(fake):
    tests = {test for sites in SHOWN_BY.values() for test in sites.values()}
    done = run(sorted(tests), timeout=900)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("package", "site"), SITES)
def test_without_it_a_test_fails(fake, waits, package, site):
    try:
        done = run([SHOWN_BY[package][site]], replace(waits[package], site=site).encode())
    except subprocess.TimeoutExpired:
        return  # a hang shows that it is missed, too
    crashed = done.returncode < 0
    failed = done.returncode == 1 and " failed" in done.stdout
    assert crashed or failed, f"nothing misses {site}:\n{done.stdout}{done.stderr}"
