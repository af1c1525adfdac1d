"""cuda.core's own objects, in and out."""

import sys

import pytest

import dlbridge
from backends.cuda.tests.cuda_support import memory, read
from dlbridge.errors import ExchangeError
from dlbridge.protocol import NativeArray

core = pytest.importorskip("cuda.core")


@pytest.fixture
def device():
    device = core.Device(0)
    device.set_current()
    return device


def described(data, **changes):
    fields = {"device_id": 0, "data": data, "offset": 0, "dtype": "float32", "shape": (2, 3),
              "strides": None, "readonly": False, "owner": object()}  # fmt: skip
    return NativeArray(**{**fields, **changes})


def test_a_buffer_of_theirs(cuda, device):
    buffer = device.allocate(64, stream=device.default_stream)
    array = cuda.from_native(buffer)
    assert (array.device_id, array.data, array.dtype, array.shape) == (
        0,
        int(buffer.handle),
        "uint8",
        (64,),
    )
    assert array.owner is buffer
    assert dlbridge.asarray(buffer).data_ptr() == int(buffer.handle)
    buffer.close()


@pytest.mark.parametrize("dtype", ["float32x4", "int4", "nonsense"])
def test_types_that_they_have_not(cuda, dtype):
    with pytest.raises(ExchangeError, match=f"no dtype {dtype}; view the tensor as uint8"):
        cuda.to_native(described(0x1000, dtype=dtype))


@pytest.mark.parametrize("bad", ["a view without dtype", "pinned memory"])
def test_what_is_not_described(cuda, device, bad):
    from cuda.core.utils import StridedMemoryView

    if bad == "pinned memory":
        with memory(dlbridge.backend("cuda_host"), 64) as data:
            buffer = core.Buffer.from_handle(data, 64, owner=object())
            array = cuda.from_native(buffer)
            assert array is None or array.data == data
    else:
        with memory(cuda, 64) as data:
            buffer = core.Buffer.from_handle(data, 64, owner=object())
            with pytest.raises(ExchangeError, match="no dtype"):
                cuda.from_native(StridedMemoryView.from_buffer(buffer, (64,), itemsize=1))


def test_without_cuda_core(cuda, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with memory(cuda, 64) as data:
        with pytest.raises(ExchangeError, match=r"pip install 'dlbridge-cuda\[cuda-core\]'"):
            cuda.to_native(described(data))
        assert read(cuda, data, 1)
