"""Each HIP call fails once, wherever it is made: a clear error, and nothing leaked or half done."""

import gc
import logging
import mmap
import re
from functools import cache

import numpy as np
import pytest
from rocm_support import HERE, create_stream

import dlbridge
from dlbridge.errors import Error

# These put back what was: they fail only if the runtime is going down.
RESTORING = {"hipSetDevice", "hipThreadExchangeStreamCaptureMode"}
# hipGetLastError takes a reported error off the record, whatever it says.
UNCHECKED = {"hipGetLastError"}
HEADER = HERE.parent / "cdefs" / "hip.h"
CALLS = sorted(
    set(re.findall(r"^hipError_t (hip\w+)\(", HEADER.read_text(), re.MULTILINE))
    - RESTORING
    - UNCHECKED
)
# A question whose failure the next call reports, if it is one.
ASKING = {"hipStreamIsCapturing"}
VALUES = np.arange(1000.0).reshape(10, 100)
PAGES = mmap.mmap(-1, 4 * mmap.PAGESIZE)


def there_and_back(device):
    tensor = dlbridge.to_device(VALUES, device, copy=True)
    assert np.array_equal(dlbridge.to_device(tensor, "cpu", copy=True).numpy(), VALUES)


def strided():
    tensor = dlbridge.to_device(VALUES, "rocm:0")[:, ::3]
    assert np.array_equal(dlbridge.to_device(tensor, "cpu", copy=True).numpy(), VALUES[:, ::3])


def between_devices():
    tensor = dlbridge.to_device(dlbridge.to_device(VALUES, "rocm:0"), "rocm:1")
    assert np.array_equal(dlbridge.to_device(tensor, "cpu").numpy(), VALUES)


def imported():
    tensor = dlbridge.to_device(np.frombuffer(PAGES, "u1"), "rocm_host", copy=False)
    assert tensor.shape == (4 * mmap.PAGESIZE,)


@cache
def consumer():
    """The stream of somebody who imports; made once, as none of its calls is ours."""
    return create_stream()


def exported():
    tensor = dlbridge.zeros((10, 100), "float64", "rocm:0")
    again = dlbridge.from_dlpack(tensor.__dlpack__(stream=consumer(), max_version=(1, 3)))
    del tensor
    assert not np.any(dlbridge.to_device(again, "cpu").numpy())


def aligned():
    backend = dlbridge.backend("rocm")
    backend.free(0, backend.allocate(0, 1000, 1 << 20, 0), 0)


OPERATIONS = {
    "rocm": lambda: there_and_back("rocm:1"),
    "rocm_host": lambda: there_and_back("rocm_host"),
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
    for name in ("rocm", "rocm_host"):
        backend = dlbridge.backend(name)
        for device_id in range(backend.device_count()):
            backend.free(device_id, backend.allocate(device_id, 64, 256, 0), 0)
            backend.synchronize(device_id, 0)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_call_fails_once(fake, two_devices, caplog, operation):
    from dlbridge_rocm.driver import answer

    work = OPERATIONS[operation]
    work()
    settle()
    before = {name: fake.calls(name) for name in CALLS}
    work()
    gc.collect()
    made = {name: fake.calls(name) - count for name, count in before.items()}
    settle()
    live, device = fake.live(), answer("hipGetDevice", "int")
    assert sum(made.values()) > 3
    for name, skip in ((name, skip) for name, count in made.items() for skip in range(count)):
        caplog.clear()
        calls = fake.calls(name)
        fake.fail_once(name, 999, skip)
        with caplog.at_level(logging.ERROR, "dlbridge_rocm"):
            said = error_of(work)
        fake.fail(name, 0)
        failed = fake.calls(name) - calls > skip
        lost = [record for record in caplog.records if "is not freed" in record.getMessage()]
        assert said or lost or name in ASKING or not failed, (name, skip)
        assert not said or "hipErrorUnknown (999)" in said, (name, skip, said)
        settle()
        assert answer("hipGetDevice", "int") == device, (name, skip)
        # A registration that is lost goes on, and is shared by the next import.
        assert live <= fake.live() <= live + len(lost), (name, skip)
        live = fake.live()
        work()
        settle()
        assert fake.live() == live, (name, skip)
