"""Text for people: findings, columns, wrapped lines, units, and colour for terminals."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from dlbridge.core.values.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH = 100
_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}


class Finding(NamedTuple):
    """One thing that doctor has looked at.

    *state* is ``"ok"``, ``"note"`` for what is only missing, or ``"problem"``. *remedy* is
    what to do; empty if there is nothing to do.
    """

    state: Literal["ok", "note", "problem"]
    what: str
    said: str
    remedy: str = ""


def shows_color(stream: TextIO) -> bool:
    """Whether *stream* is a terminal that wants colour (https://no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream.isatty()


def colored(text: str, how: str, color: bool) -> str:
    """*text*, marked for a terminal if *color* is true."""
    return f"\033[{_CODES[how]}m{text}\033[0m" if color else text


def heading(text: str, color: bool) -> str:
    """A heading."""
    return colored(text, "bold", color)


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """The *rows* as lines, each column as wide as its widest entry."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def wrapped(name: str, text: str) -> list[str]:
    """``name  text``, on as many lines as it takes; paths and names are not cut."""
    indent = 10
    first = f"{name:<{indent - 1}} " if len(name) < indent else f"{name}: "
    lines = textwrap.wrap(
        " ".join(text.split()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [name]


def value_text(name: str, value: object) -> str:
    """The *value* of a device's property, with a unit if it counts bytes."""
    counts_bytes = name in _BYTES or name.startswith(("memory", "max_allocation", "max_buffer"))
    if counts_bytes and name != "max_allocations" and isinstance(value, int):
        return bytes_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


_BYTES = {"max_storage_buffer_range", "max_push_constants", "min_imported_host_pointer_alignment"}
