"""The conformance command finds what is wrong with a library, and what is known to be."""

from __future__ import annotations

import json
import os
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest

from dlbridge.conformance import Result, check, worker
from dlbridge.conformance.cases import Rule, Source
from dlbridge.conformance.runner import markdown, version_of
from tests.support.scripts import run_command

FAULTS = {
    "the device is not two ints": "P2",
    "the device is another one than the struct's": "P2",
    "stream=None is refused": "S1",
    "bool is exported as uint8": "P34",
    "always versioned": "P3",
    "copy=True copies nothing": "P21",
    "a new copy at each export": "P23",
    "each export is marked as a copy": "P23",
    "each export is marked as read-only": "P36",
    "the mark of read-only memory is dropped": "C27",
    "exports are never freed": "P42",
    "an export does not own its memory": "P47",
    "any device is accepted": "P15",
    "a crash on negative strides": "C22",
    "strides are ignored": "C22",
    "the tensor is asked for twice": "C1",
    "errors of the producer are replaced": "C4",
    "the producer is kept": "C37",
}


@pytest.fixture
def toy(monkeypatch):
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    return monkeypatch


def results(library, *lines):
    return {result.line: result for result in check(library, list(lines) or None)}


@pytest.fixture(scope="module")
def sound():
    """The results of the toy without a fault, for the lines of all faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        return results("toy", *sorted(set(FAULTS.values())))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(toy, sound, fault):
    line = FAULTS[fault]
    without = sound[line]
    toy.setenv("TOY_FAULT", fault)
    found = results("toy", line)[line]
    assert found.result == ("crash" if fault.startswith("a crash") else "fail"), found
    assert found.evidence
    assert without.result == "pass", without
    assert without.evidence != found.evidence


def test_a_library_that_is_not_there():
    with pytest.raises(BufferError, match=r"no_such_library cannot be checked"):
        check("no_such_library")


def test_a_line_that_is_not_there():
    with pytest.raises(ValueError, match=r"no line X99 here"):
        check("numpy", ["X99"])


def test_the_command():
    command = ["conformance", "numpy", "--lines", "P3,P40"]
    report = json.loads(run_command(*command, "--json").stdout)
    assert [each["result"] for each in report["results"]] == ["pass", "fail"]
    assert report["version"].startswith("2.")
    out = run_command(*command, "--markdown").stdout
    assert "1 pass, 1 fail, 0 crash, 0 not offered" in out
    assert "| P40 | Memory of its own is aligned to 256 bytes | fail |" in out


def test_the_table_escapes_what_markdown_reads():
    text = markdown("nothing_here", [Result("P1", "a rule", "fail", "a | b <c>")])
    assert "a \\| b &lt;c>" in text
    text = markdown("nothing_here", [Result("P1", "`__a__`", "fail", "no __dlpack__(): ['__b__']")])
    assert "| `__a__` | fail | no `__dlpack__`(): ['`__b__`'] |" in text  # not bold


def test_what_is_not_offered_is_told_once():
    results = [Result(line, "a rule", "not offered", "no from_dlpack") for line in ("C1", "C2")]
    assert "- C1, C2: no from_dlpack" in markdown("nothing_here", results)


def test_the_version_is_that_of_the_distribution_with_the_librarys_name(monkeypatch):
    """Many distributions put a part into the package ``nvidia``."""
    versions = {"nvidia-nvimgcodec-cu12": "0.11", "nvidia-dali-cuda120": "2.4"}

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"nvidia": list(versions)})
    assert version_of("nvidia.dali") == "2.4"
    assert version_of("nvidia.other") == "0.11"


def test_a_library_that_makes_no_arrays_is_checked_as_a_consumer(toy, tmp_path):
    (tmp_path / "taker.py").write_text("from numpy import from_dlpack\n")
    toy.setenv("PYTHONPATH", str(tmp_path))
    found = results("taker", "P1", "C5")
    assert [found[line].result for line in ("P1", "C5")] == ["not offered", "pass"]


@pytest.mark.parametrize(
    "condition", ["dtype != 'float64'", "dtype != 'complex64'", "dtype != 'float16'",
                  "dtype != 'uint8' or array.ndim != 2"]
)  # fmt: skip
def test_a_library_that_makes_few_arrays_is_checked(toy, tmp_path, condition):
    (tmp_path / "few.py").write_text(
        "import numpy\nfrom numpy import from_dlpack\n"
        f"def make(array):\n    dtype = array.dtype\n    if {condition}: raise TypeError('no')\n"
        "    return numpy.array(array)\n"
    )
    toy.setenv("PYTHONPATH", str(tmp_path))
    assert results("few:make", "C5")["C5"].result == "pass"


def test_a_producer_may_take_any_stream(toy):
    """The standard forbids a consumer to pass one (C36), and does not say what a producer does."""
    toy.setenv("TOY_FAULT", "any stream is accepted")
    found = results("toy", "S1")["S1"]
    assert (found.result, "no consumer may pass" in found.evidence) == ("pass", True), found


MAKERS = {
    "copy": """
class Array:  # as nanoarrow's, whose memory is numpy's, and whose copy() is no producer
    def __init__(self, data): self.data = data
    def __dlpack__(self, **named): return self.data.__dlpack__(**named)
    def __dlpack_device__(self): return (1, 0)
    def copy(self): return self.data.tolist()
def make(array): return Array(array)
""",
    "bool": """
import numpy
class Array:  # nothing says of which type its elements are
    def __init__(self, data): self.data = data
    def __dlpack__(self, **named): return self.data.__dlpack__(**named)
    def __dlpack_device__(self): return (1, 0)
def make(array): return Array(array.view("uint8") if array.dtype == bool else array)
""",
    "nothing": """
class Array:
    def __dlpack__(self, **named): raise BufferError("not today")
    def __dlpack_device__(self): raise BufferError("not today")
def make(array):
    if array.dtype != "int8" or array.ndim: raise TypeError("only one number")
    return Array()
""",
}


@pytest.fixture
def maker(toy, tmp_path):
    for name, text in MAKERS.items():
        (tmp_path / f"maker_{name}.py").write_text(text)
    toy.setenv("PYTHONPATH", str(tmp_path))


def test_a_copy_that_is_no_producer_is_no_fault(maker):
    found = results("maker_copy:make", "P40")["P40"]
    assert (found.result, "numpy's memory" in found.evidence) == ("not offered", True), found


def test_a_maker_that_gives_another_type_is_no_fault(maker):
    """Where nothing says of which type an array is."""
    found = results("maker_bool:make", "P34")["P34"]
    assert found.result == "pass", found


def test_nothing_was_tested(maker):
    """It has an exit code of its own, and not that of a success."""
    done = run_command("conformance", "maker_nothing:make", "--lines", "P34,P40,C5")
    assert done.returncode == 3
    assert "0 pass, 0 fail, 0 crash, 3 not offered" in done.stdout
    assert "nothing was tested" in done.stderr


def test_a_case_that_hangs_is_a_crash(monkeypatch):
    monkeypatch.setattr(worker, "LIMIT", 1)  # no verdict: it hangs for ever
    rule = Rule("X", "it ends", Source.NONE, lambda _: threading.Event().wait() and "")
    assert worker._in_child(None, rule) == ("crash", "it hangs: nothing happens for 1 s")


def test_a_case_that_works_for_ever_is_a_crash(monkeypatch):
    def work(_):
        while True:
            pass

    monkeypatch.setattr(worker, "LIMIT", 1)  # no verdict: it never ends
    rule = Rule("X", "it ends", Source.NONE, work)
    state, said = worker._in_child(None, rule)
    # On a busy machine it has not worked for a second when its time is over.
    assert (state, said.partition(" after ")[0]) == ("crash", "it hangs: no end")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell")
def test_a_case_on_a_busy_machine_is_no_hang(monkeypatch):
    """It gets little time, and goes on."""

    def work(_):
        for _ in range(8):
            threading.Event().wait(0.3)
            until = time.process_time() + 0.05
            while time.process_time() < until:
                pass
        return "done"

    monkeypatch.setattr(worker, "LIMIT", 1)  # no verdict: how long it takes is no matter
    assert worker._in_child(None, Rule("X", "it ends", Source.NONE, work)) == ("pass", "done")
