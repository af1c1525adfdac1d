"""Memory of CUDA's that other processes have: `dlbridge.share` on ``cuda:0``.

On the simulated driver it is a file, which it maps in each process. So the calls, their order,
lifetimes and errors are what is tested. That NVIDIA's driver opens such a descriptor in another
process, no machine has confirmed here.
"""

from __future__ import annotations

import gc
import os
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

import dlbridge as bridge
from backends.cuda.tests.cuda_support import HERE, slow, stream
from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.processes import blocks as shared_blocks
from dlbridge.processes.shared_tensors import receive_memory, receive_on_device
from dlbridge.testing.backend_base import open_files
from tests.support.scripts import run_script

VALUES = np.arange(3000, dtype="i4").reshape(30, 100)
UNIT = 2 << 20
MAKING = ("cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess")
ENDING = ("cuMemUnmap", "cuMemAddressFree", "cuMemRelease")


class Given:
    """In the place of multiprocessing's DupFd."""

    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return os.dup(self.fd)


def received(t, **changes):
    """*t* once more, as another process would receive it."""
    block = shared_blocks.find_on_device(t.operand())[0]
    described = {"uuid": block.uuid, "nbytes": block.exported.nbytes, "offset": 0}
    described |= {"driver": block.exported.driver, "token": b"another process's"} | changes
    again = receive_memory(Given(block.fileno()), *described.values())
    layout = (0, str(t.dtype), t.shape, (t.shape[1], 1), 0, False)
    return receive_on_device(again, str(t.device), layout)


def host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True, like="numpy")


def test_the_memory_is_cudas_own(cuda, fake):
    """Not of the pool, and in whole units; whoever opens it finds the same bytes."""
    before = [fake.calls(name) for name in (*MAKING, "cuMemAllocFromPoolAsync")]
    t = bridge.share(VALUES, "cuda:0")
    assert (str(t.device), t.origin) == ("cuda:0", "shared device memory")
    made = [fake.calls(name) for name in (*MAKING, "cuMemAllocFromPoolAsync")]
    assert [now - b for now, b in zip(made, before, strict=True)] == [1, 1, 1, 1, 0]
    assert shared_blocks.find_on_device(t.operand())[0].exported[1:] == (UNIT, 0, "cuda", None)
    assert bridge.share(t) is t
    again = received(t)
    assert again.data_ptr() != t.data_ptr()
    bridge.copy_(again, VALUES * 2)
    bridge.synchronize("cuda:0")
    assert (host(t) == VALUES * 2).all()


def test_it_is_opened_by_cudas_own_call(cuda, fake):
    """And its end gives all back, to the driver's last handle."""
    t = bridge.share(VALUES, "cuda:0")
    gc.collect()
    names = ("cuMemImportFromShareableHandle", "cuImportExternalMemory", *ENDING)
    before, live, opened = [fake.calls(name) for name in names], fake.live(), open_files()
    again = received(t)
    assert fake.live() == live + 3  # the memory, its addresses, and what is mapped there
    del again
    gc.collect()
    assert [fake.calls(name) - b for name, b in zip(names, before, strict=True)] == [1, 0, 1, 1, 1]
    assert (fake.live(), open_files()) == (live, opened)


def test_it_is_made_on_the_stream_that_is_used(cuda):
    """The copy into it comes after the work on its source."""
    source = bridge.to_device(np.zeros((1, 4096), "u1"), "cuda:0", copy=True)
    fives = bridge.to_device(np.full((1, 4096), 5, "u1"), "cuda:0", copy=True)
    with stream() as busy, bridge.use_stream("cuda:0", busy):
        slow(busy)
        bridge.copy_(source, fives)
        t = bridge.share(source)
        ForkingPickler.dumps(t)
        assert (host(received(t)) == 5).all()


def test_the_end_waits_for_the_work(cuda):
    """On the simulated driver work on unmapped memory ends the process."""
    fives = bridge.to_device(np.full((1, 4096), 5, "u1"), "cuda:0", copy=True)
    t = bridge.share(np.zeros((1, 4096), "u1"), "cuda:0")
    with stream() as busy:
        again = received(t)
        with bridge.use_stream("cuda:0", busy):
            slow(busy)
            bridge.copy_(again, fives)
        del again
        gc.collect()
    bridge.synchronize("cuda:0")
    assert (host(t) == 5).all()


@pytest.mark.parametrize(
    "name", ["cuMemGetAllocationGranularity", *MAKING, "cuMemExportToShareableHandle"]
)
@pytest.mark.parametrize(("status", "error"), [(1, DeviceError), (2, DeviceMemoryError)])
def test_an_allocation_that_fails(cuda, fake, name, status, error):
    """What was made of it is undone; no memory is tried again after the pool was trimmed."""
    bridge.empty(3, device="cuda:0")
    gc.collect()
    live, opened = fake.live(), open_files()
    fake.fail(name, status)
    with pytest.raises(error, match=name):
        bridge.share(VALUES, "cuda:0")
    fake.fail(name, 0)
    gc.collect()
    assert open_files() == opened
    assert fake.live() <= live


@pytest.mark.parametrize("name", ["cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"])
def test_an_import_that_fails(cuda, fake, name):
    t = bridge.share(VALUES, "cuda:0")
    gc.collect()
    live, opened = fake.live(), open_files()
    fake.fail(name, 801)
    with pytest.raises(ExchangeError, match=f"cannot be used here: {name}"):
        received(t)
    fake.fail(name, 0)
    gc.collect()
    assert (fake.live(), open_files()) == (live, opened)


def test_a_size_that_is_not_so_is_refused(cuda):
    t = bridge.share(VALUES, "cuda:0")
    with pytest.raises(ExchangeError, match="cannot be used here: cuMemMap"):
        received(t, nbytes=2 * UNIT)


def test_a_driver_without_file_descriptors(cuda, fake):
    fake.attribute("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", 0)
    with pytest.raises(ExchangeError, match=r"cannot work in shared.*no file descriptors of mem"):
        bridge.share(VALUES, "cuda:0")
    with pytest.raises(ExchangeError, match="no memory for other processes"):
        cuda.allocate_exportable(0, 100, 1)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_two_processes(cuda, request, method):
    """Each writes what the other reads; memory of the other one outlives it."""
    simulated = int(request.config.dlbridge_fake is not None)
    said = run_script(HERE / "two_processes.py", method, simulated)
    assert said == "cuda:0 True\nTrue True\n0 True\n"
