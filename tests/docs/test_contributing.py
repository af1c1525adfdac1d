"""CONTRIBUTING.md and tests/WHERE.md name what exists, and the rooms in their order."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import dlbridge as bridge

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WHERE = (ROOT / "tests" / "WHERE.md").read_text(encoding="utf-8")
SPAN = re.compile(r"`([^`]+)`")
VARIABLE = re.compile(r"DLBRIDGE_[A-Z][A-Z_]*[A-Z]")
READ = re.compile(r"environ\.get\(\s*\"(DLBRIDGE_[A-Z_]*)\"")
IS_PATH = re.compile(r"[\w./-]+(\.py|\.md|/)")


def section(title, text=TEXT):
    """The lines of a section, without its title."""
    assert f"\n## {title}\n" in text
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title, text=TEXT):
    """The cells of each row of the section's tables, heads and rules left out."""
    lines = [line for line in section(title, text).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines][1:]


def import_order():
    """The layers of pyproject.toml, the lowest first."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]
    return [line.split(" : ") for line in reversed(linter["contracts"][0]["layers"])]


def place(path):
    """The layer in which a room or a module begins."""
    name = path.removesuffix("/").removesuffix(".py").replace("/", ".")
    return next(
        index
        for index, layer in enumerate(import_order())
        if any(f"{module}.".startswith(f"{name}.") for module in layer)
    )


def test_rooms_are_listed_in_the_order_of_imports():
    paths = [path for room, _ in rows("The rooms") for path in SPAN.findall(room)]
    places = [place(path) for path in paths if path != "dlbridge/__init__.py"]
    assert places == sorted(places)


def test_every_room_is_listed():
    listed = {path for room, _ in rows("The rooms") for path in SPAN.findall(room)}
    folders = {
        f"{path.parent.relative_to(ROOT).as_posix()}/"
        for folder in ("dlbridge", "dlbridge/core")
        for path in (ROOT / folder).glob("*/__init__.py")
    }
    assert folders - listed == {"dlbridge/core/"}


def test_the_tests_of_each_room_are_where_the_text_says():
    rooms = [path for room, _ in rows("The rooms") for path in SPAN.findall(room)]
    folders = [path for path in rooms if path.endswith("/")]
    prose = section("The rooms").rpartition("|\n")[2]
    exceptions = {path for path in SPAN.findall(prose) if path in folders}
    without = {
        path for path in folders if not (ROOT / "tests" / path.removeprefix("dlbridge/")).is_dir()
    }
    assert without == exceptions


WAYS = "The way of each public function"


def test_the_stations_of_each_way_exist():
    stations = [span for span in SPAN.findall(section(WAYS, WHERE)) if "/" in span]
    assert [path for path in stations if not (ROOT / "dlbridge" / path).exists()] == []


def test_the_way_of_each_public_function_is_told():
    told = set(re.findall(r"\*\*`(\w+)`\*\*", section(WAYS, WHERE)))
    functions = {name for name in bridge.__all__ if inspect.isroutine(getattr(bridge, name))}
    assert functions - told == set()
    assert told <= set(bridge.__all__)


TEN = rows("Ten changes, and where each is made", WHERE)


def test_there_are_ten_changes():
    assert len(TEN) == 10


@pytest.mark.parametrize("row", TEN, ids=lambda row: row[0])
def test_the_answer_names_what_the_file_has(row):
    spans = SPAN.findall(row[1])
    # "`file`: `name`" and "`name` of `file`": a name is in one of the row's files.
    files = [span for span in spans if IS_PATH.fullmatch(span)]
    names = [span.rstrip(".") for span in spans if span not in files]
    paths = [
        (ROOT / file if file.startswith(("backends/", "docs/")) else ROOT / "dlbridge" / file)
        for file in files
    ]
    assert files
    assert names
    texts = [path.read_text(encoding="utf-8") for path in paths]
    for name in names:
        if name != "from_dlpack":  # of the other library
            assert any(name in text for text in texts), f"{name} is in none of {files}"


CHANGES = [row for row in rows("Where a change goes", WHERE) if row[0] != "you want to change"]
COMMANDS = ("grep ", "python ")  # commands


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row[0][:60])
def test_the_place_of_a_change_exists(row):
    """Files by their whole path, or beside the file named before; names in one of the files."""
    folders = [ROOT]
    texts = []
    names = []
    for span in SPAN.findall(row[1]):
        if not IS_PATH.fullmatch(span) and not (ROOT / span).is_file():
            names += [] if span.startswith(COMMANDS) else span.split(".")
            continue
        found = [folder / span for folder in folders if (folder / span).exists()]
        assert found, f"no {span} beside {folders}"
        folders.append(found[0] if found[0].is_dir() else found[0].parent)
        files = found[0].rglob("*.py") if found[0].is_dir() else [found[0]]
        texts += [file.read_text(encoding="utf-8") for file in files]
    assert [name for name in names if not any(name in text for text in texts)] == []


def test_the_files_of_the_guide_to_tests_exist():
    """Whole paths; names without a folder are of a test or of a part of the kit."""
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    files = {span for span in SPAN.findall(text) if span.endswith((".py", "/")) and " " not in span}
    folders = [ROOT / "tests", ROOT / "dlbridge" / "testing", *ROOT.glob("backends/*/tests")]
    known = {path.name for folder in folders for path in folder.rglob("*.py")}
    missing = [
        file
        for file in files
        if not (ROOT / file).exists() and file not in known and "NAME" not in file
    ]
    assert files
    assert missing == []


def used_variables():
    """The environment variables that the packages read."""
    folders = [ROOT / "dlbridge", *ROOT.glob("backends/*/dlbridge_*")]
    texts = [path.read_text(encoding="utf-8") for f in folders for path in f.rglob("*.py")]
    found = {name for text in texts for name in VARIABLE.findall(text)}
    return found - {"DLBRIDGE_MY_NPU_SERVER"}  # of an example in dlbridge/protocol.py


def test_every_variable_that_is_read_is_explained():
    assert used_variables() - set(VARIABLE.findall(section("The environment"))) == set()


def texts_of_tests():
    folders = [ROOT / "tests", *ROOT.glob("backends/*/tests")]
    return [path.read_text(encoding="utf-8") for f in folders for path in f.rglob("*.py")]


def test_every_variable_that_tests_read_is_explained():
    read = {name for text in texts_of_tests() for name in READ.findall(text)}
    # Not those of the programs that tests start.
    inside = {"DLBRIDGE_CELLS", "DLBRIDGE_MUTATION", "DLBRIDGE_STORM_CHILD_SECONDS"}
    inside |= {name for name in read if name.startswith("DLBRIDGE_TEST_")}
    assert read - inside - set(VARIABLE.findall(section("The environment"))) == set()


def test_every_explained_variable_is_read():
    texts = texts_of_tests()
    read = used_variables() | {name for text in texts for name in VARIABLE.findall(text)}
    assert set(VARIABLE.findall(section("The environment"))) <= read
