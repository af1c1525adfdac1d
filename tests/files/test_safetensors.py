"""safetensors: what the real package writes is read, and the other way round; lies are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dlbridge as bridge
from tests.files.making import safetensors_bytes
from tests.support.peers import peer

NUMBERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
NUMBERS += ["float16", "float32", "float64"]
ALL = {"bool": [True, False], "complex64": [1 + 2j], **{name: [1, 2, 3] for name in NUMBERS}}


def write(path, *parts, **keywords):
    path.write_bytes(safetensors_bytes(*parts, **keywords))
    return path


@pytest.fixture
def arrays():
    arrays = {name: np.array(values, name) for name, values in ALL.items()}
    arrays["empty"], arrays["a number"] = np.zeros((0, 3), "float32"), np.array(7, "int32")
    return arrays


def same(found, array):
    return (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())


def test_the_real_package_reads_what_save_writes(arrays, tmp_path):
    real = peer("safetensors.numpy")
    arrays["transposed"] = np.arange(6.0).reshape(2, 3).T
    bridge.save(tmp_path / "a.safetensors", arrays, {"format": "pt", "ä": "ö"})
    found = real.load_file(tmp_path / "a.safetensors")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert same(found[name], array)
    with peer("safetensors").safe_open(tmp_path / "a.safetensors", "np") as opened:
        assert opened.metadata() == {"format": "pt", "ä": "ö"}


def test_what_the_real_package_writes_is_read(arrays, tmp_path):
    peer("safetensors.numpy").save_file(arrays, tmp_path / "a.safetensors", {"made": "by others"})
    file = bridge.load(tmp_path / "a.safetensors")
    assert (file.metadata, file.keys()) == ({"made": "by others"}, arrays.keys())
    for name, array in arrays.items():
        assert same(file[name], array)


def test_the_types_of_torch_come_and_go(tmp_path):
    torch, real = peer("torch"), peer("safetensors.torch")
    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    tensors = {name: torch.arange(8).to(getattr(torch, name)) for name in names}
    real.save_file(tensors, tmp_path / "theirs.safetensors")
    theirs = bridge.load(tmp_path / "theirs.safetensors")
    bridge.save(tmp_path / "ours.safetensors", tensors)
    ours = real.load_file(tmp_path / "ours.safetensors")
    for name, tensor in tensors.items():
        assert theirs[name].dtype == name
        assert theirs[name].tobytes() == tensor.view(torch.uint8).numpy().tobytes()
        assert ours[name].dtype == tensor.dtype
        assert (ours[name].view(torch.uint8) == tensor.view(torch.uint8)).all()


def test_elements_of_four_bits(tmp_path):
    """torch's type has two of them in an element; in the file each is counted."""
    torch = peer("torch")
    tensor = torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(torch.float4_e2m1fn_x2)
    bridge.save(tmp_path / "a.safetensors", {"x": bridge.from_dlpack(tensor)})
    found = bridge.load(tmp_path / "a.safetensors")["x"]
    assert (found.dtype, found.shape) == ("float4_e2m1fn", (2, 6))
    assert found.tobytes() == bytes(range(6))
    theirs = bridge.load(tmp_path / "a.safetensors", like="torch")["x"]
    assert (theirs.dtype, theirs.shape) == (tensor.dtype, (2, 3))
    assert theirs.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()
    bridge.save(tmp_path / "b.safetensors", {"x": found})
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    header = {"x": {"dtype": "F4", "shape": [2, 6], "data_offsets": [0, 6]}}
    real = peer("safetensors").deserialize(safetensors_bytes(header, bytes(range(6))))
    assert real[0][1]["shape"] in ([2, 6], [2, 3])


def test_the_header_is_whole_pages_and_tensors_lie_well(tmp_path):
    sizes = {"a": 3, "b": 5000, "c": 1024, "d": 16, "e": 2048, "f": 0}
    bridge.save(tmp_path / "x.safetensors", {n: np.ones(size, "f4") for n, size in sizes.items()})
    raw = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert (8 + length) % 4096 == 0
    header = json.loads(raw[8 : 8 + length])
    assert list(header) == list(sizes)  # in the caller's order
    for name, size in sizes.items():
        first, last = header[name]["data_offsets"]
        assert last - first == 4 * size
        assert not size or first % (4 * size & -4 * size) == 0


GOOD = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def entry(**changes):
    return {"x": {**GOOD["x"], **changes}}


def two(first, second):
    return {
        "x": {"dtype": "U8", "shape": [first[1] - first[0]], "data_offsets": first},
        "y": {"dtype": "U8", "shape": [second[1] - second[0]], "data_offsets": second},
    }


LIES = {
    "no header": (b"", b"", "8 bytes|header"),
    "not JSON": (b"{'x'}", b"", "as JSON"),
    "not an object": (b"[1, 2]  ", b"", "begins with"),
    "not text": (b'{"\xff":1}', b"", "as JSON"),
    "deep": (b'{"x":' + b"[" * 100_000, b"", "as JSON"),
    "a constant": (b'{"x":NaN}', b"", "NaN"),
    "a huge number": (b'{"x":' + b"9" * 5000 + b"}", b"", "as JSON"),
    "a duplicate": (b'{"x":1,"x":2}', b"", "two tensors have the name 'x'"),
    "a duplicate inside": (b'{"x":{"dtype":"U8","dtype":"I8"}}', b"", "'dtype'"),
    "half a character": (b'{"\\ud800":1}', b"", "not Unicode"),
    "a number as a tensor": ({"x": 3}, b"", "tensor 'x': it needs a dtype"),
    "no shape": ({"x": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8), "needs a dtype"),
    "an unknown type": (entry(dtype="Q4"), bytes(8), "tensor 'x': dtype 'Q4' is not one of BOOL"),
    "a list as type": (entry(dtype=["F32"]), bytes(8), "is not one of"),
    "a text as shape": (entry(shape="2"), bytes(8), "is not a list"),
    "a float": (entry(shape=[2.0]), bytes(8), "integers"),
    "a truth": (entry(shape=[True, 2]), bytes(8), "integers"),
    "a negative extent": (entry(shape=[-2]), bytes(8), "integers"),
    "an extent of 65 bits": (entry(shape=[2**65]), bytes(8), "integers"),
    "a product of 80 bits": (entry(shape=[2**40, 2**40]), bytes(8), "more than a computer"),
    "an overflow beside a zero": (entry(shape=[2**40, 2**40, 0], data_offsets=[0, 0]), b"", "more"),
    "65 dimensions": (entry(shape=[1] * 65), bytes(4), "65 dimensions"),
    "another size": (entry(shape=[3]), bytes(8), "takes 12 bytes, and data_offsets 0, 8 are 8"),
    "half a byte": (entry(dtype="F4", shape=[3], data_offsets=[0, 2]), bytes(2), "not whole bytes"),
    "offsets backwards": (entry(data_offsets=[8, 0]), bytes(8), "do not ascend"),
    "a negative offset": (entry(data_offsets=[-8, 0]), bytes(8), "do not ascend"),
    "three offsets": (entry(data_offsets=[0, 4, 8]), bytes(8), "needs a dtype"),
    "cut off": (GOOD, bytes(7), "end at byte 77, and the file at 76"),
    "a rest": (GOOD, bytes(9), "end at byte 77, and the file at 78"),
    "a hole": (two([0, 4], [5, 8]), bytes(8), "tensor 'y' .* a hole"),
    "a hole at the beginning": (entry(data_offsets=[8, 16]), bytes(16), "a hole"),
    "an overlap": (two([0, 4], [3, 8]), bytes(8), "tensor 'y' .* bytes of another"),
    "metadata that is no text": ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
    "metadata that is a list": ({"__metadata__": []}, b"", "__metadata__"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(lie, tmp_path):
    header, data, message = LIES[lie]
    path = write(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(bridge.FileError, match=message) as caught:
        bridge.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("lie", LIES)
def test_the_real_package_refuses_it_too(lie):
    """What it takes and we do not: shapes that numpy cannot hold, and names twice."""
    header, data, _ = LIES[lie]
    real = peer("safetensors")
    if lie in ("65 dimensions", "a duplicate inside"):
        return
    with pytest.raises(real.SafetensorError):
        real.deserialize(safetensors_bytes(header, data))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 64])
def test_a_length_that_lies_is_refused(length, tmp_path):
    path = write(tmp_path / "bad.safetensors", GOOD, bytes(8), length=length)
    with pytest.raises(bridge.FileError, match=r"a header of|as JSON"):
        bridge.load(path)


def test_spaces_and_an_empty_file_of_tensors(tmp_path):
    assert len(bridge.load(write(tmp_path / "a", b"{}      "))) == 0
    file = bridge.load(write(tmp_path / "b", json.dumps(GOOD).encode() + b" \n\t", bytes(8)))
    assert file["x"].tolist() == [0, 0]


UNSUITED = {
    "another type": (
        {"x": np.ones(2, "complex128")},
        None,
        bridge.FileError,
        "no type for complex128",
    ),
    "padded": ({"x": bridge.asarray([1, 2], dtype="int4")}, None, bridge.FileError, "int4"),
    "a name that is reserved": ({"__metadata__": np.ones(2)}, None, ValueError, "__metadata__"),
    "a name that is no text": ({3: np.ones(2)}, None, TypeError, "is a str, not 3"),
    "half a character": ({"\ud800": np.ones(2)}, None, ValueError, "Unicode"),
    "metadata that is a list": ({"x": np.ones(2)}, ["a"], TypeError, r"not \['a'\]"),
    "metadata of numbers": ({"x": np.ones(2)}, {"a": 1}, TypeError, "str to str"),
    "metadata of half characters": ({"x": np.ones(2)}, {"a": "\ud800"}, ValueError, "Unicode"),
    "objects": (
        {"x": np.array([{}])},
        None,
        bridge.ExchangeError,
        r"a\.safetensors: tensor 'x': .*Python objects",
    ),
    "no array": ({"x": object()}, None, TypeError, r"a\.safetensors: tensor 'x': "),
    "no mapping": (np.ones(2), None, TypeError, "a mapping of names"),
}


@pytest.mark.parametrize("what", UNSUITED)
def test_save_says_what_the_format_has_not(what, tmp_path):
    tensors, metadata, error, message = UNSUITED[what]
    with pytest.raises(error, match=message):
        bridge.save(tmp_path / "a.safetensors", tensors, metadata)
    assert list(tmp_path.iterdir()) == []
