"""Every example of the documents runs: the ```python blocks of a file, in order.

A block that cannot run here is marked ```python no-run, and says in words why.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Run by the tests of the part that they document, which have its drivers.
ELSEWHERE = {
    "docs/ffi.md": "tests/ffi/test_docs_ffi.py",
    "docs/opencl.md": "backends/opencl/tests/test_docs.py",
    "docs/vulkan.md": "backends/vulkan/tests/test_docs.py",
    "docs/cuda.md": "backends/cuda/tests/test_docs.py",
    "docs/rocm.md": "backends/rocm/tests/test_docs.py",
}
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
)


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in ELSEWHERE])
def test_examples_run(document, tmp_path):
    blocks = BLOCK.findall((ROOT / document).read_text())
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", sorted(set(ELSEWHERE) & set(DOCUMENTS)))
def test_the_others_are_run_by_their_own_tests(document):
    if BLOCK.search((ROOT / document).read_text()):
        test = ROOT / ELSEWHERE[document]
        assert test.exists(), f"{document} has examples that nothing runs"
        assert Path(document).name in test.read_text()


def test_links_lead_somewhere():
    for document in [*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md"]:
        folder = (ROOT / document).parent
        prose = re.sub(
            r"^```.*?^```|`[^`]*`",
            "",
            (ROOT / document).read_text(),
            flags=re.MULTILINE | re.DOTALL,
        )
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
            assert (folder / target).exists(), f"{document} points to {target}"
