"""Graph capture beside staging, and the simulated driver's own rules."""

import numpy as np
import pytest

from backends.cuda.tests.cuda_support import memory, read, stream
from dlbridge.errors import ExchangeError
from dlbridge.kit.staging import Plan, Stager
from tests.drivers.suite.rig import GLOBAL, capture


def test_staging_goes_on(cuda, mode):
    """Page-locking the ring does not end somebody's capture."""
    from dlbridge_cuda.gpu import gpu

    from backends.cuda.tests.cuda_support import current, primary

    source = np.arange(9000, dtype="u1")
    stager = Stager(gpu, 0, Plan(1024, 2))
    with (
        stream() as captured,
        stream() as own,
        memory(cuda, source.nbytes) as data,
        capture(captured, mode),
    ):
        copy = data, source.ctypes.data, source.nbytes, own
        gpu.run(primary(0), stager.to_device, *copy)
        assert read(cuda, data, source.nbytes, own) == source.tobytes()
    with current(primary(0)):
        stager.close()


def test_host_waits_go_on(fake, cuda, mode):
    """The driver refuses them beside a global capture, except to a thread that is relaxed."""
    from backends.cuda.tests.cuda_support import call, current, primary

    with stream() as captured, stream() as own, capture(captured, mode):
        for waited in (own, 2):
            cuda.synchronize(0, waited)
    if mode == GLOBAL:  # the simulated driver does so
        with (
            stream() as captured,
            stream() as own,
            pytest.raises(ExchangeError, match="INVALIDATED"),
            capture(captured),
            pytest.raises(ExchangeError, match="cuStreamSynchronize"),
            current(primary(0)),
        ):
            call("cuStreamSynchronize", own)


def test_waiting_for_the_context_ends_captures(fake, cuda, mode):
    """Making room must not do so: the simulated driver ends the capture then."""
    from backends.cuda.tests.cuda_support import call, current, primary

    with (
        stream() as captured,
        pytest.raises(ExchangeError, match="INVALIDATED"),
        capture(captured, mode),
        pytest.raises(ExchangeError, match="cuCtxSynchronize"),
        current(primary(0)),
    ):
        call("cuCtxSynchronize")
