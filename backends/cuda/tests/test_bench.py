"""The benchmark runs, so that a GPU's time is not lost on a misspelt name. Its figures say nothing here.

Nor on a name that is gone: what tests/hardware imports is there.
"""

import ast
import importlib
from pathlib import Path

import pytest

from backends.cuda import bench_gpu
from backends.cuda.tests.cuda_support import python

HARDWARE = Path(__file__).resolve().parents[3] / "tests" / "hardware"


def test_it_writes_its_tables(fake, tmp_path):
    output = tmp_path / "table.md"
    assert bench_gpu.main(["--most", "256K", "--output", str(output)]) == 0
    text = output.read_text()
    for title in (
        "host to device, pageable",
        "device to host, pageable",
        "host to device, pinned",
        "device to host, pinned",
    ):
        assert f"## {title} memory" in text
    assert text.count("| 64 KiB |") == text.count("| 256 KiB |") == 4


@pytest.mark.parametrize(("text", "nbytes"), [("64K", 1 << 16), ("1M", 1 << 20), ("4G", 1 << 32)])
def test_sizes(text, nbytes):
    assert bench_gpu.size_of(text) == nbytes
    assert bench_gpu.size_text(nbytes).replace(" ", "")[:-2] == text


def test_without_a_gpu_it_says_so(fake, tmp_path):
    done = python(
        "from backends.cuda import bench_gpu\n"
        f"sys.exit(bench_gpu.main(['--output', {str(tmp_path / 'x')!r}]))",
        FAKE_CUDA_DEVICES="0",
    )
    assert done.returncode == 1
    assert "nothing measured: no usable CUDA device" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("path", sorted(HARDWARE.glob("*.py")), ids=lambda path: path.stem)
def test_what_the_hardware_runs_import_is_there(cuda, path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("dlbridge"):
            if node.module.startswith("dlbridge_vulkan"):
                pytest.importorskip("dlbridge_vulkan")
            module = importlib.import_module(node.module)
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []
