"""Graph capture as HIP's versions differ in it."""

import pytest
from rocm_support import read, stream
from suite.capture import HOST
from suite.rig import BLOCKING, capture, drop, hold

from dlbridge.protocol import Span


@pytest.mark.parametrize("version", [(5, 2), (7, 0)])
def test_other_streams_go_on_by_version(fake, kind, mode, version):
    """A capture elsewhere in the process disturbs nobody, and nobody disturbs it."""
    fake.version(*version)  # with pools and without
    with stream() as captured, stream() as own, capture(captured, mode):
        data = hold(kind.allocate(0, 4096, 1 << 16, own))
        kind.copy_from_host(Span(0, data, 0, len(HOST)), HOST, own)
        assert read(kind, data, 4096, own) == b"x" * 4096
        drop(data, own)
        kind.synchronize(0, own)


def test_a_free_beside_a_blocking_capture_is_not_lost(fake, rocm, mode):
    """HIP refuses it there (900); it is made up for later."""
    live = fake.live()
    with stream(flags=BLOCKING) as captured, stream() as own:
        data = hold(rocm.allocate(0, 64, 256, own))
        with capture(captured, mode):
            drop(data, own)
        drop(hold(rocm.allocate(0, 64, 256, own)), own)
        rocm.synchronize(0, own)
        assert fake.live() == live
