"""Numbers of bytes as text for people."""

from __future__ import annotations

__all__ = ["bytes_text"]


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
