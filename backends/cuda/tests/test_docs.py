"""docs/cuda.md: its examples run as they stand, and its tables say what happens."""

import re

import numpy as np
import pytest

from backends.cuda.tests.cuda_support import HERE
from tests.support.pages import run_examples, with_reference

PAGE = HERE.parents[2] / "docs" / "cuda.md"


@pytest.fixture
def page():
    return with_reference(PAGE)


def table_after(page, heading):
    """The rows of the first table below *heading*, as lists of cells."""
    below = page.split(heading)[1]
    lines = re.search(r"(^\|.*\n)+", below, re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_examples_run(cuda):
    names = run_examples(PAGE, 1)
    assert names["y"].tolist() == list(range(1024))
    assert names["p"].shape == (1024,)
    assert names["m"].tolist() == list(range(0, 1024, 2))


def test_the_table_of_streams(cuda, cuda_managed, page):
    """Its rows for each integer and for None."""
    said = {row[0].strip("`"): row[1] for row in table_after(page, "## Streams")}
    for backend in (cuda, cuda_managed):
        for value in (None, 1, 2, -1):
            assert said[str(value)]
            backend.normalize_stream(0, value)
        for value, row in ((0, "0"), (-2, "below -1")):
            assert said[row].startswith("ValueError")
            with pytest.raises(ValueError, match="stream"):
                backend.normalize_stream(0, value)


def test_the_numbers_are_the_programs(page):
    from dlbridge_cuda.driver import MINIMUM_VERSION

    from dlbridge.kit import staging

    assert f"CUDA {MINIMUM_VERSION // 1000}.{MINIMUM_VERSION % 1000 // 10} or later" in page
    assert f"up to {staging.DIRECT >> 20} MiB" in page
    assert f"{staging.PLAN.threads} threads" in page
    assert f"chunks of {staging.PLAN.chunk >> 20} MiB" in page


def test_the_environment_variables_are_the_programs(page):
    from dlbridge.interop.array_interfaces import EXPORT_STREAM, SYNC

    named = {row[0].strip("`") for row in table_after(page, "## The CUDA Array Interface")}
    assert named == {SYNC, EXPORT_STREAM}


def test_the_kinds_of_memory(cuda, page):
    import dlbridge

    for row in table_after(page, "## Three kinds of memory"):
        name = row[0].split(",")[0].strip("`")
        tensor = dlbridge.to_device(np.ones(4), name)
        codes = {"kDLCUDA": 2, "kDLCUDAHost": 3, "kDLCUDAManaged": 13}
        assert tensor.__dlpack_device__()[0] == codes[row[2]]
        assert tensor.device.is_host == row[3].startswith("in place")
