"""bench astype: the peers that it measures give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.bench_astype import PAIRS, contenders
from tests.support.peers import peer


@pytest.fixture(autouse=True)
def threads_of_torch():
    """The benchmark leaves torch with one."""
    torch = peer("torch")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if not pair[2]], ids=lambda pair: pair[:2])
def test_all_contenders_give_the_same_bytes(pair):
    torch = peer("torch")
    numbers = np.random.default_rng(0).standard_normal((64, 96), dtype="float32") * 3
    for given in (numbers.reshape(-1), numbers.T) if pair == PAIRS[0] else (numbers.reshape(-1),):
        found = {name: convert() for name, convert in contenders(given, *pair).items()}
        assert len(found) == (2 if "float4_e2m1fn" in pair else 3)
        ours = found.pop("dlbridge").tobytes()
        for name, result in found.items():
            is_torch = isinstance(result, torch.Tensor)
            array = result.view(torch.uint8).numpy() if is_torch else result
            assert array.flags.c_contiguous
            assert array.tobytes() == ours, name
