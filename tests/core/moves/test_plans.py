"""explain says what to_device does: its steps are the trace's, its bytes the backend's."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.counting_backend import NAME
from tests.support.foreign_arrays import ByMethod, Lazy, RefusesFalse, Unasked
from tests.support.peers import peer

ZERO, ONE = f"{NAME}:0", f"{NAME}:1"


def values():
    return np.arange(4 * 6 * 5, dtype="float32").reshape(4, 6, 5)


LAYOUTS = {
    "compact": lambda t: t,
    "slice": lambda t: t[1:3],
    "strided": lambda t: t[::2, ::3],
    "every other": lambda t: t[:, :, ::2],
    "transposed": lambda t: t.transpose(2, 0, 1),
    "backwards": lambda t: t[::-1],
    "empty": lambda t: t[:0],
}


@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("target", ["cpu", ZERO, ONE, "ext_dev:0"])
@pytest.mark.parametrize("source", ["cpu", ZERO])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_explained_is_what_runs(layout, source, target, copy, backend):
    tensor = LAYOUTS[layout](bridge.to_device(values(), source))
    plan = bridge.plan(tensor, target, copy=copy)
    backend.log.clear()
    with bridge.trace() as trace:
        moved = bridge.to_device(tensor, target, copy=copy)
    copied, log = backend.nbytes, backend.log.copy()
    for _ in range(2):  # without a trace, at the first call and at a later one
        backend.log.clear()
        bridge.to_device(tensor, target, copy=copy)
        assert backend.log == log
    assert moved.tolist() == LAYOUTS[layout](values()).tolist()
    (ran,) = trace.plans
    assert (ran.steps, ran.nbytes) == (plan.steps, plan.nbytes)
    assert str(ran) == str(plan) == bridge.explain(tensor, target, copy=copy)
    assert (ran.address, ran.result_address) == (tensor.data_ptr(), moved.data_ptr())
    assert (trace.nbytes, trace.copies) == (plan.nbytes, plan.copies)
    ours = [step.nbytes for step in ran.steps if NAME in (step.source.name, step.target.name)]
    assert copied == sum(ours)


def test_shared_memory_is_not_copied(shared):
    tensor = bridge.zeros((4, 16), device=ZERO)
    for layout in (tensor, tensor[1:, ::2]):
        assert [step.kind for step in bridge.plan(layout, "cpu").steps] == ["host view"]
        host = bridge.to_device(layout, "cpu", copy=False)
        bridge.copy_(host, np.ones(host.shape, "float32"))
        assert layout.tolist() == np.ones(host.shape).tolist()
    source = bridge.empty((4, 16))
    assert [step.kind for step in bridge.plan(source, ZERO).steps] == ["host import"]
    moved = bridge.to_device(source, ZERO, copy=False)
    bridge.copy_(source, np.full((4, 16), 5, "float32"))
    assert moved.tolist() == source.tolist()
    with pytest.raises(BufferError, match="not a multiple of 64"):
        bridge.to_device(source[1:, 1:], ZERO, copy=False)


COPIED = {
    "a list": (lambda: [[1.0, 2.0], [3.0, 4.0]], "builtins.list"),
    "a number": (lambda: 3.0, "builtins.float"),
    "an empty list": (list, "builtins.list"),
    "an image": (lambda: peer("PIL.Image").new("L", (4, 2)), "PIL.Image.Image"),
    "what reads": (lambda: ByMethod(values), "tests.support.foreign_arrays.ByMethod"),
    "what reads unasked": (lambda: Unasked(values), "tests.support.foreign_arrays.Unasked"),
    "a lazy DataArray": (lambda: Lazy(values), "xarray.core.dataarray.Lazy"),
}


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize("target", ["cpu", ZERO])
@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("name", COPIED)
def test_the_copy_of_an_object_without_memory_to_share(name, copy, target, backend):  # C35
    make, origin = COPIED[name]
    x = make()
    with pytest.raises(BufferError, match="no memory to share"):
        bridge.asarray(x, copy=False)
    plan = bridge.plan(x, target, copy=copy)
    array = bridge.asarray(x)
    rest = bridge.plan(array, target, copy=copy)
    assert plan.origin == origin
    assert plan.nbytes == array.nbytes + rest.nbytes
    if array.size:
        first = plan.steps.pop(0)
        assert str(first) == (
            f"read: cpu:0 -> cpu:0, {array.nbytes} bytes copied: "
            f"{origin} has no memory that a tensor could share"
        )
    assert plan.steps == rest.steps
    for move in (
        lambda: bridge.to_device(x, target, copy=copy),
        lambda: bridge.asarray(x, device=target, copy=copy),
    ):
        with bridge.trace() as trace:
            moved = move()
        assert moved.tolist() == array.tolist()
        assert trace.nbytes == array.nbytes + rest.nbytes
        assert str(trace.plans[0]) == bridge.explain(x, target, copy=copy)


SHARED = {
    "bytes": lambda: b"abcd",
    "a bytearray": lambda: bytearray(4),
    "an array": values,
    "a subclass": lambda: values().view(type("Sub", (np.ndarray,), {})),
    "torch": lambda: peer("torch").ones(3),
    "a parameter": lambda: peer("torch").nn.Parameter(peer("torch").ones(3), requires_grad=False),
    "jax": lambda: peer("jax").numpy.ones(3),
    "a column": lambda: peer("pyarrow").array([1.0, 2.0]),
    "a method": lambda: ByMethod(values()),
    "what refuses copy=False": lambda: RefusesFalse(values()),
    "what does not know copy=False": lambda: Unasked(values()),
}


@pytest.mark.parametrize("name", SHARED)
def test_memory_that_is_shared_is_not_called_read(name):
    x = SHARED[name]()
    assert [step.kind for step in bridge.plan(x, "cpu").steps] == ["share"]
    with bridge.trace() as trace:
        bridge.to_device(x, "cpu")
    assert str(trace.plans[0]) == bridge.explain(x, "cpu")
    assert trace.nbytes == 0


def test_an_object_is_read_once_where_nobody_asks(backend):
    """Only a plan or a trace asks twice."""
    read = []

    class Counted:
        def __array__(self, dtype=None, copy=None):
            read.append(copy)
            return values()

    with bridge.trace():
        thread = threading.Thread(target=lambda: bridge.to_device(Counted(), "cpu"))
        thread.start()
        thread.join()
    bridge.asarray(Counted(), device="cpu")
    assert read == [None, None]


def test_traces_nest_and_end(backend):
    with bridge.trace() as outer:
        bridge.to_device(values(), ZERO)
        with bridge.trace() as inner:
            bridge.to_device(values(), ONE)
        with pytest.raises(RuntimeError), bridge.trace() as failed:
            raise RuntimeError
        bridge.to_device(values(), "cpu")
    bridge.to_device(values(), ZERO)
    assert [str(plan.target) for plan in outer.plans] == [ZERO, ONE, "cpu:0"]
    assert [str(plan.target) for plan in inner.plans] == [ONE]
    assert not failed.plans
    assert str(outer).endswith("3 moves, 960 bytes copied")


def test_other_threads_are_not_recorded(backend):
    with bridge.trace() as trace:
        thread = threading.Thread(target=lambda: bridge.to_device(values(), ZERO))
        thread.start()
        thread.join()
    assert backend.log
    assert not trace.plans


def test_a_move_that_fails_is_not_recorded(backend):
    backend.failing["copy_from_host"] = 0
    with bridge.trace() as trace, pytest.raises(bridge.DeviceError):
        bridge.to_device(values(), ZERO)
    assert not trace.plans


FAILURES = [
    ("allocate", "cpu", ZERO, {}),
    ("copy_from_host", "cpu", ZERO, {}),
    ("synchronize", "cpu", ZERO, {}),
    ("copy_to_host", ZERO, "cpu", {}),
    ("synchronize", ZERO, "cpu", {}),
    ("allocate", ZERO, ONE, {}),
    ("copy", ZERO, ONE, {}),
    ("synchronize", ZERO, ONE, {}),
    ("copy", ZERO, ZERO, {"copy": True}),
    ("copy_to_host", ZERO, "ext_dev:1", {}),
]


@pytest.mark.parametrize(
    ("method", "source", "target", "keywords"), FAILURES, ids=[f[0] + " " + f[2] for f in FAILURES]
)
@pytest.mark.parametrize("layout", ["compact", "strided", "transposed", "backwards"])
def test_a_backend_that_fails_leaves_nothing(method, source, target, keywords, layout, backend):
    tensor = LAYOUTS[layout](bridge.to_device(values(), source))
    others = bridge.backend("ext_dev")
    gc.collect()
    before, others_before = backend.live_allocations(), others.live_allocations()
    backend.failing[method] = 0
    if layout != "compact" and method == "copy":
        backend.failing.update(copy_to_host=0)  # some of these go through the host
    with pytest.raises(bridge.DeviceError, match="refused by the test"):
        bridge.to_device(tensor, target, **keywords)
    gc.collect()
    assert backend.live_allocations() == before
    assert others.live_allocations() == others_before
    backend.failing.clear()
    moved = bridge.to_device(tensor, target, **keywords)  # as if nothing had been
    assert moved.tolist() == LAYOUTS[layout](values()).tolist()


@pytest.mark.parametrize("method", ["allocate", "fill"])
def test_zeros_that_fail(method, backend):
    backend.failing[method] = 0
    with pytest.raises(bridge.DeviceError, match="refused by the test"):
        bridge.zeros((4,), device=ZERO)


@pytest.mark.parametrize(
    ("method", "target", "copy"),
    [("host_view", "cpu", None), ("host_view", "cpu", False), ("import_host", ZERO, False)],
)
def test_sharing_that_fails(method, target, copy, shared):
    source = bridge.empty((16,), device=ZERO if target == "cpu" else "cpu")
    before = shared.live_allocations()
    shared.failing[method] = 0
    with pytest.raises(bridge.DeviceError, match="refused by the test"):
        bridge.to_device(source, target, copy=copy)
    gc.collect()
    assert shared.live_allocations() == before


def test_a_driver_that_refuses_host_memory_gets_a_copy(shared):
    """Its backend knew no reason: the plan says so, the trace what came of it."""
    whole = bridge.empty((4, 8))
    bridge.copy_(whole, np.arange(32, dtype="float32").reshape(4, 8))
    source = whole[:, ::-1]
    assert [step.kind for step in bridge.plan(source, ZERO).steps] == ["host import"]
    shared.failing["import_host"] = 0
    with bridge.trace() as trace:
        moved = bridge.to_device(source, ZERO)
    assert moved.tolist() == source.tolist()
    (taken,) = trace.plans
    assert [step.kind for step in taken.steps] == ["pack", "upload"]
    assert "refused in place: " in taken.steps[-1].reason
    assert "refused by the test" in taken.steps[-1].reason
    assert taken.nbytes == 2 * source.nbytes
    bridge.copy_(source, np.zeros((4, 8), "float32"))
    assert moved.tolist() != source.tolist()
