""".npy and .npz: numpy reads ours and we read numpy's; nothing is unpickled, no header believed."""

from __future__ import annotations

import io
import re
import struct
import warnings
import zipfile

import numpy as np
import pytest

import dlbridge as bridge
from tests.files.making import npy_bytes
from tests.support.peers import peer

ARRAYS = {
    "numbers": np.arange(6, dtype="int16").reshape(2, 3),
    "a number": np.array(2.5),
    "empty": np.zeros((3, 0), "float32"),
    "Fortran order": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "strided": np.arange(20.0)[::3],
    "complex": np.array([1 + 2j]),
    "bool": np.array([True, False]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_npy_in_and_out(name, tmp_path):
    array = ARRAYS[name]
    np.save(tmp_path / "theirs.npy", array)
    bridge.save(tmp_path / "ours.npy", array)
    assert (np.load(tmp_path / "ours.npy") == array).all()
    for path in ("theirs.npy", "ours.npy"):
        found = bridge.load(tmp_path / path)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tolist() == array.tolist()
        assert found.readonly or not array.size
        assert name != "Fortran order" or found.strides == (1, 2, 6)
    assert (
        np.load(tmp_path / "ours.npy").flags.f_contiguous
        == np.load(tmp_path / "theirs.npy").flags.f_contiguous
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, None])
def test_npz_in_and_out(save, tmp_path):
    path = tmp_path / "a.npz"
    save(path, **ARRAYS) if save else bridge.save(path, ARRAYS)
    with np.load(path) as theirs:
        file = bridge.load(path)
        assert list(file) == list(theirs) == list(ARRAYS)
        for name, array in ARRAYS.items():
            assert file.describe(name) == (array.dtype, array.shape)
            assert theirs[name].dtype == array.dtype
            assert file[name].tolist() == theirs[name].tolist() == array.tolist()


def test_an_archive_without_arrays(tmp_path):
    np.savez(tmp_path / "theirs.npz")
    bridge.save(tmp_path / "ours.npz", {})
    assert list(bridge.load(tmp_path / "theirs.npz")) == []
    assert list(bridge.load(tmp_path / "ours.npz")) == []


def test_npz_from_save_loads_in_place(tmp_path):
    bridge.save(
        tmp_path / "a.npz", {"a": np.ones(1025, "f4"), "b": np.ones(3, "f8"), "c": np.ones(4096)}
    )
    file = bridge.load(tmp_path / "a.npz")
    with bridge.trace() as trace:
        assert [tensor.data_ptr() % 64 for tensor in file.values()] == [0, 0, 0]
    assert trace.nbytes == 0
    assert file["c"].data_ptr() % 4096 == 0


def test_raw_memory_needs_its_type(tmp_path):
    ml_dtypes = peer("ml_dtypes")
    array = np.arange(4).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(bridge.FileError, match=r"dtype='bfloat16'"):
        bridge.load(tmp_path / "a.npy")
    found = bridge.load(tmp_path / "a.npy", dtype="bfloat16")
    assert (found.dtype, found.tolist()) == ("bfloat16", [0, 1, 2, 3])
    with pytest.raises(bridge.FileError, match="uint8x3 has 3"):
        bridge.load(tmp_path / "a.npy", dtype="uint8x3")
    bridge.save(tmp_path / "b.npy", array)
    assert np.load(tmp_path / "b.npy").dtype == "V2"
    np.savez(tmp_path / "a.npz", x=array, y=np.ones(2))  # the others say what they are
    file = bridge.load(tmp_path / "a.npz", dtype="bfloat16")
    assert (file["x"].tolist(), file["y"].dtype) == ([0, 1, 2, 3], "bfloat16")


def test_what_save_wrote_loads_in_one_call(tmp_path):
    ml_dtypes = peer("ml_dtypes")
    arrays = {
        "single": np.ones(2, "f4"),
        "half": bridge.full((2, 3), 1.5, "bfloat16"),
        "quarter": bridge.ones(2, "float8_e4m3fn"),
        "other quarter": bridge.ones(2, "float8_e5m2"),
        "four bits": np.ones(4, ml_dtypes.int4),
        "vector": bridge.zeros(3, "float32x2"),
    }
    bridge.save(tmp_path / "a.npz", arrays)
    arrays = {name: bridge.asarray(array) for name, array in arrays.items()}
    file = bridge.load(tmp_path / "a.npz", names=True)
    for name, array in arrays.items():
        assert file.describe(name) == (array.dtype, array.shape)
        assert bytes(file[name].tobytes()) == bytes(array.tobytes())
    # Of several tensors, the single floating-point numbers are converted.
    file = bridge.load(tmp_path / "a.npz", dtype="bfloat16")
    found = [file[name].dtype for name in arrays]
    assert found == ["bfloat16"] * 4 + ["int4", "float32x2"]
    with np.load(tmp_path / "a.npz") as found:  # numpy reads it, too
        assert list(found) == list(arrays)
        assert found["half"].dtype == "V2"
        assert found["half"].view(ml_dtypes.bfloat16).tolist() == [[1.5] * 3] * 2


def commented(path, comment):
    """A .npz file with the member h of two raw elements of two bytes, and that comment."""
    info = zipfile.ZipInfo("h.npy")
    info.comment = comment
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(info, npy_bytes(np.array([b"ab", b"cd"], "V2")))


@pytest.mark.parametrize(
    "comment",
    [
        b"dtype=float32",
        b"dtype=no_such_type",
        b"dtype=",
        b"dtype=\xff\xfe",
        b"words",
        b"dtype=U",
        b"dtype=bool16",
    ],
)
def test_a_comment_that_names_no_type_of_that_size_says_nothing(comment, tmp_path):
    commented(tmp_path / "a.npz", comment)
    with pytest.raises(bridge.FileError, match="raw memory"):
        bridge.load(tmp_path / "a.npz")["h"]
    assert bridge.load(tmp_path / "a.npz", dtype="bfloat16")["h"].tobytes() == b"abcd"


OTHERS = {
    "labels": (np.array(["a", "b"]), "strings"),
    "days": (np.zeros(2, "datetime64[s]"), "dates"),
    "objects": (np.array([{}], object), "objects"),
    "big-endian": (np.ones(2, ">f4"), "byte order"),
    "fields": (np.zeros(2, [("a", "i4"), ("b", "f4")]), "structured"),
    "fields of other names": (np.zeros(2, [("\u03b1", "i4")]), "structured|version"),
    "raw": (np.zeros(2, "V2"), "raw memory"),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_a_member_that_cannot_be_used_is_an_error_when_it_is_used(name, compressed, tmp_path):
    path, (array, words) = tmp_path / "a.npz", OTHERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of its version 3
        (np.savez_compressed if compressed else np.savez)(
            path, **{"x": np.ones(2, "f4"), name: array, "y": np.zeros(3)}
        )
    file = bridge.load(path)
    assert list(file) == ["x", name, "y"]
    assert (file["x"].tolist(), file["y"].tolist()) == ([1, 1], [0, 0, 0])
    assert bridge.load(path, names=["x"])["x"].tolist() == [1, 1]
    assert bridge.load(path, names=["y"], dtype="float8_e4m3fn")["y"].tolist() == [0, 0, 0]
    for use in (
        lambda: file[name],
        lambda: file.describe(name),
        lambda: bridge.load(path, names=["x", name]),
        lambda: bridge.load(path, names=True),
    ):
        with pytest.raises(bridge.FileError, match=rf"a\.npz: member '{name}\.npy'.*({words})"):
            use()


def refused(path, *arguments, **named):
    with pytest.raises(bridge.FileError) as caught:
        dict(bridge.load(path, *arguments, **named))
    return str(caught.value)


def test_the_call_that_a_message_of_raw_memory_names_works(tmp_path):
    """Types of several sizes in one archive, as numpy writes them: one call for each."""
    path = tmp_path / "a.npz"
    for size in (1, 2, 3, 4, 8, 16, 100):
        array = np.frombuffer(bytes(range(size)) * 2, f"V{size}")
        np.savez(path, n=np.ones(2), h=array, e=np.zeros(3, "V7"))
        np.save(tmp_path / "a.npy", array)
        for here in (path, tmp_path / "a.npy"):
            for given in ({}, {"dtype": "float32x13"}):
                said = refused(here, **given)
                call = re.search(r"load\(path, .*?\)", said).group()
                found = eval(f"bridge.{call}", {"bridge": bridge, "path": here})
                found = found["h"] if here is path else found
                assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_the_way_out_of_big_endian_numbers_works(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    array = np.arange(3, dtype=">f4")
    np.save(path, array) if suffix == ".npy" else np.savez(path, x=array)
    said = refused(path)
    assert "byte order" in said
    given = {"numpy": np, "path": path, "dlbridge": bridge}
    exec(re.search(r"array = numpy\.load\(\S*(?=;)", said).group(), given)
    given["x"] = given["array"]
    given["array"] = eval(re.search(r"numpy\.asarray\(x\)\.astype\(.*?\)", said).group(), given)
    assert eval(re.search(r"dlbridge\.\S*", said).group(), given).tolist() == [0, 1, 2]


def test_elements_of_four_bits_are_padded_in_numpy(tmp_path):
    ml_dtypes = peer("ml_dtypes")
    np.save(tmp_path / "a.npy", np.arange(4).astype(ml_dtypes.int4))
    found = bridge.load(tmp_path / "a.npy", dtype="int4")
    assert (found.is_padded, found.tolist()) == (True, [0, 1, 2, 3])
    bridge.save(tmp_path / "b.npy", found)
    assert bridge.load(tmp_path / "b.npy", dtype="int4").tolist() == [0, 1, 2, 3]
    packed = bridge.empty(4, "int4")
    with pytest.raises(bridge.FileError, match="no packed int4"):
        bridge.save(tmp_path / "c.npy", packed)


def test_another_type_than_the_file_says_is_converted_to(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(2))
    for dtype in ("float64", "int64", "float16"):
        found = bridge.load(tmp_path / "a.npy", dtype=dtype)
        assert (found.dtype, found.tolist()) == (dtype, [1, 1])


class Bomb:
    def __reduce__(self):
        return print, ("unpickled!",)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_objects_are_never_unpickled(suffix, tmp_path, capfd):
    array = np.array([Bomb()], object)
    path = tmp_path / f"a{suffix}"
    (np.save if suffix == ".npy" else np.savez)(path, array)
    with pytest.raises(bridge.FileError, match="never unpickles"):
        dict(bridge.load(path))
    assert capfd.readouterr().out == ""


def header(text, version=1):
    raw = text.encode()
    return (
        b"\x93NUMPY"
        + bytes((version, 0))
        + struct.pack("<H" if version == 1 else "<I", len(raw))
        + raw
    )


TEXT = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"
LIES = {
    "cut off in the header": header(TEXT)[:30],
    "cut off in the data": header(TEXT) + bytes(7),
    "a rest": header(TEXT) + bytes(9),
    "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
    "no dictionary": header("[1]"),
    "no expression": header("{'descr': f()}"),
    "a negative extent": header(TEXT.replace("2,", "-2,")) + bytes(8),
    "a truth": header(TEXT.replace("2,", "True,")) + bytes(4),
    "too much for a computer": header(TEXT.replace("2,", f"{2**40}, {2**40}")),
    "an extent of 100 bits": header(TEXT.replace("2,", f"{2**100}")),
    "65 dimensions": header(TEXT.replace("2,", "1," * 65)) + bytes(4),
    "a type that is none": header(TEXT.replace("<f4", "nothing")) + bytes(8),
    "a type that is a list": header(TEXT.replace("'<f4'", "[[]]")) + bytes(8),
    "version 9": header(TEXT, version=2).replace(b"\x02", b"\x09", 1),
    "brackets": header("(" * 5000),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(lie, tmp_path):
    (tmp_path / "a.npy").write_bytes(LIES[lie])
    with pytest.raises(bridge.FileError, match=r"a\.npy"):
        bridge.load(tmp_path / "a.npy")


def archive(members, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name twice
        for name, raw in members:
            made.writestr(name, raw)
    return bytearray(stream.getvalue())


GOOD = npy_bytes(np.arange(100.0))


HEADER, DIRECTORY, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def patched(raw, entry, place, value, form="<I"):
    """The archive with another number, *place* bytes behind the first *entry*."""
    struct.pack_into(form, raw, raw.index(entry) + place, value)
    return raw


def second_points_to(raw, offset):
    """The archive whose second member lies at *offset*, as its directory says."""
    struct.pack_into("<I", raw, raw.rindex(DIRECTORY) + 42, offset)
    return raw


def inside(compression):
    """An archive in an array of an archive: the directory names a member of each."""
    inner = archive([("b.npy", GOOD)], compression)
    padded = np.frombuffer(bytes(inner), "u1")
    raw = archive([("a.npy", npy_bytes(padded)), ("b.npy", GOOD)])
    raw = second_points_to(raw, raw.index(b"PK\x03\x04", 4))
    if compression:
        second = raw.rindex(b"PK\x01\x02")
        raw[second + 10 : second + 28] = inner[inner.index(b"PK\x01\x02") + 10 :][:18]
    return raw


def in_the_directory():
    """A member whose bytes go on into the directory: the comment there ends the array."""
    with zipfile.ZipFile(stream := io.BytesIO(), "w") as made:
        made.writestr("a.npy", GOOD[:-8])
        made.comment = b"-" * 8
    raw = bytearray(stream.getvalue())
    for at in (raw.index(HEADER) + 18, raw.index(DIRECTORY) + 20):
        struct.pack_into("<2I", raw, at, len(GOOD), len(GOOD))
    return raw


def cut_before(raw):
    """The archive with a longer directory than it has: zipfile counts backwards from its end."""
    (longer,) = struct.unpack_from("<I", raw, raw.index(END) + 16)
    return patched(raw, END, 16, longer + 5)


def of_numpy():
    """As numpy writes it: with sizes of 64 bits in an extra field of each header."""
    np.savez(stream := io.BytesIO(), a=np.arange(100))
    return bytearray(stream.getvalue())


LONG_SIZES = struct.pack("<2H", 1, 16)  # how that field begins

ARCHIVES = {
    "a text": archive([("a.txt", b"hello")]),
    "torch's": archive([("archive/data.pkl", b"...")]),
    "a name twice": archive([("a.npy", GOOD), ("a.npy", GOOD)]),
    "another method": archive([("a.npy", GOOD)], zipfile.ZIP_BZIP2),
    "cut off": archive([("a.npy", GOOD)])[:-30],
    "a member elsewhere": patched(archive([("a.npy", GOOD)]), DIRECTORY, 42, 5),
    "a member behind the end": patched(archive([("a.npy", GOOD)]), DIRECTORY, 42, 2**31),
    "a member before the beginning": cut_before(archive([("a.npy", GOOD)])),
    "two sizes": patched(archive([("a.npy", GOOD)]), DIRECTORY, 24, len(GOOD) + 1),
    "too small": patched(
        archive([("a.npy", GOOD)], zipfile.ZIP_DEFLATED), DIRECTORY, 24, len(GOOD) - 1
    ),
    "a bomb": patched(archive([("a.npy", GOOD)], zipfile.ZIP_DEFLATED), DIRECTORY, 24, 2**31),
    "two members at one place": second_points_to(archive([("a.npy", GOOD), ("b.npy", GOOD)]), 0),
    "another name in its own header": patched(
        archive([("a.npy", GOOD)]), HEADER, 30, ord("b"), "B"
    ),
    "another method in its own header": patched(archive([("a.npy", GOOD)]), HEADER, 8, 8, "H"),
    "another size in its own header": patched(archive([("a.npy", GOOD)]), HEADER, 22, 5),
    "another compressed size in its own header": patched(
        archive([("a.npy", GOOD)], zipfile.ZIP_DEFLATED), HEADER, 18, 5
    ),
    "another long size in its own header": patched(of_numpy(), LONG_SIZES, 4, 5),
    "another long compressed size in its own header": patched(of_numpy(), LONG_SIZES, 12, 5),
    "a longer header than its own": patched(archive([("a.npy", GOOD)]), HEADER, 28, 60000, "H"),
    "less than its header says": archive([("a.npy", GOOD[:-1])]),
    "more than its header says": archive([("a.npy", GOOD + b"1")]),
    "encrypted": bytearray(archive([("a.npy", GOOD)])),
}
ARCHIVES["encrypted"][ARCHIVES["encrypted"].index(b"PK\x01\x02") + 8] |= 1


@pytest.mark.parametrize("lie", ARCHIVES)
def test_an_archive_that_lies_is_refused(lie, tmp_path):
    (tmp_path / "a.npz").write_bytes(ARCHIVES[lie])
    with pytest.raises(bridge.FileError, match=r"a\.npz"):
        bridge.load(tmp_path / "a.npz")


OVERLAPS = {
    "a member inside another": inside(zipfile.ZIP_STORED),
    "a compressed member inside another": inside(zipfile.ZIP_DEFLATED),
    "a member that goes on into the directory": in_the_directory(),
}


@pytest.mark.parametrize("lie", OVERLAPS)
def test_members_that_share_bytes_are_refused(lie, tmp_path):
    (tmp_path / "a.npz").write_bytes(OVERLAPS[lie])
    with pytest.raises(bridge.FileError, match=r"begins at byte \d+, inside the member 'a.npy'"):
        bridge.load(tmp_path / "a.npz")


def test_members_that_were_streamed(tmp_path):
    """Their sizes follow their bytes; the header before them has none."""

    class Pipe(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            written.extend(data)
            return len(data)

    written = bytearray()
    with zipfile.ZipFile(Pipe(), "w") as made:
        for name in ("a.npy", "ü.npy"):
            made.writestr(name, GOOD)
    assert written[6] & 8
    (tmp_path / "a.npz").write_bytes(written)
    assert bridge.load(tmp_path / "a.npz")["ü"].tolist() == list(range(100))


def test_damage_inside_a_compressed_member_is_found(tmp_path):
    rng = np.random.default_rng(0)
    np.savez_compressed(tmp_path / "a.npz", x=rng.integers(0, 256, 1 << 18, "u1"))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "a.npz").write_bytes(raw)
    file = bridge.load(tmp_path / "a.npz")
    with pytest.raises(bridge.FileError, match=r"a\.npz.*x\.npy"):
        file["x"]


def test_names_that_an_archive_cannot_have(tmp_path):
    for name in ("a\0b", "x" * 70_000):
        with pytest.raises(ValueError, match="cannot be the name"):
            bridge.save(tmp_path / "a.npz", {name: np.ones(2)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["float32x20000", "uint16x65535"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_vectors_of_more_bytes_than_there_are_lanes(tmp_path, name, suffix):
    path = tmp_path / f"wide.{suffix}"
    t = bridge.empty((2,), name)
    bridge.save(path, {"a": t} if suffix == "npz" else t)
    loaded = bridge.load(path, dtype=name)
    back = loaded["a"] if suffix == "npz" else loaded
    assert back.dtype == name
    assert back.tobytes() == t.tobytes()
    if suffix == "npz":
        assert bridge.load(path)["a"].dtype == name
    else:
        with pytest.raises(bridge.FileError, match="dtype='uint16x"):
            bridge.load(path)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_raw_memory_is_not_read_as_a_type_that_numpy_names(tmp_path, suffix):
    """bfloat16 of ml_dtypes became 1.875 where 1 was saved, when float16 was asked for."""
    ml_dtypes = peer("ml_dtypes")
    path = tmp_path / f"a.{suffix}"
    array = np.arange(3).astype(ml_dtypes.bfloat16)
    np.save(path, array) if suffix == "npy" else np.savez(path, x=array)
    with pytest.raises(bridge.FileError, match=r"numpy names float16.*bfloat16"):
        dict(bridge.load(path, dtype="float16"))
