"""Several files as one mapping: an index, a folder, a list; what is missing or double is said."""

import json

import numpy as np
import pytest

import dlbridge as bridge

ARRAYS = {
    "embed": np.arange(8, dtype="float32").reshape(2, 4),
    "layer.0": np.arange(3, dtype="float16"),
    "layer.1": np.ones(5, "int64"),
}
FILES = {
    "a-00001-of-00002.safetensors": ["embed"],
    "a-00002-of-00002.safetensors": ["layer.0", "layer.1"],
}


@pytest.fixture
def folder(tmp_path):
    placed = {}
    for file, names in FILES.items():
        bridge.save(tmp_path / file, {name: ARRAYS[name] for name in names}, {"from": file})
        placed |= dict.fromkeys(names, file)
    write_index(tmp_path, placed)
    (tmp_path / "README.md").write_text("a model")
    return tmp_path


def write_index(folder, placed):
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": placed})
    (folder / "model.safetensors.index.json").write_text(text)


def ways(folder):
    yield folder / "model.safetensors.index.json"
    yield str(folder)
    yield folder
    yield [folder / file for file in FILES]
    yield tuple(open(folder / file, "rb") for file in FILES)  # noqa: PTH123, SIM115 - one of the ways


def test_one_mapping(folder, device):
    for x in ways(folder):
        with bridge.trace() as trace:
            model = bridge.load(x, device)
            assert set(model) == set(ARRAYS)
            assert model.describe("layer.1") == ("int64", (5,))
        assert trace.plans == []  # each tensor is loaded at its first use
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(model[name].tolist(), array)
        assert set(bridge.load(x, device, names=["embed"])) == {"embed"}
    assert str(folder) in repr(bridge.load(folder))


def test_a_folder_without_an_index(folder):
    (folder / "model.safetensors.index.json").unlink()
    assert set(bridge.load(folder)) == set(ARRAYS)
    bridge.save(folder / "b.npz", ARRAYS)
    with pytest.raises(bridge.FileError, match=r"several formats \(\.npz, \.safetensors\)"):
        bridge.load(folder)


def test_a_folder_of_nothing(tmp_path):
    with pytest.raises(bridge.FileError, match="folder with no file of tensors"):
        bridge.load(tmp_path)
    with pytest.raises(ValueError, match="names no file"):
        bridge.load([])


def test_a_folder_with_two_indices(folder):
    index = folder / "model.safetensors.index.json"
    (folder / "other.safetensors.index.json").write_bytes(index.read_bytes())
    with pytest.raises(bridge.FileError, match=r"several indices.*model.*other"):
        bridge.load(folder)
    assert set(bridge.load(index)) == set(ARRAYS)


def test_double_names(folder):
    bridge.save(folder / "c.safetensors", {"embed": np.zeros(2)})
    files = [*(folder / file for file in FILES), folder / "c.safetensors"]
    with pytest.raises(bridge.FileError, match=r"a tensor 'embed': .*a-00001.*c\.safetensors"):
        bridge.load(files)
    assert set(bridge.load(folder)) == set(ARRAYS)  # the index does not name that file


def test_what_the_index_says_and_the_files_do_not_have(folder):
    first, second = FILES
    write_index(folder, {"embed": first, "layer.0": second, "bias": second, "layer.1": first})
    with pytest.raises(
        bridge.FileError, match=r"'bias' is not in a-00002.*'layer\.1' is not in a-00001"
    ):
        bridge.load(folder)


def test_a_file_that_is_missing(folder):
    (folder / "a-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="a-00002-of-00002"):
        bridge.load(folder)


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "..", "", "b/c.safetensors"]
)
def test_an_index_does_not_reach_other_folders(folder, name):
    write_index(folder, {"embed": name})
    with pytest.raises(bridge.FileError, match="not a file of the same folder"):
        bridge.load(folder)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "["]
)
def test_an_index_that_is_none(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(bridge.FileError, match="is no index of safetensors files"):
        bridge.load(folder)


def test_arrays_without_names(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(2))
    with pytest.raises(ValueError, match=r"one array without a name: load it alone"):
        bridge.load([tmp_path / "a.npy"])


@pytest.mark.parametrize("way", [lambda folder: folder, lambda folder: sorted(folder.iterdir())])
def test_a_part_that_is_missing_is_named(tmp_path, way):
    for number in (1, 3):
        bridge.save(
            tmp_path / f"model-0000{number}-of-00003.safetensors", {f"t{number}": np.ones(2)}
        )
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00003\.safetensors"):
        bridge.load(way(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "Git LFS"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b'{"error": "no such model"}', "no such model"),
        (b"Entry not found", "Entry not found"),
    ],
)
def test_what_stands_in_place_of_an_index(tmp_path, content, words):
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(content)
    with pytest.raises(bridge.FileError, match=words):
        bridge.load(path)


def test_a_name_with_a_zero_byte(folder):
    write_index(folder, {"embed": "a\0b"})
    with pytest.raises(bridge.FileError, match="not a file of the same folder"):
        bridge.load(folder)
