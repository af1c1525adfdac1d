"""Faults of other libraries that docs/compatibility.md tells of, shown without dlbridge.

A test here fails when a fault has gone: then its section goes, too.
"""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.peers import peer


def test_mpi4py_takes_memory_that_the_host_cannot_read():
    mpi = peer("mpi4py.MPI")

    class OnOpenCL:
        def __dlpack_device__(self):
            return (4, 0)

        def __dlpack__(self, *, max_version, **_keywords):
            return np.ones(4, "f4").__dlpack__(max_version=max_version)  # for a handle

    assert mpi.memory(OnOpenCL()).nbytes == 16


def test_torch_moves_a_tensor_under_its_views():
    torch = peer("torch")
    x = torch.arange(4.0)
    view = np.from_dlpack(x)
    x.share_memory_()
    assert x.data_ptr() != view.ctypes.data
    # The way out: before anybody has a view.
    shared = torch.arange(4.0).share_memory_()
    assert bridge.from_dlpack(shared).tolist() == [0, 1, 2, 3]
    assert bridge.from_dlpack(shared).data_ptr() == shared.data_ptr()


def test_torch_lends_memory_that_functionalize_frees():
    torch = peer("torch")
    seen = []

    def transformed(x):
        y = x + 1
        inner = torch._from_functional_tensor(y)
        seen.append((y.data_ptr(), inner.data_ptr(), y.numpy().ctypes.data))
        return y

    result = torch.func.functionalize(transformed)(torch.arange(4.0))
    ((own, real, lent),) = seen
    assert own == 0
    assert lent != real
    # The way out: after the transformed function.
    assert bridge.from_dlpack(result).tolist() == [1, 2, 3, 4]


def test_jax_does_not_export_int4():
    jnp = peer("jax.numpy")
    x = jnp.arange(3, dtype="int4")
    with pytest.raises(Exception, match="S4 has no DLPack equivalent"):
        x.__dlpack__()
    assert bridge.asarray(np.asarray(x)).dtype is bridge.dtype("int4")
    assert bridge.from_dlpack(x.astype("int8")).tolist() == [0, 1, 2]
