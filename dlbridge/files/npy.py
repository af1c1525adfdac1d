""".npy: the header, read and written by numpy's own functions; and .npz, an archive of them.

Objects are never unpickled. Source: ``numpy.lib.format``.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dlbridge import dtype as as_dtype
from dlbridge.errors import ExchangeError, FileError
from dlbridge.extending import check_dtype

from .source import (
    DAMAGED,
    Entry,
    check_bounds,
    check_names,
    check_overlaps,
    count_bytes,
    refuse,
)

if TYPE_CHECKING:
    from dlbridge import DType

    Header = tuple[Any, tuple[int, ...], bool, int]
    """numpy's dtype, the shape, whether the order is Fortran's, and the header's length."""

    from .source import Source

MAGIC = b"\x93NUMPY"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of an archive, and of an empty one."""

LONGEST = 1 << 16
"""Bytes of a header. numpy's limit is 10,000, and its version 1 ends here."""

_WIDTHS: dict[tuple[int, ...], int] = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
"""Bytes of the header's length, by the version of the format.

Version 3 differs from 2 in the letters of the names of fields, which dlbridge never uses.
"""

_LOCAL = struct.Struct("<4s5H3L2H")
"""The local header of a member. Source: APPNOTE.TXT 6.3.10 of PKWARE, section 4.3.7."""

_STREAMED, _UTF8 = 1 << 3, 1 << 11
"""Flags of a member: its sizes follow its bytes; its name is UTF-8."""

_ZIP64, _IN_ZIP64 = 1, 0xFFFFFFFF
"""The extra field of long sizes, and what stands where they would be."""

_MOST_DEFLATED = 1032
"""Bytes that deflate can make of one; a member that says more lies about its size."""


def read_npy(source: Source, dtype: DType | None) -> Entry:
    """The array of a .npy file; *dtype* says what raw memory in it is."""
    first = source.read(0, LONGEST + 12)
    header = _parse(source.path, first)
    entry = _entry(source.path, "", header, *_dtype_of(source.path, header[0], dtype, None))
    check_bounds(source.path, entry.offset, entry.nbytes, source.size)
    rest = source.size - entry.offset - entry.nbytes
    if rest:
        raise FileError(
            f"{source.path}: {rest} bytes follow the array that the header describes; if several "
            "arrays were saved into it, read them by numpy.load from the open file"
        )
    return entry


def _entry(where: str, name: str, header: Header, dtype: DType, padded: bool) -> Entry:
    """The array of *header*; the offset counts from the beginning of that."""
    _, shape, fortran, offset = header
    nbytes = count_bytes(where, dtype, shape, padded=padded)
    return Entry(name, dtype, shape, offset, nbytes, fortran and len(shape) > 1, padded)


def _parse(where: str, first: bytes) -> Header:
    """The type, shape and order of a header, and its length."""
    from numpy.lib import format as npy

    stream = io.BytesIO(first)
    if not first.startswith(MAGIC):
        raise FileError(f"{where}: it does not begin as a .npy file does: {DAMAGED}")
    version = (*first[6:8],)
    width = _WIDTHS.get(version)
    if width is None:
        raise FileError(
            f"{where}: version {version} of .npy is not known here; save the array again by "
            "numpy.save"
        )
    length = int.from_bytes(first[8 : 8 + width], "little")
    if length > LONGEST or 8 + width + length > len(first):
        raise FileError(f"{where}: a .npy header of {length} bytes: {DAMAGED}")
    stream.seek(8)
    parse = npy.read_array_header_1_0 if width == 2 else npy.read_array_header_2_0
    try:
        shape, fortran, stored = parse(stream, max_header_size=LONGEST)
    except Exception as exc:
        text = first[8 + width : 8 + width + length]
        refuse(exc, f"{where}: the .npy header cannot be read", lambda: _is_deep(text))
    return stored, shape, fortran, stream.tell()


def _is_deep(text: bytes) -> bool:
    """Whether a header has more brackets and operators than any that dlbridge takes.

    numpy has it read by Python's own parser, which has a MemoryError for too many.
    """
    return len(_HARMLESS.sub(b"", text)) > 64


_HARMLESS = re.compile(rb"""'[^']*'|"[^"]*"|True|False|\d+L?|[\s:,]""")
"""What a header has of texts, numbers and what stands between them."""


def _dtype_of(
    where: str, stored: Any, wanted: DType | None, member: str | None
) -> tuple[DType, bool]:
    """The dtype of elements that numpy calls *stored*, and whether they are padded.

    *member* is the name of the array in an archive; None: it is that of a .npy file.
    """
    of_archive = "" if member is None else f"[{member!r}]"
    if stored.hasobject:
        raise FileError(
            f"{where}: it holds Python objects, which dlbridge never unpickles: the file could run "
            f"any code. If you trust it, use numpy.load(path, allow_pickle=True){of_archive}, and "
            "save numbers"
        )
    if _is_raw(stored):
        return _raw(where, stored.itemsize, wanted, member)
    try:
        found = as_dtype(stored)
    except ExchangeError as exc:
        raise FileError(
            f"{where}: {exc}. numpy reads it: array = numpy.load(path){of_archive}; change that "
            "array as said, then dlbridge.asarray(array)"
        ) from exc
    return found, False  # `load` converts it to *wanted*


def _is_raw(stored: Any) -> bool:
    """Whether numpy has kept the size of the elements only, and dlbridge has types of that size."""
    plain = stored.kind == "V" and stored.fields is None and stored.subdtype is None
    return plain and bool(_example(stored.itemsize))


_EXAMPLES = {1: "float8_e4m3fn", 2: "bfloat16"}
"""Types that numpy writes as raw memory, by their size."""


def _example(itemsize: int) -> str:
    """A type of that many bytes; empty if there is none."""
    for bits in (8, 16, 32, 64):
        lanes, rest = divmod(8 * itemsize, bits)
        if not rest and 0 < lanes < 1 << 16:
            return _EXAMPLES.get(itemsize, f"uint{bits}x{lanes}")
    return ""


def _raw(where: str, itemsize: int, wanted: DType | None, member: str | None) -> tuple[DType, bool]:
    """The dtype of elements of which numpy has kept the size only."""
    names = "" if member is None else f"names=[{member!r}], "
    call = f"dlbridge.load(path, {names}dtype={_example(itemsize)!r}), for example"
    if wanted is None:
        raise FileError(
            f"{where}: elements of {itemsize} bytes of raw memory: numpy does not write the names "
            f"of ml_dtypes' types. Say what they are: {call}"
        )
    if wanted.name in ("float16", "float32", "float64"):
        raise FileError(
            f"{where}: elements of {itemsize} bytes of raw memory, and numpy names {wanted}, so "
            f"they are of another type: name it, as in {call}, and convert the tensor by "
            "dlbridge.astype"
        )
    if wanted.itemsize != itemsize:
        raise FileError(
            f"{where}: elements of {itemsize} bytes, and {wanted} has {wanted.itemsize}: name a "
            f"dtype of the same size: {call}"
        )
    return wanted, wanted.is_subbyte  # in numpy each takes a byte


# Archives ---------------------------------------------------------------------------


def read_npz(source: Source, dtype: DType | None) -> list[Entry]:
    """The arrays of an archive; those that are not compressed are found in the file itself."""
    path = source.path
    try:
        with zipfile.ZipFile(source.stream()) as archive:
            infos = archive.infolist()
            check_names(path, [each.filename for each in infos])
            begins = [_begin(source, each) for each in infos]
            spans = [
                (f"the member {info.filename!r}", info.header_offset, _end(info, begin))
                for info, begin in zip(infos, begins, strict=True)
            ]
            check_overlaps(path, [*spans, ("the directory", archive.start_dir, source.size)])
            return [
                _member(source, archive, info, begin, dtype)
                for info, begin in zip(infos, begins, strict=True)
            ]
    except Exception as exc:
        refuse(exc, f"{path}: the archive cannot be read")


def _member(
    source: Source,
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    begin: int,
    dtype: DType | None,
) -> Entry:
    where = f"{source.path}: member {info.filename!r}"
    name = info.filename.removesuffix(".npy")
    if name == info.filename:
        raise FileError(
            f"{where}: only .npy files can be in an archive that numpy reads; if torch wrote it, "
            "use torch.load(path, weights_only=True)"
        )
    if info.flag_bits & 1:
        raise FileError(f"{where}: it is encrypted; decrypt the archive first")
    if info.compress_type == zipfile.ZIP_STORED:
        if info.file_size != info.compress_size:
            raise FileError(f"{where}: not compressed, and of two sizes: {DAMAGED}")
        first = source.read(begin, min(LONGEST + 12, info.file_size))
    elif info.compress_type == zipfile.ZIP_DEFLATED:
        if info.file_size > _MOST_DEFLATED * (info.compress_size + 1):
            raise FileError(
                f"{where}: {info.compress_size} bytes cannot hold the {info.file_size} that the "
                f"archive says: {DAMAGED}"
            )
        begin = 0
        with archive.open(info) as stream:
            first = stream.read(min(LONGEST + 12, info.file_size))
    else:
        raise FileError(
            f"{where}: compressed by method {info.compress_type}, which numpy does not write; save "
            "it again by numpy.savez_compressed"
        )
    header = _parse(where, first)
    stored = header[0]
    try:
        found = _dtype_of(where, stored, _commented(info.comment, stored.itemsize) or dtype, name)
    except FileError as exc:  # an error when it is used: the other members can be loaded
        return Entry(name, _BYTE, (), begin, 0, problem=str(exc))
    entry = _entry(where, name, header, *found)
    left = info.file_size - entry.offset
    if entry.nbytes != left:
        raise FileError(
            f"{where}: {entry.dtype} {entry.shape} takes {entry.nbytes} bytes, and the member has "
            f"{left} after its header: {DAMAGED}"
        )
    if info.compress_type == zipfile.ZIP_DEFLATED:
        return replace(entry, member=info.filename)
    return replace(entry, offset=begin + entry.offset)


_BYTE = as_dtype("uint8")

_COMMENT = b"dtype="
"""What the comment of a member in a `save`'s archive begins with; numpy reads no comments."""


def make_comment(dtype: DType) -> bytes:
    """The comment of a member whose header does not say that its elements are *dtype*."""
    return _COMMENT + str(dtype).encode()


def _commented(comment: bytes, itemsize: int) -> DType | None:
    """The dtype that the comment of a member names; None if it names none of that size."""
    if not comment.startswith(_COMMENT):
        return None
    try:
        named = as_dtype(comment.removeprefix(_COMMENT).decode())
        check_dtype(named)
    except (ExchangeError, TypeError, ValueError):  # anybody can write a comment
        return None
    return named if named.itemsize == itemsize else None


def _begin(source: Source, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin in the file; FileError unless both headers say the same."""
    where = f"{source.path}: member {info.filename!r}"
    # zipfile computes it from what the archive says of itself: it may be negative.
    local = source.read(info.header_offset, _LOCAL.size) if info.header_offset >= 0 else b""
    if len(local) < _LOCAL.size or not local.startswith(ZIP_MAGICS[0]):
        raise FileError(f"{where}: it is not where the archive says: {DAMAGED}")
    _, _, flags, method, _, _, _, packed, size, length, more = _LOCAL.unpack(local)
    rest = source.read(info.header_offset + _LOCAL.size, length + more)
    name = rest[:length].decode("utf-8" if info.flag_bits & _UTF8 else "cp437")
    theirs = (info.orig_filename, info.compress_type, info.file_size, info.compress_size)
    ours = (name, method, *_long_sizes(rest[length:], size, packed))
    if flags & _STREAMED:  # it was written before its sizes were known
        ours = (*ours[:2], *theirs[2:])
    if ours != theirs:
        raise FileError(
            f"{where}: the directory says (name, method, size, compressed size) {theirs}, and the "
            f"member's own header {ours}: {DAMAGED}"
        )
    return int(info.header_offset + _LOCAL.size + length + more)


def _long_sizes(extra: bytes, *sizes: int) -> list[int]:
    """The sizes of a local header; those of more than 32 bits stand in a field of *extra*."""
    field = b""
    while len(extra) >= 4 and not field:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == _ZIP64:
            field = extra[4 : 4 + length]
        extra = extra[4 + length :]
    numbers = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
    return [next(numbers, size) if size == _IN_ZIP64 else size for size in sizes]


def _end(info: zipfile.ZipInfo, begin: int) -> int:
    """Where a member ends that begins at byte *begin*; what follows streamed ones is 12 or more."""
    return begin + info.compress_size + (12 if info.flag_bits & _STREAMED else 0)


def open_member(source: Source, entry: Entry) -> Any:
    """A stream of the bytes of an array that is compressed; zipfile compares their checksum."""
    archive = zipfile.ZipFile(source.stream())
    return archive.open(entry.member)  # which keeps the archive


# Out -------------------------------------------------------------------------------


def make_header(
    descr: str, shape: tuple[int, ...], fortran: bool, at: int, alignment: int
) -> bytes:
    """A header that ends at a multiple of *alignment*, if it begins *at* that byte of a file."""
    text = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    fixed = len(MAGIC) + 4
    # At least one byte is left for the line's end.
    length = -(-(at + fixed + len(text) + 1) // alignment) * alignment - at - fixed
    text = text.ljust(length - 1) + b"\n"
    return MAGIC + bytes((1, 0)) + struct.pack("<H", length) + text
