"""Where a pointer really lives, and foreign ones that must be refused."""

import ctypes

import pytest
from cuda_support import memory, own_context

import dlbridge
from dlbridge.errors import ExchangeError

NAMES = {"cuda": "device", "cuda_host": "host", "cuda_managed": "managed"}


@pytest.mark.parametrize("theirs", NAMES)
@pytest.mark.parametrize("ours", NAMES)
def test_import_data_knows_its_own_kind(ours, theirs, cuda):
    """CUDA reaches all three; the other two hold what they are called."""
    backend, owner = dlbridge.backend(ours), dlbridge.backend(theirs)
    with memory(owner, 64) as data:
        if ours in ("cuda", theirs):
            assert backend.import_data(0, data, "test") == (0, data)
        else:
            with pytest.raises(
                ExchangeError,
                match=rf"says that {data:#x} is {ours} memory.*says it is {NAMES[theirs]}",
            ):
                backend.import_data(0, data, "test")


def test_the_pointer_knows_its_device_better(cuda, two_devices):
    with memory(cuda, 64, device_id=1) as data:
        assert cuda.import_data(0, data, "test") == (1, data)


def test_host_memory_is_no_cuda_memory(fake, kind):
    """Unless the GPU reads all host memory, as many do."""
    data = ctypes.addressof(buffer := ctypes.create_string_buffer(64))
    with pytest.raises(ExchangeError, match="it is pageable memory; its exporter mislabels it"):
        kind.import_data(0, data, "test")
    del buffer


def test_where_the_gpu_reads_all_host_memory(fake, cuda, cuda_host, cuda_managed):
    """Heterogeneous memory management: any address is good for the GPU."""
    fake.attribute("PAGEABLE_MEMORY_ACCESS", 1)
    data = ctypes.addressof(buffer := ctypes.create_string_buffer(64))
    assert cuda.import_data(1, data, "test") == (1, data)
    for other in (cuda_host, cuda_managed):
        with pytest.raises(ExchangeError, match="pageable"):
            other.import_data(0, data, "test")
    del buffer


@pytest.mark.parametrize("device_id", [-1, 99])
def test_a_device_that_is_not_there(kind, device_id):
    with pytest.raises(ExchangeError, match=f"there is no {kind.name}:{device_id}"):
        kind.import_data(device_id, 0x1000, "test")


def test_freed_memory(fake, cuda):
    """A real pool may keep it mapped."""
    data = cuda.allocate(0, 64, 256, 1)
    cuda.free(0, data, 1)
    cuda.synchronize(0, 1)
    with pytest.raises(ExchangeError, match="mislabels it or has freed it"):
        cuda.import_data(0, data, "test")


def test_memory_of_somebodys_own_context(cuda):
    """Our primary contexts cannot reach it: refused, and told what to do."""
    from dlbridge_cuda.driver import call

    own = own_context()
    data = int(call("cuMemAlloc", 64))
    call("cuCtxPopCurrent")
    with pytest.raises(
        ExchangeError, match=r"a CUDA context of its exporter's own.*copy it through the host"
    ):
        cuda.import_data(0, data, "test")
    call("cuCtxPushCurrent", own)
    call("cuMemFree", data)
    call("cuCtxDestroy", own)


def test_what_is_staged(fake, cuda, cuda_host, cuda_managed):
    from dlbridge_cuda.pointers import pageable

    data = ctypes.addressof(buffer := ctypes.create_string_buffer(64))
    assert pageable(data, 0)
    for backend in (cuda, cuda_host, cuda_managed):
        with memory(backend, 64) as address:
            assert not pageable(address, 0)
    fake.attribute("PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", 1)
    assert not pageable(data, 0)
    del buffer
