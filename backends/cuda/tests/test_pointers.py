"""Foreign contexts, and what is staged."""

import ctypes

import pytest
from cuda_support import memory, own_context

from dlbridge.errors import ExchangeError


def test_memory_of_somebodys_own_context(cuda):
    """Our primary contexts cannot reach it: refused, and told what to do."""
    from cuda_support import call

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
    """Pageable memory, but not where the GPU reads the host's page tables (Grace Hopper)."""
    from cuda_support import current, primary
    from dlbridge_cuda.backends import host_copies

    from dlbridge.kit.staging import DIRECT

    data = ctypes.addressof(buffer := ctypes.create_string_buffer(64))
    with current(primary(0)):
        assert host_copies.is_staged(0, data, DIRECT + 1)
        assert not host_copies.is_staged(0, data, DIRECT)
        for backend in (cuda, cuda_host, cuda_managed):
            with memory(backend, 64) as address:
                assert not host_copies.is_staged(0, address, DIRECT + 1)
        fake.attribute("PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", 1)
        assert not host_copies.is_staged(0, data, DIRECT + 1)
    del buffer
