"""What a route gives at once, by the class of an array alone, is what the plan says."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.api.routes import ROUTES
from tests.support.counting_backend import NAME, counting
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer


def twice(x, *arguments, **keywords):
    """The result by the plan, and without a trace."""
    with bridge.trace():  # nothing is done by the class alone while a trace is active
        planned = bridge.to_device(x, *arguments, **keywords)
    return planned, bridge.to_device(x, *arguments, **keywords)


def address(x):
    if hasattr(x, "data_ptr"):
        return x.data_ptr()
    if hasattr(x, "unsafe_buffer_pointer"):
        return x.unsafe_buffer_pointer()
    if not hasattr(x, "__array_interface__"):
        x = np.from_dlpack(x)
    return x.__array_interface__["data"][0]


def readonly(array):
    array.flags.writeable = False
    return array


LAYOUTS = {
    "compact": lambda kind: np.arange(6).reshape(2, 3).astype(kind),
    "transposed": lambda kind: np.arange(6).reshape(2, 3).astype(kind).T,
    "with gaps": lambda kind: np.arange(12).astype(kind)[::2],
    "reversed": lambda kind: np.arange(6).astype(kind)[::-1],
    "read-only": lambda kind: readonly(np.arange(6).astype(kind)),
    "empty": lambda kind: np.zeros((2, 0), kind),
    "a number": lambda kind: np.array(3).astype(kind),
    "long": lambda kind: np.zeros(1 << 15, kind),
}


@pytest.mark.parametrize("like", [None, "numpy", "torch"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("library", ["numpy", "torch", "dlbridge"])
def test_what_is_done_at_once_is_what_the_plan_says(library, layout, like):
    """By the class alone, where the memory is there already: the same type, on the same memory."""
    array = LAYOUTS[layout]("float32")
    torch = peer("torch")
    if library == "torch":
        x = torch.from_numpy(array.copy() if layout in ("reversed", "read-only") else array)
    else:
        x = array if library == "numpy" else bridge.from_dlpack(array)
    plan = bridge.plan(x, "cpu", like=like)
    traced, again = twice(x, "cpu", like=like)
    assert type(again) is type(traced)
    assert (address(again) == address(traced)) is (not plan.nbytes) or layout == "empty"
    assert np.array_equal(np.from_dlpack(again), array)


@pytest.mark.parametrize("where", ["cpu", "cpu:0", bridge.device("cpu")])
def test_a_tensor_that_is_there_is_the_result(where):
    t = bridge.zeros(3)
    assert twice(t, where) == (t, t)
    assert t.to_device(where) is t


def test_read_only_memory_for_torch_is_planned_each_time():
    peer("torch")
    array = np.arange(3.0)
    bridge.to_device(array, "cpu", like="torch")
    array.flags.writeable = False
    for x in (array, bridge.from_dlpack(array)):
        bridge.to_device(x, "cpu", like="torch")[0] = 7
        assert array[0] == 0
        with pytest.raises(BufferError, match="read-only"):
            bridge.to_device(x, "cpu", like="torch", copy=False)


def test_hidden_state_of_torch_is_refused_each_time():
    torch = peer("torch")
    lazy = torch.zeros(2, dtype=torch.complex64).conj()
    for x in (torch.zeros(2, requires_grad=True), lazy, lazy.imag):
        for like in (None, "numpy"):
            bridge.to_device(torch.zeros(2), "cpu", like=like)
            with pytest.raises(BufferError, match=r"detach|resolve"):
                bridge.to_device(x, "cpu", like=like)


def test_an_expired_view_is_refused_each_time():
    t = bridge.zeros(3)
    with t.host_view() as view:
        assert twice(view, "cpu") == (view, view)
    for move in (lambda: bridge.to_device(view, "cpu"), lambda: view.to_device("cpu")):
        with pytest.raises(BufferError, match="expired"):
            move()
    with pytest.raises(BufferError, match="expired"):
        view.to_device(bridge.device("cpu"))


def test_arguments_that_are_equal_to_others_are_not_taken_for_them():
    class Text(str):
        __slots__ = ()

    t = bridge.zeros(3)
    bridge.to_device(t, "cpu")
    assert bridge.to_device(t, Text("cpu")) is t
    assert bridge.to_device(t, (1, 0)) is t
    with pytest.raises(TypeError):
        bridge.to_device(t, True)
    assert isinstance(bridge.to_device(t, "cpu", like=np.zeros(1)), np.ndarray)


def test_a_trace_records_moves_that_do_nothing():
    t = bridge.zeros(3)
    bridge.to_device(t, "cpu")
    with bridge.trace() as record:
        bridge.to_device(t, "cpu")
        t.to_device(bridge.device("cpu"))
    assert len(record.plans) == 2


def test_classes_that_may_die_are_not_kept():
    class Mine(np.ndarray):
        pass

    bridge.to_device(np.zeros(2).view(Mine), "cpu")
    assert not any(key[0] is Mine for key in ROUTES)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float4_e2m1fn_x2", "complex32"])
def test_a_tensor_comes_from_its_device_once(name):
    """Also if numpy does not have its type, or calls it one that torch does not take of it."""
    torch = peer("torch")
    x = torch.arange(64, dtype=torch.uint8).view(getattr(torch, name))
    with counting() as plugin:
        there = bridge.to_device(x, f"{NAME}:0")
        plugin.log.clear()
        back = bridge.to_device(there, "cpu", like="torch")
        assert plugin.log == [("download", 64)]
        del there
    assert back.dtype == x.dtype
    assert back.view(torch.uint8).tolist() == list(range(64))


@pytest.mark.parametrize(
    ("name", "array"), [("torch", "Tensor"), ("jax", "Array"), ("tvm_ffi", "Tensor")]
)
@pytest.mark.parametrize("device", ["cpu", "ext_dev"])
def test_like_names_the_module_that_is_there_now(monkeypatch, name, array, device):
    """A test's double or a reload of a library that has a description."""
    pytest.importorskip(name)
    a, t = np.ones(3, "float32"), bridge.zeros(3, device=device)
    ways = (
        lambda: bridge.to_device(a, "cpu", like=name),
        lambda: bridge.to_device(t, "cpu", like=name),
        lambda: bridge.to_device(bridge.zeros(3), "cpu", like=name),
        lambda: bridge.from_dlpack(a, like=name),
    )
    before = [type(way()) for way in ways for _ in range(2)]
    double = types.ModuleType(name)

    class Array(list):
        shape, dtype = (3,), np.dtype("float32")

    Array.__module__ = name
    Array.__name__ = array
    double.from_dlpack = lambda x: Array(np.from_dlpack(x).tolist())
    double.dlpack = double  # where jax has it
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, name, double)
        assert [type(way()) for way in ways for _ in range(2)] == [Array] * 8
    assert [type(way()) for way in ways for _ in range(2)] == before


def _module(monkeypatch, length):
    """The module ``doubled``, whose arrays have *length* elements more."""
    double = types.ModuleType("doubled")

    class Array(list):
        pass

    Array.__module__ = "doubled"
    double.from_dlpack = lambda x: Array([*np.from_dlpack(x).tolist(), *range(length)])
    monkeypatch.setitem(sys.modules, "doubled", double)
    return double


@pytest.mark.parametrize("x", [np.zeros(1), bridge.zeros(1)], ids=["array", "tensor"])
def test_a_name_is_the_module_that_is_there_now(x, monkeypatch):
    """After a reload, which leaves the module and changes its function, and with another module."""
    ways = [
        lambda like: bridge.to_device(x, "cpu", like=like),
        lambda like: bridge.from_dlpack(x, like=like),
    ]
    for length in (1, 2):
        module = _module(monkeypatch, length)
        for like in ("doubled", module):
            for way in ways * 2:
                assert len(way(like)) == 1 + length
    again = _module(monkeypatch, 3)
    module.from_dlpack = again.from_dlpack
    assert [len(way(module)) for way in ways] == [4, 4]


@pytest.mark.parametrize("place", ["cpu", "ext_dev:0"])
def test_the_library_may_be_given_as_the_third_argument(place):
    """As ``to_device(x, device, "numpy")``, without its name."""
    backend_or_skip(place.partition(":")[0])
    x = np.arange(3.0)
    t = bridge.to_device(x, place)
    for result in (bridge.to_device(t, "cpu", "numpy"), t.to_device("cpu", "numpy")):
        assert type(result) is np.ndarray
        assert result.tolist() == [0, 1, 2]
    assert type(bridge.to_device(x, place, "dlbridge")) is type(t)
    assert bridge.plan(t, "cpu", "numpy").steps == bridge.plan(t, "cpu", like="numpy").steps
    assert bridge.explain(t, "cpu", "numpy") == bridge.explain(t, "cpu", like="numpy")
    with pytest.raises(TypeError):
        bridge.to_device(t, "cpu", "numpy", True)
