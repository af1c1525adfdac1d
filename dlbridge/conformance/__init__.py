"""Does a library do what DLPack asks of a producer and of a consumer? One case for each rule."""

from __future__ import annotations

from .runner import Result, check

__all__ = ["Result", "check"]
