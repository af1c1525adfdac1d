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
IMPORTS = "import dlbridge as bridge\n"


@pytest.fixture(scope="module")
def reader():
    names = {}
    exec(pages.programs(TEXT)[0], names)
    return names


@pytest.fixture(scope="module")
def read_pnm(reader):
    return reader["read_pnm"]


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
    "content",
    [
        b"",
        b"P5 4 3 255\n" + bytes(11),
        b"P4 4 3 1\n",
        b"P5 1 1 65535\n0",
        b"P5 0 9223372036854775807 65535\n",  # of no bytes, which numpy has no array of
    ],
)
def test_a_file_that_is_none_is_refused(read_pnm, tmp_path, content):
    path = tmp_path / "picture"
    path.write_bytes(content)
    with pytest.raises(bridge.FileError, match="picture"):
        read_pnm(path)


def test_numbers_of_two_bytes_are_converted(read_pnm, tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(b"P5 2 1 65535\n" + bytes([1, 2, 3, 4]))
    assert read_pnm(path).tolist() == [[0x102, 0x304]]
    with pytest.raises(bridge.ExchangeError, match="byte order"):
        read_pnm(path, copy=False)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 3)])
def test_a_picture_of_a_device_is_written(reader, tmp_path, shape):
    backend_or_skip("ext_dev")
    pixels = np.arange(np.prod(shape), dtype="u1").reshape(shape)
    path = tmp_path / "picture"
    reader["write_pnm"](path, bridge.to_device(pixels, "ext_dev:0")[::-1])
    assert np.array_equal(reader["read_pnm"](path, like="numpy"), pixels[::-1])


@pytest.mark.parametrize("shape", [(), (12,), (3, 4, 2), (3, 4, 3, 1)])
def test_what_is_no_picture_is_not_written(reader, tmp_path, shape):
    path = tmp_path / "picture"
    with pytest.raises(bridge.FileError, match=r"picture: .* shape"):
        reader["write_pnm"](path, np.zeros(shape, "u1"))
    assert not path.exists()


@pytest.fixture
def toydsp(tmp_path):
    """The folder of the page's package, as if it were installed."""
    _, _, library, description = pages.programs(TEXT)
    (tmp_path / "toydsp.py").write_text(library)
    (tmp_path / "toydsp_bridge.py").write_text(
        IMPORTS + "from toydsp import Signal\n" + description
    )
    (point,) = re.findall(r'entry-points\."(dlbridge\.libraries)"\]\n(.*?)\n', TEXT)
    install(tmp_path, "toydsp", f"[{point[0]}]\n{point[1].replace(chr(34), '')}")
    return tmp_path


def test_the_library_is_known_when_its_package_is_installed(toydsp):
    (use, shown) = re.search(
        r"```python no-run\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL
    ).groups()
    program = toydsp / "use.py"
    program.write_text(f"import ctypes, toydsp\n{IMPORTS}{use}")
    assert run_script(program) == shown


REFUSED = """
import ctypes, toydsp
import dlbridge as bridge

samples = (ctypes.c_float * 6)()
for x, like in [
    (toydsp.Signal(ctypes.addressof(samples), 3, 6, samples), None),
    (toydsp.Signal(0, 3, 4, None), None),
    (bridge.zeros((2, 3)), "toydsp"),
    (bridge.ones(()), "toydsp"),
]:
    try:
        print(bridge.to_device(x, "cpu", like))
    except bridge.ExchangeError as exc:
        print(exc)
"""


def test_what_a_signal_cannot_be_is_refused(toydsp):
    program = toydsp / "refused.py"
    program.write_text(REFUSED)
    step, null, *axes = run_script(program).splitlines()
    assert "6 bytes apart" in step
    assert "a signal of toydsp is at NULL" in null
    assert all("take t.reshape(-1)" in line for line in axes)
    assert len(axes) == 2
