"""The thread's current context or device is left as it was found, also by a member that fails."""

import pytest

from dlbridge.errors import Error
from dlbridge.protocol import Span
from tests.support.interrupted import at_each_step
from tests.support.threads import in_threads

from .rig import backend, default, rig, stream


def uses(backend):
    """Every member that talks to the driver, once; frees what it makes."""
    source, into = bytearray(4096), bytearray(4096)  # alive until the copies are done
    memory, aligned = (backend.allocate(0, 4096, each, default()) for each in (256, 4096))
    data, other = memory.data, aligned.data
    backend.copy_from_host(Span(0, data, 0, len(source)), memoryview(source), default())
    backend.copy(Span(0, other, 0, 100), Span(0, data, 0, 100), default())
    backend.fill(Span(0, other, 0, 50), 7, default())
    backend.copy_to_host(Span(0, other, 0, len(into)), memoryview(into), default())
    with stream() as handle:
        backend.wait(0, handle, default())
        backend.wait(0, default(), handle)
        backend.synchronize(0, handle)
    for each in rig().default_streams:
        backend.synchronize(0, each)
    if hasattr(backend, "host_view"):
        backend.host_view(Span(0, data, 0, 10), True, default())
    backend.device_info(0)
    backend.import_data(0, data, "test")
    with pytest.raises(Error):
        backend.allocate(0, 1 << 60, 256, default())
    if rig().looks_up_gone_streams:
        with pytest.raises(Error):
            backend.synchronize(0, 0xBAD)
    del memory, aligned
    backend.synchronize(0, default())


@pytest.mark.parametrize("device_id", [None, 0, 1])
def test_the_current_device_stays(kind, two_devices, device_id):
    """That of a new thread (None), device 0, another one."""

    def work(_):
        if device_id is not None:
            rig().make_current(device_id)
        before = rig().where()
        uses(kind)
        assert rig().where() == before

    assert in_threads(work, 1) == []


def some_uses():
    device = backend()
    device.synchronize(0, default())
    with pytest.raises(Error):
        device.allocate(0, 1 << 60, 256, default())


def test_the_current_device_stays_though_a_ctrl_c_comes(two_devices):
    """At any step of what enters a context and leaves it, for each kind of memory alike."""

    def work(_):
        rig().make_current(1)
        before = rig().where()
        seen = at_each_step([type(rig().gpu()).run], some_uses, rig().where)
        assert len(seen) > 100
        assert set(seen) == {before}

    assert in_threads(work, 1) == []
