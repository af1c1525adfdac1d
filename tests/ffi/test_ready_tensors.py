"""Tensors are lent to calls in objects that lie ready: used again, or left to whoever keeps them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from dlbridge import ExchangeError, ffi
from dlbridge.abi import ffi as cffi
from dlbridge.conformance.cases import in_threads
from dlbridge.ffi._lib import C
from dlbridge.ffi.lending import _borrowed, ready_tensor
from tests.ffi.producers import c_function
from tests.support.peers import peer


def torch_vector(start):
    return peer("torch").arange(3.0) + start


def numpy_vector(start):
    return np.arange(3.0, dtype="float32") + start


MAKERS = [numpy_vector, torch_vector]


@pytest.fixture
def where():
    """The addresses of the objects that a C function got as its arguments."""

    @c_function
    def look(_self, arguments, count, _result):
        seen.append([arguments[i].v_int64 for i in range(count)])
        types.update(arguments[i].type_index for i in range(count))
        return 0

    seen, types = [], set()

    def call(*values):
        types.clear()
        look(*values)
        assert types == {C.kTVMFFITensor}
        return seen[-1]

    return call


@pytest.mark.parametrize("make", MAKERS)
def test_the_object_is_used_again_and_keeps_nothing(make, where):
    x = make(0)
    alive = weakref.ref(x)
    where(x)  # the first call with a class finds out whether its instances can be lent
    first = where(x, make(1), x)
    assert len(set(first)) == 3
    assert where(x, make(1), x) == first
    entries = len(_borrowed)
    where(make(2), x)
    assert len(_borrowed) == entries
    del x
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("make", MAKERS)
def test_what_the_callee_keeps_is_its_own(make, apply):
    kept, sources = [], []
    entries = len(_borrowed)
    for start in range(5):
        x, y = make(start), make(10 * start)
        sources += [weakref.ref(x), weakref.ref(y)]
        apply(lambda a, b, keep: kept.append(a) if keep else None, x, y, start % 2)
        del x, y
    gc.collect()
    assert [tensor.tolist() for tensor in kept] == [[1, 2, 3], [3, 4, 5]]
    assert [source() is not None for source in sources] == [i in (2, 6) for i in range(10)]
    kept.clear()
    gc.collect()
    assert all(source() is None for source in sources)
    assert len(_borrowed) <= entries + 3


@pytest.mark.parametrize("make", MAKERS)
def test_a_call_that_fails_keeps_nothing(make, apply):
    x = make(0)
    alive = weakref.ref(x)

    def fail(_tensor):
        raise KeyError("meant")

    for _ in range(3):
        with pytest.raises(KeyError, match="meant"):
            apply(fail, x)
    del x
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("make", MAKERS)
def test_calls_inside_a_call(make, apply):
    inner = []

    def outer(a, b):
        for start in (5, 6):
            apply(lambda c: inner.append(c.tolist()), make(start))
        return [a.tolist(), b.tolist()]

    for start in range(3):
        found = apply(outer, make(start), make(start + 1))
        assert [list(each) for each in found] == [
            [start, start + 1, start + 2],
            [start + 1, start + 2, start + 3],
        ]
    assert inner == [[5, 6, 7], [6, 7, 8]] * 3


def test_what_cannot_be_lent_is_refused_as_ever(echo, apply):
    torch = peer("torch")
    z = torch.tensor([1 + 2j])
    for lazy in (z.conj(), z.conj().imag):
        with pytest.raises(ExchangeError, match="lazily conjugated or negated"):
            echo(lazy)
    assert echo(z).numpy().tolist() == [1 + 2j]
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    with pytest.raises(ExchangeError, match=r"argument 0 \(numpy\.ndarray\) is read-only"):
        echo(fixed)
    assert echo(ffi.readonly(fixed)).readonly
    assert repr(ffi.readonly(3)) == "dlbridge.ffi.readonly(3)"
    assert list(apply(lambda x: x.tolist(), torch.ones(2, requires_grad=True))) == [1, 1]
    with pytest.raises(Exception, match="meta"):
        echo(torch.ones(2, device="meta"))


def test_threads(apply):
    torch, wrong, kept = peer("torch"), [], []

    def work(number):
        for turn in range(150):
            value = float(1000 * number + turn)
            x, y = np.full(4, value), torch.full((4,), value + 0.5, dtype=torch.float64)

            def look(a, b, value=value, turn=turn):
                if a.tolist() != [value] * 4 or b.tolist() != [value + 0.5] * 4:
                    wrong.append(value)
                if turn % 7 == 0:
                    kept.append((value, a))

            apply(look, x, y)

    in_threads(4, work)
    assert not wrong
    assert all(tensor.tolist() == [value] * 4 for value, tensor in kept)


def test_memory_lives_as_long_as_weak_references():
    """The deleter is called twice then: for the last strong reference, and for the last weak one."""
    ready = ready_tensor([None], 0)
    _argument, _filling, place, _octets, key, _handle = ready
    deleter = cffi.cast("TVMFFIObject *", key).deleter
    place[0] += 1 << 32  # somebody's weak reference
    del ready, _handle
    assert key in _borrowed
    deleter(cffi.cast("void *", key), C.kTVMFFIObjectDeleterFlagBitMaskWeak)
    assert key not in _borrowed


# --- What the callee sees of numpy's arrays -------------------------------------------

BASE = np.arange(24.0).reshape(2, 3, 4)
ARRAYS = {
    "compact": BASE,
    "transposed": BASE.T,
    "backwards": BASE[::-1, :, ::-2],
    "of one row": BASE[:1],
    "every other, of which one is left": BASE[:, :1, ::4],
    "empty": BASE[:0],
    "without dimensions": np.array(5.0),
    "float16": BASE.astype("float16"),
    "bool": BASE > 3,
    "complex": BASE + 1j,
    "after the beginning": BASE[1, 1:],
    "of no size": np.zeros((2, 0, 3), "int16"),
    "8 dimensions": np.ones((1, 2, 1, 2, 1, 2, 1, 2), "uint8"),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_callee_reads_any_layout(name, library, apply):
    x = ARRAYS[name]
    if library == "torch":
        x = peer("torch").from_numpy(x.copy())
    seen = []
    apply(lambda t: seen.append((str(t.dtype), np.from_dlpack(t).copy())), x)
    assert seen[0][0] == str(ARRAYS[name].dtype)
    np.testing.assert_array_equal(seen[0][1], ARRAYS[name])


def test_an_array_that_changes_between_calls(apply):
    x, seen = np.arange(6.0), []
    apply(lambda t: seen.append((t.shape, t.strides)), x)
    x.resize((2, 3), refcheck=False)
    apply(lambda t: seen.append((t.shape, t.strides)), x)
    assert seen == [((6,), (1,)), ((2, 3), (3, 1))]
    x.flags.writeable = False
    with pytest.raises(ExchangeError, match="read-only"):
        apply(seen.append, x)
