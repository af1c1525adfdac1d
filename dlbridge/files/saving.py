"""save: tensors of any library and device into a file."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge import asarray, to_device
from dlbridge.errors import BackendUnavailable, ExchangeError, FileError
from dlbridge.extending import (
    CPU,
    check_device,
    copy_elements,
    operand_of,
    packed_bytes,
    part_of,
    public_in,
    recorded,
    tally,
    with_article,
)

from . import npy, safetensors
from .source import is_text, name_of, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dlbridge import Tensor
    from dlbridge.typing import ArrayLike, ProgressLike

    Report = Callable[[int], None]
    Writer = Callable[[Any, Report], None]

PAGE = 4096
"""Bytes. Where large arrays begin in numpy's files: drivers can use them there in place."""


@public_in("dlbridge")
def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, ArrayLike] | ArrayLike,
    metadata: Mapping[str, str] | None = None,
    *,
    progress: ProgressLike = None,
) -> None:
    """Write tensors of any libraries and devices into a safetensors, .npz or .npy file.

    The suffix of *path* says the format. The file is written beside *path* and
    renamed when it is complete, so a failure leaves the old file as it was. `load`
    can use the tensors of such a file in place.

    Parameters
    ----------
    path : str or path
        Ends in ``.safetensors``, ``.npz`` or ``.npy``.
    tensors : mapping of str to ArrayLike, or ArrayLike
        Everything that `asarray` takes, by name; for .npy one array without a name.
    metadata : mapping of str to str, optional
        Texts to store with the tensors, for safetensors only.
    progress : bool or callable, optional
        Called with ``(done, total)`` bytes; True shows a bar for 256 MiB and more.

    Raises
    ------
    OSError
        If the file cannot be written.
    FileError
        If the format has no such dtype, or *path* is not a regular file.
    TypeError, ValueError
        If an argument has the wrong type or value.
    ExchangeError
        If `asarray` refuses a tensor.

    Notes
    -----
    A device's memory is read in pieces of 16 MiB. The bytes are on the disk when
    this returns (``fsync``). In a safetensors file the tensors whose sizes have
    the largest power of two as a divisor come first, so that each begins where it
    can be used in place; the header keeps your order.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bridge.save(f"{folder}/x.npy", np.arange(3))
    ...     bridge.load(f"{folder}/x.npy").tolist()
    [0, 1, 2]
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(
            f"the path comes first, and {with_article(type(path).__name__)} is none: "
            "dlbridge.save('name."
            f"{'safetensors' if hasattr(path, 'keys') or hasattr(tensors, 'keys') else 'npy'}', x)"
        )
    target = os.fsdecode(path)
    name = printable(target)
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 - it is a str
    if suffix not in (".safetensors", ".npz", ".npy"):
        raise ValueError(
            f"{name}: the suffix says the format, and dlbridge writes .safetensors, .npz and .npy"
        )
    if metadata is not None and suffix != ".safetensors":
        raise ValueError(f"{name}: {suffix} has no place for metadata; .safetensors has")
    given = dict(tensors) if isinstance(tensors, Mapping) else {"": tensors}
    if isinstance(tensors, Mapping) == (suffix == ".npy"):
        what, way_out = "a mapping of names to arrays", "write {'name': x}, or a .npy file"
        if hasattr(tensors, "state_dict"):
            way_out = "write x.state_dict()"
        elif suffix == ".npy":
            what, way_out = "one array", ".npz and .safetensors take names"
        raise TypeError(
            f"{name}: {suffix} takes {what}, not {with_article(type(tensors).__name__)}; {way_out}"
        )
    named = _import(name, given)
    writer = (
        _safetensors(name, named, metadata) if suffix == ".safetensors" else _numpy(name, named)
    )
    total = sum(tensor.nbytes for tensor in named.values())
    with tally(progress, total) as report:
        _write_whole(target, lambda file: writer(file, report))


def _import(path: str, given: dict[Any, Any]) -> dict[str, Tensor]:
    """All arrays as tensors, where they are."""
    found = {}
    for name, array in given.items():
        if not isinstance(name, str):
            raise TypeError(f"{path}: the name of a tensor is a str, not {name!r}")
        if not is_text(name):
            raise ValueError(f"{path}: the name {name!r} is not Unicode text; choose another")
        if isinstance(array, Mapping):
            raise TypeError(
                f"{path}: {name!r} is {with_article(type(array).__name__)}, and names in a file "
                f"have one level: write {{'{name}.{next(iter(array), 'x')}': ...}}"
            )
        if isinstance(array, str) and path.lower().endswith(".safetensors"):
            raise TypeError(
                f"{path}: {name!r} is a text, which safetensors keeps beside the tensors: write "
                f"metadata={{{name!r}: {array!r:.80}}}"
            )
        try:
            found[name] = _tensor(array)
        except (ExchangeError, TypeError) as exc:
            kind = ExchangeError if isinstance(exc, ExchangeError) else TypeError
            raise kind(f"{name_of(path, name)}: {exc}") from exc
    return found


def _tensor(array: Any) -> Tensor:
    tensor = asarray(array)
    try:
        check_device(tensor.device)
    except BackendUnavailable:  # its own library may bring it
        return to_device(array, CPU)
    return tensor


def _write(file: Any, tensor: Tensor, report: Report) -> None:
    with recorded("save writes it into a file", tensor, CPU, "write"):
        for piece in _pieces(tensor):
            file.write(piece)
            report(len(piece))


# safetensors -----------------------------------------------------------------------


def _safetensors(path: str, named: dict[str, Tensor], metadata: Mapping[str, str] | None) -> Writer:
    """What writes the tensors; everything is checked before."""
    if safetensors.METADATA in named:
        raise ValueError(f"{path}: {safetensors.METADATA!r} cannot be the name of a tensor")
    _check_metadata(path, metadata)
    # Each tensor then begins at a multiple of the power of two that divides its own size.
    order = sorted(named, key=lambda name: -(named[name].nbytes & -named[name].nbytes))
    ends = accumulate(named[name].nbytes for name in order)
    places = {name: (end - named[name].nbytes, end) for name, end in zip(order, ends, strict=True)}
    header = safetensors.make_header(
        {
            name: (*_stored(f"{path}: tensor {name!r}", tensor), *places[name])
            for name, tensor in named.items()
        },
        metadata,
    )
    if len(header) - 8 > safetensors.MAX_HEADER:
        raise FileError(
            f"{path}: a header of {len(header)} bytes; safetensors allows "
            f"{safetensors.MAX_HEADER}: write several files"
        )

    def write(file: Any, report: Report) -> None:
        file.write(header)
        for name in order:
            _write(file, named[name], report)

    return write


def _check_metadata(path: str, metadata: Mapping[str, str] | None) -> None:
    if not (metadata is None or isinstance(metadata, Mapping)):
        raise TypeError(f"{path}: metadata is a mapping of str to str, not {metadata!r}")
    for pair in (metadata or {}).items():
        if not all(isinstance(text, str) for text in pair):
            raise TypeError(f"{path}: metadata is a mapping of str to str, and has {pair!r}")
        if not all(map(is_text, pair)):
            raise ValueError(f"{path}: the metadata {pair!r} is not Unicode text; change it")


def _stored(where: str, tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """The format's name of the type, and the shape in elements of it."""
    dtype, shape = tensor.dtype, tensor.shape
    if dtype == "float4_e2m1fn_x2" and shape:  # torch's: two elements of the format in a byte
        return "F4", (*shape[:-1], 2 * shape[-1])
    stored = safetensors.STORED.get(dtype.name)
    if stored is None:
        raise FileError(
            f"{where}: safetensors has no type for {dtype}; save its bytes, as uint8 or an integer "
            "of the same size (Tensor.view), and the name of the type in the metadata"
        )
    if tensor.is_padded:
        raise FileError(
            f"{where}: {dtype} with a byte for each element; safetensors has them packed: "
            "dlbridge.pack_bits packs them"
        )
    if dtype.is_subbyte and tensor.size * dtype.bits % 8:
        raise FileError(
            f"{where}: {tensor.size} elements of {dtype} are not whole bytes, as safetensors wants"
        )
    return stored, shape


# numpy's formats ----------------------------------------------------------------------


def _numpy(path: str, named: dict[str, Tensor]) -> Writer:
    """What writes one array without a name, or an archive; everything is checked before."""
    types = {name: _descr(name_of(path, name), tensor) for name, tensor in named.items()}
    if path.lower().endswith(".npy"):
        return lambda file, report: _write_npy(file, named[""], types[""], 0, report)
    members = {name: zipfile.ZipInfo(f"{name}.npy") for name in named}  # its date is 1980
    for name, info in members.items():
        if info.filename != f"{name}.npy" or len(name.encode()) > 1 << 15:
            raise ValueError(f"{path}: {name!r} cannot be the name of a member of an archive")
        if types[name].startswith("|V"):
            info.comment = npy.make_comment(named[name].dtype)

    def write(file: Any, report: Report) -> None:
        archive = _Archive(file, "w", zipfile.ZIP_STORED)
        try:
            for name, info in members.items():
                with archive.open(info, "w", force_zip64=True) as member:
                    _write_npy(member, named[name], types[name], file.tell(), report)
        except BaseException:
            # It is lost, and the file will be closed before a member that a Ctrl-C left open is.
            archive.fp = _Nowhere()  # type: ignore[assignment]
            raise
        archive.close()

    return write


class _Archive(zipfile.ZipFile):
    """An archive that does not end itself: after a Ctrl-C, its file is closed already."""

    __del__ = staticmethod(object)  # type: ignore[assignment]  # C alone, which no signal meets


class _Nowhere:
    """Takes the end of an archive that is lost."""

    def _nothing(self, *_: object) -> int:
        return 0

    seek = tell = write = flush = _nothing


def _descr(where: str, tensor: Tensor) -> str:
    """The name of the type in numpy's files; raw memory for the types of ml_dtypes."""
    dtype = tensor.dtype
    if dtype.is_subbyte and not tensor.is_padded:
        raise FileError(
            f"{where}: numpy has no packed {dtype}; unpack it (dlbridge.unpack_bits), or save "
            "Tensor.tobytes() as uint8"
        )
    try:
        theirs = dtype.numpy
    except ExchangeError:  # without ml_dtypes, and vector types
        return f"|V{dtype.itemsize}"
    return theirs.str if theirs.isbuiltin == 1 else f"|V{dtype.itemsize}"


def _write_npy(file: Any, tensor: Tensor, descr: str, at: int, report: Report) -> None:
    """The array, whose header begins *at* that byte of the file on the disk."""
    fortran = not tensor.is_contiguous() and tensor.transpose().is_contiguous()
    alignment = PAGE if tensor.nbytes >= PAGE else 64
    file.write(npy.make_header(descr, tensor.shape, fortran, at, alignment))
    _write(file, tensor.transpose() if fortran else tensor, report)


# A file that is written completely or not at all --------------------------------------


PIECE = 16 << 20
"""Bytes of the buffer through which a device's memory, and memory with gaps, goes."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _write_whole(path: str, write: Callable[[Any], None]) -> None:
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


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
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
        yield packed_bytes(operand_of(to_device(tensor, CPU)))
    else:
        rows = max(1, PIECE * len(tensor) // operand.nbytes)
        for start in range(0, len(tensor), rows):
            yield from _pieces(tensor[start] if rows == 1 else tensor[start : start + rows])


def _from_device(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of compact memory that the host does not read."""
    operand = operand_of(tensor)
    buffer = np.empty(min(PIECE, operand.nbytes), "u1")
    for start in range(0, operand.nbytes, PIECE):
        part = buffer[: operand.nbytes - start]
        # As bytes: elements of less than a byte have no views at any place.
        copy_elements(operand_of(asarray(part)), part_of(operand, start, part.size))
        yield part.data
