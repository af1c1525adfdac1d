"""The site's checks find faults, outputs are compared and refreshed, and pages agree."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import dlbridge
from tests.support import pages
from tests.support.scripts import run_script

ROOT = Path(__file__).resolve().parents[2]


def load(path):
    """The module in the file *path*, which is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECK = load(ROOT / "docs" / "check_site.py")


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/f.css">', "loads //fonts.example/f.css"),
        ('<a href="gone.html">x</a>', "links to gone.html, which is not there"),
        ('<a href="#nowhere">x</a>', "links to #nowhere, a place that is not there"),
        ('<a href="index.html#nowhere">x</a>', "a place that is not there"),
    ],
)
def test_a_fault_of_a_page_is_found(page, fault, tmp_path):
    (tmp_path / "index.html").write_text(page)
    (found,) = CHECK.faults(tmp_path)
    assert fault in found


@pytest.mark.parametrize(
    "style", ["@import 'https://x.example/f.css';", "a{background:url(//x.example/i.png)}"]
)
def test_a_style_that_loads_from_elsewhere_is_found(style, tmp_path):
    (tmp_path / "site.css").write_text(style)
    assert CHECK.faults(tmp_path) == ["site.css loads something from elsewhere"]


@pytest.mark.parametrize(
    ("shown", "faults"),
    [("<p>The tensor as text</p>", 1), ("<p>Seconds</p>", 1), ("<p>key</p>", 0)],
)
def test_a_summary_that_became_a_type_is_found(shown, faults, tmp_path):
    """napoleon takes the words before a colon in a property's first line for its type."""
    head = '<dt class="field-odd">Type<span class="colon">:</span></dt>'
    (tmp_path / "api.html").write_text(f'{head}\n<dd class="field-odd">{shown}\n</dd>')
    found = CHECK.torn(tmp_path)
    assert len(found) == faults
    assert all("api.html has the type" in fault for fault in found)


def test_a_page_without_faults(tmp_path):
    (tmp_path / "index.html").write_text(
        '<p id="here"><a href="https://example.org">out</a> <a href="#here">in</a>'
        ' <a href="">itself</a> <script src="own.js"></script>'
    )
    assert CHECK.faults(tmp_path) == []


PAGE = """\
```python
print("one")
```

```text output
{}
```

```python
import sys
```

```console
$ python -c "print(2)"
{}
```

```console sample
$ python -c "print(3)"
what another machine prints
```

```console slow
$ python -c "import os; os.mkdir('made'); print(4)"
what it printed an hour ago
```
"""


def test_outputs_are_compared(tmp_path):
    assert pages.differences(PAGE.format("one", 2), tmp_path) == []
    assert not (tmp_path / "made").exists()
    assert pages.differences(PAGE.format("o...", "..."), tmp_path) == []
    assert pages.differences(PAGE.format("two", 22), tmp_path) == [
        ("two\n", "one\n"),
        ("22\n", "2\n"),
    ]


def test_an_example_that_fails_is_an_error(tmp_path):
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        pages.differences("```python\n1 / 0\n```\n", tmp_path)


def test_outputs_are_written_anew(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format("...", 22))
    pages.write(page)
    expected = PAGE.format("...", 2).replace("what another machine prints", "3")
    assert page.read_text() == expected.replace("what it printed an hour ago", "4")


def test_the_second_example_of_the_readme_needs_the_core_only():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    said = run_script(pages.programs(text)[1], env={"DLBRIDGE_BACKENDS": "cpu"})
    assert "24 bytes copied" in said


def rows(page, title):
    """The cells of the rows of the table after *title*."""
    text = (ROOT / page).read_text(encoding="utf-8")
    part = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in part.splitlines()
        if line.startswith("| ")
    ][1:]


def test_what_works_with_what_says_what_was_found():
    """libraries.md is the table of the peers' tests in short."""
    words = {"✓": "shared", "✓ copy": "copied", "✓ refused": "refused"}
    found = {
        row[0].split(" ")[0]: (words[row[2]], words[row[3]])
        for row in rows("tests/peers/RESULTS.md", "Each library, in and out")
    }
    said = {
        name: tuple(row[1:3])
        for row in rows("docs/libraries.md", "A library's array on the CPU")
        for name in re.split(", ", row[0])
        if "GPU" not in row[1]
    }
    elsewhere = {"cuda.core", "dpctl", "dpnp", "pyopencl"}  # their arrays are on devices
    assert said == {name: how for name, how in found.items() if name not in elsewhere}


def test_the_reference_has_each_public_name_once():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("\n## Modules\n")[0]
    named = re.findall(r"^   ~dlbridge\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(set(dlbridge.__all__) - {"__version__", "ffi"})


def test_no_table_shows_a_name_bold_that_has_underscores():
    shown = [ROOT / "tests" / "conformance" / "LINES.md", ROOT / "tests" / "peers" / "RESULTS.md"]
    for path in sorted([*(ROOT / "docs").rglob("*.md"), *shown]):
        for line in re.findall(r"^\|.*", path.read_text(encoding="utf-8"), re.MULTILINE):
            bare = re.sub(r"`[^`]*`", "", line)
            assert not re.search(r"(?<!\w)__\w+?__(?!\w)", bare), f"{path.name}: {line}"
