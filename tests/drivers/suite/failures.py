"""What becomes of the driver's errors; each call fails once: a clear error, and nothing leaks.

The first run counts the calls of an operation, by name. Then each of them fails in turn, once:
the error names the call, or a log record says what is lost; afterwards the operation works, no
memory is left, and the thread is where it was.

Every buffer lives as long as the process, so that a copy whose wait failed cannot meet memory
that is gone: what the core keeps for such copies is the core's own test.
"""

import gc
import logging
import mmap
from functools import cache

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import Error
from dlbridge.protocol import Span

from .rig import backend, default, drop, hold, memory, rig, settle

VALUES = np.arange(1000.0).reshape(10, 100)
LARGE = np.arange(1 << 15, dtype="f8")  # 256 KiB, pageable: staged where there is a ring
PAGES = mmap.mmap(-1, 4 * mmap.PAGESIZE)
LOGGER = "dlbridge.kit"


def test_codes_become_exceptions(fake, device, refusal):
    """By a table; the call, the code's name, the driver's words and the way out."""
    code, error, words = refusal
    with memory(device, 64) as data:
        fake.fail("fill", code)
        with pytest.raises(error, match=f"{rig().names['fill']}: .*{words}") as caught:
            device.fill(Span(0, data, 0, 64), 0, default())
        fake.fail("fill", 0)
    assert type(caught.value) is error


def there_and_back(device, values=VALUES):
    tensor = dlbridge.to_device(values, device, copy=True)
    assert np.array_equal(dlbridge.to_device(tensor, "cpu", copy=True).numpy(), values)


def strided():
    tensor = dlbridge.to_device(VALUES, f"{rig().device}:0")[:, ::3]
    assert np.array_equal(dlbridge.to_device(tensor, "cpu", copy=True).numpy(), VALUES[:, ::3])


def between_devices():
    tensor = dlbridge.to_device(VALUES, f"{rig().device}:0")
    tensor = dlbridge.to_device(tensor, f"{rig().device}:1")
    assert np.array_equal(dlbridge.to_device(tensor, "cpu").numpy(), VALUES)


def imported():
    tensor = dlbridge.to_device(np.frombuffer(PAGES, "u1"), rig().host, copy=False)
    assert tensor.shape == (4 * mmap.PAGESIZE,)


@cache
def consumer():
    """The stream of somebody who imports; made once, as none of its calls is ours."""
    return rig().create_stream(0, 1)


def exported():
    tensor = dlbridge.zeros((10, 100), "float64", f"{rig().device}:0")
    again = dlbridge.from_dlpack(tensor.__dlpack__(stream=consumer(), max_version=(1, 3)))
    del tensor
    assert not np.any(dlbridge.to_device(again, "cpu").numpy())


def aligned():
    drop(hold(backend().allocate(0, 1000, 1 << 20, default())), default())


WORK = {
    "second device": lambda: there_and_back(f"{rig().device}:1"),
    "pinned": lambda: there_and_back(rig().host),
    "large": lambda: there_and_back(f"{rig().device}:0", LARGE),
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


def quiet():
    gc.collect()
    settle()


@pytest.mark.parametrize("operation", WORK)
def test_each_call_fails_once(fake, two_devices, caplog, operation):
    work, calls_of = WORK[operation], rig().all_calls()
    work()
    quiet()
    before = {name: fake.calls(name) for name in calls_of}
    work()
    gc.collect()
    made = {name: fake.calls(name) - count for name, count in before.items()}
    quiet()
    live, where = fake.live(), rig().where()
    assert sum(made.values()) > 3
    for name, skip in ((name, skip) for name, count in made.items() for skip in range(count)):
        caplog.clear()
        calls = fake.calls(name)
        fake.fail_once(name, 999, skip)
        with caplog.at_level(logging.WARNING, LOGGER):
            said = error_of(work)
            gc.collect()
        fake.fail(name, 0)
        failed = fake.calls(name) - calls > skip
        lost = [record for record in caplog.records if "is not freed" in record.getMessage()]
        assert said or caplog.records or name in rig().asking or not failed, (name, skip)
        assert not said or "(999)" in said, (name, skip, said)
        quiet()
        assert rig().where() == where, (name, skip)
        # A registration that is lost goes on, and is shared by the next import.
        assert live <= fake.live() <= live + len(lost), (name, skip)
        live = fake.live()
        work()
        quiet()
        assert fake.live() == live, (name, skip)
