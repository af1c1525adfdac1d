"""Progress of long copies: a bar on a terminal or in a notebook, or the caller's own function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from dlbridge.core.public import for_guests
from dlbridge.core.values.text import bytes_text

if TYPE_CHECKING:
    from dlbridge.typing import ProgressLike

    from .within_host import Progress


SHOWN_FROM = 256 << 20
"""The bytes from which ``progress=True`` shows a bar."""


@contextmanager
def reporter(progress: ProgressLike, nbytes: int) -> Iterator[Progress | None]:
    """The function that a copy of *nbytes* calls with ``(done, total)`` bytes, or None.

    True shows a bar on a terminal and in a notebook if the copy is long. A copy that has said
    nothing, as a device has done all of it at once, is done when the block ends.
    """
    report, cell, told = cast("Any", None), None, 0
    if callable(progress):
        report = progress
    elif progress is True and nbytes >= SHOWN_FROM and _somebody_looks():
        report = partial(_show, time.perf_counter(), cell := _output())
    elif not isinstance(progress, bool | None):
        raise TypeError(
            f"progress must be True, False or a callable (done, total), not {progress!r}"
        )

    def tell(done: int, total: int) -> None:
        nonlocal told
        told = done
        report(done, total)

    try:
        yield report and tell
        if report and told < nbytes:
            report(nbytes, nbytes)
    finally:
        if report and report is not progress and cell is None:
            sys.stderr.write("\n")


def _somebody_looks() -> bool:
    """Whether stderr is a terminal, or this is the kernel of a notebook, where it is none."""
    return "ipykernel.zmqshell" in sys.modules or bool(sys.stderr and sys.stderr.isatty())


def _output() -> Any:
    """The output of a notebook's cell that a bar is written to; None on a terminal.

    Pages that are made of notebooks (nbconvert) show all that was written to stderr, one bar after
    the other; an output that is updated is there once.
    """
    if "ipykernel.zmqshell" not in sys.modules or "IPython.display" not in sys.modules:
        return None
    return sys.modules["IPython.display"].display({"text/plain": ""}, raw=True, display_id=True)


def _show(start: float, cell: Any, done: int, total: int) -> None:
    """Write the bar of a copy that has begun at *start*: one line, which is written again."""
    filled = 30 * done // total
    speed = bytes_text(int(done / (time.perf_counter() - start + 1e-9)))
    text = f"{100 * done // total:3}% [{'#' * filled:30}] {bytes_text(done)}, {speed}/s"
    if cell is not None:
        cell.update({"text/plain": text}, raw=True)
        return
    sys.stderr.write(f"\r{text:<72}")
    sys.stderr.flush()


@for_guests
@contextmanager
def tally(progress: ProgressLike, total: int) -> Iterator[Callable[[int], None]]:
    """Give what several copies report their bytes to, as a context manager.

    Parameters
    ----------
    progress : ProgressLike
        What the user passed as ``progress=``.
    total : int
        The bytes of all copies.

    Yields
    ------
    callable
        It takes the number of bytes that were copied since the last call.

    Examples
    --------
    >>> from dlbridge.extending import tally
    >>> with tally(lambda done, total: print(done, "of", total), 3) as report:
    ...     report(1)
    ...     report(2)
    1 of 3
    3 of 3
    """
    done = 0
    with reporter(progress, total) as report:

        def add(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if report is not None:
                report(done, total)

        yield add
