"""How the kit tells a leak from memory that stops growing."""

from __future__ import annotations

from collections import deque

import pytest

from dlbridge.testing import BackendTests


class Kit(BackendTests):
    name = "cpu"


def grows(turn, turns=400):
    Kit().grows(None, turn, turns)


@pytest.mark.parametrize("turns", [50, 400])
def test_a_cache_of_limited_size_passes(turns):
    kept = deque(maxlen=turns * 2)
    grows(lambda: kept.append(bytearray(2048)), turns)
    assert len(kept) == kept.maxlen


@pytest.mark.parametrize(("nbytes", "turns"), [(1024, 400), (16384, 50), (16384, 400)])
def test_a_leak_fails(nbytes, turns):
    kept = []
    with pytest.raises(pytest.fail.Exception, match="bytes stay after each turn"):
        grows(lambda: kept.append(bytearray(nbytes)), turns)
