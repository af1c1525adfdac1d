"""Suggestions for names that are spelled wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """``" (did you mean 'opencl'?)"``, or nothing where no *known* name is like *word*."""
    if not isinstance(word, str):
        return ""
    from difflib import get_close_matches  # for messages only

    close = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]!r}?)" if close else ""
