"""The table of exchanges: its rows, what is added to them, and how it is shown."""

from __future__ import annotations

import os
import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.extending import bytes_text, html_table, public_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from dlbridge.errors import ExchangeError


@public_in("dlbridge")
class ExchangeRow(NamedTuple):
    """All exchanges of one kind that one line of a program has made.

    Attributes
    ----------
    file, line, function : str, int, str
        Where they were made.
    source, target : str
        The classes, each with its device unless that is the CPU: ``"torch.Tensor cuda:0"``.
    dtype : str
        The type of the elements, as the source calls it.
    shape : tuple of int or None
        The extents; None for one that was not always the same.
    result : str
        ``"shared"``, ``"copied"``, ``"moved"`` (to another device), or ``"not seen"``, where the
        result went into an expression that does not show whether it was shared.
    nbytes : int
        The bytes that all of them have copied or moved.
    calls : int
        How many there were.
    seconds : float
        How long they took, all together.
    note : str
        What is to be said of them: the reason of dlbridge's own plan, or that the host waits for
        a device.

    Examples
    --------
    >>> with bridge.watch() as exchanges:
    ...     t = bridge.asarray(np.zeros(3))
    >>> [row.target for row in exchanges.rows]
    ['dlbridge.Tensor']
    """

    file: str
    line: int
    function: str
    source: str
    target: str
    dtype: str
    shape: tuple[int | None, ...]
    result: str
    nbytes: int
    calls: int
    seconds: float
    note: str


class Sum:
    """The sums of a row."""

    __slots__ = ("calls", "forbidden", "nbytes", "note", "ns", "shape")

    def __init__(self, shape: tuple[int | None, ...], note: str, forbidden: str = "") -> None:
        self.shape, self.note, self.forbidden = shape, note, forbidden
        self.calls = self.nbytes = self.ns = 0

    def add(self, shape: tuple[int | None, ...], nbytes: int, calls: int, ns: int) -> None:
        """Add *calls* of one kind."""
        if self.shape != shape:
            self.shape = _common(self.shape, shape)
        self.nbytes += nbytes
        self.calls += calls
        self.ns += ns


HOST = ("cpu", "cuda_host", "cuda_managed", "rocm_host")


RowKey = tuple[tuple[str, int, str], str, str, str, str, int, str]
"""What has one row: the file, line and function of the call, the class and device of the source,
the target, the dtype, the number of dimensions and the result."""


class Ledger:
    """What the watchers have seen, for one table."""

    def __init__(self, threads: str, fail_on: tuple[str, ...]) -> None:
        self._thread = get_ident() if threads == "this" else None
        self.fail_on = fail_on
        # Each thread adds to sums of its own: a lock would be held while destructors run.
        self._sums: dict[int, dict[RowKey, Sum]] = {}
        self._notes: dict[str, int] = {}
        self.error: ExchangeError | None = None  # which the end of the watch raises

    def put_off(self, error: ExchangeError) -> None:
        """Keep *error*, if it is the first one, for the end of the watch."""
        if self.fail_on and self.error is None:
            self.error = error

    def rows_for(self, key: RowKey, shape: tuple[int, ...], note: str) -> list[Sum]:
        """The row of *key* that this thread adds to; none if this thread does not count."""
        thread = get_ident()
        if self._thread is not None and self._thread != thread:
            return []
        sums = self._sums.setdefault(thread, {})
        row = sums.get(key) or sums.setdefault(key, Sum(shape, note, self._forbidden(key)))
        return [row]

    def _forbidden(self, key: RowKey) -> str:
        result, device = key[-1], key[2]
        words = {"copied": ["copy"], "moved": ["copy", "move"]}.get(result, [])
        if result == "copied" and device.startswith(HOST):
            words.append("host copy")
        return next((word for word in self.fail_on if word in words), "")

    def remark(self, text: str) -> None:
        """Count *text*, for the foot of the table."""
        self._notes[text] = self._notes.get(text, 0) + 1

    def rows(self) -> list[ExchangeRow]:
        """The rows; those that took longest first."""
        merged: dict[RowKey, Sum] = {}
        for of_thread in self._sums.copy().values():
            for key, each in of_thread.copy().items():
                row = merged.setdefault(key, Sum(each.shape, each.note))
                row.add(each.shape, each.nbytes, each.calls, each.ns)
        listed = []
        for (position, kind, device, target, dtype, _, result), row in merged.items():
            source = kind if device == "cpu" else f"{kind} {device}"
            fields = (*position, source, target, dtype, tuple(row.shape), result)
            sums = row.nbytes, row.calls, row.ns / 1e9, row.note
            listed.append(ExchangeRow(*fields, *sums))
        return sorted(listed, key=lambda row: (-row.seconds, row.file, row.line))

    def notes(self) -> list[str]:
        """What was noted, for the foot of the table."""
        notes = self._notes.copy()
        return [text if count == 1 else f"{text} ({count} times)" for text, count in notes.items()]


@public_in("dlbridge")
class Exchanges:
    """The exchanges of arrays that were made while `watch` watched; ``print`` shows them.

    It keeps no array: texts and numbers only, one row for each line and kind.

    Attributes
    ----------
    rows : list of ExchangeRow
        Those that took longest first.
    copies, moves : int
        How many exchanges have copied elements on one device, and moved them to another one.
    nbytes : int
        The bytes of both.

    Examples
    --------
    >>> with bridge.watch() as exchanges:
    ...     t = bridge.asarray(np.zeros(3))
    >>> exchanges.copies, exchanges.nbytes
    (0, 0)
    """

    def __init__(
        self, ledger: Ledger, begin: Callable[[Ledger], object], end: Callable[[Ledger], object]
    ) -> None:
        self._ledger, self._begin, self._end = ledger, begin, end

    def __enter__(self) -> Self:
        self._begin(self._ledger)
        return self

    def __exit__(self, cls: object, *_exc: object) -> None:
        self._end(self._ledger)
        error, self._ledger.error = self._ledger.error, None
        if error is not None and cls is None:
            raise error

    @property
    def rows(self) -> list[ExchangeRow]:
        """The rows; those that took longest first."""
        return self._ledger.rows()

    def __iter__(self) -> Iterator[ExchangeRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def copies(self) -> int:
        """The number of exchanges that have copied elements on one device."""
        return sum(row.calls for row in self.rows if row.result == "copied")

    @property
    def moves(self) -> int:
        """The number of exchanges that have moved elements to another device."""
        return sum(row.calls for row in self.rows if row.result == "moved")

    @property
    def nbytes(self) -> int:
        """The bytes that were copied and moved."""
        return sum(row.nbytes for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the table in plain values, for JSON.

        Returns
        -------
        dict
            ``rows``, a list of dictionaries with the attributes of `ExchangeRow`; ``copies``,
            ``moves`` and ``nbytes``; ``notes``, a list of what is to be said of the table.

        Examples
        --------
        >>> with bridge.watch() as exchanges:
        ...     t = bridge.asarray(np.zeros(3))
        >>> exchanges.as_dict()["rows"][0]["result"]
        'shared'
        """
        return {
            "rows": [row._asdict() for row in self.rows],
            "copies": self.copies,
            "moves": self.moves,
            "nbytes": self.nbytes,
            "notes": self._foot(),
        }

    def summary(self) -> str:
        """Return the lines that copy or move, with their sums, the most bytes first.

        Returns
        -------
        str
            A line of text for each line of the program.

        Examples
        --------
        >>> with bridge.watch() as exchanges:
        ...     t = bridge.asarray(np.zeros(3))
        >>> exchanges.summary()
        'nothing was copied or moved'
        """
        lines: dict[str, list[Any]] = {}
        for row in self.rows:
            if row.result in ("copied", "moved"):
                sums = lines.setdefault(_where(row), [0, 0, 0.0])
                sums[0] += row.nbytes
                sums[1] += row.calls
                sums[2] += row.seconds
        cells: list[tuple[str, ...]] = [
            (where, _bytes(nbytes), f"{calls} calls", _time(seconds))
            for where, (nbytes, calls, seconds) in sorted(
                lines.items(), key=lambda item: (-item[1][0], item[0])
            )
        ]
        return _columns(cells) or "nothing was copied or moved"

    def __str__(self) -> str:
        cells = [_HEAD, *map(_cells, self.rows)]
        return "\n".join([_columns(cells), "", *self._foot()])

    def __repr__(self) -> str:
        return f"dlbridge.Exchanges({self._foot()[0]})"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        first, *others = self._foot()
        return html_table(first, _HEAD, map(_cells, self.rows)) + "".join(map(html_table, others))

    def _foot(self) -> list[str]:
        rows = self.rows
        calls = sum(row.calls for row in rows)
        first = (
            f"{calls} exchange{'' if calls == 1 else 's'}: {self.copies} copied, {self.moves} "
            f"moved, {_bytes(self.nbytes)} in all"
        )
        return [first, LIMITS, *self._ledger.notes()]


LIMITS = (
    "Not seen: what C code calls, and what a library does inside itself (docs: Watch exchanges)."
)
if sys.version_info < (3, 12):
    LIMITS += (
        " CPython 3.11 shows fewer functions of C, and each call took half a microsecond more; "
        "3.12 and later watch faster."
    )
_HEAD = ("where", "from", "to", "what", "bytes", "calls", "time", "")


def _common(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> tuple[int | None, ...]:
    return tuple([mine if mine == its else None for mine, its in zip(one, other, strict=True)])


def _cells(row: ExchangeRow) -> tuple[str, ...]:
    extents = ["." if extent is None else str(extent) for extent in row.shape]
    shape = f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"
    moved = row.result if not row.nbytes else f"{_bytes(row.nbytes)} {row.result}"
    what = f"{row.dtype} {shape}".strip()
    return (
        *(_where(row), row.source, row.target, what, moved),
        *(str(row.calls), _time(row.seconds), row.note),
    )


def _where(row: ExchangeRow) -> str:
    return f"{short(row.file)}:{row.line}  {row.function}"


def short(filename: str) -> str:
    """*filename* as people read it: below the current folder, or below the installed packages."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in filename:
            return filename.rpartition(folder)[2]
    try:
        near = os.path.relpath(filename)
    except (OSError, ValueError):
        return filename
    return filename if near.startswith("..") else near


def _bytes(count: int) -> str:
    return bytes_text(count).replace("bytes", "B")


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _columns(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
