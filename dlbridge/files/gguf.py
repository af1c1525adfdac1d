"""GGUF, versions 2 and 3: where its tensors lie, and its metadata.

Source: the format's specification in ggml (``docs/gguf.md``), and the sizes of its types.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge import dtype as as_dtype
from dlbridge.errors import FileError

from .source import DAMAGED, Entry, check_bounds, check_names, check_overlaps, count_bytes

if TYPE_CHECKING:
    from .source import Source

MAGIC = b"GGUF"
MAX_DIMS = 4  # GGML_MAX_DIMS

_TYPES = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
_QUANTIZED = {
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""Name, elements of a block, and bytes of a block, by the number of the type."""

_NUMBERS = {
    0: "u1",
    1: "i1",
    2: "u2",
    3: "i2",
    4: "u4",
    5: "i4",
    6: "f4",
    7: "?",
    10: "u8",
    11: "i8",
    12: "f8",
}
"""The types of metadata: numpy's names, by the number of the type."""

_STRING, _ARRAY = 8, 9

# Names: the specification's limits are 64 and 65,535 bytes.
_LONGEST_NAME = 1 << 16


class _Cursor:
    """A position in the file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._stream = source.stream(1 << 20)

    def skip(self, nbytes: int) -> int:
        """Pass *nbytes* bytes; FileError if the file does not have them. The new position."""
        position = self._stream.tell() + nbytes
        if position > self.source.size:
            raise FileError(
                f"{self.source.path}: its header ends at byte {position}, after the end of "
                f"the file, which has {self.source.size} bytes: {DAMAGED}"
            )
        return self._stream.seek(position)

    def take(self, nbytes: int) -> bytes:
        """The next *nbytes* bytes."""
        if nbytes > _LONGEST_NAME:  # a damaged number takes no memory
            self._stream.seek(self.skip(nbytes) - nbytes)
        taken = self._stream.read(nbytes)
        if len(taken) < nbytes:
            self.skip(nbytes - len(taken))
        return taken

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def name(self) -> str:
        length = self.u64()
        if length > _LONGEST_NAME:
            raise FileError(f"{self.source.path}: a name of {length} bytes: {DAMAGED}")
        return self.text(length)

    def text(self, length: int) -> str:
        return self.take(length).decode("utf-8", "surrogateescape")


def read_gguf(source: Source, *, raw: bool) -> tuple[list[Entry], dict[str, Any]]:
    """The tensors of a file, with *raw* quantised ones as their bytes; and its metadata."""
    cursor = _Cursor(source)
    if cursor.take(len(MAGIC)) != MAGIC:
        raise FileError(f"{source.path}: it does not begin as a GGUF file does: {DAMAGED}")
    _check_version(source.path, cursor.u32())
    tensors, pairs = cursor.u64(), cursor.u64()
    metadata = dict[str, Any]()
    for _ in range(pairs):
        key, kind = cursor.name(), cursor.u32()
        if key in metadata:
            raise FileError(f"{source.path}: two values of {key!r} in the metadata: {DAMAGED}")
        metadata[key] = _value(cursor, kind)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise FileError(f"{source.path}: alignment {alignment!r} is no power of two: {DAMAGED}")
    entries = [_entry(cursor, raw=raw) for _ in range(tensors)]
    begin = -(-cursor.skip(0) // alignment) * alignment
    check_names(source.path, [entry.name for entry in entries])
    entries = [replace(entry, offset=begin + entry.offset) for entry in entries]
    for entry in entries:
        where = f"{source.path}: tensor {entry.name!r}"
        if entry.offset % alignment:
            raise FileError(f"{where}: it lies at no multiple of {alignment} bytes: {DAMAGED}")
        check_bounds(where, entry.offset, entry.nbytes, source.size)
    spans = [(f"the tensor {it.name!r}", it.offset, it.offset + it.nbytes) for it in entries]
    check_overlaps(source.path, spans)
    return entries, metadata


def _check_version(path: str, version: int) -> None:
    if sys.byteorder != "little" or (version & 0xFFFF == 0 and version):
        raise FileError(f"{path}: a GGUF file of another byte order; convert it (gguf-py can)")
    if version not in (2, 3):
        raise FileError(f"{path}: GGUF version {version}; dlbridge reads 2 and 3: convert it")


def _value(cursor: _Cursor, kind: int) -> Any:
    """The next value of the metadata: a bool, an int, a float, a text, or a list of one of them."""
    path, count = cursor.source.path, 1
    if is_array := kind == _ARRAY:
        kind, count = cursor.u32(), cursor.u64()
        if kind == _ARRAY:
            raise FileError(f"{path}: an array of arrays in the metadata: {DAMAGED}")
    values: list[Any]
    if kind in _NUMBERS:
        number = np.dtype(_NUMBERS[kind])
        values = np.frombuffer(cursor.take(count * number.itemsize), number).tolist()
    elif kind == _STRING:
        values = [cursor.text(cursor.u64()) for _ in range(count)]
    else:
        raise FileError(f"{path}: metadata of the unknown type {kind}: {DAMAGED}")
    return values if is_array else values[0]


def _entry(cursor: _Cursor, *, raw: bool) -> Entry:
    """The next tensor; its offset counts from the beginning of the data."""
    name = cursor.name()
    where = f"{cursor.source.path}: tensor {name!r}"
    dims = cursor.u32()
    if dims > MAX_DIMS:
        raise FileError(f"{where}: {dims} dimensions, and GGUF has {MAX_DIMS}: {DAMAGED}")
    # GGUF names the dimension whose elements are neighbours first.
    shape = tuple([cursor.u64() for _ in range(dims)])[::-1]
    kind, offset = cursor.u32(), cursor.u64()
    if kind in _TYPES:
        dtype = as_dtype(_TYPES[kind])
        return Entry(name, dtype, shape, offset, count_bytes(where, dtype, shape))
    dtype = as_dtype("uint8")
    if kind not in _QUANTIZED:
        problem = f"{where}: GGUF type {kind} is not known here; load the others by names="
        return Entry(name, dtype, (), offset, 0, problem=problem)
    word, elements, nbytes = _QUANTIZED[kind]
    count_bytes(where, dtype, shape)  # that the extents are possible
    if not shape or shape[-1] % elements:
        raise FileError(f"{where}: {word} {shape}: rows are blocks of {elements}: {DAMAGED}")
    blocks = (*shape[:-1], shape[-1] // elements * nbytes)
    problem = (
        f"{where}: its elements are quantised as {word}, which DLPack does not have; "
        "dlbridge.load(path, raw=True) gives their bytes, of which gguf.quants.dequantize makes "
        "floats"
    )
    problem = "" if raw else problem
    return Entry(name, dtype, blocks, offset, count_bytes(where, dtype, blocks), problem=problem)
