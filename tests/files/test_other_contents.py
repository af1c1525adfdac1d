"""A text that stands in place of a model is named for what it is, with the way to the model."""

import bz2
import gzip
import io
import lzma
import re

import numpy as np
import pytest

import dlbridge as bridge

LFS = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 9085657600
"""
TEXTS = {
    "lfs": (LFS, r"pointer of Git LFS.* of 9085657600 bytes: run .*`git lfs pull`"),
    "page": (
        b"\n<!DOCTYPE html>\n<html><head><title>Log in | Hub</title>",
        r"a web page \('Log in \| Hub'\).*was a login needed",
    ),
    "page without a title": (b"<HTML><body>no", "a web page, not a file of tensors"),
    "xml": (
        b'\xef\xbb\xbf<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
        "XML text.*AccessDenied",
    ),
    "a number of an error": (b"404: Not Found", r"a text.*get the file again"),
    "words": (b"Invalid username or password.", r"a text.*Invalid username or password"),
    "numbers": (b"1,2\n3,4\n", r"asarray\(numpy\.loadtxt\('.*', delimiter=','\)\)"),
    "numbers in columns": (b"-1 2\n3 4\n", r"asarray\(numpy\.loadtxt\('[^,]*'\)\)"),
    "json": (b'{"error": "Repository Not Found"}\n', "JSON text.*Repository Not Found"),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf", ".npy", ".npz", ""])
@pytest.mark.parametrize("kind", TEXTS)
def test_it_is_named(tmp_path, kind, suffix):
    content, message = TEXTS[kind]
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    with pytest.raises(bridge.FileError, match=message) as caught:
        bridge.load(path)
    assert str(path) in str(caught.value)
    with pytest.raises(bridge.FileError, match=message):
        bridge.load(io.BytesIO(content))


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_numbers_as_text_are_read_as_the_message_says(tmp_path, name):
    path = tmp_path / name
    path.write_text("1,2\n3,4\n" if name == "a.csv" else "1 2\n3 4\n")
    assert follow(path, numpy=np).tolist() == [[1, 2], [3, 4]]


PACKERS = {"gzip": gzip.compress, "bz2": bz2.compress, "lzma": lzma.compress}


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("module", PACKERS)
def test_a_compressed_file_is_loaded_as_the_message_says(tmp_path, module, suffix):
    compress = PACKERS[module]
    path, plain = tmp_path / f"x.{suffix}.packed", tmp_path / f"x.{suffix}"
    tensor = np.arange(3.0)
    bridge.save(plain, tensor if suffix == "npy" else {"a": tensor})
    path.write_bytes(compress(plain.read_bytes()))
    loaded = follow(path, **{module: __import__(module)})
    assert (loaded if suffix == "npy" else loaded["a"]).tolist() == [0, 1, 2]


def follow(path, **modules):
    """What the call in the message for *path* returns."""
    with pytest.raises(bridge.FileError) as caught:
        bridge.load(path)
    call = re.search(r"dlbridge\.\w+\(.*\)", str(caught.value))[0]
    return eval(call, modules | {"dlbridge": bridge})


@pytest.mark.parametrize("names", [None, True])
def test_an_assignment_to_a_file_names_save(tmp_path, names):
    path = tmp_path / "x.safetensors"
    bridge.save(path, {"a": np.arange(3.0)})
    file = bridge.load(path, names=names)
    with pytest.raises(TypeError, match=r"save\(path, \{\*\*file, 'b': x\}\)"):
        file["b"] = 1
    kept = file["a"]  # on the pages of the file that `save` replaces
    bridge.save(path, {**file, "b": [1.0]})
    assert kept.tolist() == [0, 1, 2]
    assert {name: each.tolist() for name, each in bridge.load(path).items()} == {
        "a": [0, 1, 2],
        "b": [1],
    }
