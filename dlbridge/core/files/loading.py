"""load: the tensors of a file, by name and at their first use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, overload

from dlbridge.core.dlpack.requests import check_copy
from dlbridge.core.moves.progress import Tally, reporter
from dlbridge.core.plugins.lookup import backend_of, find_device
from dlbridge.core.public import public
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.dtypes import check, dtype as as_dtype
from dlbridge.errors import FileError

from . import gguf, npy, safetensors
from .placing import place
from .source import Source

if TYPE_CHECKING:
    from typing import NoReturn

    from dlbridge.core.values.devices import Device
    from dlbridge.core.values.dtypes import DType
    from dlbridge.typing import DeviceLike, DTypeLike, ProgressLike

    from .entries import Entry

__all__ = ["TensorFile", "load"]


@public
class TensorFile(Mapping[str, Tensor]):
    """The tensors of a file by name, each loaded at its first use. Made by `dlbridge.load`.

    This object keeps each tensor that was used; `read` returns one that it does not
    keep. `keys`, ``len`` and ``in`` load nothing. Any thread may use it. The file
    stays open as long as this object or a tensor on its pages exists.

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
        source: Source,
        entries: list[Entry],
        metadata: dict[str, str],
        device: Device,
        copy: bool | None,
        progress: ProgressLike,
    ) -> None:
        self._source = source
        self._entries = {entry.name: entry for entry in entries}
        self._metadata = metadata
        self._device = device
        self._copy = copy
        self._progress = progress
        self._loaded: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
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

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a TensorFile is an open file, and cannot be pickled or copied: {self._source.path}; "
            "give the path, and call dlbridge.load where it is needed"
        )

    # It changes only by what it has loaded.
    def __copy__(self) -> TensorFile:
        return self

    # That of Mapping would load everything.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"dlbridge.TensorFile({self.path!r}, {len(self)} tensors, device={self._device})"

    @property
    def path(self) -> str:
        """The path that was opened."""
        return self._source.opened

    @property
    def device(self) -> Device:
        """The device that tensors are loaded to."""
        return self._device

    @property
    def metadata(self) -> dict[str, str]:
        """The texts that a safetensors file has beside its tensors; empty for other formats."""
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
        entry = self._entry(name)
        if entry.problem:
            raise FileError(entry.problem)
        return entry.dtype, entry.shape

    def read(self, name: str) -> Tensor:
        """Return a tensor that this object does not keep, loaded anew.

        Parameters
        ----------
        name : str
            One of the keys.

        Returns
        -------
        Tensor
            On `device`.

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
        entry = self._entry(name)
        with reporter(self._progress, entry.nbytes) as report:
            return place(self._source, entry, self._device, self._copy, Tally(report, entry.nbytes))

    def _entry(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(map(repr, list(self._entries)[:8]))
            more = ", ..." if len(self) > 8 else ""
            raise KeyError(
                f"{self._source.path} has no tensor {name!r}; it has {known or 'none'}{more}"
            ) from None

    def _choose(self, names: Iterable[str]) -> TensorFile:
        """The same file with these tensors only, all of them loaded."""
        entries = [self._entry(name) for name in dict.fromkeys(names)]
        chosen = TensorFile(
            self._source, entries, self._metadata, self._device, self._copy, self._progress
        )
        total = sum(entry.nbytes for entry in entries)
        with reporter(self._progress, total) as report:
            tally = Tally(report, total)
            for entry in entries:
                chosen._loaded[entry.name] = place(
                    self._source, entry, self._device, self._copy, tally
                )
        return chosen


@overload
def load(
    path: str | os.PathLike[str],
    device: DeviceLike,
    names: Iterable[str] | Literal[True],
    *,
    dtype: DTypeLike | None = ...,
    raw: bool = ...,
    copy: bool | None = ...,
    progress: ProgressLike = ...,
) -> TensorFile: ...
@overload
def load(
    path: str | os.PathLike[str],
    device: DeviceLike = ...,
    *,
    names: Iterable[str] | Literal[True],
    dtype: DTypeLike | None = ...,
    raw: bool = ...,
    copy: bool | None = ...,
    progress: ProgressLike = ...,
) -> TensorFile: ...
@overload
def load(
    path: str | os.PathLike[str],
    device: DeviceLike = ...,
    names: Iterable[str] | bool | None = ...,
    *,
    dtype: DTypeLike | None = ...,
    raw: bool = ...,
    copy: bool | None = ...,
    progress: ProgressLike = ...,
) -> TensorFile | Tensor: ...
@public
def load(
    path: str | os.PathLike[str],
    device: DeviceLike = "cpu",
    names: Iterable[str] | bool | None = None,
    *,
    dtype: DTypeLike | None = None,
    raw: bool = False,
    copy: bool | None = None,
    progress: ProgressLike = None,
) -> TensorFile | Tensor:
    """Return the tensors of a safetensors, .npy, .npz or GGUF file, on *device*.

    The contents of the file say which format it is. Every file is checked when it
    is opened; nothing in it is ever unpickled.

    Parameters
    ----------
    path : str or path
        A regular file.
    device : DeviceLike
        ``"opencl:0"``, ``"cpu"``, ...; `dlbridge.device` says what is accepted.
    names : iterable of str, or True, optional
        These tensors only, or all of them (True), are loaded now. None: each tensor
        is loaded at its first use.
    dtype : DTypeLike, optional
        For numpy's formats: the type of elements that were saved as raw memory,
        such as ``"bfloat16"``, which numpy saves as ``|V2``. In a .npz file it is for
        members of which the file does not say the type; files of `save` say it.
    raw : bool
        For GGUF: quantised tensors become their bytes, uint8. False: using one
        raises FileError.
    copy : bool, optional
        None uses the pages of the file as the memory where that is possible;
        such a tensor is read-only. True always reads the bytes into new memory,
        which can be written. False never does.
    progress : bool or callable, optional
        Called with ``(done, total)`` bytes, after each tensor and in long ones after
        each 64 MiB; True shows a bar for 256 MiB and more.

    Returns
    -------
    TensorFile or Tensor
        A mapping of names to tensors; of a .npy file its one tensor. With *names* it is
        always a mapping.

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
    where = find_device(device)
    backend_of(where)  # an error at once, not at the first use
    wanted = None if dtype is None else as_dtype(dtype)
    if wanted is not None:
        check(wanted.code, wanted.bits, wanted.lanes)
    if isinstance(names, str):
        raise TypeError(f"names={names!r} is one name; give a list: names=[{names!r}]")
    if isinstance(names, bytes) or not (names is None or isinstance(names, bool | Iterable)):
        raise TypeError(f"names={names!r}: give a list of str, or True for all")
    source = Source(path)
    kind = _format_of(source)
    if kind == "npy":
        if names is not None:
            raise ValueError(f"{source.path} holds one array without a name: leave names= out")
        entry = npy.read_npy(source, wanted)
        with reporter(progress, entry.nbytes) as report:
            return place(source, entry, where, copy, Tally(report, entry.nbytes))
    entries, metadata = _read(source, kind, wanted, raw)
    file = TensorFile(source, entries, metadata, where, copy, progress)
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
    kind = os.path.splitext(source.path)[1].lower().removeprefix(".")  # noqa: PTH122 - it is a str
    if kind not in {*_MAGICS.values(), "safetensors"}:
        raise FileError(
            f"{source.path} begins with {first[:8]!r}, so it is not a safetensors, .npy, .npz or "
            "GGUF file: save it in one of these by the library that wrote it"
        )
    return kind  # whose reader says what is wrong with it


_MAGICS = {npy.MAGIC: "npy", **dict.fromkeys(npy.ZIP_MAGICS, "npz"), gguf.MAGIC: "gguf"}


def _read(
    source: Source, kind: str, dtype: DType | None, raw: bool
) -> tuple[list[Entry], dict[str, str]]:
    """The tensors of a file of several, and its metadata."""
    if kind == "npz":
        return npy.read_npz(source, dtype), {}
    if dtype is not None:
        raise ValueError(f"{source.path}: dtype= is for .npy and .npz; this file names its types")
    if kind == "gguf":
        return gguf.read_gguf(source, raw=raw), {}
    return safetensors.read_header(source)
