"""Files that are written completely or not at all, and the bytes of any tensor in pieces."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dlbridge.core.moves.copies import copy_elements
from dlbridge.core.moves.host_and_device import packed_bytes
from dlbridge.core.moves.transfer import to_compact_host
from dlbridge.core.tensor.array_tensor import make_tensor, wrap_array
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import FileError

from .entries import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["pieces", "write_whole"]

PIECE = 16 << 20
"""Bytes of the buffer through which a device's memory, and memory with gaps, goes."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_BYTE = as_dtype("uint8")


def write_whole(path: str, write: Callable[[Any], None]) -> None:
    """Have *write* fill a new file, and rename it to *path* when it is complete.

    Until then, and if *write* raises, the old file stays as it is. The bytes are on
    the disk before the file is renamed (``fsync``): after a power failure *path* is
    the old file or the new one. Programs that have opened the old file keep it.
    """
    path = os.path.realpath(path)  # not the link itself
    mode = None
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode  # noqa: PTH116 - it is a str
    if mode is not None and not stat.S_ISREG(mode):
        raise FileError(f"{printable(path)} is not a regular file, and cannot be replaced by one")
    folder, name = os.path.split(path)
    # A name of its own, known before the file exists: a Ctrl-C at any point finds it.
    new = os.path.join(folder, f".{name[:32]}.{secrets.token_hex(8)}.part")  # noqa: PTH118 - likewise
    try:
        with open(new, "xb") as file:  # noqa: PTH123 - likewise
            if mode is not None:  # who may read the old file may read the new one, and nobody else
                os.chmod(new, stat.S_IMODE(mode))  # noqa: PTH101 - likewise
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)  # noqa: PTH105 - likewise
    except OSError as exc:
        # The caller does not know the temporary name, and the error of a full disk names no file.
        if exc.filename == new or (exc.filename is None and exc.errno in _OF_THE_DISK):
            exc.filename = path
            del exc.filename2  # None would be printed, too: "-> None"
        raise
    finally:
        # It exists only after a failure. An error here hides nothing: the first one is raised.
        with suppress(OSError):
            os.unlink(new)  # noqa: PTH108 - likewise


def pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of all elements, row-major, a piece at a time; each is valid until the next."""
    operand = operand_of(tensor)
    if not operand.size:
        return
    if operand.contiguous and operand.device.is_host:
        flat = packed_bytes(operand)
        yield from (flat[start : start + PIECE] for start in range(0, len(flat), PIECE))
    elif operand.contiguous:
        yield from _from_device(tensor)
    elif operand.nbytes <= PIECE or operand.dtype.is_subbyte:
        yield packed_bytes(operand_of(to_compact_host(tensor)))
    else:
        rows = max(1, PIECE * len(tensor) // operand.nbytes)
        for start in range(0, len(tensor), rows):
            yield from pieces(tensor[start] if rows == 1 else tensor[start : start + rows])


def _from_device(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of compact memory that the host does not read."""
    import numpy as np

    operand = operand_of(tensor)
    assert operand.memory is not None  # only the CPU has such operands
    buffer = np.empty(min(PIECE, operand.nbytes), "u1")
    for start in range(0, operand.nbytes, PIECE):
        part = buffer[: operand.nbytes - start]
        # As bytes: elements of less than a byte have no views at any place.
        there = make_tensor(operand.memory, operand.byte_offset + start, _BYTE, part.shape)
        copy_elements(operand_of(wrap_array(part)), operand_of(there))
        yield part.data
