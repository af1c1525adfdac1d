"""The description of a foreign package in docs/writing-a-backend.md: the objects are recognised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.packages import install
from tests.support.scripts import run_script

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-backend.md"

ARRAYS = """
class Array:
    def __init__(self, owner=None):
        self.owner = owner
"""

PLUGIN = """
from dlbridge_fake import Fake
from dlbridge.protocol import NativeArray

class MyNpu(Fake):
    def from_native(self, obj):
        if type(obj).__module__ != "npu_arrays":
            return None
        data = self.allocate(0, 12, 4, 0)
        return NativeArray(0, data, 0, "float32", (3,), None, False, obj)
"""

USE = """
import sys
import dlbridge, npu_arrays
if len(sys.argv) > 1:
    dlbridge.backend("my_npu")
try:
    print(dlbridge.asarray(npu_arrays.Array()).device)
except TypeError as error:
    print("refused:", error)
print("loaded:", "dlbridge_my_npu" in sys.modules)
"""


@pytest.fixture
def use(tmp_path, monkeypatch):
    """What a new process prints, with the entry points of the guide if *described*."""

    def run(described, *arguments):
        package = tmp_path / "dlbridge_my_npu"
        package.mkdir()
        (tmp_path / "npu_arrays.py").write_text(ARRAYS)
        (package / "__init__.py").write_text(PLUGIN)
        points = "[dlbridge.backends]\nmy_npu = dlbridge_my_npu:MyNpu"
        if described:
            text = GUIDE.read_text(encoding="utf-8")
            (table,) = re.findall(
                r'^  \[project\.entry-points\."(dlbridge\.libraries)"\]\n  (.*?)$',
                text,
                re.MULTILINE,
            )
            (code,) = re.findall(
                r"^  (from dlbridge\.libraries.*?)^  ```", text, re.MULTILINE | re.DOTALL
            )
            (package / "library.py").write_text(code.replace("\n  ", "\n"))
            points += f"\n[{table[0]}]\n{table[1].replace(chr(34), '')}"
        install(tmp_path, "dlbridge-my-npu", points)
        monkeypatch.delenv("DLBRIDGE_BACKENDS", raising=False)
        program = tmp_path / "use.py"
        program.write_text(USE)
        return run_script(program, *arguments)

    return run


def test_with_the_description_the_backend_is_found_and_loaded(use):
    assert use(True) == "my_npu:0\nloaded: True\n"


def test_without_it_no_backend_is_tried(use):
    printed = use(False)
    assert printed.startswith("refused: npu_arrays.Array is not a tensor")
    assert printed.endswith("loaded: False\n")


def test_a_backend_that_is_loaded_is_asked_anyway(use):
    assert use(False, "load") == "my_npu:0\nloaded: True\n"
