"""Importers of single libraries: the same Tensor as by the protocol, without its cost."""

from __future__ import annotations

import gc
import signal
import weakref

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.api import like
from dlbridge.core.interfaces import dlpack as producers
from dlbridge.core.libraries.lookup import find_description
from dlbridge.extending import import_from_host, import_producer
from dlbridge.interop import jax as jax_library
from tests.support.interrupted import handled
from tests.support.peers import peer
from tests.support.raw_producer import Producer

RELABELLED = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]


def torch_of(kind):
    torch = peer("torch")
    return torch.arange(6.0).reshape(2, 3).to(getattr(torch, kind))


def jax_of(kind):
    jax = peer("jax")
    return jax.numpy.arange(6.0).reshape(2, 3).astype(kind)


def tvm_ffi_of(kind):
    return peer("tvm_ffi").from_dlpack(torch_of(kind))


PRODUCERS = {"torch": torch_of, "jax": jax_of, "tvm_ffi": tvm_ffi_of}


def description(t):
    return t.dtype, t.shape, t.strides, t.device, t.data_ptr(), t.readonly, t.is_copied, t.origin


@pytest.mark.parametrize("library", PRODUCERS)
@pytest.mark.parametrize("kind", ["float32", "int32", "uint8", *RELABELLED])
def test_the_same_tensor_as_by_the_protocol(kind, library):
    x = PRODUCERS[library](kind)
    fast, slow = bridge.from_dlpack(x), import_producer(x, None, None, None)
    assert description(fast) == description(slow)
    assert fast.tobytes() == slow.tobytes()


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_view_is_of_the_same_origin(kind):
    t = bridge.from_dlpack(torch_of(kind))
    views = [t, t[1:], t.reshape(6), t[1:].reshape(3), t.view(f"int{t.dtype.bits}")]
    assert {view.origin for view in views} == {"torch.Tensor"}


def test_strides_and_empty_tensors_of_types_that_numpy_lacks():
    torch = peer("torch")
    x = torch.arange(24.0).reshape(2, 3, 4).to(torch.bfloat16)
    for view in (x.permute(2, 0, 1), x[:, ::2], x[:0], x[0, 0, 0], x.expand(5, 2, 3, 4)):
        t = bridge.from_dlpack(view)
        assert (t.shape, t.dtype.name) == (tuple(view.shape), "bfloat16")
        assert t.strides == view.stride() or not t.size
        assert t.tobytes() == view.contiguous().view(torch.uint16).numpy().tobytes()


def test_a_tensor_of_torch_is_freed_with_its_last_user():
    x = torch_of("bfloat16")
    t = bridge.from_dlpack(x)
    gone = weakref.ref(x)
    del x
    del t
    gc.collect()
    assert gone() is None


def test_a_deleted_jax_array_is_refused():
    for kind in ("float32", "bfloat16"):
        x = jax_of(kind)
        x.delete()
        with pytest.raises(BufferError, match="deleted"):
            bridge.from_dlpack(x)


def test_jax_arrays_stay_read_only_and_survive_delete():
    x = jax_of("float32")
    t = bridge.from_dlpack(x)
    x.delete()
    assert t.readonly
    assert t.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_what_numpy_refuses_keeps_its_type(monkeypatch):
    """A relabelled struct that numpy does not take is given its own type again."""

    def refuse(x, take=np.from_dlpack):
        if type(x).__module__.startswith("dlbridge.core.dlpack"):  # a question, not this array
            return take(x)
        raise ValueError("a newer numpy may refuse more")

    monkeypatch.setattr(np, "from_dlpack", refuse)
    for x in (jax_of("bfloat16"), tvm_ffi_of("float8_e5m2")):
        t = import_from_host(x)
        assert t.dtype.name == str(x.dtype)
        assert t.tobytes() == bridge.from_dlpack(torch_of(t.dtype.name)).tobytes()


class Refused(TypeError, ValueError, RuntimeError, BufferError):
    """What libraries raise when they refuse; here the handler of a signal raises it."""


def signalled(*_arguments, **_keywords):
    signal.raise_signal(signal.SIGTERM)


def table_of_torch(monkeypatch):
    monkeypatch.setattr(producers, "adopt", signalled)
    return lambda: import_producer(torch_of("bfloat16"), None, None, None)


def reading_by_numpy(monkeypatch):
    monkeypatch.setattr(np, "from_dlpack", signalled)
    return lambda: import_producer(Producer((3,)), None, None, None)


def importer_of_torch(_monkeypatch):
    torch = peer("torch")
    importer = find_description("torch").importer(type("", (torch.Tensor,), {"numpy": signalled}))
    return lambda: importer(torch.zeros(3))


def importer_of_jax(monkeypatch):
    array = jax_of("float32")
    monkeypatch.setattr(jax_library, "memoryview", signalled, raising=False)
    return lambda: find_description("jax").importer(type(array))(array)


def importer_of_tvm_ffi(monkeypatch):
    tensor = peer("tvm_ffi").from_dlpack(np.zeros(3))
    monkeypatch.setattr(np, "from_dlpack", signalled)
    return lambda: find_description("tvm_ffi").importer(type(tensor))(tensor)


def conversion_to_torch(monkeypatch):
    monkeypatch.setattr(peer("torch"), "from_numpy", signalled)
    return lambda: find_description("torch").of_numpy()(np.zeros(3))


def array_of_a_library(monkeypatch):
    library, _ = like.find_library("tvm_ffi")
    monkeypatch.setattr(like, "find_library", lambda _name: (library, signalled))
    return lambda: like.as_library(bridge.zeros(3), "tvm_ffi", None)


CALLS = [table_of_torch, reading_by_numpy, importer_of_torch, importer_of_jax]
CALLS += [importer_of_tvm_ffi, conversion_to_torch, array_of_a_library]


@pytest.mark.parametrize("make", CALLS)
def test_a_signal_handlers_exception_is_no_refusal(make, monkeypatch):
    """It was taken for one if it had the class that the library raises."""
    call = make(monkeypatch)
    with handled(Refused), pytest.raises(Refused):
        call()


@pytest.mark.parametrize(("moment", "device"), [(1, (1, 0)), (2, (1, 0)), (1, (2, 0))])
def test_a_signal_handlers_exception_in_a_producer_is_no_refusal(moment, device):
    """The producer was asked again, and no exception arrived."""

    class Interrupted:
        """In the call *moment* of its method."""

        calls = 0

        def __dlpack_device__(self):
            return device

        def __dlpack__(self, **keywords):
            self.calls += 1
            if self.calls == moment:
                signalled()
            if self.calls < moment:
                raise TypeError("an old one, without these keywords")
            return np.arange(3.0).__dlpack__()

    x = Interrupted()
    with handled(Refused), pytest.raises(Refused) as caught:
        import_producer(x, bridge.device("cpu"), None, None)
    assert x.calls == moment
    assert caught.value.__cause__ is None
