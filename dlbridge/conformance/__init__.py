"""Does a library do what DLPack asks of a producer and of a consumer? One case for each rule."""

# A guest: it uses public names only. May import: `abi`, `errors`, `extending`, `protocol`.

from __future__ import annotations

from .runner import Result, check

__all__ = ["Result", "check"]
