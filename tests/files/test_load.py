"""load: by name and at the first use, in place or read, on every device; what is refused."""

from __future__ import annotations

import gc
import gzip
import io
import os
import pickle
import sys
import tempfile
import threading
import zipfile
from copy import copy as copied, deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from tests.files.making import npy_bytes, safetensors_bytes
from tests.support.expected_parts import backend_or_skip
from tests.support.peers import peer
from tests.support.scripts import run_scene
from tests.support.threads import at_once

OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture
def model(tmp_path):
    """A file of ours with three tensors; the sizes of two are multiples of 64 bytes."""
    arrays = {
        "odd": np.arange(7, dtype="int16"),
        "weight": np.arange(4096, dtype="float32").reshape(64, 64),
        "bias": np.arange(16, dtype="float32"),
    }
    bridge.save(tmp_path / "model.safetensors", arrays)
    return tmp_path / "model.safetensors", arrays


def equal(tensor, array):
    return tensor.shape == array.shape and tensor.tolist() == array.tolist()


# By name -------------------------------------------------------------------------


def test_names_are_known_at_once_and_tensors_loaded_at_their_first_use(model, device):
    path, arrays = model
    with bridge.trace() as trace:
        file = bridge.load(path, device)
        assert list(file) == ["odd", "weight", "bias"]
        assert len(file) == 3
        assert "weight" in file
        assert 3 not in file
        assert file.describe("weight") == ("float32", (64, 64))
    assert trace.plans == []
    with bridge.trace() as trace:
        weight = file["weight"]
    assert [plan.shape for plan in trace.plans] == [(64, 64)]
    assert file["weight"] is weight
    assert weight.device == bridge.device(device)
    assert all(equal(file[name], array) for name, array in arrays.items())


def test_names_choose_what_is_loaded_now(model):
    path, _ = model
    with bridge.trace() as trace:
        file = bridge.load(path, names=["bias", "odd", "bias"])
    assert list(file) == ["bias", "odd"]
    assert len(trace.plans) == 2
    with bridge.trace() as trace:
        assert file["bias"] is file["bias"]
    assert trace.plans == []
    with pytest.raises(KeyError, match="'weight'"):
        file["weight"]


def test_a_file_is_closed(model):
    file = bridge.load(model[0])
    name = next(iter(file))
    kept = file[name]
    file.close()
    file.close()
    assert kept.tolist() is not None
    with pytest.raises(ValueError, match="closed"):
        _ = file[name]


def test_a_name_that_is_not_there(model):
    for ask in (
        lambda: bridge.load(model[0])["wieght"],
        lambda: bridge.load(model[0]).describe("wieght"),
        lambda: bridge.load(model[0], names=["odd", "wieght"]),
    ):
        with pytest.raises(KeyError, match=r"no tensor 'wieght'; it has 'odd', 'weight', 'bias'"):
            ask()


def test_read_gives_a_tensor_that_is_not_kept(model, device):
    file = bridge.load(model[0], device)
    first = file.read("weight")
    assert file["weight"] is not first
    assert equal(first, model[1]["weight"])


def test_a_file_as_a_value(model):
    first, second = bridge.load(model[0]), bridge.load(model[0])
    with bridge.trace() as trace:
        assert first == first
        assert first != second
        assert len({first, second}) == 2
        assert repr(first) == f"dlbridge.TensorFile({str(model[0])!r}, 3 tensors, device=cpu:0)"
    assert trace.plans == []
    assert first.path == str(model[0])
    assert first.device == bridge.device("cpu")


def test_many_threads_get_one_tensor(model):
    file = bridge.load(model[0], "ext_dev:0")
    found = at_once(8, lambda: file["weight"])
    assert len(set(map(id, found))) == 1
    assert equal(found[0], model[1]["weight"])


# In place ------------------------------------------------------------------------


def test_cpu_tensors_are_the_pages_of_the_file(model):
    path, arrays = model
    with bridge.trace() as trace:
        file = bridge.load(path, names=True, copy=False)
    assert trace.nbytes == 0
    assert all(equal(file[name], array) for name, array in arrays.items())
    weight = file["weight"]
    assert weight.readonly
    assert weight.data_ptr() % 4096 == 0
    with path.open("r+b") as opened:  # the same pages: what others write is seen
        opened.seek(4096)
        opened.write(np.float32(-1).tobytes())
    assert weight[0, 0].item() == -1


@pytest.mark.parametrize("device", ["opencl:0", "vulkan:0"])
def test_devices_use_the_file_in_place(device, model):
    """Tensors of 64 bytes and multiples; the last one is behind them."""
    backend_or_skip(device.partition(":")[0])
    path, arrays = model
    with bridge.trace() as trace:
        file = bridge.load(path, device, names=["weight", "bias", "odd"], copy=False)
    assert trace.nbytes == 0
    assert {step.kind for plan in trace.plans for step in plan.steps} == {"host import"}
    assert all(str(model[0]) in plan.origin for plan in trace.plans)  # and the tensor's name
    for name, array in arrays.items():
        assert file[name].readonly
        assert equal(file[name], array)
        there = bridge.zeros(array.shape, str(array.dtype), device)
        bridge.copy_(there, file[name])  # the device itself reads the pages
        assert equal(there, array)
        with pytest.raises(bridge.ExchangeError, match="read-only"):
            bridge.copy_(file[name], there)
    assert file["odd"].byte_offset == (64 if device == "vulkan:0" else 0)


def test_a_mapping_lives_as_long_as_a_tensor_on_it(model, device):
    weight = bridge.load(model[0], device)["weight"]
    row = weight[1]
    if device == "cpu":
        row = np.from_dlpack(row)
    model[0].unlink()
    del weight
    gc.collect()
    assert row.tolist() == model[1]["weight"][1].tolist()


def test_the_file_is_closed_with_its_last_tensor(model):
    def count():
        return len(list(OPEN_FILES.iterdir()))

    if not OPEN_FILES.exists():
        pytest.skip("the system does not list open files")
    before = count()
    file = bridge.load(model[0])
    weight = file["weight"]
    del file
    gc.collect()
    assert weight.tolist()
    del weight
    assert count() == before


def test_what_does_not_lie_well_is_copied(tmp_path, device):
    """Behind an odd header by hand: elements of 4 bytes at byte 3 of a word."""
    text = b'{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    text += b" " * ((3 - 8 - len(text)) % 4)
    values = np.arange(4, dtype="f4")
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes(text, values.tobytes()))
    with bridge.trace() as trace:
        tensor = bridge.load(path, device)["x"]
    assert trace.nbytes == 16
    assert trace.plans[-1].steps[0].kind == "read"
    assert not tensor.readonly
    assert tensor.tolist() == [0, 1, 2, 3]
    with pytest.raises(
        bridge.ExchangeError, match=r"tensor 'x' cannot be used in place.*copy=None"
    ):
        bridge.load(path, device, copy=False)["x"]


def test_copies_can_be_written(model, device):
    with bridge.trace() as trace:
        file = bridge.load(model[0], device, names=True, copy=True)
    assert trace.nbytes == sum(array.nbytes for array in model[1].values())
    bridge.copy_(file["bias"], np.ones(16, "f4"))
    assert file["bias"].tolist() == [1] * 16
    assert bridge.load(model[0])["bias"].tolist() == list(range(16))
    assert equal(file["weight"], model[1]["weight"])


def note(calls, *call):
    calls.append(call)


def test_a_device_that_shares_no_memory_gets_it_in_pieces(tmp_path, monkeypatch):
    from dlbridge.files import loading

    monkeypatch.setattr(loading, "STAGED", 1000)
    monkeypatch.setattr(loading, "PIECE", 777)
    array = np.arange(12345, dtype="u1")
    bridge.save(tmp_path / "a.npy", array)
    for device in ("ext_dev:0", "cpu"):
        calls = []
        report = partial(note, calls)
        tensor = bridge.load(tmp_path / "a.npy", device, copy=True, progress=report)
        assert equal(tensor, array)
        assert calls[-1] == (12345, 12345)
        assert len(calls) == (25 if device == "ext_dev:0" else 16)


def test_compressed_arrays_and_fortran_order_on_every_device(tmp_path, device):
    array = np.asfortranarray(np.arange(60000, dtype="int32").reshape(30, 20, 100))
    np.savez_compressed(tmp_path / "a.npz", x=array, y=np.ones(3))
    file = bridge.load(tmp_path / "a.npz", device)
    assert equal(file["x"], array)
    assert file["x"].strides == (1, 30, 600)
    with pytest.raises(bridge.ExchangeError, match="compressed"):
        bridge.load(tmp_path / "a.npz", device, copy=False)["x"]


def test_tensors_without_elements_and_without_dimensions(tmp_path, device):
    bridge.save(tmp_path / "a.safetensors", {"none": np.ones((3, 0)), "one": np.array(5.0)})
    file = bridge.load(tmp_path / "a.safetensors", device)
    assert file["none"].shape == (3, 0)
    assert file["one"].shape == ()
    assert file["one"].tolist() == 5


def test_packed_elements_on_every_device(tmp_path, device):
    header = {"x": {"dtype": "F4", "shape": [3, 6], "data_offsets": [0, 9]}}
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes(header, bytes(range(9))))
    for copy in (None, True):
        tensor = bridge.load(path, device, copy=copy)["x"]
        assert (tensor.dtype, tensor.shape) == ("float4_e2m1fn", (3, 6))
        assert tensor.tobytes() == bytes(range(9))


def test_places_beyond_32_bits(tmp_path):
    """5 GiB that the disk does not have: holes of a sparse file are zeros."""
    size = 5 << 30
    header = {
        "x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
        "y": {"dtype": "U8", "shape": [3], "data_offsets": [size, size + 3]},
    }
    path, head = tmp_path / "a.safetensors", safetensors_bytes(header)
    with path.open("wb") as file:
        file.write(head)
        file.seek(len(head) + size)
        file.write(b"abc")
    file = bridge.load(path)
    assert file["x"][-1].item() == 0
    assert file["y"].tolist() == [97, 98, 99]
    assert bridge.load(path, copy=True)["y"].tolist() == [97, 98, 99]


# Progress --------------------------------------------------------------------------


def test_progress_counts_all_chosen_tensors(model):
    calls = []
    bridge.load(model[0], "ext_dev:0", names=True, progress=lambda *call: calls.append(call))
    total = sum(array.nbytes for array in model[1].values())
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert {each for _, each in calls} == {total}
    assert calls[-1][0] == total


def test_an_error_of_the_progress_ends_the_load(model):
    plugin = bridge.backend("ext_dev")
    gc.collect()
    before = plugin.live_allocations()

    def stop(done, _total):
        if done > 100:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        bridge.load(model[0], "ext_dev:0", names=True, progress=stop)
    gc.collect()
    assert plugin.live_allocations() == before


# Refused --------------------------------------------------------------------------


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        bridge.load(tmp_path / "missing.npy")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.npy")  # opening it would wait for ever
        with pytest.raises(bridge.FileError, match="not a regular file"):
            bridge.load(tmp_path / "pipe.npy")
    with pytest.raises(TypeError):
        bridge.load(3.5)


def test_the_contents_say_the_format_and_then_the_name(tmp_path):
    (tmp_path / "a.bin").write_bytes(npy_bytes(np.arange(3)))
    assert bridge.load(tmp_path / "a.bin").tolist() == [0, 1, 2]
    (tmp_path / "a.gguf").write_bytes(npy_bytes(np.arange(3)))
    assert bridge.load(os.fsencode(tmp_path / "a.gguf")).tolist() == [0, 1, 2]
    for name in ("empty", "empty.txt"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(bridge.FileError, match="not a safetensors"):
            bridge.load(tmp_path / name)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    with pytest.raises(bridge.FileError, match=r"asarray\(PIL\.Image\.open\('.*a\.png'\)\)"):
        bridge.load(tmp_path / "a.png")
    for suffix in ("npy", "npz", "gguf", "safetensors"):
        (tmp_path / f"b.{suffix}").write_bytes(b"")
        with pytest.raises(bridge.FileError, match=f"b.{suffix}"):
            bridge.load(tmp_path / f"b.{suffix}")


def test_arguments_that_do_not_fit(model, tmp_path):
    path, _ = model
    np.save(tmp_path / "a.npy", np.ones(2))
    for error, message, ask in (
        (TypeError, r"names=\['odd'\]", lambda: bridge.load(path, names="odd")),
        (TypeError, "names=b'odd': give a list of str", lambda: bridge.load(path, names=b"odd")),
        (TypeError, "names=5: give a list", lambda: bridge.load(path, names=5)),
        (ValueError, "leave names= out", lambda: bridge.load(tmp_path / "a.npy", names=["a"])),
        (TypeError, "copy", lambda: bridge.load(path, copy="yes")),
        (ValueError, "nowhere", lambda: bridge.load(path, "nowhere")),
        (TypeError, "dtype", lambda: bridge.load(tmp_path / "a.npy", dtype="nothing")),
    ):
        with pytest.raises(error, match=message):
            ask()


def test_a_file_that_became_shorter_is_refused(model, device):
    path, _ = model
    file = bridge.load(path, device)
    os.truncate(path, 5000)
    with pytest.raises(
        bridge.FileError, match=r"had \d+ bytes when it was opened and has 5000 now"
    ):
        file["weight"]


def test_a_device_that_is_not_here_is_named_at_once(model):
    with pytest.raises(bridge.BackendUnavailable):
        bridge.load(model[0], "metal:0")


# Ctrl-C, forks, exits ---------------------------------------------------------------


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="counts open files")
@pytest.mark.parametrize("device", ["ext_dev:0", "opencl:0"])
def test_a_ctrl_c_at_any_moment_leaks_nothing(device):
    backend_or_skip(device.partition(":")[0])
    run_scene("files.interrupted_loads", device)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_process_uses_the_file_of_its_parent(model):
    run_scene("files.used_by_a_child", model[0])


def test_a_process_ends_with_tensors_of_a_file(model, device):
    run_scene("files.ends_with_tensors", model[0], device)


# Odd names and other processes --------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="the system refuses such names")
@pytest.mark.parametrize("suffix", [b".npy", b".safetensors"])
def test_a_name_that_cannot_be_printed(suffix, tmp_path):
    path = os.fsencode(tmp_path) + b"/odd\xff\n\x1b[31m" + suffix
    bridge.save(path, np.ones(3) if suffix == b".npy" else {"x": np.ones(3)})
    found = bridge.load(path)
    messages = [repr(found)]
    if suffix != b".npy":
        assert os.fsencode(found.path) == path
        messages.append(repr(found["x"]))
        with pytest.raises(KeyError) as caught:
            found.read("y")
        messages.append(str(caught.value))
    with open(path, "r+b") as file:  # noqa: PTH123 - the path is bytes
        file.truncate(9)
    with pytest.raises(bridge.FileError) as refused:
        bridge.load(path)
    messages.append(str(refused.value))
    for message in messages:
        assert message.isprintable()
        assert "odd" in message


def test_a_file_is_not_pickled(model):
    file = bridge.load(model[0])
    for act in (pickle.dumps, deepcopy):
        with pytest.raises(TypeError, match=r"TensorFile.*model\.safetensors.*dlbridge\.load"):
            act(file)
    assert copied(file)["odd"] is file["odd"]


# Open files ---------------------------------------------------------------------------


def streams(path):
    """Every kind of open file with the contents of *path*, by name."""
    contents = path.read_bytes()
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        file.write(contents)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("member", contents)
    spooled = tempfile.SpooledTemporaryFile()  # noqa: SIM115 - it is read below
    spooled.write(contents)
    spooled.seek(0)
    named = tempfile.NamedTemporaryFile()  # noqa: SIM115 - it is read below
    named.write(contents)
    named.flush()
    named.seek(0)
    return {
        "BytesIO": io.BytesIO(contents),
        "rb": path.open("rb"),
        "r+b": path.open("r+b"),
        "unbuffered": path.open("rb", buffering=0),
        "gzip": gzip.GzipFile(fileobj=io.BytesIO(packed.getvalue())),
        "a member": zipfile.ZipFile(archive).open("member"),
        "spooled": spooled,
        "temporary": named,
    }


@pytest.mark.parametrize(
    "kind", ["BytesIO", "rb", "r+b", "unbuffered", "gzip", "a member", "spooled", "temporary"]
)
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("device", ["cpu", "ext_dev:0"])
def test_open_files_are_read_from_their_position(kind, before, model, device, tmp_path):
    path, arrays = model
    padded = tmp_path / "padded"
    padded.write_bytes(b"xyz"[:before] + path.read_bytes())
    with streams(padded)[kind] as stream:
        assert stream.read(before) == b"xyz"[:before]
        file = bridge.load(stream, device, names=True)
        lazy = None if before else bridge.load(path.open("rb"), device)
    assert all(equal(file[name], arrays[name]) for name in arrays)
    assert lazy is None or all(equal(lazy[name], arrays[name]) for name in arrays)


def test_an_open_file_on_the_disk_is_used_in_place(model):
    path, arrays = model
    with path.open("rb") as stream:
        file = bridge.load(stream)
    with bridge.trace() as trace:
        assert equal(file["weight"], arrays["weight"])
    assert [plan.nbytes for plan in trace.plans] == [0]
    assert file.path == str(path)


def test_what_is_in_memory_is_used_in_place(model):
    path, arrays = model
    file = bridge.load(io.BytesIO(path.read_bytes()))
    with bridge.trace() as trace:
        tensor = file["weight"]
    assert [plan.nbytes for plan in trace.plans] == [0]
    assert tensor.readonly
    assert file.path == "<BytesIO>"
    del file
    gc.collect()
    assert equal(tensor, arrays["weight"])
    assert repr(bridge.load(io.BytesIO(path.read_bytes()))).startswith(
        "dlbridge.TensorFile('<BytesIO>', 3 tensors"
    )


def test_an_array_behind_another_one():
    stream = io.BytesIO()
    np.save(stream, np.arange(4))
    np.save(stream, np.arange(3))
    stream.seek(0)
    assert np.load(stream).tolist() == [0, 1, 2, 3]
    assert bridge.load(stream).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("stream", "error", "message"),
    [
        (io.StringIO("a"), TypeError, r"a StringIO gives text: .*open\(path, 'rb'\)"),
        (io.BytesIO(), bridge.FileError, "<BytesIO> begins with b''"),
        (
            io.BytesIO(b"x" * 40),
            bridge.FileError,
            "<BytesIO> is a text, not a file of tensors: 'xxxxx",
        ),
        (3, TypeError, r"load\(\) takes a path or an open file, not an int"),
        (
            b"\x93NUMPY\x01\0 more",
            FileNotFoundError,
            r"no file has this name; dlbridge\.load\(io.BytesIO\(x\)\)",
        ),
        (
            b"nowhere",
            FileNotFoundError,
            r"no file has this name; dlbridge\.load\(io.BytesIO\(x\)\)",
        ),
        (bytearray(b"GGUF"), TypeError, r"not a bytearray; io.BytesIO\(x\) makes a file of bytes"),
        ([1], TypeError, r"load\(\) takes a path or an open file, not an int"),
    ],
)
def test_what_is_no_binary_file(stream, error, message):
    with pytest.raises(error, match=message):
        bridge.load(stream)


# Arrays of a library --------------------------------------------------------------------


def test_like_gives_arrays_of_a_library(model, tmp_path):
    torch = peer("torch")
    path, arrays = model
    file = bridge.load(path, like="torch")
    assert isinstance(file["weight"], torch.Tensor)
    assert file["weight"] is file["weight"]
    assert file["weight"].tolist() == arrays["weight"].tolist()
    assert isinstance(file.read("bias"), torch.Tensor)
    chosen = bridge.load(path, names=["odd"], like=np)
    assert isinstance(chosen["odd"], np.ndarray)
    np.save(tmp_path / "a.npy", arrays["bias"])
    assert isinstance(bridge.load(tmp_path / "a.npy", like=torch), torch.Tensor)


def test_like_keeps_read_only_pages_from_libraries_that_would_write(model):
    """torch has no read-only tensors, so it gets a copy; numpy gets the pages."""
    peer("torch")
    path, _ = model
    bridge.load(path, like="torch")["weight"][0] = 7
    assert bridge.load(path)["weight"].tolist()[0][0] == 0
    assert not bridge.load(path, like="numpy")["weight"].flags.writeable
    with pytest.raises(bridge.ExchangeError, match="read-only"):
        bridge.load(path, like="torch", copy=False)["weight"]


def test_like_is_refused_at_once(model):
    with pytest.raises(ModuleNotFoundError, match="no module 'nunpy'"):
        bridge.load(model[0], like="nunpy")


# The type that is asked for, and the end of a block ------------------------------


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_floating_point_tensors_are_converted(tmp_path, device, suffix):
    path = tmp_path / f"a.{suffix}"
    arrays = {"w": np.linspace(0, 1, 7), "half": np.ones(3, "float16"), "ids": np.arange(3)}
    bridge.save(path, arrays)
    file = bridge.load(path, device, dtype="float16")
    assert [file.describe(name)[0] for name in arrays] == ["float16", "float16", "int64"]
    for name, array in arrays.items():
        wanted = array if name == "ids" else array.astype("float16")
        assert file[name].dtype == str(wanted.dtype)
        assert file[name].device == bridge.device(device)
        assert equal(file[name], wanted)
    as_torch = bridge.load(path, dtype="bfloat16", like="numpy")["w"]
    assert str(as_torch.dtype) == "bfloat16"
    with pytest.raises(bridge.ExchangeError, match="conversion to float16 copies"):
        bridge.load(path, dtype="float16", copy=False)["w"]


def test_one_array_is_converted_from_every_type(tmp_path, device):
    np.save(tmp_path / "a.npy", np.arange(5))
    found = bridge.load(tmp_path / "a.npy", device, dtype="float32")
    assert found.dtype == "float32"
    assert found.tolist() == [0, 1, 2, 3, 4]


def test_the_end_of_a_block_closes_the_file(model):
    path, arrays = model
    with bridge.load(path) as file:
        weight = file["weight"]
        before = len(list(OPEN_FILES.iterdir()))
    assert len(list(OPEN_FILES.iterdir())) == before - 1
    assert equal(weight, arrays["weight"])
    assert list(file) == list(arrays)
    with pytest.raises(ValueError, match="closed at the end of the block"):
        file["bias"]


def test_a_tensor_is_no_attribute(model):
    file = bridge.load(model[0])
    with pytest.raises(AttributeError, match=r"no attribute 'weight'; write file\['weight'\]"):
        file.weight
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'; file\[name\] is a tensor, "):
        file.xyzzy
    assert all(file[name].device.is_host for name in list(file))  # as the message says
    with pytest.raises(AttributeError, match=r"no attribute '_xyzzy'$"):
        file._xyzzy
    assert "1 tensor, device" in repr(bridge.load(file.path, names=["weight"]))


def test_the_end_of_a_block_waits_for_no_reader_and_closes_under_none(tmp_path):
    """Another file got the number of the descriptor while a thread still read by it."""
    for name, value in (("good", 1.0), ("evil", 666.0)):
        bridge.save(
            tmp_path / f"{name}.safetensors", {f"t{i}": np.full(512, value) for i in range(8)}
        )
    wrong = []

    def read(file):
        for name in list(file) * 4:
            try:
                found = file.read(name)
            except ValueError as exc:
                assert "closed at the end of the block" in str(exc)  # noqa: PT017 - in a thread
                return
            if found.tolist()[0] != 1.0:
                wrong.append(name)

    for _ in range(40):
        with bridge.load(tmp_path / "good.safetensors", copy=True) as file:
            threads = [threading.Thread(target=read, args=(file,)) for _ in range(3)]
            for thread in threads:
                thread.start()
        evil = [(tmp_path / "evil.safetensors").open("rb") for _ in range(4)]
        for thread in threads:
            thread.join()
        for each in evil:
            each.close()
    assert wrong == []


def test_a_type_without_fractions_converts_no_model(model):
    with pytest.raises(ValueError, match=r"int8.*floating-point"):
        bridge.load(model[0], dtype="int8")
