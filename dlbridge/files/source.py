"""An open file, what it says of each tensor, and the checks that all formats share."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge.errors import FileError
from dlbridge.extending import MAX_NDIM, handlers_cause, memory_of, tensor_on, with_article
from dlbridge.kit.resources import RLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from dlbridge import DType, Tensor


_has_preadv = hasattr(os, "preadv")  # not on Windows


def open_source(x: Any) -> Source:
    """The source of a path, or of what an open file has from its position on."""
    if isinstance(x, bytes) and (b"\0" in x or not os.path.exists(x)):  # noqa: PTH110 - of bytes
        way = "dlbridge.load(io.BytesIO(x)) reads bytes that are the contents of a file"
        raise FileNotFoundError(errno.ENOENT, f"no file has this name; {way}", x[:40])
    if isinstance(x, str | bytes | os.PathLike):
        opened = os.fsdecode(x)
        if not stat.S_ISREG(os.stat(opened).st_mode):  # noqa: PTH116 - a path may be bytes
            raise FileError(
                f"{printable(opened)} is not a regular file, and only those can be mapped: write "
                "its contents into one, or pass it as an open file, which is read into memory"
            )
        return Source(opened, io.FileIO(opened))
    kind = type(x).__name__
    if not hasattr(x, "read"):
        way = (
            "; io.BytesIO(x) makes a file of bytes" if isinstance(x, bytearray | memoryview) else ""
        )
        raise TypeError(f"load() takes a path or an open file, not {with_article(kind)}{way}")
    if isinstance(x, io.TextIOBase):
        raise TypeError(
            f"{with_article(kind)} gives text: open a file of tensors by open(path, 'rb')"
        )
    name = getattr(x, "name", None)
    opened = name if isinstance(name, str) else f"<{kind}>"
    inner = getattr(x, "file", x)  # of tempfile
    raw = getattr(inner, "raw", inner)
    if type(raw) is io.FileIO and raw.readable():
        # Files on the disk can be used in place. (What unpacks a file may have its number, too.)
        regular = stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
        if regular and x.tell() == 0:
            return Source(opened, io.FileIO(os.dup(raw.fileno())))
    content = x.read()
    if not isinstance(content, bytes):
        raise TypeError(f"{with_article(kind)} reads no bytes, but {type(content).__name__}")
    return _Content(opened, content)


class _Held:
    """An open file, which is closed with the last thread that reads from it."""

    __slots__ = ("file",)

    def __init__(self, file: io.FileIO) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()  # Python warns of files that nobody has closed


class Source:
    """A regular file, open for reading as long as this object exists.

    If another file gets the same path meanwhile, as by `dlbridge.save`, this stays the old one.
    *opened* is the path, and *path* what messages call it.
    """

    def __init__(self, opened: str, file: io.FileIO) -> None:
        self.opened: str = opened
        self.path: str = printable(opened)
        self._open: _Held | None = _Held(file)
        self._lock = RLock()
        self._mapped: np.ndarray[Any, Any] | None = None
        self.size = self._now()

    def close(self) -> None:
        """Close the file, once no thread reads from it; tensors on its pages stay."""
        self._open = None
        self._mapped = None

    def _held(self) -> _Held:
        """The file, as long as the caller holds this: its number cannot become another file's."""
        held = self._open
        if held is None:
            raise FileError(f"{self.path} was closed at the end of the block of with: {REOPEN}")
        return held

    def _now(self) -> int:
        held = self._held()
        return os.fstat(held.file.fileno()).st_size

    def check_size(self) -> None:
        """FileError if the file has become shorter: its pages could not be read any more."""
        if (now := self._now()) < self.size:
            raise FileError(
                f"{self.path} had {self.size} bytes when it was opened and has {now} now: do not "
                "write into files that are loaded, replace them (dlbridge.save does)"
            )

    def read(self, offset: int, nbytes: int) -> bytes:
        """*nbytes* bytes from *offset* on; fewer where the file ends."""
        found = bytearray(max(0, min(nbytes, self.size - offset)))
        done = 0
        while done < len(found):
            done += self.read_some(offset + done, memoryview(found)[done:])
        return bytes(found)

    def read_some(self, offset: int, into: memoryview) -> int:
        """Put bytes from *offset* on into *into*; how many, FileError if there are none."""
        held = self._held()
        if _has_preadv:
            count = os.preadv(held.file.fileno(), [into], offset)
        else:
            with self._lock:
                held.file.seek(offset)
                count = held.file.readinto(into) or 0
        if not count:
            raise FileError(f"{self.path} ends at byte {offset}: {DAMAGED}")
        return count

    def stream(self, buffer: int = io.DEFAULT_BUFFER_SIZE) -> io.BufferedReader:
        """The file as a stream of its own, with its own position."""
        return io.BufferedReader(_Stream(self), buffer)

    def tensor(
        self, offset: int, dtype: DType, shape: tuple[int, ...], *, padded: bool = False
    ) -> Tensor:
        """A read-only CPU tensor on the pages of the file; they stay mapped as long as it lives.

        OSError where the file system maps no files.
        """
        self.check_size()
        pages = self._map()
        origin = f"the file {os.path.basename(self.path)}"  # noqa: PTH119 - it is a str
        memory = memory_of(pages, origin)
        return tensor_on(memory, dtype, shape, byte_offset=offset, readonly=True, padded=padded)

    def _map(self) -> np.ndarray[Any, Any]:
        mapped = self._mapped  # read once: another thread may close the file
        if mapped is None:
            import mmap

            # Shared and read-only: no page is ever copied, and other processes have the same ones.
            held = self._held()
            pages = mmap.mmap(held.file.fileno(), self.size, access=mmap.ACCESS_READ)
            self._mapped = mapped = np.frombuffer(pages, "u1")
        return mapped


class _Content(Source):
    """The content of an open file, in memory."""

    def __init__(self, opened: str, content: bytes) -> None:
        self.opened = opened
        self.path = printable(opened)
        self._content = content
        self._mapped = None
        self.size = len(content)

    def close(self) -> None:
        """Nothing is open."""

    def _now(self) -> int:
        return self.size

    def read_some(self, offset: int, into: memoryview) -> int:
        part = self._content[offset : offset + len(into)]
        into[: len(part)] = part
        return len(part)

    def _map(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._content, "u1")


class _Stream(io.RawIOBase):
    """A position in a `Source`, for parsers that read files."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}
        position = base[whence] + offset
        if position < 0 and whence == os.SEEK_END:
            # As a file does: zipfile looks for records before the end that need not exist, and
            # catches this error.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if position < 0:
            raise ValueError(f"position {position} is before the beginning of the file")
        self._position = position
        return position

    def readinto(self, into: Any) -> int:
        rest = max(0, self._source.size - self._position)
        part = memoryview(into).cast("B")[:rest]
        count = self._source.read_some(self._position, part) if part else 0
        self._position += count
        return count


# What stands in place of a model ------------------------------------------------------------

REOPEN = "use its tensors inside the block, or leave with out"

_LFS = b"version https://git-lfs.github.com/spec/"


def look_for_text(source: Source) -> None:
    """FileError if the file is a text that stands where the file of tensors was expected.

    They come from a checkout without Git LFS, and from servers that answer with a page or an error.
    """
    first = source.read(0, 1024)
    start = first.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if first.startswith(_LFS):
        whole = re.search(rb"^size (\d+)", first, re.MULTILINE)
        nbytes = f" of {int(whole[1])} bytes" if whole else ""
        raise FileError(
            f"{source.path} is a pointer of Git LFS, a text in place of the file{nbytes}: run "
            "`git lfs install` and `git lfs pull` in its repository"
        )
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        title = re.search(rb"<title[^>]*>([^<]*)", first, re.IGNORECASE)
        named = f" ({words_of(title[1])!r})" if title else ""
        raise FileError(
            f"{source.path} is a web page{named}, not a file of tensors: was a login needed, or "
            "the link that of a page about the file? Get it again by the link of the file itself"
        )
    if start.startswith((b"<?xml", b"<error")):
        raise FileError(
            f"{source.path} is an XML text, which servers of files send for an error: "
            f"{words_of(first)!r}; get the file again"
        )
    if first and not _is_printable(first):
        return
    if start[:1] in (b"{", b"["):
        raise FileError(
            f"{source.path} is a JSON text, not a file of tensors: {words_of(first)!r}; if a "
            "server sent it for an error, get the file again; the name of an index of safetensors "
            "files ends in .safetensors.index.json"
        )
    if start and re.fullmatch(rb"[-+.,\s\deE]+", start):
        comma = ", delimiter=','" if b"," in start else ""
        raise FileError(
            f"{source.path} is a text, not a file of tensors: {words_of(first)!r}; for numbers, "
            f"dlbridge.asarray(numpy.loadtxt({source.path!r}{comma}))"
        )
    if start:
        raise FileError(
            f"{source.path} is a text, not a file of tensors: {words_of(first)!r}; if a server "
            "sent it in place of the file, get the file again"
        )


def _is_printable(raw: bytes) -> bool:
    text = raw.decode("utf-8", "replace")
    return all(letter.isprintable() or letter.isspace() for letter in text)


def words_of(raw: bytes) -> str:
    """The first words of a text, for a message."""
    text = " ".join(raw.decode("utf-8", "replace").split())
    return text if len(text) <= 120 else f"{text[:117]}..."


# What formats say of tensors, and the checks that all share -------------------------------


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


def is_text(text: str) -> bool:
    """Whether UTF-8 has it: a str can hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
        if not is_text(name):
            raise FileError(f"{where}: the tensor name {name!r} is not Unicode text: {DAMAGED}")
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
