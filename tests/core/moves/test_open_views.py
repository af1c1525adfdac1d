"""While a host view's block is open, dlbridge queues no work of the device on its memory."""

from __future__ import annotations

import gc
import re
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.core.plugins.registry import LOADED
from dlbridge.core.tensor.ordering import open_views


@pytest.fixture
def tensor(monkeypatch):
    bridge.backend("ext_dev")  # loaded before, so that it comes back after the test
    monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
    monkeypatch.delitem(LOADED, "ext_dev")  # the next one reads the variable
    return bridge.to_device(np.arange(6, dtype="f4"), "ext_dev:0")


WORK = {
    "copy_ to it": lambda t: bridge.copy_(t, bridge.zeros(6)),
    "copy_ from it": lambda t: bridge.copy_(bridge.zeros(6), t),
    "a part of it": lambda t: bridge.copy_(t[2:4], bridge.zeros(2)),
    "to_device": lambda t: bridge.to_device(t, "ext_dev:1"),
    "a copy to the host": lambda t: bridge.to_device(t, "cpu", copy=True),
    "an operand for a kernel": lambda t: t.operand(),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("in_thread", [False, True])
def test_work_in_the_block_is_refused(tensor, work, in_thread):
    errors = []

    def attempt():
        try:
            work(tensor)
        except BufferError as error:
            errors.append(str(error))

    with tensor.host_view() as h:
        if in_thread:
            # Waiting for the end of the block would never end here.
            thread = threading.Thread(target=attempt, daemon=True)
            thread.start()
            thread.join(100)
            assert not thread.is_alive()
        else:
            attempt()
        h.numpy()[0] = 5
    (error,) = errors
    assert re.search(r"host view of ext_dev:0 \(float32, shape \(6,\)\).*MainThread", error)
    assert "after its block" in error
    work(tensor)
    assert not open_views


def test_other_memory_is_not_concerned(tensor):
    other = bridge.zeros(6, device="ext_dev:0")
    with tensor.host_view():
        bridge.copy_(other, bridge.zeros(6))
        with tensor.host_view() as second:
            assert second.tolist() == [0, 1, 2, 3, 4, 5]
        with pytest.raises(BufferError):
            tensor.operand()
    assert tensor.operand().size == 6


def test_the_end_by_an_error_ends_the_refusal(tensor):
    with pytest.raises(KeyError), tensor.host_view():
        raise KeyError
    bridge.copy_(tensor, bridge.zeros(6))


def test_a_block_that_was_never_ended(tensor):
    """As if a Ctrl-C had come between the entry and the block."""
    view = tensor.host_view()
    view.__enter__()
    with pytest.raises(BufferError):
        tensor.operand()
    del view
    gc.collect()
    assert tensor.operand().size == 6
    assert not open_views


@pytest.mark.parametrize("made_by", [np.asarray, memoryview, lambda h: np.asarray(h[1:])])
@pytest.mark.parametrize("place", ["cpu", "ext_dev:0"])
def test_an_array_of_the_view_keeps_the_memory(tensor, place, made_by):
    """By the array interface it would keep the view, which lets the memory go with the block."""
    if made_by is memoryview and sys.version_info < (3, 12):
        made_by = np.asarray  # the buffer protocol in Python is PEP 688's
    t = bridge.to_device(tensor, place, copy=True)
    kept = []
    # On the CPU it is a view of the array that has the memory already. The buffer protocol,
    # since 3.12, keeps a memoryview beside the array.
    mapped = (
        pytest.raises(BufferError, match=r"still used by [12]") if place != "cpu" else nullcontext()
    )
    with mapped, t.host_view() as h:
        kept.append(made_by(h))
    del t, h
    gc.collect()
    assert kept[0].tolist() == list(map(float, range(6)))[-len(kept[0]) :]
