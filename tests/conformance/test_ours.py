"""dlbridge under its own suite: every rule, on each way in which our tensors are exported.

The subjects are an `ArrayTensor` (numpy exports it), a `NumpyTensor` (bfloat16), a plugin's
device with handles, and the simulated drivers of CUDA and ROCm. `EXPECTED` has the failures.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from dlbridge.conformance import check
from dlbridge.conformance.plugin import read_expected
from dlbridge.conformance.runner import rules
from tests.support.expected_parts import backend_or_skip, compiler_or_skip

HERE = Path(__file__).parent
SUBJECTS = {
    "dlbridge": "dlbridge",
    "bfloat16": "tests.conformance.ours:bfloat16",
    "ext_dev": "tests.conformance.ours:ext_dev",
    "cuda": "tests.conformance.ours_simulated:cuda_1",
    "rocm": "tests.conformance.ours_simulated:rocm_0",
}
NOWHERE = {"P32", "P33"}  # refused when the tensor is made: tests/core/values/test_dtypes.py
OF_NUMPY = {"P8", "P15", "P16", "P20", "P24"}  # what numpy's method checks depends on its version

# What dlbridge promises beyond the rule: the class and the words of its errors, and how it does it.
EVIDENCE = {
    "dlbridge": {
        "P9": "ExchangeError: the tensor is read-only",
        "P10": "ExchangeError: a padded sub-byte tensor",
        "P29": "^NULL$",
        "P34": "14 types of numpy, 13 others",
        "C1": "with max_version",
        "C3": "TypeError: this cannot be exported",
        "C4": "BufferError: it is lent",
        "C6": "ExchangeError",
        "C7": "TypeError: builtins.object",
        "C8": "TypeError: .*not two ints",
        "C11": "ExchangeError: .*used",
        "C12": "ExchangeError: .*DLPack 77.0",
        "C16": "ExchangeError: .*DLDataType",
        "C17": "kept: float32x4",
        "C18": r"\(77, 0\): opaque",
        "C20": "device index -5",
        "C22": "gaps, transposed, broadcast, negative",
        "C23": "ExchangeError: .*negative extent",
        "C24": "ExchangeError",
        "C27": "a write fails",
        "C31": "int4",
        "C34": "copied",
        "C36": "none",
        "X1": "__dlpack_c_exchange_api__: PyCapsule, __c_dlpack_exchange_api__: PyCapsule, tables 1",
        "X2": "^1.3$",
        "X3": "lends, too",
        "X6": ", 2 references",
        "X8": "stream 0x0",
        "X18": "ExchangeError",
        "X21": "ExchangeError",
    },
    "bfloat16": {
        "P8": "TypeError",
        "P15": "ExchangeError",
        "P16": "ExchangeError",
        "P20": "TypeError",
        "P24": "TypeError",
        "P29": "^NULL$",
        "P38": r"version \(1, 3\)",
        "P41": "stride 1",
        "S1": "ValueError: host memory has no streams",
        "S9": "TypeError",
        "S10": "TypeError",
    },
    "ext_dev": {
        "P18": "copy=False",
        "P15": "ExchangeError",
        "S12": "stream must be None",
        "S16": "TypeError",
    },
    "cuda": {"S7": "ValueError: .*ambiguous", "S8": "ValueError", "S9": "TypeError"},
    "rocm": {"S8": "ValueError", "S11": "ValueError"},
}


@cache
def results(name):
    """What the rules give; of ROCm those of streams, as all else is the class that CUDA has."""
    lines = [line for line in rules() if line.startswith("S")] if name == "rocm" else None
    return check(SUBJECTS[name], lines)


@pytest.fixture(params=SUBJECTS)
def name(request):
    if request.param in ("cuda", "rocm"):
        compiler_or_skip()
        pytest.importorskip(f"dlbridge_{request.param}")
    if request.param == "ext_dev":
        backend_or_skip("ext_dev")
    return request.param


def test_every_rule(name):
    expected = read_expected(HERE / "expected" / f"{name}.txt")
    found = [each for each in results(name) if name != "dlbridge" or each.line not in OF_NUMPY]
    different = [each for each in found if (each.line not in expected and each.result != "pass")
                 or (each.line in expected and each.result == "pass")]  # fmt: skip
    assert [each for each in different if each.result != "not offered"] == []


def test_the_words_of_our_errors(name):
    said = {each.line: each.evidence for each in results(name)}
    different = [(line, said[line]) for line in EVIDENCE[name]
                 if not re.search(EVIDENCE[name][line], said[line])]  # fmt: skip
    assert different == []


def test_every_rule_is_kept_somewhere():
    """What no subject of ours offers proves nothing."""
    compiler_or_skip()
    kept = {each.line for name in SUBJECTS for each in results(name) if each.result == "pass"}
    assert kept | NOWHERE == rules().keys()


UNORDERED = """
from tests.conformance.ours import from_dlpack, to_numpy
from tests.conformance import ours_simulated

class Unordered:
    def __init__(self, tensor): self.tensor = tensor
    def __dlpack_device__(self): return self.tensor.__dlpack_device__()
    def __dlpack__(self, *, stream=None, **keywords):
        return self.tensor.__dlpack__(stream=-1, **keywords)

def make(array): return Unordered(ours_simulated.cuda_1(array))
"""


def test_a_library_that_ignores_the_stream_is_found(tmp_path, monkeypatch):
    compiler_or_skip()
    pytest.importorskip("dlbridge_cuda")
    (tmp_path / "unordered.py").write_text(UNORDERED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_CUDA_DELAY_US", "20000")
    found = check("unordered:make", ["S7", "S8", "S12", "S13"])
    assert [each for each in found if each.result != "fail"] == []
