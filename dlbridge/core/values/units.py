"""Numbers of bytes as text for people, and tables for their notebooks."""

from __future__ import annotations

from collections.abc import Iterable


def bytes_text(count: int) -> str:
    """``"512 bytes"``, ``"1.5 MiB"``."""
    if count < 10_000:
        return f"{count} bytes"
    size = count / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def table(title: str, head: tuple[str, ...] = (), rows: Iterable[tuple[object, ...]] = ()) -> str:
    """*title*, and a table of *rows* whose columns *head* names, as HTML."""
    from html import escape  # for notebooks only

    def line(tag: str, cells: tuple[object, ...]) -> str:
        return "".join([f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells])

    lines = [line("th", head), *(line("td", row) for row in rows)] if head else []
    body = "".join([f"<tr>{cells}</tr>" for cells in lines])
    return f"<p>{escape(title)}</p>" + (f"<table>{body}</table>" if body else "")
