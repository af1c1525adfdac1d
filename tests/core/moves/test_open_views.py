"""While a host view's block is open, dlbridge queues no work of the device on its memory."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.core.tensor.memory import open_views
from dlbridge.extending import LOADED
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer


@pytest.fixture
def tensor(monkeypatch):
    bridge.backend("ext_dev")  # loaded before, so that it comes back after the test
    monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
    monkeypatch.delitem(LOADED, "ext_dev")  # the next one reads the variable
    return bridge.to_device(np.arange(6, dtype="f4"), "ext_dev:0")


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_host_view_is_neither_copied_nor_pickled(tensor, way):
    """Its memory is of the device: a second owner would free it again, here or elsewhere."""
    view = tensor.host_view()
    with pytest.raises(TypeError, match=r"HostView can be neither .* send the tensor"):
        way(view)
    with view as h, pytest.raises(TypeError, match=r"HostView can be neither .* send the tensor"):
        way(view)
    with pytest.raises(TypeError, match="memory of ext_dev:0 can be neither"):
        way(tensor.operand().memory)
    del h
    bridge.copy_(tensor, bridge.ones(6))
    assert bridge.to_device(tensor, "cpu").tolist() == [1] * 6


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


READS = {
    "tolist": lambda t: t.tolist(),
    "item": lambda t: [t[i].item() for i in range(6)],
    "str": lambda t: str(t).partition("  ")[0],
    "another view": lambda t: bridge.to_device(t, "cpu").tolist(),
    "from_dlpack": lambda t: bridge.from_dlpack(t, device="cpu").tolist(),
}
COPIES = {
    "copy=True": lambda t: bridge.to_device(t, "cpu", copy=True).tolist(),
    "tobytes": lambda t: np.frombuffer(t.tobytes(), "f4").tolist(),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)).tolist(),
}


@pytest.fixture(params=["ext_dev:0", "opencl:0", "vulkan:0"])
def on_device(request):
    backend_or_skip(request.param.partition(":")[0])
    if request.param == "ext_dev:0":
        return request.getfixturevalue("tensor")
    return bridge.to_device(np.arange(6, dtype="f4"), request.param)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_in_the_block_see_what_was_written_there(on_device, read):
    """They read through a view of their own, of the same memory."""
    t = on_device
    with t.host_view() as h:
        for first in (9, 1):
            h.numpy()[...] = [first, 8, 7, 6, 5, 4]
            expected = bridge.asarray([first, 8, 7, 6, 5, 4], dtype="f4")
            assert read(t) == read(expected)
            backwards = [str(each[::-1]) for each in (t, t.to_device("cpu"), expected)]
            assert [text.partition("  ")[0] for text in backwards] == [
                f"[4. 5. 6. 7. 8. {first}.]"
            ] * 3
            assert t[4:1:-2].tolist() == [5, 7]
    assert t.tolist() == [1, 8, 7, 6, 5, 4]


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_copies_in_the_block_see_what_was_written_or_are_refused(on_device, copy):
    with on_device.host_view() as h:
        h.numpy()[...] = [9, 8, 7, 6, 5, 4]
        try:
            found = copy(on_device)
        except BufferError as error:
            assert "is open; do the work after its block" in str(error)  # noqa: PT017
        else:
            assert found == [9, 8, 7, 6, 5, 4]
    assert copy(on_device) == [9, 8, 7, 6, 5, 4]


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


def test_a_consumer_of_the_exchange_table_keeps_the_view_open_as_long_as_it_reads(tensor):
    """The structs that were made for it go with the block, and not before it has dropped them."""
    tvm_ffi = peer("tvm_ffi")
    with tensor.host_view() as h:
        assert tvm_ffi.from_dlpack(h).shape == (6,)
    with pytest.raises(BufferError, match="expired"):
        np.from_dlpack(h)
    with pytest.raises(BufferError, match="still used by 1"), tensor.host_view() as h:
        held = tvm_ffi.from_dlpack(h)
    del h
    assert np.from_dlpack(held).tolist() == [0, 1, 2, 3, 4, 5]
