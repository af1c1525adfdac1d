"""What each peer asks ``__dlpack__`` for today: we refuse some questions by who asks them.

A new version of a peer that asks otherwise fails here; then look at
``dlbridge/core/interfaces/dlpack.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
from expected import backend_or_skip
from peers import peer

import dlbridge

DEVICES = ["cpu", "ext_dev:1", "opencl:0", "vulkan:0"]


class Asked:
    """Our tensor, without its exchange table: its consumers' questions are kept."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.questions = []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **question):
        self.questions.append(question)
        return self.tensor.__dlpack__(**question)


class AskedOld(Asked):
    """A producer of the time before versions."""

    def __dlpack__(self, *, stream=None):
        self.questions.append(stream)
        return self.tensor.__dlpack__(stream=stream)


@pytest.fixture(params=DEVICES)
def tensor(request):
    backend_or_skip(request.param.partition(":")[0])
    return dlbridge.to_device(np.arange(6, dtype="float32"), request.param, copy=True)


def on_cpu(tensor):
    return tensor.device.is_host


def answer(asked, consume):
    """What the consumer makes of the tensor, or its refusal of the device."""
    try:
        return consume(asked)
    except Exception as error:
        refusal = error
    assert not on_cpu(asked.tensor), refusal
    assert "as MPI asks" not in str(refusal)
    return None


def test_mpi4py(tensor):  # S16
    """It looks for a buffer, then asks for version 1.0 and no copy, and never names a device."""
    mpi = peer("mpi4py.MPI")
    asked = Asked(tensor)
    if on_cpu(tensor):
        assert mpi.buffer.frombuffer(asked).address == tensor.data_ptr()
        assert asked.questions == [{"max_version": (1, 0), "copy": False}]
    else:
        with pytest.raises(BufferError, match=r"as MPI asks.*to_device\(t, 'cpu'\)"):
            mpi.buffer.frombuffer(asked)
        assert asked.questions == [{"stream": -1, "max_version": (1, 0), "copy": False}]


def test_mpi4py_of_a_producer_without_versions(tensor):  # S16
    """Its question before version 4.1, and to old producers today."""
    mpi = peer("mpi4py.MPI")
    asked = AskedOld(tensor)
    if on_cpu(tensor):
        assert mpi.buffer.frombuffer(asked).address == tensor.data_ptr()
    else:
        with pytest.raises(BufferError, match="as MPI asks"):
            mpi.buffer.frombuffer(asked)
    assert asked.questions == [None if on_cpu(tensor) else -1]


def test_mpi4py_prefers_the_buffer_protocol_to_dlpack():
    mpi = peer("mpi4py.MPI")

    class Both(np.ndarray):
        def __dlpack__(self, **_question):
            raise AssertionError("asked")

    assert mpi.buffer.frombuffer(np.zeros(3).view(Both)).nbytes == 24


def test_mpi4py_prefers_dlpack_to_the_cuda_array_interface():
    mpi = peer("mpi4py.MPI")

    class Both(Asked):
        @property
        def __cuda_array_interface__(self):
            raise AssertionError("asked")

    asked = Both(dlbridge.zeros(3))
    assert mpi.buffer.frombuffer(asked).nbytes == 12
    assert len(asked.questions) == 1


@pytest.mark.parametrize("copy", [None, False])
def test_numpy(tensor, copy):
    """It names a device, and looks at that of the capsule."""
    asked = Asked(tensor)
    made = answer(asked, lambda x: np.from_dlpack(x, copy=copy))
    assert asked.questions == [{"dl_device": None, "copy": copy, "max_version": (1, 0)}]
    assert on_cpu(tensor) == (made is not None)
    on_host = np.from_dlpack(Asked(tensor), device="cpu")
    assert on_host.tolist() == [0, 1, 2, 3, 4, 5]


def test_torch(tensor):
    """It gives no stream, except for CUDA."""
    torch = peer("torch")
    for keywords in ({}, {"copy": False}):
        asked = Asked(tensor)
        made = answer(asked, lambda x, keywords=keywords: torch.from_dlpack(x, **keywords))
        assert asked.questions == [{"max_version": (1, 0), **keywords}]
        assert on_cpu(tensor) == (made is not None)


@pytest.mark.parametrize("kind", ["float4_e2m1fn_x2", "complex32"])
def test_torch_takes_what_mpi_cannot(kind):
    """With ``copy=False`` it asks as mpi4py does."""
    torch = peer("torch")
    for keywords in ({}, {"copy": False}):
        made = torch.from_dlpack(dlbridge.zeros(6, kind), **keywords)
        assert dlbridge.from_dlpack(made).dtype == dlbridge.dtype(kind)


@pytest.mark.parametrize("kind", ["int4", "float32x2"])
def test_torch_says_itself_what_it_does_not_take(kind):
    with pytest.raises((BufferError, RuntimeError)) as caught:
        peer("torch").from_dlpack(dlbridge.zeros(6, kind), copy=False)
    assert "MPI" not in str(caught.value)


def test_jax(tensor):
    """It asks the CPU's tensors only."""
    jax = peer("jax.dlpack")
    is_new = peer("jax").__version_info__ >= (0, 12)
    version = {"max_version": (1, 3)} if is_new else {}
    for copy in (None, False):
        asked = Asked(tensor)
        made = answer(asked, lambda x, copy=copy: jax.from_dlpack(x, copy=copy))
        assert asked.questions == ([{"stream": None, **version}] if on_cpu(tensor) else [])
        assert on_cpu(tensor) == (made is not None)


def test_tvm_ffi(tensor):
    """It takes every device; it asks for no version."""
    asked = Asked(tensor)
    made = peer("tvm_ffi").from_dlpack(asked)
    assert asked.questions == [{}]
    assert tuple(made.shape) == (6,)
    assert dlbridge.from_dlpack(made).device.dlpack == tensor.device.dlpack


@pytest.mark.parametrize("copy", [None, False])
def test_dlbridge(tensor, copy):
    """It takes every device, and asks for its own version."""
    asked = Asked(tensor)
    made = dlbridge.from_dlpack(asked, copy=copy)
    wanted = {} if copy is None else {"copy": copy}
    assert asked.questions == [{"max_version": (1, 3), **wanted}]
    assert made.tolist() == [0, 1, 2, 3, 4, 5]


def test_dlbridge_without_order(tensor):
    """``stream=-1`` with ``copy=False`` is what mpi4py says, but for the version."""
    asked = Asked(tensor)
    if on_cpu(tensor):
        made = dlbridge.from_dlpack(asked, copy=False)
    else:
        made = dlbridge.from_dlpack(asked, copy=False, stream=-1)
        assert asked.questions == [{"max_version": (1, 3), "copy": False, "stream": -1}]
    assert made.tolist() == [0, 1, 2, 3, 4, 5]


def test_cuda_core(tensor):
    """It refuses other devices than CUDA's without a question."""
    view = peer("cuda.core.utils").StridedMemoryView
    asked = Asked(tensor)
    answer(asked, lambda x: view.from_dlpack(x, stream_ptr=-1))
    assert asked.questions == ([{"stream": None, "max_version": (1, 3)}] if on_cpu(tensor) else [])


@pytest.mark.parametrize("copy", [None, False])
def test_packed_elements_go_on_to_others(copy):
    """Only a consumer of version 1.0, which knows no packed elements, is refused without a copy."""
    packed = dlbridge.zeros(16, "int4")
    asked = Asked(packed)
    assert dlbridge.from_dlpack(asked, copy=copy).tobytes() == bytes(8)
    assert tuple(peer("tvm_ffi").from_dlpack(asked).shape) == (16,)
    assert packed.__dlpack__(max_version=(1, 0)) is not None
    assert packed.__dlpack__(max_version=(1, 1), copy=copy) is not None
    with pytest.raises(BufferError, match=r"read past the end.*comm.send\(t\)"):
        packed.__dlpack__(max_version=(1, 0), copy=False)
