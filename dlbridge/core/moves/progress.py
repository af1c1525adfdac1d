"""Progress of long copies: a bar on a terminal, or the caller's own function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .within_host import Progress

__all__ = ["SHOWN_FROM", "reporter"]

SHOWN_FROM = 256 << 20
"""The bytes from which ``progress=True`` shows a bar."""


@contextmanager
def reporter(
    progress: bool | Callable[[int, int], None] | None, nbytes: int
) -> Iterator[Progress | None]:
    """The function that a copy of *nbytes* calls with ``(done, total)`` bytes, or None.

    True shows a tqdm bar if stderr is a terminal and the copy is long; without
    tqdm installed it shows nothing.
    """
    if callable(progress):
        yield progress
        return
    if progress is None or progress is False:
        yield None
        return
    if progress is not True:
        raise TypeError(
            f"progress must be True, False or a callable (done, total), not {progress!r}"
        )
    if nbytes < SHOWN_FROM or not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield None
        return
    with tqdm(total=nbytes, unit="B", unit_scale=True, unit_divisor=1024) as bar:
        yield lambda done, _total: bar.update(done - bar.n)
