"""Dask: sizes, tokens, frames, spilling, and what goes between the workers of a real cluster.

The scenes of `dask_scenes` run on one cluster, in a process of their own.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.counting_backend import NAME, Counting, counting
from tests.support.expected_parts import backend_or_skip, expected
from tests.support.process_groups import run_scenes, scene_names
from tests.support.scripts import run_script

if not expected("peers"):
    pytest.importorskip("distributed")

SCENES = Path(__file__).with_name("dask_scenes.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The scenes that failed, with their tracebacks; empty for the others."""
    backend_or_skip("opencl")
    return run_scenes(SCENES, tmp_path_factory.mktemp("spilled"))


@pytest.mark.parametrize("name", scene_names(SCENES))
def test_on_a_cluster(cluster, name):
    assert cluster[name] == "", cluster[name]


# Sizes and tokens ---------------------------------------------------------------


@pytest.fixture(params=["cpu", "ext_dev:1", "opencl:0", "vulkan:0"])
def device(request):
    backend_or_skip(request.param.partition(":")[0])
    return request.param


def test_dask_knows_the_size(device):
    from dask.sizeof import sizeof

    assert sizeof(bridge.zeros((1000, 10), "float32", device=device)) == 40_000
    assert sizeof(bridge.zeros((0, 3), device=device)) == 0
    assert sizeof(bridge.zeros((), "uint8", device=device)) == 1
    assert sizeof(bridge.zeros(11, "int4", device=device)) == 6
    t = bridge.zeros((8, 6), "uint8", device=device)
    assert sizeof(t[::2, 1:3]) == 8
    assert sizeof([t, t]) > 96


def test_a_broadcast_weighs_what_it_is_made_of():
    """As dask counts numpy's."""
    from dask.sizeof import sizeof

    array = np.broadcast_to(np.zeros((1, 10)), (1000, 10))
    assert sizeof(bridge.asarray(array)) == sizeof(array) == 80


def test_dask_loads_no_framework_and_no_backend():
    code = """
        import sys
        from dask.sizeof import sizeof
        print(sorted(name for name in sys.modules if name.startswith("dlbridge")))
    """
    loaded = ["dlbridge", "dlbridge._imports_at_fork", "dlbridge.dask", "dlbridge.errors"]
    assert run_script(code) == f"{loaded}\n"


def test_equal_tensors_have_equal_tokens(device):
    from dask.base import tokenize

    def token(x, **how):
        return tokenize(bridge.to_device(x, device, copy=True), ensure_deterministic=True, **how)

    values = np.arange(12.0).reshape(3, 4)
    same = token(values)
    assert same == token(values)
    assert same == token(np.asfortranarray(values))
    others = [values + 1, values.reshape(4, 3), values.view("i8")]
    assert len({same, *map(token, others), tokenize(values)}) == 5


def test_a_read_only_tensor_has_the_token_of_its_elements():
    """Received by a frame of bytes, or loaded from a file, it is still the same argument."""
    from dask.base import tokenize

    values = np.arange(12.0)
    writable = tokenize(bridge.from_dlpack(values.copy()))
    values.flags.writeable = False
    assert tokenize(bridge.from_dlpack(values)) == writable


def test_tokens_say_the_device():
    """A task on another device is another task."""
    from dask.base import tokenize

    t = bridge.zeros(3)
    assert tokenize(t) != tokenize(bridge.to_device(t, "ext_dev:0"))
    code = "import dlbridge as b; from dask.base import tokenize; print(tokenize(b.zeros(3)))"
    assert run_script(code) == f"{tokenize(t)}\n"


def test_a_token_reads_the_device_once():
    from dask.base import tokenize

    with counting() as backend:
        t = bridge.to_device(np.arange(1000), NAME)
        backend.log.clear()
        tokenize(t)
        assert backend.log == [("download", 8000)]


# Frames -------------------------------------------------------------------------

TO_WORKERS = {"pickle-protocol": 5}
TO_SCHEDULERS = {"pickle-protocol": 4}


@pytest.mark.parametrize("context", [TO_WORKERS, TO_SCHEDULERS, None], ids=str)
def test_a_frame_is_the_memory_of_the_tensor(context):
    from dask.sizeof import sizeof
    from distributed.protocol import deserialize, serialize

    t = bridge.to_device(np.arange(1 << 16), "cpu", copy=True)
    sizeof(t)  # as workers do, before
    header, frames = serialize(t, context=context and {**context})
    small, large = frames
    assert len(small) < 200
    assert np.frombuffer(large, "u1").ctypes.data == t.data_ptr()
    again = deserialize(header, frames)
    assert again.data_ptr() == t.data_ptr()
    assert not again.readonly


@pytest.mark.parametrize("context", [TO_WORKERS, TO_SCHEDULERS], ids=str)
def test_a_device_is_read_once(context):
    from dask.sizeof import sizeof
    from distributed.protocol import serialize

    with counting() as backend:
        t = bridge.to_device(np.arange(1000), NAME)
        sizeof(t)
        backend.log.clear()
        serialize(t, context={**context})
        assert backend.log == [("download", 8000)]


def test_distributed_may_be_imported_later_than_dask():
    code = """
        from dask.sizeof import sizeof
        import dlbridge as bridge
        t = bridge.zeros(100_000)
        sizeof(t)
        from distributed.protocol import serialize
        sizeof(t)
        print(len(serialize(t, context={"pickle-protocol": 4})[1]))
    """
    assert run_script(code) == "2\n"


def test_tensors_inside_of_other_objects():
    from dask.sizeof import sizeof
    from distributed.protocol import deserialize, serialize

    t = bridge.asarray(np.arange(1000))
    sizeof(t)
    for nested in ([t, t], {"a": t}, (t, "text"), {"a": [t]}):
        again = deserialize(*serialize(nested, context={**TO_SCHEDULERS}))
        assert type(again) is type(nested)
        assert pickle.dumps(again) == pickle.dumps(deserialize(*serialize(nested)))


# Spilling -----------------------------------------------------------------------


class Keeping(Counting):
    """A device that notes when it is asked to give memory back."""

    def trim(self, device_id):
        self.fail("trim")
        self.log.append(("trim", device_id))


@pytest.fixture
def keeping():
    with counting(Keeping) as backend:
        yield backend


def serialized(t, context):
    from dask.sizeof import sizeof
    from distributed.protocol import serialize

    sizeof(t)
    return serialize(t, context=context)


def test_a_spill_trims_and_a_message_does_not(keeping):
    t = bridge.to_device(np.arange(1000), f"{NAME}:1")
    keeping.log.clear()
    serialized(t, {**TO_WORKERS})
    assert keeping.log == [("download", 8000)]
    keeping.log.clear()
    serialized(t, None)
    assert keeping.log == [("trim", 1), ("download", 8000)]


def test_a_spill_trims_again_when_the_worker_has_dropped_the_tensor(keeping):
    import asyncio

    async def spill():
        serialized(bridge.to_device(np.arange(1000), NAME), None)
        keeping.log.clear()
        await asyncio.sleep(0)

    asyncio.run(spill())
    assert keeping.log == [("trim", 0)]


def test_a_spill_does_not_fail_because_of_a_trim(keeping, caplog):
    t = bridge.to_device(np.arange(1000), NAME)
    keeping.failing["trim"] = 0
    header, _ = serialized(t, None)
    assert header["serializer"] == "pickle"
    assert "memory that counted:0 keeps is not given back" in caplog.text


def test_spilling_memory_of_the_host_trims_nothing():
    """And needs no backend."""
    header, frames = serialized(bridge.zeros(1000), None)
    assert header["serializer"] == "pickle"
    assert len(frames) == 2
