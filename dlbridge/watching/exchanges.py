"""What an exchange did: what is noted before the call, and the verdict behind it."""

from __future__ import annotations

import inspect
import sys
from time import perf_counter
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.errors import ExchangeError
from dlbridge.extending import unless_handler

from .arrays import Callables, facts_of, text_of
from .table import HOST, short

if TYPE_CHECKING:
    from types import FrameType

    from .arrays import Facts, Known
    from .sites import CallSite
    from .table import Ledger


class Begun(NamedTuple):
    """An exchange that has begun; no array is kept."""

    site: CallSite
    known: Known
    source: Facts
    is_known: bool
    """Whether the description says what becomes of this array, so that nobody need look."""
    at: float


_new = tuple.__new__

NOTHING: Facts = ("", "", "", 0, "", (), 0)
"""The source of an exchange whose array is asked for when its function returns."""

_MOST_METHODS = 1000

UNSEEN: Any = object()
"""The result of an exchange that is not seen."""


class Watcher:
    """The tables that are filled, and what both ways of watching have in common."""

    def __init__(self) -> None:
        self.tables: tuple[Ledger, ...] = ()
        self.callables = Callables()
        self._methods: dict[tuple[type, str], Known] = {}

    def refresh(self) -> None:
        """Find the callables of what was imported."""
        self.callables.refresh(self._prepare)

    def _prepare(self, new: list[Known]) -> None:
        raise NotImplementedError

    def begun(self, site: CallSite, known: Known, x: Any) -> Begun | None:
        """The exchange that a call with the array *x* begins; None if it is none."""
        source = facts_of(x)
        if source is None or source[1] == known.prefix:
            return None  # also a library's copy of its own array
        is_known = known.is_fixed and site.arguments == known.arguments and source[3] != 0
        # Half of the time that its own `__new__` takes.
        return _new(Begun, (site, known, source, is_known, perf_counter()))

    def ended(
        self, begun: Begun, result: Any, frame: FrameType | None = None, at: float = 0.0
    ) -> ExchangeError | None:
        """Enter the exchange; the error to be raised if a table forbids it.

        *frame* is that of the Python function that returns *result*, *at* when it returned.
        """
        seconds = (at or perf_counter()) - begun[4]
        site, known, source, is_known, _ = begun
        kind, library, where, _, dtype, shape, nbytes = source
        made = None if result is UNSEEN else facts_of(result)
        target, device, verdict, note = known.makes, "cpu", known.result, ""
        if made is not None:
            target, device = made[0], made[2]
            if made[1] == library and device == where:
                return None
            if device != "cpu":
                target = text_of(made)
            nbytes = made[6]
            verdict = _verdict(source, made, verdict if is_known else "not seen")
            if frame is not None and verdict != "shared" and known.library == "dlbridge":
                verdict, note = _planned(frame, verdict, source)
        elif verdict == "moved":
            return None  # not seen: most stay where they are
        elif not is_known and target not in ("list", "number"):
            verdict = "not seen"
        if verdict not in ("copied", "moved"):
            nbytes = 0
        if not note and where not in HOST and device in HOST:
            note = "waits for the device"
        key = site, kind, where, target, dtype, len(shape), verdict
        forbidden = ""
        for table in self.tables:
            forbidden = table.add(key, shape, nbytes, seconds, note) or forbidden
        if not forbidden:
            return None
        name = known.exchange.name.rpartition(":")[2]
        return ExchangeError(
            f"{short(site.filename)}:{site.line}, in {site.function}: {name} of "
            f"{text_of(source)}, {dtype} {tuple(shape)}, is a {forbidden} ({nbytes} bytes "
            f"{verdict} to {target}), which watch(fail_on=...) forbids; share the memory "
            "(dlbridge.explain says what hinders it), or do this outside of the watch"
        )

    def known(self, callee: Any) -> tuple[Known | None, Any]:
        """What is known of *callee*; its object, if it is bound to one."""
        table = self.callables.table
        try:
            found = table.get(callee)
        except unless_handler(Exception):  # it has no hash
            return None, UNSEEN
        return (found, UNSEEN) if found is not None else self.method(callee)

    def method(self, callee: Any) -> tuple[Known | None, Any]:
        """What is known of the method that *callee* is of an object, and the object."""
        table = self.callables.table
        if isinstance(callee, MethodType):
            return table.get(callee.__func__), callee.__self__
        if not isinstance(callee, BuiltinMethodType):
            return None, UNSEEN
        owner = callee.__self__
        key = type(owner), callee.__name__
        found = self._methods.get(key)
        if found is None:
            found = table.get(getattr(*key, None))
            if found is not None and len(self._methods) < _MOST_METHODS:
                self._methods[key] = found
        return found, owner

    def failed(self, exc: Exception) -> None:
        """Note an exception of ours, which the program must not get."""
        for table in self.tables:
            table.remark(f"an exchange could not be read: {type(exc).__name__}: {exc}")


def _verdict(source: Facts, made: Facts, otherwise: str) -> str:
    """What *made* is to *source*; *otherwise* where it does not say where it is."""
    start, there = source[3], made[3]
    if not made[6] or (start and there and start <= there < start + source[6]):
        return "shared"
    if made[2] != source[2]:
        return "moved"
    return otherwise if start and not there else "copied"


def _planned(frame: FrameType, verdict: str, source: Facts) -> tuple[str, str]:
    """The verdict and the reason of dlbridge's own plan, for its function that runs in *frame*."""
    import dlbridge as bridge

    given = frame.f_locals
    if "x" not in given or "device" not in given:
        return verdict, ""
    x, device = given["x"], given["device"]
    if facts_of(x) != source:
        return verdict, ""  # the function has put another one there
    try:
        device = bridge.device_of(x) if device is None else device
        plan = bridge.plan(x, device, like=given.get("like"), copy=given.get("copy"))
    except unless_handler(Exception):
        return verdict, ""
    steps = [step for step in plan.steps if step.nbytes] or plan.steps[-1:]
    if not plan.nbytes:
        verdict = "shared"
    return verdict, "; ".join(step.reason for step in steps)


def variable(frame: Any, name: str) -> Any:
    """The variable *name* of *frame*; nothing else of the frame is kept."""
    names = frame.f_locals
    value = names.get(name, UNSEEN)
    if value is UNSEEN:
        value = frame.f_globals.get(name, UNSEEN)
    # CPython 3.12 copies the variables of a function into a dictionary that its frame keeps, with
    # all arrays in it. (3.11 does so at each event of sys.setprofile, and reads it back.)
    if sys.version_info[:2] == (3, 12) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        if sys.getrefcount(names) <= _ONLY_OURS:
            names.clear()
    return value


_ONLY_OURS = 3
"""The references to such a dictionary that nobody has asked for: the frame's and two of ours."""
