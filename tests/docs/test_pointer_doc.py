"""docs/howto/bring-your-pointer.md: each section runs, with a C compiler, PoCL, a simulated CUDA."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import pages
from tests.support.expected_parts import backend_or_skip, compiler_or_skip
from tests.support.peers import peer
from tests.support.scripts import run_script

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "bring-your-pointer.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))

# The program that surrounds a section: what stands in the reader's own library.
BEFORE = {
    "Memory of CUDA": """
import numpy as np
import dlbridge as bridge

class Allocation:  # as pycuda.driver.DeviceAllocation: a number, which frees its memory
    def __init__(self, memory): self.memory = memory
    def __index__(self): return self.memory.data_ptr()

class GPUArray:
    def __init__(self, values):
        self.gpudata = Allocation(bridge.to_device(values, "cuda:0"))
        self.shape, self.dtype, self.strides = values.shape, values.dtype, values.strides
        self.itemsize = values.itemsize
""",
    "What libCEED would write": """
import ctypes
import dlbridge as bridge
from types import SimpleNamespace

restored = []
lib = SimpleNamespace(CeedVectorRestoreArray=lambda vector, array: restored.append(vector))
memory = (ctypes.c_double * 4)(1, 2, 3, 4)
vector = SimpleNamespace(length=4, pointer=7)
""",
}
AFTER = {
    "Memory of CUDA": """
values = np.arange(6, dtype="float32").reshape(2, 3)
t = as_tensor(GPUArray(values), 1)
assert t.to_device("cpu").tolist() == values.tolist()
""",
    "What libCEED would write": """
t = as_tensor(lib, vector, [ctypes.cast(memory, ctypes.POINTER(ctypes.c_double))])
assert t.tolist() == [1, 2, 3, 4] and restored == []
del t
assert restored == [7]
""",
    "A class of arrays in 30 lines": """
values = np.arange(6, dtype="float32").reshape(2, 3)
t = bridge.to_device(values, "cuda:0")
parts = {"transposed": t.T, "column": t[:, 1], "reversed": t[::-1, ::-1], "empty": t[:0]}
for what, part in parts.items():
    x = bridge.to_device(part, "cuda:0", like=DeviceArray)
    assert bridge.to_device(x, "cpu", like="numpy").tolist() == part.tolist(), what
x = DeviceArray.__from_tensor__(bridge.from_blob(
    t.data_ptr(), 6, "float32", device="cuda:0", readonly=True, owner=t
))
assert bridge.from_dlpack(x).readonly
""",
}
CUDA = {"Memory of CUDA", "A class of arrays in 30 lines"}
C = {"A ctypes library", "A cffi library", "An array for a C function"}
OPENCL = {"A buffer of OpenCL that is not yours"}
SIMULATED = "from tests.drivers import build; build.load('cuda')  # before cuda.bindings looks for a libcuda\n"


def test_the_sections_are_those_that_are_run():
    assert {*C, *OPENCL, *CUDA, *BEFORE} <= SECTIONS.keys()


def build_library(folder):
    """What the reader does before the first program: save the file, and type the page's line."""
    compiler = compiler_or_skip(os.environ.get("CC", "gcc"))
    (source,) = re.findall(
        r"in the file `grid.c`:\n\n```c\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
    (line,) = re.findall(r"^```sh\n(.*)\n```", PAGE, re.MULTILINE)
    (folder / "grid.c").write_text(source)
    program, *arguments = shlex.split(line)
    assert program == "gcc"
    subprocess.run([compiler, "-Wall", "-Werror", *arguments], cwd=folder, check=True)


def test_the_page_runs_in_one_session(tmp_path):
    """Section after section, as in a notebook: but the stand-ins of libraries and what needs CUDA."""
    build_library(tmp_path)
    backend_or_skip("opencl")
    program = tmp_path / "program.py"
    titles = [title for title in SECTIONS if title not in {*CUDA, *BEFORE}]
    program.write_text(
        "\n".join(each for title in titles for each in pages.programs(SECTIONS[title]))
    )
    assert run_script(program, cwd=tmp_path) == ""


@pytest.mark.parametrize("title", [title for title in SECTIONS if pages.programs(SECTIONS[title])])
def test_the_section_runs(title, tmp_path):
    begin = BEFORE.get(title, "")
    if title in C:
        build_library(tmp_path)
    elif title in OPENCL:
        backend_or_skip("opencl")
    elif title in CUDA:
        peer("dlbridge_cuda")
        if shutil.which(os.environ.get("CC", "gcc")) is None:
            pytest.skip("the simulated driver needs gcc")
        begin = SIMULATED + begin
    program = tmp_path / "program.py"
    program.write_text("\n".join([begin, *pages.programs(SECTIONS[title]), AFTER.get(title, "")]))
    assert run_script(program, cwd=tmp_path) == ""
