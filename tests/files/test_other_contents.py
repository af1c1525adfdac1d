"""A text that stands in place of a model is named for what it is, with the way to the model."""

import io

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
    "words": (b"Invalid username or password.", r"a text.*Invalid username or password"),
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
