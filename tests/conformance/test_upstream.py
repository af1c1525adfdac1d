"""Each page of docs/upstream: its script still shows the fault, in each set of versions that it names."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from dlbridge.conformance.runner import version_of
from tests.support.peers import peer
from tests.support.scripts import finished

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "upstream"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")


def test_there_are_ten():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert len(PAGES) == 10
    assert [page.name for page in PAGES if f"({page.name})" not in index] == []


@pytest.mark.exhaustive  # the scripts have nothing of dlbridge: each night is often enough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_script_shows_the_fault(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    of_page = [
        each.split(", ")
        for each in re.findall(r"^(?:Also )?(\S+ \d.*); CPython", text, re.MULTILINE)
    ]
    for library, _ in map(str.split, of_page[0]):
        peer(library)
    here = [f"{name} {version_of(name)}" for name, _ in map(str.split, of_page[0])]
    if here not in of_page:
        pytest.skip(f"the page is of {of_page}, and this is {here}")
    script = re.search(r"```python no-run.*\n((?:.*\n)*?)```", text)[1]
    assert "dlbridge" not in script
    done = finished(script, cwd=tmp_path)
    if ends := re.search(r"^The process ends: (SIG\w+)\.$", text, re.MULTILINE):
        assert done.returncode == -getattr(signal, ends[1]), done.stderr
        return
    printed = re.search(r"```text\n((?:.*\n)*?)```", text)[1]
    words = [line.rstrip() for line in done.stdout.splitlines()]
    assert (done.returncode, words) == (0, [line.rstrip() for line in printed.splitlines()]), (
        done.stderr
    )
