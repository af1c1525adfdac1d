"""The call for each shape of a strided copy."""

import pytest
from suite.copies import calls_for


@pytest.mark.parametrize(
    ("shape", "strides", "source_strides", "run", "want"),
    [
        ((5,), (10,), (16,), 8, (0, 1)),
        ((3, 5), (50, 10), (160, 16), 8, (0, 3)),
        ((5, 3), (10, 50), (16, 160), 8, (0, 3)),  # the outer dimension is the finer one
        ((1, 5), (7, 10), (3, 16), 8, (0, 1)),
        ((1,), (1,), (1,), 8, (1, 0)),
        ((4,), (8,), (3,), 8, (4, 0)),  # runs of the source overlap
        ((2, 4), (40, 8), (12, 3), 8, (8, 0)),
    ],
)
def test_the_call_for_each_shape(fake, rocm, shape, strides, source_strides, run, want):
    assert calls_for(fake, rocm, shape, strides, source_strides, run) == want
