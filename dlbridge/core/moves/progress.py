"""Progress of long copies: a bar on a terminal or in a notebook, or the caller's own function."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from dlbridge.core.values.units import bytes_text

if TYPE_CHECKING:
    from .within_host import Progress


SHOWN_FROM = 256 << 20
"""The bytes from which ``progress=True`` shows a bar."""


@contextmanager
def reporter(
    progress: bool | Callable[[int, int], None] | None, nbytes: int
) -> Iterator[Progress | None]:
    """The function that a copy of *nbytes* calls with ``(done, total)`` bytes, or None.

    True shows a bar on a terminal and in a notebook if the copy is long: of tqdm or rich,
    whichever is installed, otherwise our own.
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
    if nbytes < SHOWN_FROM or not _somebody_looks():
        yield None
        return
    with _bar(nbytes) as bar:
        yield bar


def _somebody_looks() -> bool:
    """Whether stderr is a terminal, or this is the kernel of a notebook, where it is none."""
    return "ipykernel.zmqshell" in sys.modules or bool(sys.stderr and sys.stderr.isatty())


def _bar(nbytes: int) -> Any:
    """A context manager that gives the function of a bar."""
    for name, shown in (("tqdm.auto", _tqdm), ("rich.progress", _rich)):
        with suppress(ImportError):
            return shown(importlib.import_module(name), nbytes)
    return _plain(nbytes, sys.stderr)


@contextmanager
def _tqdm(library: Any, nbytes: int) -> Iterator[Progress]:
    """In a notebook it is a widget."""
    with library.tqdm(total=nbytes, unit="B", unit_scale=True, unit_divisor=1024) as bar:
        yield lambda done, _total: bar.update(done - bar.n)


@contextmanager
def _rich(library: Any, nbytes: int) -> Iterator[Progress]:
    from rich.console import Console

    columns = [library.BarColumn(), library.DownloadColumn(True)]
    columns += [library.TransferSpeedColumn(), library.TimeRemainingColumn()]
    with library.Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=nbytes)
        yield lambda done, _total: bars.update(task, completed=done)


@contextmanager
def _plain(nbytes: int, stream: TextIO) -> Iterator[Progress]:
    """Our own bar: one line, which is written again at each call."""
    start = time.perf_counter()

    def show(done: int, total: int) -> None:
        filled = 30 * done // total
        speed = bytes_text(int(done / (time.perf_counter() - start + 1e-9)))
        text = f"{100 * done // total:3}% [{'#' * filled:30}] {bytes_text(done)}, {speed}/s"
        stream.write(f"\r{text:<72}")
        stream.flush()

    try:
        yield show
    finally:
        stream.write("\n")


class Tally:
    """Adds up the bytes of several copies, for one function of *total* bytes of progress."""

    def __init__(self, report: Progress | None, total: int) -> None:
        self._report = report
        self._total = total
        self._done = 0

    def __call__(self, nbytes: int) -> None:
        """Note that *nbytes* more were copied."""
        self._done += nbytes
        if self._report is not None:
            self._report(self._done, self._total)
