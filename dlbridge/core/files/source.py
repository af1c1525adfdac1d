"""An open file: its size, its bytes read into memory, and its pages mapped."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.implementation_details.numpy_arrays import address_of
from dlbridge.core.tensor.array_tensor import make_tensor
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.values.devices import Device
from dlbridge.errors import FileError

from .entries import DAMAGED, printable

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.dtypes import DType

__all__ = ["Source"]

_CPU = Device.of(1, 0)
_has_preadv = hasattr(os, "preadv")  # not on Windows


class Source:
    """A regular file, open for reading as long as this object exists.

    If another file gets the same path meanwhile, as by `dlbridge.save`, this stays the old one.
    *opened* is the path, and *path* what messages call it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.opened: str = os.fsdecode(path)
        self.path: str = printable(self.opened)
        if not stat.S_ISREG(os.stat(self.opened).st_mode):  # noqa: PTH116 - a path may be bytes
            raise FileError(
                f"{self.path} is not a regular file, and only those can be mapped: write its "
                "contents into one"
            )
        self._file = io.FileIO(self.opened)
        self._lock = threading.RLock()
        self._mapped: np.ndarray[Any, Any] | None = None
        self.size = self._now()

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # Python warns of files that nobody has closed
            self._file.close()

    def _now(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def check_size(self) -> None:
        """FileError if the file has become shorter: its pages could not be read any more."""
        if (now := self._now()) < self.size:
            raise FileError(
                f"{self.path} had {self.size} bytes when it was opened and has {now} now: do not "
                "write into files that are loaded, replace them (dlbridge.save does)"
            )

    def read(self, offset: int, nbytes: int) -> bytes:
        """*nbytes* bytes from *offset* on; fewer where the file ends."""
        nbytes = max(0, min(nbytes, self.size - offset))
        into = bytearray(nbytes)
        self.read_into(offset, into)
        return bytes(into)

    def read_into(self, offset: int, into: bytearray | memoryview) -> None:
        """Fill *into*, which is flat, with the bytes from *offset* on."""
        rest = memoryview(into)
        while rest:
            count = self._read_some(offset, rest)
            if not count:
                raise FileError(f"{self.path} ends at byte {offset}: {DAMAGED}")
            offset, rest = offset + count, rest[count:]

    def _read_some(self, offset: int, into: memoryview) -> int:
        if _has_preadv:
            return os.preadv(self._file.fileno(), [into], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(into) or 0

    def stream(self) -> io.BufferedReader:
        """The file as a stream of its own, with its own position."""
        return io.BufferedReader(_Stream(self))

    def tensor(
        self, offset: int, dtype: DType, shape: tuple[int, ...], *, padded: bool = False
    ) -> Tensor:
        """A read-only CPU tensor on the pages of the file; they stay mapped as long as it lives.

        OSError where the file system maps no files.
        """
        self.check_size()
        pages = self._map()
        origin = f"the file {os.path.basename(self.path)}"  # noqa: PTH119 - it is a str
        memory = Memory(_CPU, address_of(pages), origin, pages)
        flags = FLAG_SUBBYTE_PADDED if padded else 0
        return make_tensor(memory, offset, dtype, shape, readonly=True, flags=flags)

    def _map(self) -> np.ndarray[Any, Any]:
        if self._mapped is None:
            import mmap

            import numpy as np

            # Shared and read-only: no page is ever copied, and other processes have the same ones.
            pages = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ)
            self._mapped = np.frombuffer(pages, "u1")
        return self._mapped


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
        self._source.read_into(self._position, part)
        self._position += len(part)
        return len(part)
