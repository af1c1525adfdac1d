"""Disturbances of a storm: exceptions of signal handlers, and what Python only prints."""

from __future__ import annotations

import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Alarm", "Interruptions", "calmly", "causes"]

ROOT = Path(__file__).resolve().parents[2]

# An interruption comes in code of these folders only ...
OURS = tuple(
    f"{path}/"
    for path in (ROOT / "dlbridge", ROOT / "tests" / "storm", *ROOT.glob("backends/*/dlbridge_*"))
)
# ... and not below one of these: what a half-done import or a half-done compilation
# leaves behind in another library is not ours to judge.
FRAGILE = ("<frozen importlib", "/importlib/", "/jax/", "/threading.py", "/raw_producer.py")
# Libraries whose destructors fail for an object whose constructor was interrupted: an
# exception that a destructor of ours delivers late may come there.
UNFINISHED = ("/wgpu/",)


class Alarm(Exception):
    """What the handler of a signal may raise that is not KeyboardInterrupt."""


def calmly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call *function* where no interruption may come: a helper's own steps, for example."""
    return function(*arguments)


def causes(error: BaseException | None) -> bool:
    """Whether *error* is an exception of the handler, or was raised from one."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt | Alarm):
            return True
        error = error.__cause__
    return False


class Interruptions:
    """One signal at a random moment of each operation of the main thread.

    The handler raises KeyboardInterrupt or `Alarm`. Each exception must arrive at
    the caller of the operation, or be printed by Python because it came in a
    destructor.
    """

    def __init__(self) -> None:
        self.raised = self.heard = self.printed = 0
        self.lost: list[str] = []
        """Where the exceptions were raised that have arrived nowhere."""
        self.others: list[str] = []
        """What Python printed about exceptions that no handler raised."""
        self._armed: type[BaseException] | None = None
        self._unraised: list[Any] = []
        self._where = ""
        # A function of C: one of Python could be interrupted itself.
        sys.unraisablehook = self._unraised.append
        signal.signal(signal.SIGALRM, self._strike)
        signal.signal(signal.SIGINT, self._deliver_again)

    def run(self, pick: random.Random, work: Callable[[], object]) -> None:
        """Call *work*, and interrupt it at a random moment."""
        before = self.raised, self.heard + self.printed
        try:
            try:
                self._armed = pick.choice([KeyboardInterrupt, Alarm])
                longest = 10 ** pick.uniform(-5, -2)
                signal.setitimer(signal.ITIMER_REAL, pick.uniform(2e-6, longest))
                work()
            finally:
                self._armed = None
                signal.setitimer(signal.ITIMER_REAL, 0)
        except BaseException as error:
            if not causes(error):
                raise
            self.heard += 1
        self.look()
        if self.raised - before[0] > self.heard + self.printed - before[1]:
            self.lost.append(self._where)

    def look(self) -> None:
        """Sort what Python has printed since the last call."""
        while self._unraised:
            given = self._unraised.pop(0)
            if isinstance(given.exc_value, KeyboardInterrupt | Alarm):
                self.printed += 1
            elif not _is_of_unfinished(given.exc_traceback):
                text = traceback.format_exception(given.exc_value)
                self.others.append(f"{given.err_msg} {given.object!r}\n{''.join(text)}")
            del given  # its traceback keeps the frames, and they our tensors

    def _strike(self, _number: int, frame: FrameType | None) -> None:
        kind = self._armed
        if kind is None:
            return
        if not _may_come_at(frame):
            signal.setitimer(signal.ITIMER_REAL, 3e-5)  # a little later
            return
        self._armed = None
        self.raised += 1
        self._where = "".join(traceback.format_stack(frame, limit=8))
        raise kind

    def _deliver_again(self, _number: int, frame: FrameType | None) -> None:
        """Raise a KeyboardInterrupt that dlbridge.ffi could not raise where it came."""
        while frame is not None and frame.f_code is not Interruptions.run.__code__:
            frame = frame.f_back
        if frame is not None:
            raise KeyboardInterrupt
        self.heard += 1  # it came when the operation was over


def _is_of_unfinished(trace: TracebackType | None) -> bool:
    """Whether all frames of *trace* are of libraries of `UNFINISHED`."""
    names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
    return all(any(part in name for part in UNFINISHED) for name in names) and bool(names)


def _may_come_at(frame: FrameType | None) -> bool:
    # The second signal of a slow handler comes in the handler itself.
    while frame is not None and frame.f_code is Interruptions._strike.__code__:
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(OURS):
        return False
    while frame is not None:
        code = frame.f_code
        if code is calmly.__code__ or any(part in code.co_filename for part in FRAGILE):
            return False
        if code is Interruptions.run.__code__:
            return True
        frame = frame.f_back
    return False
