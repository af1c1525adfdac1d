"""Memory that a backend makes together with its content: when it is asked, and what it may answer."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from dlbridge_fake import Fake

import dlbridge as bridge
from dlbridge.errors import BackendError, DeviceMemoryError
from dlbridge.extending import LOADED
from dlbridge.protocol import PlainAllocation
from tests.support.peers import peer

NAME = "made_with_content"
DEVICE = f"{NAME}:0"
LIMIT = 1 << 10


class Makes(Fake):
    """The simulated device, which makes up to `LIMIT` bytes with their content; counts the calls."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()
        self.streams = []
        self.answer = None

    content_limit = LIMIT

    def allocate(self, device_id, nbytes, alignment, stream, content=None):
        if content is None:
            self.calls["allocate"] += 1
            return super().allocate(device_id, nbytes, alignment, stream)
        assert (content.format, content.ndim, content.c_contiguous) == ("B", 1, True)
        self.calls["both"] += 1
        self.streams.append(stream)
        if self.answer is not None:
            return self.answer()
        assert 0 < len(content) == nbytes <= LIMIT
        memory = super().allocate(device_id, nbytes, alignment, stream)
        memory.content[:] = content
        return memory

    def copy_from_host(self, target, source, stream):
        self.calls["copy"] += 1
        super().copy_from_host(target, source, stream)


@pytest.fixture
def plugin(register):
    return register(NAME, Makes)


def there(tensor):
    return bridge.to_device(tensor, "cpu", like="numpy")


@pytest.mark.parametrize("dtype", ["float32", "complex64", "bool", "int8", "float16"])
@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (2, 1, 4)])
def test_one_call_makes_and_fills(plugin, dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    for _ in range(3):  # the first is planned, the others are prepared
        moved = bridge.to_device(array, DEVICE)
        assert (moved.device, moved.shape) == (bridge.device(DEVICE), shape)
        assert (there(moved) == array).all()
    assert plugin.calls == {"both": 3}


def test_it_has_nothing_of_the_source(plugin):
    array = np.ones(4)
    for _ in range(2):
        moved = bridge.to_device(array, DEVICE)
        array[:] = 5
        assert there(moved).tolist() == [1] * 4
        bridge.copy_(moved, np.zeros(4))
        assert array.tolist() == [5] * 4
        array[:] = 1


@pytest.mark.parametrize("source", ["strided", "reversed", "read-only", "a tensor", "a list"])
def test_other_sources(plugin, source):
    array = np.arange(12.0)
    x, want = {
        "strided": (array[::2], array[::2]),
        "reversed": (array[::-1], array[::-1]),
        "read-only": (np.broadcast_to(array, (12,)), array),
        "a tensor": (bridge.asarray(array), array),
        "a list": (array.tolist(), array),
    }[source]
    for _ in range(2):
        assert (there(bridge.to_device(x, DEVICE)) == want).all()
    assert plugin.calls == {"both": 2}


def test_types_that_numpy_lacks(plugin):
    ml_dtypes = peer("ml_dtypes")
    array = np.arange(7).astype(ml_dtypes.bfloat16)
    for _ in range(2):
        moved = bridge.to_device(array, DEVICE)
        assert moved.dtype == "bfloat16"
        assert bridge.to_device(moved, "cpu").tolist() == list(range(7))
    assert plugin.calls == {"both": 2}


def test_empty_tensors_need_no_memory(plugin):
    for _ in range(2):
        assert bridge.to_device(np.zeros((0, 3)), DEVICE).shape == (0, 3)
    assert plugin.calls == {}


def test_more_than_the_limit(plugin):
    """It is allocated and copied, as without the capability."""
    for nbytes in (LIMIT + 1, LIMIT, LIMIT + 1):
        array = np.arange(nbytes).astype("u1")
        assert (there(bridge.to_device(array, DEVICE)) == array).all()
    assert plugin.calls == {"both": 1, "allocate": 2, "copy": 2}
    assert not plugin.live_allocations()


@pytest.mark.parametrize("data", ["text", -1, 0, 1 << 64, True, 1.5])
def test_an_answer_that_is_no_allocation(plugin, data):
    for answer in (PlainAllocation(data, 24), data, None):
        plugin.answer = lambda answer=answer: answer
        with pytest.raises(BackendError, match="from allocate, which returns an Allocation"):
            bridge.to_device(np.ones(3), DEVICE)


def test_errors(plugin):
    def no_room():
        raise DeviceMemoryError("no room")

    def broken():
        raise ZeroDivisionError

    for answer, error, text in (
        (no_room, DeviceMemoryError, "no room"),
        (broken, BackendError, "failed in allocate"),
    ):
        plugin.answer = answer
        for _ in range(2):
            with pytest.raises(error, match=text):
                bridge.to_device(np.ones(3), DEVICE)
    plugin.answer = None
    assert there(bridge.to_device(np.ones(3), DEVICE)).tolist() == [1] * 3
    assert not plugin.live_allocations()


def test_the_stream_of_a_block(plugin):
    from dlbridge_fake import Stream

    stream = Stream(0)
    array = np.ones(3)
    with bridge.use_stream(DEVICE, stream):
        moved = [bridge.to_device(array, DEVICE) for _ in range(2)]
    outside = bridge.to_device(array, DEVICE)
    assert plugin.streams == [stream.handle, stream.handle, 0]
    for tensor in (*moved, outside):
        assert there(tensor).tolist() == [1] * 3


def test_progress_is_reported(plugin):
    seen = []
    bridge.to_device(np.ones(3), DEVICE, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(24, 24)]
    assert plugin.calls == {"allocate": 1, "copy": 1}


def test_memory_in_place_comes_first(plugin, monkeypatch):
    monkeypatch.setenv("DLBRIDGE_FAKE_SHARED", "1")
    LOADED.pop(NAME)  # the next one reads the variable
    plugin = bridge.backend(NAME)
    array = bridge.empty(3, "float64").numpy()
    array[:] = 1
    for turn in range(2):
        moved = bridge.to_device(array, DEVICE)
        array[0] = turn
        assert there(moved)[0] == turn
    assert plugin.calls == {}


def test_a_call_that_is_cut_off_is_waited_for(plugin, monkeypatch):
    """The device may still read the content: it is the user's again when the exception comes."""
    waited = []
    monkeypatch.setattr(plugin, "synchronize", lambda *where: waited.append(where))

    def cut_off():
        assert not waited
        raise KeyboardInterrupt

    plugin.answer = cut_off
    with pytest.raises(KeyboardInterrupt):
        bridge.to_device(np.ones(3), DEVICE)
    assert waited == [(0, *plugin.streams)]
