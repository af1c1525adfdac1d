"""What each refusal of the runtime becomes; forks, exits, bad pointers."""

import pytest
from dlbridge_rocm.driver import CaptureError
from rocm_support import memory, python

from dlbridge.errors import DeviceError, DeviceMemoryError, ExchangeError


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (1, DeviceError, r"hipErrorInvalidValue \(1\): said by the shim"),
        (2, DeviceMemoryError, r"hipErrorOutOfMemory \(2\).*free some tensors"),
        (3, DeviceError, r"NotInitialized \(3\).*fork\(\)"),
        (101, DeviceError, r"InvalidDevice \(101\).*HIP_VISIBLE_DEVICES"),
        (400, DeviceError, "InvalidHandle.*destroyed"),
        (700, DeviceError, "IllegalAddress.*restart the process"),
        (709, DeviceError, "ContextIsDestroyed.*reset the device"),
        (719, DeviceError, "LaunchFailure.*restart the process"),
        (801, ExchangeError, "NotSupported.*cannot do that"),
        (900, CaptureError, "StreamCaptureUnsupported.*capturing a HIP graph"),
        (906, CaptureError, "StreamCaptureImplicit.*capturing a HIP graph"),
        (54321, DeviceError, r"hipErrorUnknown \(54321\)"),
    ],
)
def test_codes_become_exceptions(fake, rocm, code, kind, words):
    """By a table; the call, the code's name, the runtime's words and the way out."""
    with memory(rocm, 64) as data:
        fake.fail("hipMemsetAsync", code)
        with pytest.raises(kind, match=f"hipMemsetAsync: .*{words}") as caught:
            rocm.fill(0, data, 0, 64, 0, 0)
        assert type(caught.value) is kind


@pytest.mark.parametrize("address", [8, 0x1000, (1 << 47) - 64])
def test_a_bad_pointer(fake, rocm, address):
    """What is no device memory is refused, and later work is not disturbed."""
    with pytest.raises(DeviceError, match="InvalidValue"):
        rocm.fill(0, address, 0, 64, 0, 0)
    with pytest.raises(ExchangeError, match="mislabels it"):
        rocm.import_data(0, address, "test")
    with memory(rocm, b"still here") as data:
        into = bytearray(10)
        rocm.copy_to_host(0, data, 0, memoryview(into), 0)
        rocm.synchronize(0, 0)
        assert into == b"still here"


def test_fork(fake):
    """A child of fork() is told, and does not crash."""
    done = python("""
    import dlbridge
    rocm = dlbridge.backend("rocm")
    if os.fork() == 0:
        _, hip = load_shim()  # it survives a fork; AMD's runtime does not, so say what that says
        hip.fake_hip_fail(b"hipMallocAsync", 3, 0)
        try:
            rocm.allocate(0, 16, 1, 0)
        except dlbridge.DeviceError as exc:
            print(exc, flush=True)
        os._exit(0)
    os.wait()
    """)
    assert "start processes with 'spawn'" in done.stdout, done.stderr


@pytest.mark.parametrize("exit_with", ["exit", "os._exit", "daemon"])
def test_tensors_alive_at_exit(fake, exit_with):
    """Nothing crashes when the interpreter goes before the tensors."""
    done = python(f"""
    import threading, numpy as np, dlbridge
    kept = [dlbridge.to_device(np.ones(100_000), name) for name in ("rocm:0", "rocm:1")]
    kept.append(dlbridge.empty(1000, device="rocm_host"))
    if {exit_with!r} == "daemon":
        threading.Thread(target=lambda: [dlbridge.to_device(kept[0], "cpu") for _ in range(1000)],
                         daemon=True).start()
    if {exit_with!r} == "os._exit":
        os._exit(0)
    """)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
