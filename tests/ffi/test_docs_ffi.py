"""docs/ffi.md and its reference: the examples run, and the tables are those of the source.

So are those of C_API.md.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlbridge import ffi
from tests.support import pages
from tests.support.expected_parts import backend_or_skip, compiler_or_skip
from tests.support.scripts import ROOT, run_script

DOCUMENT = pages.with_reference(ROOT / "docs" / "ffi.md")
INSIDE = (ROOT / "tests" / "ffi" / "C_API.md").read_text()
BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^(?:/\*|//) (\S+?):?(?: |$)", re.MULTILINE)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder in which the document's kernels are written and its shell blocks were run."""
    compiler_or_skip("gcc")
    compiler_or_skip("g++")
    folder = tmp_path_factory.mktemp("docs")
    shell = ["set -eu"]
    for language, _mark, text in BLOCK.findall(DOCUMENT):
        if language in ("c", "cpp"):
            (folder / FILE.match(text)[1]).write_text(text)
        elif language == "sh":
            shell.append(text)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run(["bash", "-c", "\n".join(shell)], cwd=folder, env=environment, check=True)
    return folder


def examples(peer):
    """The Python blocks, and those marked with the library *peer*, in their order."""
    return "\n".join(
        text
        for language, mark, text in BLOCK.findall(DOCUMENT)
        if language == "python" and mark in ("", peer)
    )


@pytest.mark.parametrize("peer", ["", "torch", "jax", "opencl"])
def test_examples(built, peer):
    if peer == "opencl":
        backend_or_skip(peer)
    elif peer and importlib.util.find_spec(peer) is None:
        pytest.skip(f"needs {peer}")
    script = built / f"examples_{peer}.py"
    script.write_text(examples(peer))
    run_script(script, cwd=built)


def test_every_block_is_of_a_kind_that_is_run():
    assert {(language, mark) for language, mark, _text in BLOCK.findall(DOCUMENT)} == {
        ("c", ""),
        ("cpp", ""),
        ("sh", ""),
        ("python", ""),
        ("python", "torch"),
        ("python", "jax"),
        ("python", "opencl"),
    }


# --- The tables -------------------------------------------------------------------


def rows(heading, document=INSIDE):
    """First cell and second cell of each row of the table of *document* that *heading* begins."""
    table = document.partition(f"{heading}\n")[2].partition("\n\n")[0]
    return [
        (re.findall(r"`(.*?)`", first), second.strip())
        for first, second in re.findall(r"^\| (`.*?`) \| (.*) \|$", table, re.MULTILINE)
    ]


def used():
    """Function -> the modules in which it is called."""
    found = {}
    folder = ROOT / "dlbridge" / "ffi"
    for path in sorted(folder.rglob("*.py")):
        for name in re.findall(r"\b(?:C|py)(?:\.|, \")(TVMFFI\w+)", path.read_text()):
            found.setdefault(name, set()).add(path.relative_to(folder).as_posix())
    return found


def test_table_of_the_functions_that_are_used():
    table = {
        name: set(re.findall(r"`(.*?)`", where))
        for names, where in rows("| function | used in |")
        for name in names
    }
    assert table == used()


def test_every_declared_function_is_in_a_table():
    declared = set(re.findall(r"\b(TVMFFI\w+)\(", (ROOT / "cdefs" / "tvm_ffi.h").read_text()))
    tables = [
        [name for names, _text in rows(heading) for name in names]
        for heading in ("| function | used in |", "| function | why it is not used |")
    ]
    assert sorted(tables[0] + tables[1]) == sorted(declared)
    assert all(reason for _names, reason in rows("| function | why it is not used |"))


def test_names_that_are_missing_are_listed():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    listed = {name for names, _why in rows("| name | why not |", DOCUMENT) for name in names}
    assert listed == set(tvm_ffi.__all__) - set(ffi.__all__)


def test_where_it_is_names_every_module():
    table = INSIDE.partition("## Where it is")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py)`", table)
    folder = Path(ffi.__file__).parent
    modules = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    rooms = {path for path in modules if path.endswith("/__init__.py")}
    assert sorted(set(named)) == sorted(modules - rooms)
