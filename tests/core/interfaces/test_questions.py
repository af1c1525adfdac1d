"""What each peer asks ``__dlpack__`` for today: we refuse some questions by who asks them.

A new version of a peer that asks otherwise fails here; then look at
``dlbridge/core/interfaces/dlpack.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
from tests.support.peers import peer


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


@pytest.fixture
def tensor(device):
    return dlbridge.to_device(np.arange(6, dtype="float32"), device, copy=True)


def on_cpu(tensor):
    return tensor.device.is_host


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


OLD = {"max_version": (1, 0)}
NEW = {"max_version": (1, 3)}
# Who asks -> the call, what it asks for the CPU's tensors, and what for a device's (None: nothing).
QUESTIONS = {
    # It names a device, and looks at that of the capsule.
    "numpy": (np.from_dlpack, *[{"dl_device": None, "copy": None, **OLD}] * 2),
    "numpy, copy=False": (
        lambda x: np.from_dlpack(x, copy=False),
        *[{"dl_device": None, "copy": False, **OLD}] * 2,
    ),
    # It gives no stream, except for CUDA.
    "torch": (lambda x: peer("torch").from_dlpack(x), OLD, OLD),
    "torch, copy=False": (
        lambda x: peer("torch").from_dlpack(x, copy=False),
        *[{**OLD, "copy": False}] * 2,
    ),
    "jax": (lambda x: peer("jax.dlpack").from_dlpack(x), {"stream": None}, None),
    "jax, copy=False": (
        lambda x: peer("jax.dlpack").from_dlpack(x, copy=False),
        {"stream": None},
        None,
    ),
    "cuda.core": (
        lambda x: peer("cuda.core.utils").StridedMemoryView.from_dlpack(x, stream_ptr=-1),
        {"stream": None, **NEW},
        None,
    ),
    "tvm_ffi": (lambda x: peer("tvm_ffi").from_dlpack(x), {}, {}),
    "dlbridge": (dlbridge.from_dlpack, NEW, NEW),
    "dlbridge, copy=False": (
        lambda x: dlbridge.from_dlpack(x, copy=False),
        *[{**NEW, "copy": False}] * 2,
    ),
    # ``stream=-1`` with ``copy=False`` is what mpi4py says, but for the version.
    "dlbridge, without order": (
        lambda x: dlbridge.from_dlpack(x, copy=False, stream=-1),
        {**NEW, "copy": False},
        {**NEW, "copy": False, "stream": -1},
    ),
}
TAKE_EVERY_DEVICE = {"tvm_ffi", "dlbridge", "dlbridge, copy=False", "dlbridge, without order"}


@pytest.mark.parametrize("who", QUESTIONS)
def test_what_is_asked(tensor, who):
    """Who does not take the device says so by itself, and not as if it were MPI."""
    consume, of_cpu, of_device = QUESTIONS[who]
    asked = Asked(tensor)
    question = of_cpu if on_cpu(tensor) else of_device
    if on_cpu(tensor) or who in TAKE_EVERY_DEVICE:
        made = dlbridge.from_dlpack(consume(asked))
        assert (made.shape, made.device.dlpack) == ((6,), tensor.device.dlpack)
    else:
        with pytest.raises(Exception, match=r"^(?!.*as MPI asks)"):
            consume(asked)
    if who.startswith("jax") and on_cpu(tensor) and peer("jax").__version_info__ >= (0, 12):
        question = {**question, **NEW}
    assert asked.questions == ([] if question is None else [question])


def test_numpy_asks_for_a_copy_on_the_cpu(tensor):
    assert np.from_dlpack(Asked(tensor), device="cpu").tolist() == [0, 1, 2, 3, 4, 5]


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
