"""Take out each wait of the backend in turn, and see a test fail.

What is taken out is every call that makes somebody wait (`cuda_mutate` finds
them in the source). The tests make the other side slow enough for it to be seen
for certain. A crash or a hang shows it too.
"""

import os
import subprocess
import sys

import pytest
from cuda_mutate import all_sites
from cuda_support import HERE

SHOWN_BY = {
    "base.Base.synchronize:streams.synchronize": "test_streams.py::test_synchronize_the_per_thread_stream_of_another_thread",
    "base.Base.wait:streams.wait": "test_streams.py::test_wait_orders_a_slow_stream_before_a_fast_one",
    "host.CUDAHost.copy:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.CUDAHost.copy_from_host:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.CUDAHost.copy_to_host:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.CUDAHost.fill:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.CUDAHost.host_view:wait_for_devices": "test_memory.py::test_the_host_waits_for_the_device",
    "host.wait_for_devices:streams.synchronize": "test_memory.py::test_the_host_waits_for_the_device",
    "managed.CUDAManaged.host_view:streams.synchronize": "test_memory.py::test_the_host_waits_for_managed_memory",
    "memory.DeviceMemory._release:_wait_before_free": "test_memory.py::test_without_pools",
    "memory.ManagedMemory._release:_wait_before_free": "test_memory.py::test_free_waits_for_the_work_on_it",
    "memory.PinnedMemory._release:_wait_before_free": "test_memory.py::test_free_waits_for_the_work_on_it",
    "memory.Memory._trim:_finish": "test_memory.py::test_no_room_waits_for_frees_on_the_way",
    "memory._wait_before_free:cuCtxSynchronize": "test_memory.py::test_free_waits_for_the_work_on_it",
    "memory._finish:cuStreamSynchronize": "test_memory.py::test_free_waits_for_the_work_on_it",
    "memory._wait_before_free:_finish": "test_memory.py::test_free_waits_for_the_work_on_it",
    "staging.Ring.record:cuEventRecord": "test_staging.py::test_chunks_wait_for_the_dma_that_reads_them",
    "staging.Ring.wait_for_dma:cuEventSynchronize": "test_staging.py::test_chunks_wait_for_the_dma_that_reads_them",
    "staging.Stager._drain:record": "test_staging.py::test_to_host_waits_for_earlier_work",
    "staging.Stager._drain:wait_for_dma": "test_staging.py::test_the_way_out_waits_for_the_dma_of_the_way_in",
    "staging.Stager._drain:wait_for_helper": "test_staging.py::test_chunks_wait_for_the_helpers_that_empty_them",
    "staging.Stager._drain:wait_for_helper#2": "test_staging.py::test_chunks_wait_for_the_helpers_that_empty_them",
    "staging.Stager._empty:wait_for_dma": "test_staging.py::test_to_host_waits_for_earlier_work",
    "staging.Stager._fill:wait_for_dma": "test_staging.py::test_chunks_wait_for_the_dma_that_reads_them",
    "staging.Stager._fill:wait_for_helper": "test_staging.py::test_no_helper_works_on_after_a_failure",
    "staging.Stager._send:record": "test_staging.py::test_chunks_wait_for_the_dma_that_reads_them",
    "staging.Stager._send:wait_for_helper": "test_staging.py::test_dmas_wait_for_the_helpers",
    "staging.Stager._with_ring:cuStreamSynchronize": "test_staging.py::test_a_dma_that_no_event_tells_of",
    "streams._record:cuEventRecord": "test_streams.py::test_wait_orders_a_slow_stream_before_a_fast_one",
    "streams._synchronize_with_all_threads:cuEventSynchronize": "test_streams.py::test_synchronize_the_per_thread_stream_of_another_thread",
    "streams.synchronize:_synchronize_with_all_threads": "test_streams.py::test_synchronize_the_per_thread_stream_of_another_thread",
    "streams.synchronize:cuStreamSynchronize": "test_memory.py::test_the_host_waits_for_the_device",
    "streams.wait:cuStreamWaitEvent": "test_streams.py::test_wait_orders_a_slow_stream_before_a_fast_one",
    "tuning._seconds:cuStreamSynchronize": "test_staging.py::test_a_measurement_lasts_until_the_copy_is_done",
}  # fmt: skip


def run(tests, mutation=""):
    """pytest's exit status on *tests* of this folder, with one wait taken out."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "cuda_mutate",
    ]
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*command, *(str(HERE / test) for test in tests)],
        cwd=HERE.parents[2],
        env={**os.environ, "CUDA_MUTATION": mutation, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_every_wait_has_its_test(fake):
    assert all_sites() == set(SHOWN_BY)


def test_with_all_waits_the_tests_pass(fake):
    done = run(sorted(set(SHOWN_BY.values())))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("site", SHOWN_BY)
def test_without_it_a_test_fails(fake, site):
    try:
        done = run([SHOWN_BY[site]], site)
    except subprocess.TimeoutExpired:
        return  # a hang shows that it is missed, too
    crashed = done.returncode < 0
    failed = done.returncode == 1 and " failed" in done.stdout
    assert crashed or failed, f"nothing misses {site}:\n{done.stdout}{done.stderr}"
