"""The libraries among the test packages, in and out; ``tests/peers`` has the larger ones."""

from __future__ import annotations

import pytest

from tests.support.expected_parts import expected
from tests.support.library_cells import CELLS, PEERS, Unavailable, outcome, record
from tests.support.peers import peer

LIBRARIES = ["numpy", "torch", "jax", "tvm_ffi", "pyarrow", "PIL", "cuda.core", "pyopencl"]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_library(library, cell):
    peer(PEERS[library].module or library)
    try:
        result = outcome(library, cell)
    except Unavailable as error:
        if expected(cell.lower()):
            raise
        pytest.skip(str(error))
    record(library, cell, result)
