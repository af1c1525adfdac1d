"""Who waits for whom: the order between streams on export, on import, and under `use_stream`.

`Streams` notes what the core asks of a backend with CUDA's rules; the fake
device shows that the asking works. What a stream value means is each backend's
to enforce, and shown by its own tests. A comment ``# S3`` names the line of
docs/conformance.md that the test shows.
"""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import DeviceLost
from tests.support.peers import peer
from tests.support.raw_producer import Producer
from tests.support.stream_backend import Pinned, Streams, installed

FLOATS = np.arange(6, dtype="float32")


@pytest.fixture
def cuda():
    """A backend in CUDA's place that notes what it is asked."""
    with installed("cuda", Streams()) as plugin:
        yield plugin


@pytest.fixture
def tensor(cuda):
    made = dlbridge.to_device(FLOATS, "cuda:0")
    cuda.log.clear()
    return made


def waits(plugin):
    return [entry for entry in plugin.log if entry[0] in ("wait", "synchronize")]


# Exports


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),  # S2: the legacy default stream
        (1, 0),  # S4
        (2, 2),  # S5
        (0x7F00, 0x7F00),  # S6
    ],
)
def test_the_consumers_stream_waits_for_ours(
    tensor, cuda, stream, handle
):  # P11, S2, S4, S5, S6, S17
    with dlbridge.use_stream("cuda:0", 0xAAA):
        tensor.__dlpack__(stream=stream)
        # Where it was written and where it may be written now; on the device, not here.
        expected = {("wait", handle, 0), ("wait", handle, 0xAAA)} - {("wait", handle, handle)}
        assert set(cuda.log) == expected


def test_a_stream_does_not_wait_for_itself(tensor, cuda):  # S17
    tensor.__dlpack__(stream=1)
    tensor.__dlpack__(stream=None)
    assert waits(cuda) == []


def test_the_consumer_waits_for_the_copy_that_it_asked_for(tensor, cuda):  # S13
    tensor.__dlpack__(stream=0x77, copy=True)
    kinds = [entry[0] for entry in cuda.log]
    assert "copy" in kinds or "upload" in kinds
    assert cuda.log[-1] == ("wait", 0x77, 0)  # behind the copy, not before it


def test_the_consumer_waits_for_the_copy_of_negative_strides(tensor, cuda):  # S13, P41
    tensor[::-1].__dlpack__(stream=0x77, max_version=(1, 0))
    assert cuda.log[-1] == ("wait", 0x77, 0)
    assert len(cuda.log) > 1


def test_managed_memory_is_ordered_as_cuda_is():  # S15
    class Managed(Streams):
        device_type = 13

    with installed("cuda_managed", Managed()) as plugin:
        raw = Producer((4,), device=(13, 0))
        tensor = dlbridge.from_dlpack(raw)
        assert raw.calls == [{"max_version": (1, 3), "stream": 1}]
        plugin.current = 0xBBB
        plugin.log.clear()
        tensor.__dlpack__(stream=0x77)
        assert ("wait", 0x77, 0xBBB) in plugin.log
        with pytest.raises(ValueError):
            tensor.__dlpack__(stream=0)


def test_pinned_memory_has_no_stream():  # S15, S1
    with installed("cuda_host", Pinned()):
        raw = Producer((4,), device=(3, 0))
        tensor = dlbridge.from_dlpack(raw)
        assert raw.calls == [{"max_version": (1, 3)}]
        assert tensor.__dlpack__(stream=-1)
        with pytest.raises(ValueError, match="host memory has no streams"):
            tensor.__dlpack__(stream=1)


def test_a_block_that_ends_in_another_thread_leaves_the_streams_of_that_thread():
    """A generator ends where it is collected, if a signal handler's exception has cut it off."""
    fake = peer("dlbridge_fake")
    first, second = fake.Stream(0), fake.Stream(0)
    before = dlbridge.current_stream("ext_dev:0")
    cut_off = [dlbridge.use_stream("ext_dev:0", first)]
    cut_off[0].__enter__()
    found = []

    def work():
        with dlbridge.use_stream("ext_dev:0", second):
            cut_off.clear()
            gc.collect()
            found.append(dlbridge.current_stream("ext_dev:0"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [second.handle]
    assert dlbridge.current_stream("ext_dev:0") == before


def test_devices_without_streams():  # S16
    class NoStreams:
        api, device_type = 1, 9
        device_count = staticmethod(lambda: 1)

        def current_stream(self, device_id):
            return 0

    with installed("vpi", NoStreams()):
        tensor = dlbridge.from_dlpack(Producer((4,), device=(9, 0), data=0x10))
        for value in (None, -1):
            assert tensor.__dlpack__(max_version=(1, 3), stream=value)
        with pytest.raises(TypeError, match="has no streams"):
            tensor.__dlpack__(stream=3)
        with pytest.raises(TypeError, match="has no streams"), dlbridge.use_stream("vpi:0", 3):
            raise AssertionError


# Imports


def test_what_a_producer_is_told(cuda):  # S14, C36
    raw = Producer((4,), device=(2, 0))
    dlbridge.from_dlpack(raw)
    cuda.current = 0xCCC
    dlbridge.from_dlpack(raw)
    with dlbridge.use_stream("cuda:0", 0xDDD):
        dlbridge.from_dlpack(raw)
    dlbridge.from_dlpack(raw, stream=2)
    dlbridge.from_dlpack(raw, stream=-1)
    assert [call.get("stream") for call in raw.calls] == [1, 0xCCC, 0xDDD, 2, -1]


def test_what_a_rocm_producer_is_told():  # S14, S11
    class Rocm(Streams):
        device_type = 10

    with installed("rocm", Rocm()) as plugin:
        raw = Producer((4,), device=(10, 0))
        dlbridge.from_dlpack(raw)
        plugin.current = 0xCCC
        dlbridge.from_dlpack(raw)
    assert raw.calls == [{"max_version": (1, 3)}, {"max_version": (1, 3), "stream": 0xCCC}]


def test_the_stream_that_the_user_names_waits_for_our_own_tensor(tensor, cuda):  # S14
    assert dlbridge.from_dlpack(tensor, stream=0x77) is tensor
    assert cuda.log == [("wait", 0x77, 0)]


def test_work_is_ordered_after_the_block(cuda):  # S17
    with dlbridge.use_stream("cuda:0", 0xAAA) as handle:
        assert handle == dlbridge.current_stream(dlbridge.device("cuda:0")) == 0xAAA
        tensor = dlbridge.to_device(FLOATS, "cuda:0")
        assert ("upload", 0xAAA) in cuda.log
        cuda.log.clear()
    assert waits(cuda) == [("wait", 0, 0xAAA)]
    assert dlbridge.current_stream(dlbridge.device("cuda:0")) == 0
    assert tensor.tolist() == FLOATS.tolist()


def test_no_order_is_no_stream(cuda):
    with pytest.raises(ValueError, match="-1"), dlbridge.use_stream("cuda:0", -1):
        raise AssertionError


def test_a_chosen_stream_may_be_entered_again(cuda):
    where = dlbridge.device("cuda:0")
    chosen = dlbridge.use_stream(where, 0xAAA)
    for _ in range(2):
        with chosen as handle:
            assert handle == dlbridge.current_stream(where) == 0xAAA
        assert dlbridge.current_stream(where) == 0
    with dlbridge.use_stream(where, 0xBBB):
        with chosen, dlbridge.use_stream(where, 0xCCC), chosen:
            assert dlbridge.current_stream(where) == 0xAAA
        assert dlbridge.current_stream(where) == 0xBBB

    @chosen
    def work(number):
        return number, dlbridge.current_stream(where)

    assert work(1) == (1, 0xAAA)
    assert work(2) == (2, 0xAAA)
    assert dlbridge.current_stream(where) == 0


def test_a_chosen_stream_that_two_threads_enter(cuda):  # S17
    where = dlbridge.device("cuda:0")
    chosen = dlbridge.use_stream(where, 0xAAA)
    entered, leave = threading.Event(), threading.Event()
    seen = []

    def work():
        seen.append(dlbridge.current_stream(where))
        with chosen:
            entered.set()
            leave.wait(60)
            seen.append(dlbridge.current_stream(where))
        seen.append(dlbridge.current_stream(where))

    thread = threading.Thread(target=work)
    with chosen:
        thread.start()
        assert entered.wait(60)
    assert dlbridge.current_stream(where) == 0
    leave.set()
    thread.join()
    assert seen == [0, 0xAAA, 0]


def test_the_stream_of_a_block_is_passed_after_a_loss_until_the_block_ends(monkeypatch):
    """dlbridge cannot know that it is gone; memory from before the loss stays lost."""
    fake, asked = peer("dlbridge_fake"), []

    class Noting(fake.Fake):
        def allocate(self, device_id, nbytes, alignment, stream):
            asked.append(stream)
            return super().allocate(device_id, nbytes, alignment, stream)

    with installed("ext_dev", Noting()) as plugin:
        stream = fake.Stream()
        with dlbridge.use_stream("ext_dev:0", stream):
            tensor = dlbridge.to_device(FLOATS, "ext_dev:0")
            plugin.lose(0)
            with pytest.raises(DeviceLost):
                tensor.tolist()
            assert dlbridge.zeros(2, "int8", "ext_dev:0").tolist() == [0, 0]
        assert dlbridge.zeros(2, "int8", "ext_dev:0").tolist() == [0, 0]
        with pytest.raises(DeviceLost):
            tensor.tolist()
        assert asked == [stream.handle, stream.handle, 0]
        del tensor


@pytest.mark.usefixtures("tensor")
def test_a_stream_is_waited_for_by_its_handle(cuda):
    dlbridge.synchronize("cuda:0", 0x77)
    assert ("synchronize", 0x77) in waits(cuda)
    cuda.log.clear()
    with dlbridge.use_stream("cuda:0", 0xAAA):
        dlbridge.synchronize("cuda:0")
        assert ("synchronize", 0xAAA) in waits(cuda)
    with pytest.raises(ValueError, match="no streams"):
        dlbridge.synchronize("cpu", 3)
