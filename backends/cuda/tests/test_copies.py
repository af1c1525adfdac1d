"""The call for each shape of a strided copy."""

import pytest
from suite.copies import calls_for


@pytest.mark.parametrize(
    ("shape", "strides", "source_strides", "run", "want"),
    [
        ((5,), (10,), (16,), 8, (0, 1, 0)),
        ((3, 5), (50, 10), (160, 16), 8, (0, 0, 1)),
        ((3, 5), (60, 10), (96, 16), 8, (0, 0, 1)),
        ((3, 5), (55, 10), (160, 16), 8, (0, 3, 0)),  # planes that are no whole rows
        ((3, 5), (50, 10), (83, 16), 8, (0, 3, 0)),
        ((5, 3), (10, 50), (16, 160), 8, (0, 3, 0)),  # the outer dimension is the finer one
        ((1, 5), (7, 10), (3, 16), 8, (0, 1, 0)),  # one plane has no stride
        ((5, 1), (10, 7), (16, 3), 8, (0, 1, 0)),
        ((1, 1), (7, 7), (3, 3), 8, (1, 0, 0)),
        ((1,), (1,), (1,), 8, (1, 0, 0)),
        ((4,), (8,), (3,), 8, (4, 0, 0)),  # runs of the source overlap
    ],
)  # fmt: skip
def test_the_call_for_each_shape(fake, cuda, shape, strides, source_strides, run, want):
    linear, flat, box = calls_for(fake, cuda, shape, strides, source_strides, run)
    assert (linear, flat, box - flat) == want  # the simulated driver makes 2-D copies by 3-D ones
