"""The two packages of docs/extending.md: the reader with other files, the library when installed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from tests.support import pages
from tests.support.expected_parts import backend_or_skip
from tests.support.packages import install
from tests.support.scripts import run_script

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")
IMPORTS = "import dlbridge as bridge\nfrom dlbridge.extending import CPU, Memory, tensor_on\n"


@pytest.fixture(scope="module")
def read_pnm():
    names = {}
    exec(pages.programs(TEXT)[0], names)
    return names["read_pnm"]


@pytest.mark.parametrize(("kind", "shape"), [(b"P5", (3, 4)), (b"P6", (3, 4, 3))])
def test_a_picture_is_read_in_place_and_brought_to_a_device(read_pnm, tmp_path, kind, shape):
    backend_or_skip("ext_dev")
    pixels = np.arange(np.prod(shape), dtype="u1").reshape(shape)
    path = tmp_path / "picture"
    path.write_bytes(kind + b"\n4 3\n255\n" + pixels.tobytes())
    with bridge.trace() as ran:
        here = read_pnm(path)
    assert ran.nbytes == 0
    assert here.readonly
    assert np.array_equal(here.numpy(), pixels)
    there = read_pnm(path, "ext_dev:0")
    path.unlink()
    assert np.array_equal(bridge.to_device(there, "cpu", like="numpy"), pixels)


@pytest.mark.parametrize(
    "content", [b"", b"P5 4 3 255\n" + bytes(11), b"P4 4 3 1\n", b"P5 1 1 65535\n00"]
)
def test_a_file_that_is_none_is_refused(read_pnm, tmp_path, content):
    path = tmp_path / "picture"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"picture|empty"):
        read_pnm(path)


def test_the_library_is_known_when_its_package_is_installed(tmp_path):
    _, _, library, description = pages.programs(TEXT)
    (tmp_path / "toydsp.py").write_text(library)
    (tmp_path / "toydsp_bridge.py").write_text(
        IMPORTS + "from toydsp import Signal\n" + description
    )
    (point,) = re.findall(r'entry-points\."(dlbridge\.libraries)"\]\n(.*?)\n', TEXT)
    install(tmp_path, "toydsp", f"[{point[0]}]\n{point[1].replace(chr(34), '')}")
    (use, shown) = re.search(
        r"```python no-run\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL
    ).groups()
    program = tmp_path / "use.py"
    program.write_text(f"import ctypes, toydsp\n{IMPORTS}{use}")
    assert run_script(program) == shown
