"""docs/vulkan.md: its Python runs as it stands, and what it says of C is so."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.pages import run_examples, with_reference

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[2] / "docs" / "vulkan.md"
HEADER = HERE.parent / "cdefs" / "vulkan.h"


@pytest.fixture(scope="module")
def page():
    return with_reference(PAGE)


def test_the_examples_run(vulkan, page, tmp_path, monkeypatch, scale_spirv, capsys):
    monkeypatch.chdir(tmp_path)
    Path("scale.spv").write_bytes(scale_spirv)
    if shutil.which("glslangValidator"):  # then the page's own shader
        Path("scale.comp").write_text(
            re.search(r"^```glsl\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
        )
        command = ["glslangValidator", "-V", "scale.comp", "-o", "scale.spv"]
        subprocess.run(command, check=True, capture_output=True)
    run_examples(PAGE, 5)
    reason = vulkan.host_import_refusal(0, 0, 4, False) or "pointer not page aligned"
    assert reason in capsys.readouterr().out


def test_the_descriptor_is_the_headers(page):
    """The same members in the same order."""

    def members(text):
        body = re.search(r"typedef struct \{([^}]*)\} DlbridgeVulkanBuffer;", text)[1]
        plain = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
        return re.findall(r"(\w+)\s*[,;]", plain)

    assert members(page) == members(HEADER.read_text())
    assert len(members(page)) == 12
