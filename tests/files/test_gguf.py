"""GGUF: what the gguf package writes is read; quantised tensors and lies are refused by name."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import dlbridge as bridge
from tests.files.making import GGUF_F32, GGUF_Q4_0, gguf_bytes
from tests.support.peers import peer

TYPES = ["float32", "float16", "int8", "int16", "int32", "int64", "float64"]


def test_what_the_gguf_package_writes_is_read(tmp_path):
    gguf = peer("gguf")
    arrays = {f"layer.{name}.weight": np.arange(24).reshape(2, 3, 4).astype(name) for name in TYPES}
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "ä", ""] * 1000)
    writer.add_array("scores", [1.0, 2.0])
    writer.add_bool("flag", True)
    writer.add_float64("number", 1.5)
    writer.add_array("numbers", [1, -2])
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    bits = np.arange(32, dtype="uint16")
    writer.add_tensor(
        "b", bits.view("uint8"), raw_shape=(64,), raw_dtype=gguf.GGMLQuantizationType.BF16
    )
    quantised = gguf.quants.quantize(np.ones((4, 64), "f4"), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = bridge.load(tmp_path / "a.gguf")
    assert list(file) == [*arrays, "b", "q"]
    assert file.metadata == {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": ["<s>", "ä", ""] * 1000,
        "scores": [1.0, 2.0],
        "flag": True,
        "number": 1.5,
        "numbers": [1, -2],
    }
    assert file.metadata["flag"] is True
    for name, array in arrays.items():
        assert file[name].dtype == array.dtype
        assert file[name].tolist() == array.tolist()
    assert file["b"].dtype == "bfloat16"
    assert file["b"].view("uint16").tolist() == bits.tolist()
    for ask in (file.__getitem__, file.describe):
        with pytest.raises(bridge.FileError, match=r"tensor 'q'.*quantised as Q8_0.*raw=True"):
            ask("q")
    raw = bridge.load(tmp_path / "a.gguf", raw=True)["q"]
    assert (raw.dtype, raw.shape) == ("uint8", (4, 68))
    floats = gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert np.allclose(floats, 1, atol=0.01)
    with pytest.raises(bridge.FileError, match="'q'"):
        bridge.load(tmp_path / "a.gguf", names=True)


def test_the_table_of_quantised_types_is_that_of_the_gguf_package():
    from dlbridge.files import gguf as ours

    gguf = peer("gguf")
    theirs = {
        int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind])
        for kind in gguf.GGMLQuantizationType
        if int(kind) not in ours._TYPES
    }
    assert ours._QUANTIZED.items() <= theirs.items()
    plain = {int(kind): kind.name for kind in gguf.GGMLQuantizationType if int(kind) in ours._TYPES}
    assert {plain[kind]: bridge.dtype(name).itemsize for kind, name in ours._TYPES.items()} == {
        name: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1] for name in plain.values()
    }


X = ("x", (4,), GGUF_F32, 0)
PAIR = struct.pack("<Q", 1) + b"k"


def pair(kind, value):
    return PAIR + struct.pack("<I", kind) + value


ALIGNMENT = struct.pack("<Q", 17) + b"general.alignment"
ALIGNED = ALIGNMENT + struct.pack("<I", 4)
LIES = {
    "version 1": (gguf_bytes([X], bytes(16), version=1), "version 1"),
    "version 4": (gguf_bytes([X], bytes(16), version=4), "version 4"),
    "another byte order": (gguf_bytes([X], bytes(16), version=3 << 24), "byte order"),
    "cut off in the data": (gguf_bytes([X], bytes(15)), "tensor 'x': its 16 bytes .* end after"),
    "cut off in the header": (gguf_bytes([X], b"")[:40], "its header ends"),
    "more tensors than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "its header ends"),
    "more metadata than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "its header ends"),
    "a long name": (gguf_bytes([("x" * 70_000, (4,), 0, 0)], bytes(16)), "a name of 70000"),
    "five dimensions": (gguf_bytes([("x", (1,) * 5, 0, 0)], bytes(16)), "5 dimensions"),
    "an extent of 64 bits": (gguf_bytes([("x", (2**63,), 0, 0)], bytes(16)), "integers"),
    "a product of 80 bits": (gguf_bytes([("x", (2**40, 2**40), 0, 0)], bytes(16)), "more than"),
    "no multiple of 32": (gguf_bytes([("x", (4,), 0, 16)], bytes(32)), "no multiple of 32"),
    "an overlap": (gguf_bytes([X, ("y", (4,), 0, 0)], bytes(16)), "'y' .* inside the tensor 'x'"),
    "a name twice": (gguf_bytes([X, ("x", (4,), 0, 32)], bytes(64)), "two tensors have the name"),
    "rows that are no blocks": (
        gguf_bytes([("x", (33,), GGUF_Q4_0, 0)], bytes(64)),
        "blocks of 32",
    ),
    "alignment 3": (
        gguf_bytes([X], bytes(16), pairs=ALIGNED + struct.pack("<I", 3), count=1),
        "alignment 3 is no power",
    ),
    "alignment 0": (
        gguf_bytes([X], bytes(16), pairs=ALIGNED + struct.pack("<I", 0), count=1),
        "alignment 0 is no power",
    ),
    "an alignment that is a float": (
        gguf_bytes([X], bytes(16), pairs=ALIGNMENT + struct.pack("<If", 6, 64), count=1),
        "alignment 64.0 is no power",
    ),
    "a key twice": (gguf_bytes([X], bytes(16), pairs=pair(0, b"\1") * 2, count=2), "values of 'k'"),
    "unknown metadata": (
        gguf_bytes([X], bytes(16), pairs=pair(99, b""), count=1),
        "unknown type 99",
    ),
    "an array of arrays": (
        gguf_bytes([X], bytes(16), pairs=pair(9, struct.pack("<IQ", 9, 1)), count=1),
        "array of arrays",
    ),
    "a long array": (
        gguf_bytes([X], bytes(16), pairs=pair(9, struct.pack("<IQ", 4, 2**62)), count=1),
        "its header ends",
    ),
    "a long text": (
        gguf_bytes([X], bytes(16), pairs=pair(8, struct.pack("<Q", 2**62)), count=1),
        "its header ends",
    ),
    "a name that is no text": (gguf_bytes([X], bytes(16)).replace(b"x", b"\xff"), "not Unicode"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(lie, tmp_path):
    raw, message = LIES[lie]
    (tmp_path / "a.gguf").write_bytes(raw)
    with pytest.raises(bridge.FileError, match=message) as caught:
        bridge.load(tmp_path / "a.gguf")
    assert str(tmp_path / "a.gguf") in str(caught.value)


@pytest.mark.parametrize("value", [struct.pack("<II", 4, 128), struct.pack("<IQ", 10, 128)])
def test_another_alignment_is_respected(value, tmp_path):
    pairs = ALIGNMENT + value
    data = np.arange(4, dtype="f4").tobytes()
    (tmp_path / "a.gguf").write_bytes(gguf_bytes([X], data, pairs=pairs, count=1, alignment=128))
    assert bridge.load(tmp_path / "a.gguf")["x"].tolist() == [0, 1, 2, 3]


def test_a_type_that_is_not_known_does_not_hide_the_others(tmp_path):
    (tmp_path / "a.gguf").write_bytes(gguf_bytes([X, ("y", (4,), 77, 32)], bytes(64)))
    file = bridge.load(tmp_path / "a.gguf")
    assert file["x"].tolist() == [0] * 4
    with pytest.raises(bridge.FileError, match="type 77"):
        file["y"]


def test_a_header_longer_than_the_window(tmp_path):
    words = [struct.pack("<Q", 1000) + bytes(1000)] * 3000
    pairs = pair(9, struct.pack("<IQ", 8, len(words)) + b"".join(words))
    data = np.arange(4, dtype="f4").tobytes()
    (tmp_path / "a.gguf").write_bytes(gguf_bytes([X], data, pairs=pairs, count=1))
    assert bridge.load(tmp_path / "a.gguf")["x"].tolist() == [0, 1, 2, 3]
