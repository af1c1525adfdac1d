"""Graph capture as HIP's versions differ in it."""

from backends.rocm.tests.rocm_support import stream
from tests.drivers.suite.rig import BLOCKING, capture, drop, hold


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
