"""Pages whose examples are programs: docs/files.md, docs/processes.md and docs/gallery/cluster.md.

They run as one program each, that of processes.md on MPI's ranks, that of cluster.md on a
cluster of three workers, each on what it has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import pages
from tests.support.expected_parts import backend_or_skip
from tests.support.mpi_ranks import run_ranks
from tests.support.peers import peer
from tests.support.process_groups import run_group
from tests.support.scripts import run_script

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROCESSES = pages.programs(pages.with_reference(DOCS / "processes.md"))
OWN = "__main__"  # what a program of its own has, as its processes import it


@pytest.fixture
def program(tmp_path):
    """A file with these blocks."""

    def write(blocks):
        path = tmp_path / "program.py"
        path.write_text("\n".join(blocks))
        return path

    return write


def test_files(program, tmp_path):
    backend_or_skip("opencl")
    peer("ml_dtypes")
    peer("safetensors")
    blocks = pages.programs(pages.with_reference(DOCS / "files.md"))
    assert len(blocks) == 11
    run_script(program(blocks), cwd=tmp_path)


def test_shared_memory(program):
    backend_or_skip("opencl")
    (block,) = [block for block in PROCESSES if OWN in block]
    assert run_script(program([block])) == ""


@pytest.mark.parametrize("ranks", [2, 4])
def test_mpi(ranks, program):
    backend_or_skip("opencl")
    peer("ml_dtypes")
    blocks = [block for block in PROCESSES if OWN not in block]
    assert len(blocks) == 6
    assert run_ranks(ranks, program([*blocks, 'print("done")'])).split() == ["done"] * ranks


def test_clusters(program, tmp_path):
    peer("distributed")
    if backend_or_skip("opencl").device_info(0)["platform"] != "Portable Computing Language":
        pytest.skip("the two devices are PoCL's")
    blocks = pages.programs((DOCS / "gallery" / "cluster.md").read_text(encoding="utf-8"))
    assert len(blocks) == 2
    said = run_group(program(blocks), cwd=tmp_path)
    for place in ("on opencl:0", "on opencl:1", "by numpy"):
        assert f"blurred {place}" in said
