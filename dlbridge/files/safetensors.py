"""safetensors: the header, read and written. Source: its format, and the reader in Rust (0.8).

Eight bytes give the length of the header, in little-endian order. The header is JSON and may
end in spaces. The bytes of all tensors follow, without gaps.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from dlbridge import dtype as as_dtype
from dlbridge.errors import FileError

from .source import DAMAGED, Entry, check_names, count_bytes, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .source import Source

MAX_HEADER = 100_000_000
"""The longest header in bytes that the reader in Rust takes (MAX_HEADER_SIZE)."""

PAGE = 4096
"""Bytes. `make_header` fills up to a page, which is where drivers can use memory in place."""

METADATA = "__metadata__"

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
    "F4": "float4_e2m1fn",
}
STORED = {ours: theirs for theirs, ours in _NAMES.items()}
"""The format's names of dtypes, by ours."""


def is_safetensors(first: bytes, size: int) -> bool:
    """Whether a file of *size* bytes that begins with *first* may be one."""
    return first[8:9] == b"{" and int.from_bytes(first[:8], "little") <= min(MAX_HEADER, size)


def read_header(source: Source) -> tuple[list[Entry], dict[str, str]]:
    """The tensors of the file, in the order of the header, and its metadata."""
    path = source.path
    if sys.byteorder != "little":
        raise FileError(f"{path}: safetensors files are little-endian, and this machine is not")
    begin = 8 + _header_length(source)
    header = _parse(path, source.read(8, begin - 8))
    metadata = _metadata(path, header.pop(METADATA, None))
    check_names(path, header)
    entries = [_entry(path, name, fields, begin) for name, fields in header.items()]
    _check_order(path, entries, begin, source.size)
    return entries, metadata


def _header_length(source: Source) -> int:
    if source.size < 8:
        raise FileError(
            f"{source.path}: {source.size} bytes, and a safetensors file begins with the 8 bytes "
            f"of its header's length: {DAMAGED}"
        )
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        raise FileError(
            f"{source.path}: a header of {length} bytes; safetensors allows {MAX_HEADER}: {DAMAGED}"
        )
    if 8 + length > source.size:
        raise FileError(
            f"{source.path}: a header of {length} bytes in a file of {source.size}: {DAMAGED}"
        )
    return length


def _parse(path: str, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        check_names(path, [name for name, _ in pairs])
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    if not text.startswith(b"{"):
        raise FileError(f"{path}: the header of a safetensors file begins with '{{': {DAMAGED}")
    try:
        header = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=constant)
    except Exception as exc:
        refuse(exc, f"{path}: the header cannot be read as JSON", lambda: _is_deep(text))
    assert isinstance(header, dict)  # it begins with a brace
    return header


def _is_deep(text: bytes) -> bool:
    """Whether brackets stand in brackets beyond what any header needs, which is three."""
    depth = 0
    for mark in _MARKS.finditer(text):
        depth += _STEPS.get(mark[0], 0)
        if depth > 16:
            return True
    return False


_MARKS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_STEPS = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


def _metadata(path: str, given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise FileError(f"{path}: {METADATA} is not an object of texts: {DAMAGED}")
    return given


def _entry(path: str, name: str, fields: Any, begin: int) -> Entry:
    where = f"{path}: tensor {name!r}"
    try:
        stored, shape, (first, last) = fields["dtype"], fields["shape"], fields["data_offsets"]
    except Exception as exc:
        refuse(exc, f"{where}: it needs a dtype, a shape and two data_offsets")
    ours = _NAMES.get(stored) if isinstance(stored, str) else None
    if ours is None:
        raise FileError(
            f"{where}: dtype {stored!r} is not one of {', '.join(_NAMES)}; convert it to one of "
            "them by the library that wrote the file"
        )
    if not isinstance(shape, list):
        raise FileError(f"{where}: the shape {shape!r} is not a list: {DAMAGED}")
    if type(first) is not int or type(last) is not int or not 0 <= first <= last:
        raise FileError(f"{where}: data_offsets {first!r}, {last!r} do not ascend: {DAMAGED}")
    dtype = as_dtype(ours)
    need = count_bytes(where, dtype, tuple(shape))
    if need != last - first:
        raise FileError(
            f"{where}: {dtype} {tuple(shape)} takes {need} bytes, and data_offsets {first}, {last} "
            f"are {last - first}: {DAMAGED}"
        )
    return Entry(name, dtype, tuple(shape), begin + first, need)


def _check_order(path: str, entries: list[Entry], begin: int, size: int) -> None:
    """FileError unless the tensors follow each other to the end: no overlap, no hole, no rest."""
    end = begin
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.offset != end:
            what = "a hole before it" if entry.offset > end else "bytes of another tensor"
            raise FileError(
                f"{path}: tensor {entry.name!r} begins at byte {entry.offset} and the one before "
                f"it ends at {end}, so there is {what}; safetensors allows neither: {DAMAGED}"
            )
        end += entry.nbytes
    if end != size:
        raise FileError(f"{path}: its tensors end at byte {end}, and the file at {size}: {DAMAGED}")


# Out -------------------------------------------------------------------------------


def make_header(
    entries: Mapping[str, tuple[str, tuple[int, ...], int, int]], metadata: Mapping[str, str] | None
) -> bytes:
    """The first bytes of a file, a whole number of pages.

    *entries* have the format's name of the type, the shape, and the offsets of the first
    byte and of the byte after the last.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for name, (stored, shape, first, last) in entries.items():
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": (first, last)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(-(-(8 + len(text)) // PAGE) * PAGE - 8)
    return len(text).to_bytes(8, "little") + text
