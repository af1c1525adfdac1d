"""Every example of the documents runs: the ```python blocks of a file, in order.

A block that cannot run here is marked ```python no-run, and says in words why. What the examples
and commands of a page print is compared with what it shows (tests/support/pages.py).
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from tests.support import pages
from tests.support.expected_parts import backend_or_skip, compiler_or_skip, expected, lacking

ROOT = Path(__file__).resolve().parents[2]
# Run by the tests of the part that they document, which have its drivers.
ELSEWHERE = {
    "docs/ffi.md": "tests/ffi/test_docs_ffi.py",
    "docs/opencl.md": "backends/opencl/tests/test_docs.py",
    "docs/files.md": "tests/docs/test_programs.py",
    "docs/howto/bring-your-pointer.md": "tests/docs/test_pointer_doc.py",
    "docs/gallery/cluster.md": "tests/docs/test_programs.py",
    "docs/processes.md": "tests/docs/test_programs.py",
    "docs/oneapi.md": "backends/oneapi/tests/test_docs.py",
    "docs/torch.md": "backends/torch/tests/test_docs.py",
    "docs/vulkan.md": "backends/vulkan/tests/test_docs.py",
    "docs/webgpu.md": "backends/webgpu/tests/test_docs.py",
    "docs/cuda.md": "backends/cuda/tests/test_docs.py",
    "docs/rocm.md": "backends/rocm/tests/test_docs.py",
}
ELSEWHERE |= {
    name.replace("docs/", "docs/reference/"): test
    for name, test in ELSEWHERE.items()
    if (ROOT / name.replace("docs/", "docs/reference/")).exists()
}
"""The reference of a page is run behind it (`pages.with_reference`)."""
PAGES = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "api"]
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *PAGES])
NEEDS = {
    "docs/watch.md": ["torch"],
    "README.md": ["opencl", "torch"],
    "docs/astype.md": ["ext_dev", "opencl", "torch", "jax", "ml_dtypes"],
    "docs/command-line.md": ["ext_dev", "torch"],
    "docs/extending.md": ["ext_dev"],
    "docs/frames.md": ["opencl", "av", "pyarrow", "PIL"],
    "docs/gallery/backend.md": ["matplotlib", "hypothesis"],
    "docs/gallery/batch.md": ["opencl", "torch", "matplotlib", "PIL"],
    "docs/gallery/camera.md": ["opencl", "PIL"],
    "docs/gallery/devices.md": ["matplotlib", "PIL"],
    "docs/gallery/exporter.md": ["torch", "matplotlib"],
    "docs/gallery/kernel.md": ["opencl", "torch", "jax", "tvm_ffi", "g++", "matplotlib", "PIL"],
    "docs/gallery/video.md": ["opencl", "vulkan", "av", "glslang", "PIL"],
    "docs/gallery/watch.md": ["torch", "matplotlib"],
    "docs/gallery/weights.md": ["opencl", "matplotlib"],
    "docs/gallery/wgpu.md": ["webgpu", "torch", "PIL"],
    "docs/hazards.md": ["opencl"],
    "docs/howto/any-library.md": ["opencl", "torch"],
    "docs/howto/read-only-data.md": ["torch"],
    "docs/howto/recipes.md": ["opencl", "torch", "pyarrow"],
    "docs/howto/stream-a-memmap.md": ["opencl", "tqdm"],
    "docs/howto/threads-and-queues.md": ["opencl"],
    "docs/kernels.md": ["ext_dev"],
    "docs/migrating.md": ["opencl", "torch", "tvm_ffi"],
    "docs/tutorial.md": ["opencl", "torch"],
}
"""The backends and libraries that the examples of a page use, besides numpy."""

ABOUT_IMPORTS = {"docs/install.md"}
"""Pages that show what an import of dlbridge imports: each runs in a Python of its own.

The others run in a fork of a process that has imported the core, and torch where they use it.
"""


def have(name):
    """Skip the test without *name*, a backend or a library; fail it if that is expected here."""
    if name in ("opencl", "vulkan", "webgpu", "ext_dev"):
        backend_or_skip(name)
    elif name == "glslang":
        if shutil.which("glslangValidator") is None:
            lacking("glslang", "glslangValidator is not installed here")
    elif name == "g++":
        compiler_or_skip(name)
    elif importlib.util.find_spec(name) is None:
        assert not expected("peers"), f"DLBRIDGE_EXPECT=peers, but there is no {name}"
        pytest.skip(f"{name} is not installed here")


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name not in ELSEWHERE])
def test_examples_run(document, tmp_path):
    text = (ROOT / document).read_text(encoding="utf-8")
    if pages.has_examples(text):
        needs = NEEDS.get(document, [])
        for name in needs:
            have(name)
        imported = ("tests.support.whole_core", *(["torch"] if "torch" in needs else []))
        if document in ABOUT_IMPORTS:
            imported = ()
        # What the page shows, what came.
        assert pages.differences(text, tmp_path, imported) == []
        for picture in pages.pictures(text):
            assert (tmp_path / picture).exists()


def test_each_page_of_the_gallery_makes_the_pictures_that_it_shows():
    for page in (ROOT / "docs" / "gallery").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if page.stem != "index":
            assert pages.pictures(text) == pages.PICTURE.findall(text), page.name
    for picture in (ROOT / "docs" / "gallery").glob("*.png"):
        assert picture.stat().st_size < 120_000, picture.name


@pytest.mark.parametrize("document", sorted(set(ELSEWHERE) & set(DOCUMENTS)))
def test_the_others_are_run_by_their_own_tests(document):
    if pages.programs((ROOT / document).read_text(encoding="utf-8")):
        test = ROOT / ELSEWHERE[document]
        assert test.exists(), f"{document} has examples that nothing runs"
        assert Path(document).name in test.read_text()


def test_links_lead_somewhere():
    beside = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.md")]
    for document in [*DOCUMENTS, *beside, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]:
        folder = (ROOT / document).parent
        prose = re.sub(
            r"^```.*?^```|`[^`]*`",
            "",
            (ROOT / document).read_text(),
            flags=re.MULTILINE | re.DOTALL,
        )
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
            assert (folder / target).exists(), f"{document} points to {target}"
