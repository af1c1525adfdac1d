"""What the documents call by name in backticks is there, if it looks like something of ours."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import dlbridge

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "WHERE.md",
    ROOT / "tests" / "safety" / "SHARED_STATE.md",
    ROOT / "tests" / "drivers" / "ASSUMPTIONS.md",
    ROOT / "tests" / "ffi" / "C_API.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@cache
def sources():
    """The files that define what the documents name."""
    folders = [
        ROOT / "dlbridge",
        ROOT / "tests",
        ROOT / "cdefs",
        *(ROOT / "backends").iterdir(),
    ]
    return [
        path for folder in folders for path in folder.rglob("*.py") if "build" not in path.parts
    ]


@cache
def classes():
    """Class -> its members and its bases, over all classes of that name."""
    found = {}
    for path in sources():
        if "tests" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                members, bases = found.setdefault(node.name, (set(), set()))
                bases |= {
                    ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in node.bases
                }
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        members.add(inner.name)
                    elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                        members.add(inner.id)
                    elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        members.add(inner.attr)
    return found


def members_of(name):
    """The members of all classes called *name*, inherited ones too; None: a base is unknown."""
    members, bases = classes()[name]
    members = set(members)
    for base in bases:
        if base in classes():
            inherited = members_of(base) if base != name else set()
            members |= inherited if inherited is not None else set()
        elif base not in ("Protocol", "ABC", "Generic", "object"):
            return None
    return members


@cache
def functions():
    """All functions of the tests."""
    return {
        node.name
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


@cache
def files():
    return {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}


MARKS = {
    text.partition(":")[0].strip()
    for text in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "pytest"
    ]["ini_options"]["markers"]
}
TARGETS = set(
    re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def attribute_fault(path):
    """Why *path*, which begins below `dlbridge`, leads to nothing; empty if it does."""
    thing = dlbridge
    for name in path.split("."):
        try:
            thing = getattr(thing, name)
        except AttributeError:
            try:
                thing = importlib.import_module(f"{thing.__name__}.{name}")
            except (ImportError, AttributeError):
                return f"{thing!r} has no {name}"
    return ""


def fault(span):
    """Why *span* names nothing that is there; empty if it does, or does not look like ours."""
    if public := re.match(r"(?:dlbridge|bridge)\.((?:[a-zA-Z_]\w*)(?:\.[a-zA-Z_]\w*)*)", span):
        return attribute_fault(public[1])
    if (member := re.fullmatch(r"([A-Z]\w+)\.([a-z_]\w*)(?:\(.*\))?", span)) and (
        member[1] in classes()
    ):
        members = members_of(member[1])
        there = members is None or member[2] in members
        return "" if there else f"no class {member[1]} has {member[2]}"
    if re.fullmatch(r"test_\w+(?:\.py)?", span):
        return "" if span in functions() | files() else "there is no such test"
    if path := re.match(r"((?:dlbridge|tests|docs|backends|cdefs)/[\w./-]+)", span):
        # Pages about a backend name the files in its folder.
        places = [ROOT, *(ROOT / "backends").iterdir()]
        there = "NAME" in span or any((place / path[1]).exists() for place in places)
        return "" if there else "there is no such path"
    mark = re.search(r"pytest\b.* -m (\w+)", span)
    if mark and mark[1] not in MARKS:
        return f"there is no mark {mark[1]}"
    target = re.match(r"make ([\w-]+)", span)
    if target and target[1] not in TARGETS:
        return f"make has no target {target[1]}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_the_documents_name_is_there(page):
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    wrong = {span: why for span in SPAN.findall(text) if (why := fault(span))}
    assert wrong == {}


@pytest.mark.parametrize(
    "span",
    [
        *("StreamDriver.exists_not", "dlbridge.to_devce", "tests/gone.py", "make nothing"),
        *("python -m pytest -m gone tests/storm", "test_of_nothing"),
    ],
)
def test_a_name_that_is_not_there_is_found(span):
    assert fault(span)


INSTALL = re.compile(r"pip install ([^`\n\"(;#&]*)")
WORD = re.compile(r"([\w./-]+)(?:\[([\w,-]+)\])?")
OTHERS = {"intel-opencl-rt"}
"""Packages of others that no pyproject.toml names."""


@cache
def projects():
    """Each distribution and its table in pyproject.toml."""
    found = {}
    for path in [ROOT / "pyproject.toml", *ROOT.glob("backends/*/pyproject.toml")]:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        found[project["name"]] = project
        found[path.parent.relative_to(ROOT).as_posix()] = project
    return found


def normal(name):
    return name.lower().replace("_", "-")


@cache
def packages_of_others():
    """What the distributions need, always or as an extra."""
    needs = [
        need
        for project in projects().values()
        for group in (project["dependencies"], *project.get("optional-dependencies", {}).values())
        for need in group
    ]
    return OTHERS | {normal(WORD.match(need)[1]) for need in needs}


def unknown_in(command):
    """The words after ``pip install`` that name neither a package of ours nor one that is known."""
    found, of_option = [], False
    for word in command.replace("{folder}", "opencl").replace("'", "").split():
        if of_option or word.startswith("-"):
            of_option = word in ("--find-links", "--index-url")
            continue
        name, extras = WORD.match(word).groups()
        if name in projects():
            known = {normal(extra) for extra in projects()[name].get("optional-dependencies", ())}
            found += [word] * (not set(map(normal, (extras or "").split(","))) <= known | {""})
        elif normal(name) not in packages_of_others():
            found.append(word)
        if word.endswith(","):
            break  # the sentence goes on
    return found


def test_each_package_that_is_to_be_installed_is_built_here_or_known():
    files = [path for path in sources() if "tests" not in path.relative_to(ROOT).parts]
    commands = [
        (path.relative_to(ROOT).as_posix(), command)
        for path in [*PAGES, *ROOT.glob("backends/*/README.md"), *files]
        for command in INSTALL.findall(path.read_text(encoding="utf-8"))
        if command and "{package}" not in command
    ]
    assert len(commands) > 40
    assert [(path, command) for path, command in commands if unknown_in(command)] == []
    assert unknown_in("-e . dlbridge-opencl dlbridge[no] nothing, in words") == [
        "dlbridge[no]",
        "nothing,",
    ]
