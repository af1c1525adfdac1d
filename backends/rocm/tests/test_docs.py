"""docs/rocm.md: its Python runs as it stands, and what it says of streams and errors is so."""

import re

import pytest

from backends.rocm.tests.rocm_support import HERE
from tests.support.pages import run_examples, with_reference

PAGE = HERE.parents[2] / "docs" / "rocm.md"


@pytest.fixture
def page():
    return with_reference(PAGE)


def test_the_examples_run(rocm, capsys):
    names = run_examples(PAGE, 1)
    assert names["y"].tolist() == list(range(0, 1024, 2))
    assert names["p"].shape == (1024,)
    assert "8192 bytes" in capsys.readouterr().out.replace(",", "")


def test_the_search_order_is_the_librarys(page):
    from dlbridge_rocm.library import NAMES

    listed = re.search(r"^3\. (.*), as the loader", page, re.MULTILINE)[1]
    short = [name.removeprefix("libamdhip64") for name in NAMES]
    assert [name.strip("`").removeprefix("libamdhip64") for name in listed.split(", ")] == short


def test_the_least_version_is_the_drivers(page):
    from dlbridge_rocm.library import MINIMUM_VERSION

    assert f"version {MINIMUM_VERSION[0]}.{MINIMUM_VERSION[1]} or later" in page


@pytest.mark.parametrize("value", ["None", "0", "-1", "1", "2", "True", "False"])
def test_the_table_of_streams(rocm, page, value):
    row = next(line for line in page.splitlines() if re.match(rf"\|.*`{value}`.*\|", line))
    refused = re.search(r"(\w+Error)", row)
    if refused:
        with pytest.raises({"ValueError": ValueError, "TypeError": TypeError}[refused[1]]):
            rocm.normalize_stream(0, eval(value))
    else:
        rocm.normalize_stream(0, eval(value))
