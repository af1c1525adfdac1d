"""Which files stand for one model: a list of files, a folder, or an index of safetensors files."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.errors import FileError

from .source import DAMAGED, look_for_text, open_source, printable, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .source import Entry, Source

INDEX = ".safetensors.index.json"
"""How the name of an index ends: JSON, whose ``weight_map`` says which file has which tensor.

Source: huggingface_hub, ``save_torch_state_dict``.
"""

_SUFFIXES = (".safetensors", ".gguf", ".npz")


class Shards(NamedTuple):
    """The files of a model, and by an index which of them has each tensor."""

    name: str
    """What messages call the whole."""
    paths: list[Any]
    expected: dict[str, str]
    """The name of each tensor, and of its file in the folder; empty without an index."""


def shards_of(x: Any) -> Shards | None:
    """The files that *x* stands for; None if it is one file."""
    if isinstance(x, list | tuple):
        if not x:
            raise ValueError("load([]): the list names no file")
        return _whole(Shards(f"a list of {len(x)} files", list(x), {}))
    if not isinstance(x, str | os.PathLike) or isinstance(os.fspath(x), bytes):
        return None
    path = Path(x)
    if path.name.endswith(INDEX):
        return _by_index(path)
    return _of_folder(path) if path.is_dir() else None


def _of_folder(folder: Path) -> Shards:
    where = printable(str(folder))
    indices = sorted(folder.glob(f"*{INDEX}"))
    if len(indices) == 1:
        return _by_index(indices[0])
    if indices:
        names = ", ".join(index.name for index in indices)
        raise FileError(f"{where} has several indices: load one of {names}")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
    kinds = sorted({path.suffix.lower() for path in paths})
    if len(kinds) != 1:
        what = f"files of several formats ({', '.join(kinds)})" if kinds else "no file of tensors"
        raise FileError(
            f"{where} is a folder with {what}: give the file, a list of files, or a folder with "
            f"files of one of the formats {', '.join(_SUFFIXES)}"
        )
    return _whole(Shards(where, list(paths), {}))


_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)", re.ASCII)
"""The name of a part: the model's, its number from 1 on, how many there are, and the suffix."""


def _whole(shards: Shards) -> Shards:
    """*shards*; FileNotFoundError if names say that there are more parts."""
    parts = [
        (path, match)
        for path in shards.paths
        if isinstance(path, str | Path) and (match := _PART.fullmatch(Path(path).name))
    ]
    there = {Path(path).name for path, _ in parts}
    for path, match in parts:
        name, _, count, suffix = match.groups()
        for number in range(1, int(count) + 1):
            part = f"{name}-{number:05}-of-{count}{suffix}"
            if part not in there:
                raise FileNotFoundError(
                    errno.ENOENT,
                    f"a part of the model is missing in {shards.name}: load each file that is "
                    "there alone, or get this one",
                    str(Path(path).with_name(part)),
                )
    return shards


def _by_index(path: Path) -> Shards:
    where = printable(str(path))
    source = open_source(path)
    content = source.read(0, source.size)
    try:
        placed = json.loads(content)["weight_map"]
        if not isinstance(placed, dict) or not all(isinstance(n, str) for n in placed.values()):
            raise TypeError("weight_map is no table of names of files")
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        if content.lstrip()[:1] not in (b"{", b"["):
            look_for_text(source)
        raise FileError(
            f"{where} is no index of safetensors files ({exc!r}): {words_of(content)!r}; {DAMAGED}"
        ) from exc
    names = sorted(set(placed.values()))
    for name in names:
        # What a downloaded file says must not reach files beside the model.
        if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:  # noqa: PTH119 - of a text
            raise FileError(
                f"{where} names {name!r}, which is not a file of the same folder: {DAMAGED}"
            )
    return Shards(where, [path.parent / name for name in names], placed)


def check_shards(shards: Shards, parts: Iterable[tuple[Source, list[Entry]]]) -> None:
    """FileError for a tensor that two files have, or that is not where the index says."""
    owners: dict[str, str] = {}
    for source, entries in parts:
        for entry in entries:
            if entry.name in owners:
                raise FileError(
                    f"two files have a tensor {entry.name!r}: {owners[entry.name]} and "
                    f"{source.path}; load them one by one"
                )
            owners[entry.name] = source.path
    wrong = [
        f"{name!r} is not in {file}"
        for name, file in shards.expected.items()
        if os.path.basename(owners.get(name, "")) != printable(file)  # noqa: PTH119 - of a text
    ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise FileError(
            f"{shards.name} and its files disagree: {', '.join(wrong[:3])}{more}; get the files "
            "again, all of the same version"
        )
