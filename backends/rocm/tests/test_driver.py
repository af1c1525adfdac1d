"""The exception for each refusal of the runtime."""

import pytest
from rocm_support import memory

from dlbridge.errors import DeviceError, DeviceLost, DeviceMemoryError, ExchangeError
from dlbridge.kit.status import CaptureError, StreamGoneError
from dlbridge.protocol import Span


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (1, DeviceError, r"hipErrorInvalidValue \(1\): said by the shim"),
        (2, DeviceMemoryError, r"hipErrorOutOfMemory \(2\).*free some tensors"),
        (3, DeviceError, r"NotInitialized \(3\).*fork\(\)"),
        (101, DeviceError, r"InvalidDevice \(101\).*HIP_VISIBLE_DEVICES"),
        (400, StreamGoneError, "InvalidHandle.*destroyed"),
        (700, DeviceLost, "IllegalAddress.*restart the process"),
        (709, StreamGoneError, "ContextIsDestroyed.*reset the device"),
        (719, DeviceLost, "LaunchFailure.*restart the process"),
        (801, ExchangeError, "NotSupported.*cannot do that"),
        (900, CaptureError, "StreamCaptureUnsupported.*capturing a HIP graph"),
        (906, CaptureError, "StreamCaptureImplicit.*capturing a HIP graph"),
        (54321, DeviceError, r"hipErrorUnknown \(54321\)"),
    ],
)
def test_codes_become_exceptions(fake, rocm, code, error, words):
    """By a table; the call, the code's name, the runtime's words and the way out."""
    with memory(rocm, 64) as data:
        fake.fail("hipMemsetAsync", code)
        with pytest.raises(error, match=f"hipMemsetAsync: .*{words}") as caught:
            rocm.fill(Span(0, data, 0, 64), 0, 0)
        assert type(caught.value) is error
