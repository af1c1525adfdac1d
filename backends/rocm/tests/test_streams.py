"""Streams: what may be passed, and who waits for whom."""

import numpy as np
import pytest

import dlbridge
from backends.rocm.tests.rocm_support import gate, memory, read, stream
from dlbridge.errors import DeviceError
from dlbridge.protocol import Span
from tests.drivers.suite.rig import of_library

N = 1 << 16
NEW, OLD = b"n" * N, b"o" * N


# What may be passed -----------------------------------------------------------


@pytest.mark.parametrize("value", [1, 2])
def test_cudas_default_streams_are_forbidden(kind, value):  # S11
    with pytest.raises(ValueError, match=rf"stream={value} .*forbidden for ROCm: pass 0 or None"):
        kind.normalize_stream(0, value)


def test_the_per_thread_stream_of_a_library_is_forbidden_too(rocm):
    with pytest.raises(ValueError, match="stream=2"):
        rocm.normalize_stream(0, of_library("cupy.cuda.stream", ptr=2))


# Order ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(5, 2), (6, 1), (7, 0)])
def test_wait_between_devices_by_version(fake, rocm, two_devices, version):
    """An event belongs to its stream's device. HIP 5.2 cannot tell which: then the host waits."""
    fake.version(*version)
    with (
        stream(0) as first,
        stream(1) as second,
        memory(rocm, OLD, first) as source,
        memory(rocm, N, second, device_id=1) as copy,
        gate(first) as closed,
    ):
        rocm.fill(Span(0, source, 0, N), NEW[0], first)
        closed.open_soon()
        rocm.wait(1, second, first)
        assert closed.is_open == (version < (5, 6))
        rocm.copy(Span(1, copy, 0, N), Span(0, source, 0, N), second)
        assert read(rocm, copy, N, second, 1) == NEW


@pytest.mark.parametrize("version", [(5, 2), (7, 0)])
@pytest.mark.parametrize("member", ["wait", "wait on", "synchronize"])
def test_a_destroyed_stream_by_version(fake, rocm, member, version):
    """Said, where the runtime can tell; it is asked before the handle is used."""
    fake.version(*version)
    with stream() as gone:
        pass
    with pytest.raises(DeviceError, match=f"stream {gone:#x} was destroyed"):
        {
            "wait": lambda: rocm.wait(0, gone, 0),
            "wait on": lambda: rocm.wait(0, 0, gone),
            "synchronize": lambda: rocm.synchronize(0, gone),
        }[member]()


def test_a_stream_is_asked_for_before_each_use(fake, rocm):
    """Newer runtimes read the handle of a destroyed one unchecked elsewhere."""
    with memory(rocm, N) as data:
        with stream() as gone:
            pass
        host = bytearray(N)
        uses = {
            "allocate": lambda: rocm.allocate(0, N, 256, gone),
            "copy": lambda: rocm.copy(Span(0, data, 0, 1), Span(0, data, 0, 1), gone),
            "fill": lambda: rocm.fill(Span(0, data, 0, N), 0, gone),
            "to the host": lambda: rocm.copy_to_host(
                Span(0, data, 0, len(host)), memoryview(host), gone
            ),
            "from the host": lambda: rocm.copy_from_host(
                Span(0, data, 0, len(host)), memoryview(host), gone
            ),
            "synchronize": lambda: rocm.synchronize(0, gone),
            "wait": lambda: rocm.wait(0, gone, 0),
        }
        for name, use in uses.items():
            asked = fake.calls("hipStreamGetDevice")
            others = [fake.calls(f) for f in HANDLED]
            with pytest.raises(DeviceError, match="was destroyed"):
                use()
            assert fake.calls("hipStreamGetDevice") == asked + 1, name
            assert [fake.calls(f) for f in HANDLED] == others, name


HANDLED = ["hipStreamIsCapturing", "hipMallocFromPoolAsync", "hipMemcpyAsync", "hipMemsetAsync"]


# Through the tensors ------------------------------------------------------------


class TorchTensor:
    """A tensor as torch for ROCm makes it: it says "cuda", and exports kDLROCM.

    Its ``__dlpack__`` refuses what torch refuses there: 1 and 2.
    """

    device = "cuda:0"

    def __init__(self, tensor):
        self.tensor = tensor
        self.streams = []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **keywords):
        assert stream not in (1, 2)
        self.streams.append(stream)
        return self.tensor.__dlpack__(stream=-1, **keywords)


def test_a_torch_tensor_that_calls_itself_cuda(rocm):  # S14
    """It is ROCm memory for us, and gets our stream's handle: 0 for the default one."""
    theirs = TorchTensor(dlbridge.to_device(np.arange(5), "rocm:0"))
    tensor = dlbridge.from_dlpack(theirs)
    assert str(tensor.device) == "rocm:0"
    assert tensor.__dlpack_device__() == (10, 0)
    assert tensor.tolist() == [0, 1, 2, 3, 4]
    with stream() as ours, dlbridge.use_stream("rocm:0", ours):
        dlbridge.from_dlpack(theirs)
    assert theirs.streams[0] in (None, 0)
    assert theirs.streams[-1] == ours
