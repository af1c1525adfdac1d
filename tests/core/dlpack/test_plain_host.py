"""Which structs numpy itself may read: those of its own types, in host memory."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.abi import is_plain_host
from dlbridge.extending import NUMPY_OWN


@pytest.mark.parametrize("name", sorted(NUMPY_OWN))
def test_each_type_of_numpy_is_plain(name):
    capsule = np.zeros(3, name).__dlpack__(max_version=(1, 3))
    assert is_plain_host(capsule)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "int4", "float32x2", "complex32"])
def test_no_other_type_is_plain(name):
    capsule = bridge.empty(4, name).__dlpack__(max_version=(1, 3))
    assert not is_plain_host(capsule)
