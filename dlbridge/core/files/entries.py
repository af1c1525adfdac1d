"""What a file says of one tensor, and the checks that all formats share."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from dlbridge.core.dlpack.structs import MAX_NDIM
from dlbridge.core.implementation_details.handlers import handlers_cause
from dlbridge.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from dlbridge.core.values.dtypes import DType

__all__ = [
    "DAMAGED",
    "Entry",
    "check_bounds",
    "check_names",
    "check_overlaps",
    "count_bytes",
    "name_of",
    "printable",
    "refuse",
]

DAMAGED = "the file is damaged or cut off: get it, or write it, again"
"""The way out where a file contradicts itself."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its type and shape, and where its bytes lie."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    """From the beginning of the file, or of the *member* without compression."""
    nbytes: int
    fortran: bool = False
    """Whether the first dimension is the one whose elements are neighbours."""
    padded: bool = False
    """Whether sub-byte elements take a byte each."""
    member: str = ""
    """The compressed member of the archive that holds the bytes; empty: they lie in the file."""
    problem: str = ""
    """Why the tensor cannot be loaded, and the way out; empty if it can."""


def printable(path: str) -> str:
    """*path* for messages: names of files may have bytes that no terminal and no log can take."""
    return path if path.isprintable() else ascii(path)[1:-1]


def name_of(path: str, name: str) -> str:
    """The tensor for messages: the array of a .npy file has no name."""
    return f"{path}: tensor {name!r}" if name or not path.lower().endswith(".npy") else path


def count_bytes(where: str, dtype: DType, shape: tuple[int, ...], *, padded: bool = False) -> int:
    """The bytes of a tensor, whose *shape* any file may have made up; *where* names it."""
    if len(shape) > MAX_NDIM:
        raise FileError(
            f"{where}: {len(shape)} dimensions, and dlbridge has at most {MAX_NDIM}: {DAMAGED}"
        )
    if any(type(extent) is not int or not 0 <= extent < 1 << 63 for extent in shape):
        raise FileError(f"{where}: shape {shape}: extents are integers from 0 on: {DAMAGED}")
    # As numpy counts, which holds every tensor's metadata: bytes, also beside an extent of zero.
    if prod(filter(None, shape)) * dtype.itemsize >= 1 << 63:
        raise FileError(f"{where}: shape {shape} of {dtype} is more than a computer can address")
    bits = prod(shape) * dtype.bits * dtype.lanes
    if bits % 8 and not padded:
        raise FileError(
            f"{where}: shape {shape} of {dtype} is {bits} bits, not whole bytes: {DAMAGED}"
        )
    return dtype.nbytes(prod(shape), padded=padded)


def check_bounds(where: str, offset: int, nbytes: int, size: int) -> None:
    """FileError if bytes of a tensor lie outside a file of *size* bytes."""
    if offset + nbytes > size:
        raise FileError(
            f"{where}: its {nbytes} bytes from byte {offset} on end after the end of the file, "
            f"which has {size} bytes: {DAMAGED}"
        )


def check_names(where: str, names: Iterable[str]) -> None:
    """FileError for a name that two tensors have, or that is not Unicode text."""
    seen: set[str] = set()
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as exc:
            raise FileError(
                f"{where}: the tensor name {name!r} is not Unicode text: {DAMAGED}"
            ) from exc
        if name in seen:
            raise FileError(f"{where}: two tensors have the name {name!r}: {DAMAGED}")
        seen.add(name)


def check_overlaps(where: str, spans: Iterable[tuple[str, int, int]]) -> None:
    """FileError if two parts of a file have bytes in common; each is its name, begin and end."""
    last, reached = "", 0
    for name, begin, end in sorted(spans, key=lambda span: span[1:]):
        if begin < reached:
            raise FileError(
                f"{where}: {name} begins at byte {begin}, inside {last}, which ends at {reached}: "
                f"{DAMAGED}"
            )
        if end > begin:
            last, reached = name, end


_OF_THE_SYSTEM = OSError | MemoryError | RecursionError | SystemError
"""What says nothing about the file; CPython's compiler has a SystemError for too little memory."""


_NO_MEMORY = ("can't allocate", "Error -4 ")
"""How CPython's RuntimeError begins where no lock can be made, and zlib's Z_MEM_ERROR."""


def refuse(exc: Exception, what: str, is_deep: Callable[[], bool] | None = None) -> NoReturn:
    """Raise *exc*, which a parser of other authors raised, as the FileError that *what* is wrong.

    What a damaged file makes them raise is documented nowhere. Errors of the system,
    too little memory or stack, and exceptions of signal handlers, which only came
    meanwhile, are raised as they are. *is_deep* says whether the file itself is nested so
    deeply that a parser has too little memory or stack for it.
    """
    try:
        came = handlers_cause(exc)
        if came is not None:
            exc.__cause__ = None  # it would be a cycle: *came* has *exc* as its context
            raise came
        if isinstance(exc, MemoryError | RecursionError) and is_deep is not None and is_deep():
            raise FileError(f"{what} (it is nested too deeply): {DAMAGED}") from exc
        if isinstance(exc, FileError | _OF_THE_SYSTEM) or str(exc).startswith(_NO_MEMORY):
            raise exc
        raise FileError(f"{what} ({exc}): {DAMAGED}") from exc
    finally:
        came = None
        del exc  # the traceback holds this frame: a cycle would keep the file open
