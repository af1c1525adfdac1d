"""save: any library, any device, any layout; whole files or none."""

from __future__ import annotations

import errno
import gc
import stat
import sys
import zipfile

import numpy as np
import pytest

import dlbridge as bridge
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer
from tests.support.scripts import run_scene

SUFFIXES = [".safetensors", ".npz"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_device_and_layout(device, suffix, tmp_path, monkeypatch):
    from dlbridge.files import saving

    monkeypatch.setattr(saving, "PIECE", 1000)
    base = np.arange(6000, dtype="int32").reshape(20, 15, 20)
    views = {
        "compact": lambda x: x,
        "rows": lambda x: x[::2],
        "transposed": lambda x: x.transpose(2, 0, 1),
        "part": lambda x: x[3:5, :, 7],
        "long row": lambda x: x.reshape(6000)[::3],
        "number": lambda x: x[1, 1, 1],
        "none": lambda x: x[:0],
    }
    there = bridge.to_device(base, device, copy=True)
    path = tmp_path / f"a{suffix}"
    bridge.save(path, {name: view(there) for name, view in views.items()})
    found = bridge.load(path)
    for name, view in views.items():
        assert found[name].tolist() == view(base).tolist()


def test_arrays_of_several_libraries_in_one_file(tmp_path):
    torch = peer("torch")
    bridge.save(
        tmp_path / "a.safetensors",
        {"torch": torch.ones(2), "list": [1.5, 2.5], "numpy": np.ones(3), "buffer": b"abc"},
    )
    found = bridge.load(tmp_path / "a.safetensors")
    assert {name: found[name].tolist() for name in found} == {
        "torch": [1, 1],
        "list": [1.5, 2.5],
        "numpy": [1, 1, 1],
        "buffer": [97, 98, 99],
    }


def test_a_loaded_file_is_saved_again_over_itself(tmp_path):
    path = tmp_path / "a.safetensors"
    bridge.save(path, {"x": np.arange(3000), "y": np.ones(5)})
    file = bridge.load(path)
    before = path.read_bytes()
    bridge.save(path, file)
    assert path.read_bytes() == before
    assert file["x"].tolist() == list(range(3000))  # the pages of the old file


def test_the_same_arrays_make_the_same_file(tmp_path):
    for suffix in SUFFIXES:
        for name in "ab":
            bridge.save(tmp_path / f"{name}{suffix}", {"x": np.ones(3), "y": np.ones((2, 2))})
        assert len({(tmp_path / f"{name}{suffix}").read_bytes() for name in "ab"}) == 1


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0), (0, 2**63 - 1), (2**31, 0, 2**31)])
@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [
        *[(suffix, dtype) for suffix in (".npy", *SUFFIXES) for dtype in ("uint8", "float8_e5m2")],
        (".safetensors", "float4_e2m1fn"),
    ],
)
def test_long_extents_beside_a_zero(dtype, suffix, shape, tmp_path):
    path = tmp_path / f"a{suffix}"
    tensor = bridge.empty(shape, dtype)
    bridge.save(path, tensor if suffix == ".npy" else {"x": tensor})
    wanted = dtype if dtype == "float8_e5m2" and suffix != ".safetensors" else None
    found = bridge.load(path, dtype=wanted)
    found = found if suffix == ".npy" else found["x"]
    assert (found.dtype, found.shape) == (dtype, shape)


def test_progress(tmp_path):
    calls = []
    arrays = {"x": np.ones(5_000_000), "y": np.ones(3)}
    bridge.save(tmp_path / "a.npz", arrays, progress=lambda *call: calls.append(call))
    assert calls[-1] == (40_000_024, 40_000_024)
    assert len(calls) == 4


# Whole or not at all --------------------------------------------------------------


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.safetensors"
    bridge.save(path, {"x": np.ones(3)})
    before = path.read_bytes()

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bridge.save(path, {"x": np.zeros(3)}, progress=stop)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    bridge.save(tmp_path / "a.npy", np.ones(3))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path):
    """One that only its owner may read does not become public."""
    bridge.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "a.npy").chmod(0o640)
    bridge.save(tmp_path / "a.npy", np.zeros(3))
    assert stat.S_IMODE((tmp_path / "a.npy").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.npy").symlink_to(tmp_path / "folder" / "real.npy")
    bridge.save(tmp_path / "link.npy", np.arange(3))
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "folder" / "real.npy").tolist() == [0, 1, 2]


def test_paths_that_cannot_be_written(tmp_path):
    (tmp_path / "a.npy").mkdir()
    with pytest.raises(bridge.FileError, match="not a regular file"):
        bridge.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(FileNotFoundError) as caught:
        bridge.save(tmp_path / "missing" / "a.npy", np.ones(3))
    assert caught.value.filename == str(tmp_path / "missing" / "a.npy")
    assert str(caught.value).endswith("a.npy'"), "no second name"
    for name in ("a.gguf", "a", "a.pt"):
        with pytest.raises(ValueError, match=r"writes \.safetensors, \.npz and \.npy"):
            bridge.save(tmp_path / name, {"x": np.ones(3)})
    with pytest.raises(TypeError, match="one array"):
        bridge.save(tmp_path / "b.npy", {"x": np.ones(3)})
    with pytest.raises(ValueError, match="no place for metadata"):
        bridge.save(tmp_path / "b.npz", {"x": np.ones(3)}, {"a": "b"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_the_one_array_of_npy_has_no_name_in_messages(tmp_path):
    path = str(tmp_path / "a.npy")
    packed = bridge.zeros(4, dtype="float4_e2m1fn")
    for error, array in ((TypeError, object()), (bridge.FileError, packed)):
        with pytest.raises(error) as caught:
            bridge.save(path, array)
        assert str(caught.value).startswith(f"{path}: ")
        assert "''" not in str(caught.value)


def test_a_ctrl_c_at_any_moment_leaves_a_whole_file():
    backend_or_skip("opencl")
    run_scene("files.interrupted_saves", "opencl:0")


def test_a_name_that_cannot_be_given_is_named_once(tmp_path, monkeypatch):
    """`os.replace` names both: the hidden file and the path."""

    def refused(old, new):
        raise OSError(errno.EROFS, "read-only", old, None, new)

    monkeypatch.setattr("os.replace", refused)
    with pytest.raises(OSError, match="read-only") as caught:
        bridge.save(tmp_path / "a.npy", np.ones(3))
    assert str(caught.value) == f"[Errno {errno.EROFS}] read-only: {str(tmp_path / 'a.npy')!r}"


def test_a_read_only_file_system_is_named_by_the_path(tmp_path, monkeypatch):
    """There even the removal of a file that does not exist fails, with another name."""

    def refused(path, *_):
        raise OSError(errno.EROFS, "read-only", str(path))

    monkeypatch.setattr("builtins.open", refused)
    monkeypatch.setattr("os.unlink", refused)
    with pytest.raises(OSError, match="read-only") as caught:
        bridge.save(tmp_path / "a.npy", np.ones(3))
    assert caught.value.filename == str(tmp_path / "a.npy")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_a_disk_that_is_full(suffix, tmp_path):
    run_scene("files.full_disk", tmp_path / f"a{suffix}")


@pytest.mark.parametrize("method", ["__init__", "_open_to_write", "close", "_write_end_record"])
def test_a_ctrl_c_in_zipfile(method, tmp_path, monkeypatch, reported):
    """The file is closed before the traceback, which has the archive and its member, is gone."""
    begin = getattr(zipfile.ZipFile, method)

    def interrupted(*given, **named):
        kept = begin(*given, **named)
        raise KeyboardInterrupt(kept)

    monkeypatch.setattr(zipfile.ZipFile, method, interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        bridge.save(tmp_path / "a.npz", {"x": np.ones(3)})
    del caught
    gc.collect()
    assert reported == []
    assert list(tmp_path.iterdir()) == []
