"""Wrong arguments: each error names the thing, the rule and the way out."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from peers import peer

import dlbridge as bridge
from dlbridge import memory, tensor


def test_a_tensor_is_not_made_by_calling_its_class():
    class Mine(bridge.Tensor):
        pass

    for cls in (bridge.Tensor, Mine):
        for arguments in ((), ([1, 2],)):
            with pytest.raises(TypeError, match=r"from_dlpack and asarray .*empty"):
                cls(*arguments)
    for t in (bridge.empty((2, 3)), bridge.zeros((2, 3), "bfloat16")):
        for other in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
            assert other.shape == (2, 3)


@pytest.mark.parametrize("index", [10**30, -(10**30), 1 << 63])
def test_an_index_that_no_dimension_has(index):
    with pytest.raises(IndexError, match=rf"index {index} is out of bounds"):
        bridge.zeros((2, 3))[index]


def test_only_minus_one_is_inferred():
    t = bridge.zeros((2, 3))
    assert t.reshape(-1, 2).shape == (3, 2)
    for shape in ((-5,), (-2, 3), ((-5, 2),)):
        with pytest.raises(ValueError, match="only -1 is inferred"):
            t.reshape(*shape)


def test_any_later_version_is_ours():
    for t in (bridge.zeros(3, "bfloat16"), bridge.empty((0, 2))):
        for version in ((2**70, 0), (1, 2**70), (2, 0)):
            assert "versioned" in repr(t.__dlpack__(max_version=version))
        for version in (None, (-(2**70), 0), (0, 8)):
            assert "versioned" not in repr(t.__dlpack__(max_version=version))


def test_shapes_that_no_struct_holds():
    where = memory.Memory(bridge.device("cpu:0"), 0, "nowhere")
    with pytest.raises(bridge.ExchangeError, match="more than numpy can describe"):
        tensor.make_tensor(where, 0, bridge.dtype("float32"), (0, 2**63))


@pytest.mark.parametrize(
    ("dtype", "what"), [("void", "bits"), ("int0", "bits"), ("float32x0", "lanes")]
)
@pytest.mark.parametrize("shape", [(4,), (0,), ()])
def test_types_of_nothing(dtype, what, shape):
    with pytest.raises(bridge.ExchangeError, match=f"{dtype} elements have no {what}"):
        bridge.empty(shape, dtype)


@pytest.mark.parametrize(
    ("stream", "error"),
    [("a", TypeError), (True, TypeError), (1.5, TypeError), (7, ValueError), (0, ValueError)],
)
def test_host_memory_has_no_streams(stream, error):
    torch = peer("torch")
    for source in (
        np.zeros(3),
        torch.zeros(3),
        bridge.zeros(3),
        torch.zeros(3).__dlpack__(),
        peer("jax").numpy.zeros(3),
    ):
        with pytest.raises(error, match="host memory has no streams"):
            bridge.from_dlpack(source, stream=stream)
        if type(source).__name__ != "PyCapsule":
            assert bridge.from_dlpack(source, stream=-1).shape == (3,)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 21])
def test_a_type_by_number_is_the_type(number):
    assert bridge.device(f"type{number}:0") is bridge.device((number, 0))
    assert bridge.Device(number, 0, f"type{number}") is bridge.device((number, 0))


def test_a_class_is_no_tensor():
    for cls in (np.ndarray, peer("torch").Tensor, bridge.Tensor):
        for take in (bridge.asarray, bridge.from_dlpack):
            with pytest.raises(TypeError, match=rf"the class .*{cls.__name__} is no tensor"):
                take(cls)


def test_tensors_without_memory():
    torch = peer("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    gone = peer("jax").numpy.zeros(3)
    gone.delete()
    for source, why in (
        (fake, "meta or fake tensor"),
        (torch.empty(3, device="meta"), "meta or fake tensor"),
        (gone, "has been deleted"),
    ):
        for take in (bridge.asarray, bridge.from_dlpack):
            with pytest.raises(bridge.ExchangeError, match=why):
                take(source)


def test_the_command_line_and_a_closed_pipe():
    command = [sys.executable, "-m", "dlbridge"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"dlbridge {bridge.__version__}\n"
    process = subprocess.Popen(
        [*command, "info"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1
