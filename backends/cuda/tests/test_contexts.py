"""The thread's current context is left as it was found, by every member, also when it fails."""

import threading

import pytest
from cuda_support import own_context, stream

from dlbridge.errors import Error


def current_context():
    from dlbridge_cuda.driver import call

    return int(call("cuCtxGetCurrent"))


def uses(backend):
    """Every member that talks to the driver, once; frees what it makes."""
    data = backend.allocate(0, 4096, 256, 1)
    other = backend.allocate(0, 4096, 4096, 1)
    source, into = bytearray(4096), bytearray(4096)  # alive until the copies are done
    backend.copy_from_host(0, data, 0, memoryview(source), 1)
    backend.copy(0, other, 0, 0, data, 0, 100, 1)
    backend.fill(0, other, 0, 50, 7, 1)
    backend.copy_to_host(0, other, 0, memoryview(into), 1)
    with stream() as handle:
        backend.wait(0, handle, 1)
        backend.wait(0, 1, handle)
        backend.synchronize(0, handle)
    backend.synchronize(0, 2)
    if hasattr(backend, "host_view"):
        backend.host_view(0, data, 0, 10, True, 1)
    backend.device_info(0)
    backend.import_data(0, data, "test")
    with pytest.raises(Error):
        backend.allocate(0, 1 << 60, 256, 1)
    backend.free(0, data, 1)
    backend.free(0, other, 1)
    backend.synchronize(0, 1)


def in_thread(function):
    """Call *function* in a new thread, which has no context; its result."""
    results = []

    def run():
        try:
            results.append(function())
        except BaseException as exc:
            results.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def test_no_context(kind):
    def work():
        assert current_context() == 0
        uses(kind)
        return current_context()

    assert in_thread(work) == 0


def test_the_primary_context(kind):
    def work():
        from dlbridge_cuda.contexts import primary
        from dlbridge_cuda.driver import call

        call("cuCtxSetCurrent", primary(0))
        uses(kind)
        return current_context() == int(primary(0))

    assert in_thread(work)


def test_another_devices_context(kind, two_devices):
    def work():
        from dlbridge_cuda.contexts import primary
        from dlbridge_cuda.driver import call

        call("cuCtxSetCurrent", primary(1))
        uses(kind)
        return current_context() == int(primary(1))

    assert in_thread(work)


def test_somebodys_own_context(kind):
    def work():
        from dlbridge_cuda.driver import call

        own = own_context()
        uses(kind)
        same = current_context() == int(own)
        call("cuCtxDestroy", own)
        return same

    assert in_thread(work)


def test_the_primary_context_is_retained_once(fake, cuda):
    uses(cuda)
    before = fake.calls("cuDevicePrimaryCtxRetain")
    for _ in range(3):
        uses(cuda)
    assert fake.calls("cuDevicePrimaryCtxRetain") == before
    assert fake.calls("cuDevicePrimaryCtxRelease") == 0


def test_a_context_that_cannot_be_had(fake):
    """The driver's refusal is ours, and the next try is a new one."""
    from dlbridge_cuda import contexts

    from dlbridge.errors import DeviceError

    contexts.primary.cache_clear()
    fake.fail("cuDevicePrimaryCtxRetain", 2)
    with pytest.raises(MemoryError, match="cuDevicePrimaryCtxRetain"):
        contexts.primary(0)
    fake.fail("cuDevicePrimaryCtxRetain", 999)
    with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN"):
        contexts.primary(0)
    fake.fail("cuDevicePrimaryCtxRetain", 0)
    assert contexts.primary(0) == contexts.primary(0)
