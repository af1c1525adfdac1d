"""What a library knows about its array and DLPack cannot say: refused or kept, never handed on wrong.

A comment ``# C4`` names a line of docs/conformance.md.
"""

from __future__ import annotations

import numpy as np
import pytest
from peers import peer

import dlbridge

WAYS = [
    dlbridge.from_dlpack,
    dlbridge.asarray,
    lambda x: dlbridge.to_device(x, "cpu"),
    lambda x: dlbridge.from_dlpack(x, copy=True),
    lambda x: dlbridge.from_dlpack(x, copy=False),
    lambda x: dlbridge.from_dlpack(x, device="cpu"),
    lambda x: dlbridge.from_dlpack(x, stream=-1),
    lambda x: dlbridge.copy_(dlbridge.empty((2,), "complex64"), x),
]
NAMES = ["from_dlpack", "asarray", "to_device", "copy", "no copy", "device", "stream", "copy_"]


@pytest.fixture(params=WAYS, ids=NAMES)
def way(request):
    return request.param


@pytest.mark.parametrize("kind", ["grad", "parameter", "conj", "neg", "conj view", "imag of conj"])
def test_torch(way, kind):  # X16
    torch = peer("torch")
    values = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    hidden, match = {
        "grad": (values.clone().requires_grad_(), "requires grad"),
        "parameter": (torch.nn.Parameter(values.clone()), "requires grad"),
        "conj": (values.conj(), "conjugated"),
        "neg": (torch._neg_view(values), "negated"),
        "conj view": (values.conj()[:1], "conjugated"),
        "imag of conj": (values.conj().imag, "negated"),
    }[kind]
    with pytest.raises(BufferError, match=match):
        way(hidden)


def test_torch_resolved():  # X16
    torch = peer("torch")
    values = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    assert dlbridge.from_dlpack(values.conj().resolve_conj()).tolist() == [1 - 2j, 3 + 4j]
    assert dlbridge.from_dlpack(torch._neg_view(values).resolve_neg()).tolist() == [
        -1 - 2j,
        -3 + 4j,
    ]
    leaf = values.clone().requires_grad_()
    assert dlbridge.from_dlpack(leaf.detach()).tolist() == values.tolist()
    with torch.no_grad():  # the user's word that no gradient is wanted, for torch's own numpy() too
        assert dlbridge.from_dlpack(leaf).data_ptr() == leaf.data_ptr()
        assert dlbridge.from_dlpack(leaf * 2).tolist() == [2 + 4j, 6 - 8j]
    with torch.inference_mode():
        assert dlbridge.from_dlpack(values + 0).tolist() == values.tolist()


def test_torch_layouts_that_are_no_array():  # C4
    torch = peer("torch")
    for tensor in (
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, 2).to_sparse_csr(),
        torch.empty(2, device="meta"),
        torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
    ):
        with pytest.raises((BufferError, RuntimeError, TypeError, ValueError)):
            dlbridge.from_dlpack(tensor)


def test_torch_subclasses_keep_their_say():  # C4
    torch = peer("torch")

    class Own(torch.Tensor):
        pass

    assert dlbridge.from_dlpack(torch.arange(3.0).as_subclass(Own)).tolist() == [0, 1, 2]
    hidden = torch.zeros(2, dtype=torch.complex64).as_subclass(Own).conj()
    with pytest.raises(BufferError, match="conjugated"):
        dlbridge.from_dlpack(hidden)


def test_masked_arrays(way):  # C4
    masked = np.ma.masked_array(np.array([1, 2], "complex64"), [True, False])
    with pytest.raises(BufferError, match=r"filled\(\)"):
        way(masked)
    with pytest.raises(BufferError, match=r"filled\(\)"):
        way(np.ma.masked_array(np.array([1, 2], "complex64")))  # its mask may come later
    assert dlbridge.from_dlpack(masked.filled(0)).tolist() == [0, 2]


def test_numpy_subclasses_without_a_secret():  # C4
    assert dlbridge.from_dlpack(np.matrix([[1, 2]])).tolist() == [[1, 2]]
    record = np.zeros(2, [("a", "f4"), ("b", "f4")])
    assert dlbridge.from_dlpack(record["b"]).tolist() == [0, 0]


def test_readonly_numpy(way):  # C27
    array = np.array([1, 2], "complex64")
    array.setflags(write=False)
    moved = way(array)
    if moved is not None:  # copy_ gives nothing back
        assert moved.readonly == (moved.data_ptr() == array.ctypes.data)


def test_jax_arrays_are_immutable():  # C27, C28
    jnp = peer("jax.numpy")
    array = jnp.arange(4.0)
    for tensor in (
        dlbridge.from_dlpack(array),
        dlbridge.from_dlpack(array, copy=False),
        dlbridge.asarray(array),
        dlbridge.to_device(array, "cpu"),
        dlbridge.from_dlpack(array)[1:],
        dlbridge.from_dlpack(array).view("int32"),
        dlbridge.from_dlpack(jnp.arange(4, dtype="bfloat16")),
        dlbridge.from_dlpack(jnp.arange(4).reshape(2, 2).T),
    ):
        assert tensor.readonly
        with pytest.raises(BufferError):
            tensor.__dlpack__()  # a legacy capsule cannot say so
        with pytest.raises(BufferError, match="read-only"):
            dlbridge.copy_(tensor, tensor)
    copied = dlbridge.from_dlpack(array, copy=True)
    copied.numpy()[0] = 77
    assert array[0] == 0
    assert not copied.readonly


def test_a_deleted_jax_array():  # C4
    jnp = peer("jax.numpy")
    array = jnp.arange(4.0)
    array.delete()
    with pytest.raises((BufferError, RuntimeError, ValueError, TypeError)):  # jax's own
        dlbridge.from_dlpack(array)


def test_arrow_nulls():  # C4
    arrow = peer("pyarrow")
    with pytest.raises((BufferError, TypeError, ValueError, arrow.lib.ArrowException)):
        dlbridge.from_dlpack(arrow.array([1.0, None]))
    with pytest.raises((BufferError, TypeError, ValueError, arrow.lib.ArrowException)):
        dlbridge.asarray(arrow.array(["a", "b"]))
    assert dlbridge.from_dlpack(arrow.array([1, 2])).readonly
