"""The pytest plug-in, as a library's own CI runs it: in a folder of the library's layout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dlbridge.conformance.plugin import read_expected
from dlbridge.conformance.runner import rules, version_of
from tests.support.peers import peer
from tests.support.scripts import run_pytest

HERE = Path(__file__).parent
PLUGIN = ["-p", "dlbridge.conformance.plugin", "-p", "no:cacheprovider", "-q"]


def run(folder, *arguments, **environment):
    """The exit code and the output of pytest in *folder*."""
    done = run_pytest(*PLUGIN, *arguments, paths=(HERE,), cwd=folder, env=environment)
    return done.returncode, done.stdout + done.stderr


def torch_has_cuda():
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def repository(tmp_path):
    """A library's repository: settings in pyproject.toml, and tests that are not of this."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_own.py").write_text("def test_own(): pass\n")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\ntestpaths = ['tests']\n")
    return tmp_path


def test_a_failure_tells_the_rule_its_source_and_the_command(repository):
    status, output = run(repository, "--dlpack-conformance=toy:asarray", "-k", "P21",
                         TOY_FAULT="copy=True copies nothing")  # fmt: skip
    assert status == 1
    assert "P21: `copy=True`: other memory, IS_COPIED" in output
    assert "source: array API, `__dlpack__`" in output
    assert "fail: the same memory" in output
    assert "again: python -m dlbridge conformance toy:asarray --lines P21" in output
    assert "test_own" not in output


def test_expected_failures(repository):
    known = repository / "dlpack-failures.txt"
    known.write_text("\ufeff# of the toy\n\n  # twice\nP21\tit shares\n", encoding="utf-8")
    arguments = ["--dlpack-conformance=toy", f"--dlpack-expected={known.name}", "-k", "P21 or P22"]
    status, output = run(repository, *arguments, TOY_FAULT="copy=True copies nothing")
    assert (status, "1 passed" in output, "1 xfailed" in output) == (0, True, True), output
    status, output = run(repository, *arguments)
    assert status == 1
    assert "[XPASS(strict)] it shares" in output


def test_the_librarys_own_tests_run_beside_it_when_they_are_named(repository):
    arguments = ["--dlpack-conformance=toy", "-k", "own or P3", "tests", "-vv"]
    status, output = run(repository, *arguments)
    assert status == 0, output
    assert "test_own" in output
    assert "dlpack::P3" in output
    status, output = run(repository, "--dlpack-conformance=toy", "-k", "P3 or P1", "-n2", "-vv")
    assert status == 0, output
    assert "test_own" not in output


def test_the_ids_that_are_printed_name_the_rules(repository):
    options = ["--dlpack-conformance=toy", "-vv"]
    for more in ([], ["-n2"]):
        status, output = run(repository, *options, *more, "dlpack::P3", "dlpack::P40")
        assert status == 1, output  # P40 is a fault of numpy, on which the toy stands
        assert re.search(r"1 failed, 1 passed\b", output)
        assert "FAILED dlpack::P40" in output
    status, output = run(repository, *options, "dlpack::P3", "tests/test_own.py::test_own")
    assert (status, "2 passed" in output) == (0, True), output
    status, output = run(repository, *options, "dlpack::P999")
    assert (status, "no rule P999" in output) == (4, True), output
    status, output = run(repository, "dlpack::P3")
    assert (status, "needs --dlpack-conformance=LIBRARY" in output) == (4, True), output


def test_the_last_failures_again(repository):
    options = ["--dlpack-conformance=toy", "-p", "cacheprovider", "-k", "P28 or P40"]
    for more, words in (
        ([], "1 failed, 1 passed"),
        (["--lf"], f"1 failed, {len(rules()) - 1} deselected"),
    ):
        _, output = run(repository, *options, *more)
        assert words in output


def test_an_expected_file_outside_the_repository(repository, tmp_path_factory):
    """Before it loads plug-ins, pytest takes a path that stands alone for tests."""
    known = tmp_path_factory.mktemp("elsewhere") / "known.txt"
    known.write_text("P40 as numpy\n")
    (repository / "pyproject.toml").write_text("[tool.pytest.ini_options]\nxfail_strict = true\n")
    (repository / "inside.txt").write_text("P40 as numpy\n")
    options = ["--dlpack-conformance", "toy"]
    for form in ([f"--dlpack-expected={known}"], ["--dlpack-expected", "inside.txt"]):
        status, output = run(repository, "--dlpack-conformance", "toy", *form, "dlpack::P40", "-v")
        assert (status, "1 xfailed" in output) == (0, True), output
        assert f"rootdir: {repository}\nconfigfile: pyproject.toml" in output
    status, output = run(repository, *options, "--dlpack-expected", str(known))
    assert (status, f"write --dlpack-expected={known}" in output) == (4, True), output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("P999 why\n", "no rule has the number 'P999'"),
        ("P1\n", "a reason must follow"),
        ("P1 # why\n", "a reason must follow"),
        ("P1 a\nP1 b\n", "it stands twice"),
    ],
)
def test_a_file_that_is_wrong(repository, text, words):
    (repository / "known.txt").write_text(text)
    status, output = run(repository, "--dlpack-conformance=toy", "--dlpack-expected=known.txt")
    assert status == 4
    assert f"ERROR: --dlpack-expected: known.txt:{text.count(chr(10))}: " in output
    assert words in output


def test_the_librarys_sources_lie_in_the_folder_and_are_not_built(repository):
    """As those of numpy: `pytest` does not import them, and the suite imports what pytest does."""
    (repository / "toy.py").write_text("raise ImportError('build it first')\n")
    script = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    for safe, ok in (["-P"], True), ([], False):
        done = subprocess.run(
            [sys.executable, *safe, "-c", script, *PLUGIN, "--dlpack-conformance=toy", "-k=P3"],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": str(HERE)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) is ok, done.stdout
        assert ("ImportError: build it first" in done.stdout) is not ok


def test_nothing_was_tested(repository):
    """A library whose arrays cannot be exported does not pass."""
    (repository / "mute.py").write_text(
        "class Array:\n"
        "    def __dlpack__(self, **named): raise BufferError('not today')\n"
        "    def __dlpack_device__(self): raise BufferError('not today')\n"
        "def make(array):\n"
        "    if array.dtype != 'int8' or array.ndim: raise TypeError('only one number')\n"
        "    return Array()\n"
    )
    options = ["--dlpack-conformance=mute:make", "dlpack::P34", "dlpack::C5"]
    for more in ([], ["-n2"]):
        status, output = run(repository, *options, *more, PYTHONPATH=str(repository))
        assert (status, "nothing was tested" in output) == (5, True), output


def test_a_library_that_is_not_there(repository):
    status, output = run(repository, "--dlpack-conformance=no_such_library")
    assert status == 4
    assert "no_such_library cannot be checked: ImportError" in output
    for name, words in {
        "os:getcwd": "os:getcwd makes no array here: TypeError",
        "torch@cuda:0": "torch@cuda:0 makes no array here: ",
        "os": "os has neither asarray nor array",
        "math:pi": "math has no function 'pi'",
    }.items():
        if name.startswith("torch") and (find_spec("torch") is None or torch_has_cuda()):
            continue
        status, output = run(repository, f"--dlpack-conformance={name}")
        assert (status, words in output, "skipped" in output) == (4, True, False), output
    status, output = run(repository, "--dlpack-expected=known.txt")
    assert (status, "known.txt" in output) == (4, True)


def test_a_library_that_is_not_there_in_many_processes(repository):
    status, output = run(repository, "--dlpack-conformance=no_such_library", "-n2")
    assert (status, "INTERNALERROR" in output) == (4, False), output
    assert "no_such_library cannot be checked: ImportError" in output


@pytest.mark.parametrize("tests", [[], ["tests"]])
def test_an_empty_name_of_a_library(repository, tests):
    status, output = run(repository, "--dlpack-conformance=", *tests)
    assert (status, "--dlpack-conformance= names no library" in output) == (4, True), output


@pytest.mark.parametrize(
    "library",
    [
        "numpy",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)  # faults of others, each night
            for name in ("torch", "jax", "tvm_ffi", "pyarrow")
        ),
    ],
)
def test_a_real_library_and_its_file_of_known_failures(repository, library):
    """tests/conformance/expected has the faults of the versions that the tests install."""
    peer(library)
    known = HERE / "expected" / f"{library}.txt"
    version = known.read_text().splitlines()[0].split()[2].rstrip(",")
    if version_of(library) != version:
        pytest.skip(f"the file is of {library} {version}, and this is {version_of(library)}")
    arguments = [f"--dlpack-conformance={library}", f"--dlpack-expected={known}"]
    status, output = run(repository, *arguments)
    assert status == 0, output
    assert f"{len(read_expected(known))} xfailed" in output
