"""Public values go to another process and back, by each library that pickles in a way of its own."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import cloudpickle
import joblib
import pytest
from joblib.externals.loky import get_reusable_executor

import dlbridge as bridge
from dlbridge import ffi
from tests.support import pickling
from tests.support.pickling import WAYS, by_joblib


def tensor():
    return bridge.asarray([[1.5, 2], [3, 4]], dtype="float32")


def plan():
    return bridge.plan(tensor(), "cpu", copy=True)


def trace():
    with bridge.trace() as found:
        bridge.to_device(tensor(), "cpu", copy=True)
    return found


@pytest.fixture(scope="module")
def values():
    return {name: make() for name, make in VALUES.items()}


def described(value):
    """What must be the same on both sides."""
    if isinstance(value, bridge.Tensor):
        return repr(value.dtype), str(value.device), value.tolist()
    if isinstance(value, ffi.Error):
        return value.kind, value.message, value.backtrace
    return type(value), str(value)


VALUES = {
    "tensor": tensor,
    "tensor of bfloat16": lambda: bridge.zeros(3, "bfloat16"),
    "device": lambda: bridge.device("cuda:1"),
    "device of a backend": lambda: bridge.Device(12, 0, "mine"),
    "dtype": lambda: bridge.dtype("float32x4"),
    "device type": lambda: bridge.DLDeviceType.kDLCUDA,
    "type code": lambda: bridge.DLDataTypeCode.kDLBfloat,
    "plan": plan,
    "step": lambda: plan().steps[0],
    "trace": trace,
    "info": bridge.info,
    "error": lambda: bridge.ExchangeError("no"),
    "error of a device": lambda: bridge.DeviceLost("gone"),
    "class": lambda: bridge.Tensor,
    "function": lambda: bridge.to_device,
    "ffi.Array": lambda: ffi.Array([1, "two", [3.5]]),
    "ffi.List": lambda: ffi.List([1, 2]),
    "ffi.Map": lambda: ffi.Map({"a": 1}),
    "ffi.Dict": lambda: ffi.Dict({"a": [1]}),
    "ffi.Shape": lambda: ffi.Shape((2, 3)),
    "ffi.Error": lambda: ffi.Error("ValueError", "wrong", "here\n"),
    "ffi.UNCHANGED": lambda: ffi.UNCHANGED,
    "several": lambda: [bridge.device("cpu"), bridge.dtype("f4"), plan().steps],
}


@pytest.fixture(scope="module")
def answers(values):
    """The pickles that came back, or the traceback of the other process."""
    sent = {
        (way, name): dump(value)
        for way, (dump, _) in WAYS.items()
        for name, value in values.items()
    }
    other = [sys.executable, pickling.__file__]
    done = subprocess.run(other, input=pickle.dumps(sent), capture_output=True, check=True)
    return pickle.loads(done.stdout)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("way", WAYS)
def test_there_and_back(values, answers, way, name):
    answer = answers[way, name]
    assert isinstance(answer, bytes), answer
    assert described(WAYS[way][1](answer)) == described(values[name])


def test_a_function_takes_its_devices_along():
    """As a task of Dask or Ray: the function is pickled by value, with the globals that it names."""
    space = {"bridge": bridge, "HERE": bridge.device("cpu"), "TYPE": bridge.dtype("int16")}
    exec("def task(n): return bridge.ones(n, TYPE, device=HERE).tolist()", space)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(3))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=cloudpickle.dumps(space["task"]),
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"[1, 1, 1]\n", done.stderr.decode()


def test_joblib_runs_tasks_with_devices():
    tasks = [joblib.delayed(lambda x, where: (x.tolist(), where))(tensor(), bridge.device("cpu"))]
    try:
        found = joblib.Parallel(n_jobs=2, backend="loky")(tasks * 2)
    finally:
        get_reusable_executor().shutdown()
    assert found == [([[1.5, 2], [3, 4]], bridge.device("cpu"))] * 2


@pytest.mark.parametrize(
    "by", [pickle.dumps, cloudpickle.dumps, by_joblib, copy.copy, copy.deepcopy]
)
def test_an_operand_stays_in_its_process(by):
    """Its address would be read there as one of that process."""
    with pytest.raises(TypeError, match=r"of this process.*send the tensor"):
        by(tensor().operand())
