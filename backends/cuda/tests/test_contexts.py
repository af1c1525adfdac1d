"""Contexts of the thread and of the process."""

import pytest

from backends.cuda.tests.cuda_support import own_context
from dlbridge.errors import DeviceError
from tests.drivers.suite.places import uses
from tests.drivers.suite.rig import rig
from tests.support.threads import in_threads


def test_somebodys_own_context(kind):
    def work(_):
        from backends.cuda.tests.cuda_support import call

        own = own_context()
        uses(kind)
        assert rig().where() == int(own)
        call("cuCtxDestroy", own)

    assert in_threads(work, 1) == []


def test_the_primary_context_is_retained_once(fake, cuda):
    uses(cuda)
    before = fake.calls("cuDevicePrimaryCtxRetain")
    for _ in range(3):
        uses(cuda)
    assert fake.calls("cuDevicePrimaryCtxRetain") == before
    assert fake.calls("cuDevicePrimaryCtxRelease") == 0


def test_a_context_that_cannot_be_had(fake):
    """The driver's refusal is ours, and the next try is a new one."""
    from dlbridge_cuda.gpu import GPU

    contexts = GPU().contexts
    fake.fail("cuDevicePrimaryCtxRetain", 2)
    with pytest.raises(MemoryError, match="cuDevicePrimaryCtxRetain"):
        contexts[0]
    fake.fail("cuDevicePrimaryCtxRetain", 999)
    with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN"):
        contexts[0]
    fake.fail("cuDevicePrimaryCtxRetain", 0)
    assert contexts[0] == contexts[0]


def test_a_context_that_cannot_be_entered(fake, cuda, two_devices):
    """The thread stays where it was, and the next call works."""
    rig().make_current(0)
    before = rig().where()
    cuda.allocate(1, 64, 256, 1)  # the context exists
    fake.fail_once("cuCtxSetCurrent", 999)
    with pytest.raises(DeviceError, match=r"cuCtxSetCurrent: CUDA_ERROR_UNKNOWN \(999\)"):
        cuda.allocate(1, 64, 256, 1)
    assert rig().where() == before
    cuda.allocate(1, 64, 256, 1)
