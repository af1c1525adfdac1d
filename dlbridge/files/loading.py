"""load: the tensors of a file, by name and at their first use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from dlbridge import (
    Device,
    DLDataTypeCode,
    Plan,
    Tensor,
    astype,
    dtype as as_dtype,
    to_device,
)
from dlbridge.api.like import as_library
from dlbridge.api.no_tensor import ENDINGS, way_of_picture
from dlbridge.errors import Error, ExchangeError, FileError
from dlbridge.extending import (
    CPU,
    check_copy,
    check_device,
    check_dtype,
    copy_elements,
    find_library,
    host_import_refusal,
    new_tensor,
    operand_of,
    packed_bytes,
    part_of,
    public_in,
    running,
    tally,
    tensor_on,
    wrap_array,
)

from . import gguf, npy, safetensors
from .sharded import check_shards, shards_of
from .source import Entry, Source, look_for_text, name_of, open_source, refuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, Self, Unpack

    import torch

    from dlbridge import DType, Operand
    from dlbridge.typing import DeviceLike, DTypeLike, FilesLike, ProgressLike

    Report = Callable[[int], None]
    """Called with the number of bytes that were read since the last call."""
    from typing_extensions import TypeVar

    _Array = TypeVar("_Array", default=Tensor)  # so that an annotation may be TensorFile alone
else:
    from typing import TypeVar

    _Array = TypeVar("_Array")


@public_in("dlbridge")
class TensorFile(Mapping[str, _Array]):
    """The tensors of a file by name, each loaded at its first use. Made by `dlbridge.load`.

    With ``like=`` they are arrays of that library. This object keeps each tensor that was
    used; `read` returns one that it does not keep. `keys`, ``len`` and ``in`` load
    nothing. Any thread may use it. The file stays open as long as this object or a tensor
    on its pages exists; with ``with load(path) as file:`` until the end of the block, or until
    `close`, except for tensors on its pages, which stay.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bridge.save(f"{folder}/a.safetensors", {"x": np.ones(3), "y": np.zeros(2)})
    ...     file = bridge.load(f"{folder}/a.safetensors")
    ...     list(file), file["y"].tolist()
    (['x', 'y'], [0.0, 0.0])
    """

    def __init__(
        self,
        name: str,
        parts: list[tuple[Source, list[Entry]]],
        metadata: dict[str, Any],
        device: Device,
        copy: bool | None,
        progress: ProgressLike,
        like: object = None,
        dtype: DType | None = None,
    ) -> None:
        self._path = name
        self._entries = {
            entry.name: (source, entry) for source, entries in parts for entry in entries
        }
        self._metadata = metadata
        self._dtype = dtype
        self._device = device
        self._copy = copy
        self._progress = progress
        self._like = like
        self._loaded: dict[str, _Array] = {}

    def __getitem__(self, name: str) -> _Array:
        found = self._loaded.get(name)
        if found is None:
            # Two threads may load it at once; all get the one that is entered first.
            found = self._loaded.setdefault(name, self.read(name))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    if not TYPE_CHECKING:  # to a type checker: every name is there, and can be set

        def __setitem__(self, name: str, _: object) -> NoReturn:
            raise TypeError(
                f"a TensorFile is read only: dlbridge.save(path, {{**file, {name!r}: x}}) writes a "
                "file of its tensors and x"
            )

        def __getattr__(self, name: str) -> NoReturn:
            way = ""
            if name in self.__dict__.get("_entries", ()):
                way = f"; write file[{name!r}] for that tensor"
            elif name[0] != "_":
                way = "; file[name] is a tensor, and list(file) has the names"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{way}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, as the end of a ``with`` block does. Tensors of it stay valid.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bridge.save(f"{folder}/a.safetensors", {"x": np.ones(3)})
        ...     file = bridge.load(f"{folder}/a.safetensors")
        ...     x = file["x"]
        ...     file.close()
        >>> x.tolist()
        [1.0, 1.0, 1.0]
        """
        for source, _ in self._entries.values():
            source.close()
        self._loaded.clear()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a TensorFile is an open file, and cannot be pickled or copied: {self._path}; "
            "give the path, and call dlbridge.load where it is needed"
        )

    # It changes only by what it has loaded.
    def __copy__(self) -> TensorFile[_Array]:
        return self

    # That of Mapping would load everything.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        number = f"{len(self)} tensor{'s' * (len(self) != 1)}"
        return f"dlbridge.TensorFile({self.path!r}, {number}, device={self._device})"

    @property
    def path(self) -> str:
        """The path that was opened; for several files what they are."""
        return self._path

    @property
    def device(self) -> Device:
        """The device that tensors are loaded to."""
        return self._device

    @property
    def metadata(self) -> dict[str, Any]:
        """What the file says beside its tensors.

        Texts in safetensors; in GGUF also numbers and lists. Empty for other formats.
        """
        return dict(self._metadata)

    def describe(self, name: str) -> tuple[DType, tuple[int, ...]]:
        """Return the dtype and the shape of a tensor, without loading it.

        Parameters
        ----------
        name : str
            One of the keys.

        Returns
        -------
        tuple of DType and tuple of int
            The type of an element, and the extents.

        Raises
        ------
        KeyError
            If the file has no such tensor.
        FileError
            If dlbridge cannot load it.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bridge.save(f"{folder}/a.npz", {"x": np.ones((2, 3))})
        ...     bridge.load(f"{folder}/a.npz").describe("x")
        (dlbridge.dtype('float64'), (2, 3))
        """
        _, entry = self._entry(name)
        if entry.problem:
            raise FileError(entry.problem)
        return self._converted(entry) or entry.dtype, entry.shape

    def read(self, name: str) -> _Array:
        """Return a tensor that this object does not keep, loaded anew.

        Parameters
        ----------
        name : str
            One of the keys.

        Returns
        -------
        Tensor
            On `device`; or an array of the library ``like=``.

        Raises
        ------
        KeyError
            If the file has no such tensor.
        FileError, ExchangeError, DeviceMemoryError
            As for `dlbridge.load`.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bridge.save(f"{folder}/a.npz", {"x": np.ones(3)})
        ...     file = bridge.load(f"{folder}/a.npz")
        ...     file.read("x") is file["x"]
        False
        """
        source, entry = self._entry(name)
        with tally(self._progress, entry.nbytes) as report:
            return self._load(source, entry, report)

    def _converted(self, entry: Entry) -> DType | None:
        """The type that the elements are converted to; None if they stay as they are.

        In a model, integers and truths are indices and masks, and stay; one array alone is
        converted from every type.
        """
        wanted = self._dtype
        if wanted is None or wanted is entry.dtype:
            return None
        floating = not {wanted.code, entry.dtype.code} & _NOT_FLOATING
        if entry.name and not (floating and wanted.lanes == entry.dtype.lanes):
            return None
        return wanted

    def _load(self, source: Source, entry: Entry, report: Report) -> _Array:
        wanted = self._converted(entry)
        if wanted is None:
            tensor: Any = _place(_Way(source, entry, self._device, self._copy), report)
        elif self._copy is False:
            raise ExchangeError(
                f"{name_of(source.path, entry.name)} is {entry.dtype}, and a conversion to "
                f"{wanted} copies: leave copy=False out, or dtype="
            )
        else:
            stored = _place(_Way(source, entry, CPU, None), report)
            tensor = to_device(astype(stored, wanted), self._device)
        if self._like is not None:
            # safetensors counts each float4, where torch, which writes such files, counts pairs.
            tensor = as_library(tensor, self._like, self._copy, in_pairs=True)
        array: _Array = tensor
        return array

    def _entry(self, name: str) -> tuple[Source, Entry]:
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(map(repr, list(self._entries)[:8]))
            more = ", ..." if len(self) > 8 else ""
            raise KeyError(
                f"{self._path} has no tensor {name!r}; it has {known or 'none'}{more}"
            ) from None

    def _choose(self, names: Iterable[str]) -> TensorFile[_Array]:
        """This file, new, with these tensors only, all of them loaded."""
        self._entries = {name: self._entry(name) for name in names}
        total = sum(entry.nbytes for _, entry in self._entries.values())
        with tally(self._progress, total) as report:
            for name, (source, entry) in self._entries.items():
                self._loaded[name] = self._load(source, entry, report)
        return self


_NOT_FLOATING = {
    DLDataTypeCode.kDLInt,
    DLDataTypeCode.kDLUInt,
    DLDataTypeCode.kDLBool,
    DLDataTypeCode.kDLComplex,
}


if TYPE_CHECKING:

    class LoadedFile(TensorFile[_Array], Any):  # type: ignore[misc]  # on purpose
        """What `load` gives where only the file says whether it is one tensor, or several."""


class _Options(TypedDict, total=False):
    dtype: DTypeLike | None
    raw: bool
    copy: bool | None
    progress: ProgressLike


@overload
def load(  # type: ignore[overload-overlap]  # with names it is no single tensor
    path: FilesLike,
    device: DeviceLike,
    names: Iterable[str] | Literal[True],
    *,
    like: Literal["dlbridge"] | None = ...,
    **options: Unpack[_Options],
) -> TensorFile[Tensor]: ...
@overload
def load(  # type: ignore[overload-overlap]
    path: FilesLike,
    device: DeviceLike = ...,
    *,
    names: Iterable[str] | Literal[True],
    like: Literal["dlbridge"] | None = ...,
    **options: Unpack[_Options],
) -> TensorFile[Tensor]: ...
@overload
def load(
    path: FilesLike,
    device: DeviceLike = ...,
    names: Iterable[str] | bool | None = ...,
    *,
    like: Literal["dlbridge"] | None = ...,
    **options: Unpack[_Options],
) -> LoadedFile[Tensor]: ...
@overload
def load(
    path: FilesLike,
    device: DeviceLike = ...,
    names: Iterable[str] | bool | None = ...,
    *,
    like: Literal["numpy"],
    **options: Unpack[_Options],
) -> LoadedFile[np.ndarray[Any, Any]]: ...
@overload
def load(
    path: FilesLike,
    device: DeviceLike = ...,
    names: Iterable[str] | bool | None = ...,
    *,
    like: Literal["torch"],
    **options: Unpack[_Options],
) -> LoadedFile[torch.Tensor]: ...
@overload
def load(
    path: FilesLike,
    device: DeviceLike = ...,
    names: Iterable[str] | bool | None = ...,
    *,
    like: object,
    **options: Unpack[_Options],
) -> LoadedFile[Any]: ...
@public_in("dlbridge")
def load(
    path: FilesLike,
    device: DeviceLike = "cpu",
    names: Iterable[str] | bool | None = None,
    *,
    like: object = None,
    dtype: DTypeLike | None = None,
    raw: bool = False,
    copy: bool | None = None,
    progress: ProgressLike = None,
) -> TensorFile[Any] | Any:  # only the file says whether it has one tensor or several
    """Return the tensors of a safetensors, .npy, .npz or GGUF file, on *device*.

    The contents of the file say which format it is. Every file is checked when it
    is opened; nothing in it is ever unpickled.

    Parameters
    ----------
    path : str, path or open binary file, or a list of them
        A regular file; or what an open file has from its position on. That is used in place
        if it is a whole file on the disk, and read into memory otherwise. Several files are one
        mapping: a list; an index (``model.safetensors.index.json``); or a folder, which has an
        index or files of one format.
    device : DeviceLike
        ``"opencl:0"``, ``"cpu"``, ...; `dlbridge.device` says what is accepted.
    names : iterable of str, or True, optional
        These tensors only, or all of them (True), are loaded now. None: each tensor
        is loaded at its first use.
    like : str, module, array or array type, optional
        The library whose arrays are wanted instead of Tensors, as in `to_device`.
    dtype : DTypeLike, optional
        The type that the elements are converted to, as by `astype`. In files with several
        tensors it is a floating-point type, for floating-point tensors only; the others stay.
        Elements that numpy has saved as raw memory (``|V2`` for ``"bfloat16"``) are read as
        this type; files of `save` name theirs.
    raw : bool
        For GGUF: quantised tensors become their bytes, uint8. False: using one
        raises FileError.
    copy : bool, optional
        None uses the pages of the file as the memory where that is possible;
        such a tensor is read-only. True always reads the bytes into new memory,
        which can be written. False never does.
    progress : bool or callable, optional
        Called with ``(done, total)`` bytes, after each tensor and in long ones after
        each 64 MiB, or 1 MiB of compressed ones; True shows a bar for 256 MiB and more.

    Returns
    -------
    TensorFile or Tensor
        A mapping of names to tensors; of a .npy file its one tensor. With *names* it is
        always a mapping. (For type checkers it is a `TensorFile` that has every other
        attribute, too: only the file says what it is.)

    Raises
    ------
    OSError
        If the file cannot be opened or read.
    FileError
        If the file has none of these formats, contradicts itself, or has elements
        that DLPack does not have; in .npz and GGUF files, these are an error only when
        they are used. It is also a ValueError.
    KeyError
        If one of *names* is not in the file.
    TypeError, ValueError
        If an argument has the wrong type or value.
    ExchangeError
        If *copy* is False and a tensor cannot be used in place, or if the device does
        not exist.
    BackendUnavailable
        If no backend here serves *device*.
    DeviceMemoryError
        A MemoryError, if the device does not have enough memory.

    Notes
    -----
    Tensors on the pages of a file change if somebody writes into the file. If it
    was made shorter, reading them ends the process (SIGBUS). So replace such a
    file, as `save` does, and do not write into it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bridge.save(f"{folder}/model.safetensors", {"weight": np.ones((2, 2), "float32")})
    ...     model = bridge.load(f"{folder}/model.safetensors")
    ...     model["weight"].tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    check_copy(copy)
    if isinstance(device, os.PathLike) or str(device).endswith(ENDINGS):
        raise TypeError(
            f"{str(device)!r} is not a valid device; the path comes first: "
            "dlbridge.load(path, device)"
        )
    where = check_device(device)
    wanted = None if dtype is None else as_dtype(dtype)
    if wanted is not None:
        check_dtype(wanted)
    if isinstance(names, str):
        raise TypeError(f"names={names!r} is one name; give a list: names=[{names!r}]")
    if isinstance(names, bytes) or not (names is None or isinstance(names, bool | Iterable)):
        raise TypeError(f"names={names!r}: give a list of str, or True for all")
    if like is not None and like != where.name:
        find_library(like)  # an error at once
    shards = shards_of(path)
    sources = [open_source(each) for each in ([path] if shards is None else shards.paths)]
    parts, metadata = [], dict[str, Any]()
    for source in sources:
        kind = _format_of(source)
        if kind == "npy" and (names is not None or shards is not None):
            how = "leave names= out" if shards is None else "load it alone"
            raise ValueError(f"{source.path} holds one array without a name: {how}")
        entries, said = _read(source, kind, wanted, raw)
        parts.append((source, entries))
        metadata |= said
    if shards is not None:
        check_shards(shards, parts)
    called = source.opened if shards is None else shards.name
    file = TensorFile[Any](called, parts, metadata, where, copy, progress, like, wanted)
    if kind == "npy":
        return file.read("")
    if names is None or names is False:
        return file
    return file._choose(file if names is True else names)


def _format_of(source: Source) -> str:
    """The format of a file: its contents say it, then its name."""
    first = source.read(0, 16)
    if safetensors.is_safetensors(first, source.size):
        return "safetensors"
    for magic, kind in _MAGICS.items():
        if first.startswith(magic):
            return kind
    for magic, module in _PACKERS.items():
        if first.startswith(magic):
            raise FileError(
                f"{source.path} is compressed: dlbridge.load({module}.open({source.path!r})) reads "
                "it into memory"
            )
    look_for_text(source)
    kind = os.path.splitext(source.path)[1].lower().removeprefix(".")  # noqa: PTH122 - it is a str
    if kind not in {*_MAGICS.values(), "safetensors"}:
        way = way_of_picture(source.path) or "save it in one of these by the library that wrote it"
        raise FileError(
            f"{source.path} begins with {first[:8]!r}, so it is not a safetensors, .npy, .npz or "
            f"GGUF file: {way}"
        )
    return kind  # whose reader says what is wrong with it


# Modules of Python, and zstandard, whose ``open`` reads what begins so.
_PACKERS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "lzma",
    b"\x28\xb5\x2f\xfd": "zstandard",
}
_MAGICS = {npy.MAGIC: "npy", **dict.fromkeys(npy.ZIP_MAGICS, "npz"), gguf.MAGIC: "gguf"}


def _read(
    source: Source, kind: str, dtype: DType | None, raw: bool
) -> tuple[list[Entry], dict[str, Any]]:
    """The tensors of a file, and its metadata."""
    if kind == "npy":
        return [npy.read_npy(source, dtype)], {}
    if kind == "npz":
        return npy.read_npz(source, dtype), {}
    if dtype is not None and dtype.code in _NOT_FLOATING:
        raise ValueError(
            f"{source.path}: dtype={str(dtype)!r} would convert nothing: of a file with several "
            "tensors, dtype= is a floating-point type for the floating-point tensors"
        )
    if kind == "gguf":
        if raw and dtype is not None:
            raise ValueError(f"{source.path}: raw=True gives bytes: leave dtype= out, or raw=")
        return gguf.read_gguf(source, raw=raw)
    return safetensors.read_header(source)


# One tensor on its way to a device ----------------------------------------------------
#
# In place where that is possible, else read into new memory: directly into memory that the host can
# address, to other devices through one small buffer.


ALIGNMENT = 64
"""Bytes. Tensors at such places of the file can be used by a device in place.

Kernels of PoCL read up to 64 bytes as aligned (``CPU_ALIGNMENT`` of dlbridge-opencl), and
Vulkan binds buffers at multiples of 16 to 64 on the devices that are known here.
"""

PAGE = 4096
"""Bytes. If a tensor cannot be imported alone, the import begins at a multiple of this."""

PIECE = 64 << 20
"""Bytes read at once; Ctrl-C works after each."""

STAGED = 16 << 20
"""Bytes of the buffer for devices whose memory the host cannot address."""


class _Way:
    """An entry on its way: what every step needs of it."""

    def __init__(self, source: Source, entry: Entry, target: Device, copy: bool | None) -> None:
        self.source = source
        self.entry = entry
        self.target = target
        self.copy = copy
        self.shape = entry.shape[::-1] if entry.fortran else entry.shape
        self.origin = f"{entry.name or 'the array'} of {source.path}"

    def step(self, kind: str, nbytes: int, reason: str) -> AbstractContextManager[object]:
        """A block that makes the tensor by this one step, for `dlbridge.trace`."""
        plan = Plan(self.entry.dtype, self.shape, self.origin, CPU, self.target)
        plan.add(kind, CPU, self.target, nbytes, reason)
        return running(plan)


_PAGES = "the pages of the file are the memory"


def _place(way: _Way, report: Report) -> Tensor:
    """The tensor where it is wanted."""
    entry = way.entry
    if entry.problem:
        raise FileError(entry.problem)
    found: Tensor | str
    if not entry.nbytes:
        found = new_tensor(way.target, entry.dtype, way.shape, padded=entry.padded)
    else:
        found = "copy=True was asked for" if way.copy is True else _in_place(way)
        if not isinstance(found, str):
            report(entry.nbytes)
        elif way.copy is False:
            raise ExchangeError(
                f"{name_of(way.source.path, entry.name)} cannot be used in place on {way.target}: "
                f"{found}; pass copy=None to allow a copy"
            )
        else:
            found = _copied(way, found, report)
    return found.transpose() if entry.fortran else found


# In place ---------------------------------------------------------------------------


def _in_place(way: _Way) -> Tensor | str:
    """The tensor on the pages of the file, or the reason why it cannot be there."""
    entry, target = way.entry, way.target
    if entry.member:
        return "it is compressed"
    alignment = entry.dtype.itemsize if target is CPU else ALIGNMENT
    if entry.offset % alignment:
        return (
            f"it begins at byte {entry.offset} of the file, which is not a multiple of {alignment}"
        )
    try:
        mapped = way.source.tensor(entry.offset, entry.dtype, way.shape, padded=entry.padded)
    except OSError as exc:
        return f"the file cannot be mapped: {exc}"
    if target is not CPU:
        return _imported(way, mapped)
    with way.step("share", 0, _PAGES):
        return mapped


def _imported(way: _Way, mapped: Tensor) -> Tensor | str:
    """The tensor in place on a device: by itself, or in the pages that it lies on."""
    entry = way.entry
    found = _import(way, mapped)
    # Some drivers take whole words; the system fills the last page of a file with zeros.
    before = entry.offset % PAGE
    nbytes = -(-(before + entry.nbytes) // 4) * 4
    if nbytes == entry.nbytes or not isinstance(found, str):
        return found
    pages = way.source.tensor(entry.offset - before, _BYTE, (nbytes,))
    found = _import(way, pages)
    if isinstance(found, str):
        return found
    memory = operand_of(found).memory
    assert memory is not None  # not on the CPU
    start = operand_of(found).byte_offset + before
    return tensor_on(
        memory,
        entry.dtype,
        way.shape,
        byte_offset=start,
        readonly=found.readonly,
        padded=entry.padded,
    )


def _import(way: _Way, mapped: Tensor) -> Tensor | str:
    asked = way.copy is False
    refusal = host_import_refusal(way.target, mapped.data_ptr(), mapped.nbytes, asked=asked)
    if refusal:
        return refusal
    try:
        with way.step("host import", 0, _PAGES):
            return to_device(mapped, way.target, copy=False)
    except Error as exc:  # a driver that knows more than its backend
        return str(exc)


_BYTE = as_dtype("uint8")


# Read ------------------------------------------------------------------------------


def _copied(way: _Way, reason: str, report: Report) -> Tensor:
    """A new tensor with the bytes of the file."""
    entry, target = way.entry, way.target
    way.source.check_size()
    with way.step("read", entry.nbytes, reason), ExitStack() as stack:
        tensor = new_tensor(target, entry.dtype, way.shape, padded=entry.padded)
        fill = _reader(way.source, entry, report)
        try:
            host = tensor if target.is_host else stack.enter_context(tensor.host_view())
        except ExchangeError:
            _fill_staged(fill, operand_of(tensor))
        else:
            fill(packed_bytes(operand_of(host)))
    return tensor


UNPACKED = 1 << 20
"""Bytes that zipfile makes at once."""


def _reader(source: Source, entry: Entry, report: Report) -> Callable[[memoryview], None]:
    """What fills memory with the next bytes of a tensor, FileError if the file has them not.

    Those of a compressed member are unpacked.
    """
    chunk = UNPACKED if entry.member else PIECE
    stream: Any = None

    def fill(into: memoryview) -> None:
        nonlocal stream
        for start in range(0, len(into), chunk):
            part = into[start : start + chunk]
            try:
                if stream is None:
                    stream = npy.open_member(source, entry) if entry.member else source.stream()
                    stream.seek(entry.offset)
                if stream.readinto(part) != len(part):
                    raise EOFError("it ends too early")
            except Exception as exc:
                refuse(exc, f"{source.path}: member {entry.member!r} cannot be unpacked")
            report(len(part))

    return fill


def _fill_staged(fill: Callable[[memoryview], None], target: Operand) -> None:
    buffer = np.empty(min(STAGED, target.nbytes), "u1")
    for start in range(0, target.nbytes, STAGED):
        part = buffer[: target.nbytes - start]
        fill(part.data)
        copy_elements(part_of(target, start, part.size), operand_of(wrap_array(part)))
