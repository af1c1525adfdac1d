"""Each driver call fails once, wherever it is made: a clear error, and nothing leaked or half done."""

import gc
import logging
import mmap
import re

import numpy as np
import pytest
from cuda_support import HERE, stream

import dlbridge
from dlbridge.errors import Error

# These put back what was: they fail only if the driver is going down.
RESTORING = {"cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"}
CALLS = sorted(
    {
        name.partition("_v")[0]
        for path in (HERE.parents[2] / "tests" / "drivers" / "fakecuda").glob("*.c")
        for name in re.findall(r"^API (cu\w+)\(", path.read_text(), re.MULTILINE)
    }
    - RESTORING
)
# A question whose failure the next call reports, if it is one.
ASKING = {"cuStreamIsCapturing"}
VALUES = np.arange(1000.0).reshape(10, 100)
PAGES = mmap.mmap(-1, 4 * mmap.PAGESIZE)


def there_and_back(device):
    tensor = dlbridge.to_device(VALUES, device, copy=True)
    assert np.array_equal(dlbridge.to_device(tensor, "cpu", copy=True).numpy(), VALUES)


def staged():
    large = np.arange(1 << 15, dtype="f8")  # 256 KiB, pageable
    tensor = dlbridge.to_device(large, "cuda:0")
    assert np.array_equal(dlbridge.to_device(tensor, "cpu").numpy(), large)


def strided():
    tensor = dlbridge.to_device(VALUES, "cuda:0")[:, ::3]
    assert np.array_equal(dlbridge.to_device(tensor, "cpu", copy=True).numpy(), VALUES[:, ::3])


def between_devices():
    tensor = dlbridge.to_device(dlbridge.to_device(VALUES, "cuda:0"), "cuda:1")
    assert np.array_equal(dlbridge.to_device(tensor, "cpu").numpy(), VALUES)


def imported():
    tensor = dlbridge.to_device(np.frombuffer(PAGES, "u1"), "cuda_host", copy=False)
    assert tensor.shape == (4 * mmap.PAGESIZE,)


def exported():
    tensor = dlbridge.zeros((10, 100), "float64", "cuda:0")
    with stream() as consumer:
        again = dlbridge.from_dlpack(tensor.__dlpack__(stream=consumer, max_version=(1, 3)))
        del tensor
        assert not np.any(dlbridge.to_device(again, "cpu").numpy())


def aligned():
    backend = dlbridge.backend("cuda")
    backend.free(0, backend.allocate(0, 1000, 1 << 20, 1), 1)


OPERATIONS = {
    "cuda": lambda: there_and_back("cuda:1"),
    "cuda_host": lambda: there_and_back("cuda_host"),
    "cuda_managed": lambda: there_and_back("cuda_managed"),
    "staged": staged,
    "strided": strided,
    "between devices": between_devices,
    "imported": imported,
    "exported": exported,
    "aligned": aligned,
}


def error_of(work):
    """The text of the backend's error; empty if all went well."""
    try:
        work()
    except Error as error:
        return str(error)
    return ""


def settle():
    """Let what waits for later be freed, and everything queued be done."""
    gc.collect()
    for name in ("cuda", "cuda_host", "cuda_managed"):
        backend = dlbridge.backend(name)
        for device_id in range(backend.device_count()):
            backend.free(device_id, backend.allocate(device_id, 64, 256, 1), 1)
            backend.synchronize(device_id, 1)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_call_fails_once(fake, two_devices, caplog, operation):
    from dlbridge_cuda.driver import call

    work = OPERATIONS[operation]
    work()
    settle()
    before = {name: fake.calls(name) for name in CALLS}
    work()
    gc.collect()
    made = {name: fake.calls(name) - count for name, count in before.items()}
    settle()
    live, context = fake.live(), int(call("cuCtxGetCurrent"))
    assert sum(made.values()) > 3
    for name, skip in ((name, skip) for name, count in made.items() for skip in range(count)):
        caplog.clear()
        calls = fake.calls(name)
        fake.fail_once(name, 999, skip)
        with caplog.at_level(logging.ERROR, "dlbridge_cuda"):
            said = error_of(work)
        fake.fail(name, 0)
        failed = fake.calls(name) - calls > skip
        lost = [record for record in caplog.records if "is not freed" in record.getMessage()]
        assert said or lost or name in ASKING or not failed, (name, skip)
        assert not said or "CUDA_ERROR_UNKNOWN (999)" in said, (name, skip, said)
        settle()
        assert int(call("cuCtxGetCurrent")) == context, (name, skip)
        # A registration that is lost goes on, and is shared by the next import.
        assert live <= fake.live() <= live + len(lost), (name, skip)
        live = fake.live()
        work()
        settle()
        assert fake.live() == live, (name, skip)
