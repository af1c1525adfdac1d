"""A good file is not called damaged, whatever comes between: no memory, no stack, a signal."""

from __future__ import annotations

import signal
import struct
import zipfile
import zlib
from contextlib import suppress

import numpy as np
import pytest

import dlbridge as bridge
from tests.files.making import safetensors_bytes
from tests.support.interrupted import handled
from tests.support.scripts import run_scene

SUFFIXES = [".npy", ".npz", ".safetensors"]


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path):
    """A good file of each format."""
    path = tmp_path / f"good{request.param}"
    array = np.arange(3.0)
    bridge.save(path, array if request.param == ".npy" else {"x": array})
    return path


def test_too_little_memory_for_the_header_is_a_memory_error(tmp_path):
    path = tmp_path / "many.safetensors"
    names = [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(60_000)]
    empty = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    path.write_bytes(safetensors_bytes(dict.fromkeys(names, empty)))
    assert run_scene("files.too_little_memory", path) == ""


def test_one_failed_allocation_is_a_memory_error(path):
    pytest.importorskip("_testcapi", reason="CPython was built without its own test helpers")
    run_scene("files.failed_allocations", path)


@pytest.mark.parametrize(
    "error", [RuntimeError("can't allocate lock"), zlib.error("Error -4 while decompressing data")]
)
def test_too_little_memory_by_another_name(error, tmp_path, monkeypatch):
    """CPython, and zlib in it, have other exceptions for it at some places."""
    path = tmp_path / "a.npz"
    bridge.save(path, {"x": np.ones(2)})

    def refused(_archive):
        raise error

    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", refused)
    with pytest.raises(type(error), match=str(error)) as caught:
        bridge.load(path)
    assert caught.value is error


def test_a_deep_stack_is_a_recursion_error(path):
    def deep(levels):
        return deep(levels - 1) if levels else bridge.load(path)

    bridge.load(path)
    errors = set()
    for levels in range(800, 1000):
        try:
            deep(levels)
        except Exception as error:
            errors.add(type(error))
    assert errors == {RecursionError}


def header(text):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


DEEP = {
    "lists.safetensors": safetensors_bytes(b'{"x":' + b"[" * 100_000),
    "objects.safetensors": safetensors_bytes(b'{"x":' * 100_000 + b"1" + b"}" * 100_000),
    "minus.npy": header(b"-" * 60_000 + b"1"),
    "plus.npy": header(b"1" + b"+1" * 30_000),
    "functions.npy": header(b"lambda:" * 9000 + b"1"),
}


@pytest.mark.parametrize("name", DEEP)
def test_a_file_that_is_nested_too_deeply(name, tmp_path):
    (tmp_path / name).write_bytes(DEEP[name])
    with pytest.raises(bridge.FileError, match=r"deeply.*damaged"):
        bridge.load(tmp_path / name)


class Late(Exception):
    """Raised by a signal handler."""


class LateInput(OSError):
    """Likewise; zipfile catches OSError, and raises its own exception."""


@pytest.mark.parametrize("kind", [Late, LateInput])
def test_the_exception_of_a_signal_handler_is_raised_as_it_is(kind, tmp_path, monkeypatch):
    """The signal comes while the names of an archive's members are decoded."""
    path = tmp_path / "a.npz"
    bridge.save(path, {"x": np.ones(2)})
    read = zipfile.ZipFile._RealGetContents

    def interrupted(archive):
        try:
            signal.raise_signal(signal.SIGTERM)
            read(archive)
        except (OSError, Late) as exc:  # as CPython 3.11 does in codecs, and zipfile elsewhere
            raise zipfile.BadZipFile("it cannot be read") from (exc if kind is Late else None)

    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", interrupted)
    with handled(kind), pytest.raises(kind):
        bridge.load(path)


def test_a_file_is_damaged_though_a_handler_raised_before(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK\x03\x04 and nothing else")
    with handled(Late):
        try:
            signal.raise_signal(signal.SIGTERM)
        except Late:
            with pytest.raises(bridge.FileError, match="damaged"):
                bridge.load(path)


def test_deep_is_what_is_outside_of_texts(tmp_path):
    """Too little stack for a good header with brackets in its names."""
    path = tmp_path / "a.safetensors"
    bridge.save(path, {'[{"\\' * 40: np.ones(2)}, {"[": "{" * 100})

    def deep(levels):
        return deep(levels - 1) if levels else bridge.load(path)

    for levels in range(900, 1000):
        with suppress(RecursionError):
            deep(levels)
