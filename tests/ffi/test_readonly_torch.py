"""torch.utils.dlpack.ReadOnlyTensorWrapper (torch 2.15) as an argument and as a result."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dlbridge import ffi
from tests.support.peers import peer, readonly_torch

torch = peer("torch")
ReadOnlyTensorWrapper = readonly_torch()


@pytest.fixture
def x():
    return torch.arange(4.0)


def seen(t):
    return t.readonly, t.data_ptr(), t.tolist()


CALLS = {
    "alone": lambda f, x: f(x),
    "in a list": lambda f, x: f([x]),
    "bound": lambda f, x: f.bind(x)(),
    "readonly": lambda f, x: f(ffi.readonly(x)),
    "reading": lambda f, x: f.reading(0)(x),
    "after a plain tensor": lambda f, x: (f(torch.ones(1)), f(x))[1],
    "among many": lambda f, x: f(x, *range(10)),
    "converted": lambda f, x: f(ffi.readonly(ffi.convert(x))),
    "converted, in a list": lambda f, x: f(ffi.readonly(ffi.convert([x]))),
}


@pytest.mark.parametrize("way", CALLS)
def test_it_is_an_argument_without_another_word(way, x):
    got = []
    f = ffi.convert_func(
        lambda first, *_: got.append(seen(first[0] if isinstance(first, ffi.Array) else first))
    )
    for _ in range(3):
        CALLS[way](f, ReadOnlyTensorWrapper(x))
        assert got.pop() == (True, x.data_ptr(), [0, 1, 2, 3])


def test_lazy_signs_are_refused():
    f = ffi.convert_func(lambda _: None)
    conjugated = torch.ones(2, dtype=torch.complex64).conj()
    for x in (conjugated, conjugated.imag):
        with pytest.raises(BufferError, match="resolve_conj"):
            f(ReadOnlyTensorWrapper(x))


def test_nothing_is_kept():
    f = ffi.convert_func(lambda _: None)
    memory = np.arange(4.0)
    before = sys.getrefcount(memory)
    for _ in range(20):
        f(ReadOnlyTensorWrapper(torch.from_numpy(memory)))
    assert sys.getrefcount(memory) == before


def test_results_are_it(x):
    f = ffi.convert_func(ffi.readonly).like(ReadOnlyTensorWrapper)
    made = f(ReadOnlyTensorWrapper(x))
    assert type(made) is ReadOnlyTensorWrapper
    assert seen(ffi.convert(made)) == (True, x.data_ptr(), [0, 1, 2, 3])
