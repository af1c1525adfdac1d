"""The class of what doctor finds."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Finding"]


class Finding(NamedTuple):
    """One thing that doctor has looked at.

    *state* is ``"ok"``, ``"note"`` for what is only missing, or ``"problem"``. *remedy* is
    what to do; empty if there is nothing to do.
    """

    state: Literal["ok", "note", "problem"]
    what: str
    said: str
    remedy: str = ""
