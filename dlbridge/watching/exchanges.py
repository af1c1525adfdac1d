"""What an exchange did: what is noted before the call, and the verdict behind it."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from threading import get_ident
from time import perf_counter_ns
from types import BuiltinMethodType, MethodType
from typing import TYPE_CHECKING, Any

from dlbridge.errors import ExchangeError
from dlbridge.extending import unless_handler

from .arrays import NO_KIND, Callables, address_of, kind_of, kinds, text_of, what_of
from .table import HOST, short

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from .arrays import Kind, Known, What
    from .sites import CallSite
    from .table import Ledger, RowKey, Sum


@dataclass(slots=True, eq=False)
class Seen:
    """An exchange, without its array and its time: what is the same the next time, mostly."""

    site: CallSite
    known: Known
    cls: type
    kind: Kind
    what: What
    is_told: bool
    """Whether the description says what becomes of the array, so that nobody need look."""
    made: Kind | None = None
    made_what: What | None = None
    """What the result is, unless it is shared."""
    tables: tuple[Ledger, ...] = ()
    nbytes: int = 0
    rows: dict[int, list[Sum]] = field(default_factory=dict)
    """Where it is counted, by thread."""


Begun = tuple[Seen, int, int]
"""An exchange that has begun: it, the address of its array, and the time. A plain tuple: what is
done here for each exchange is most of what a watch costs."""


def late(site: CallSite, known: Known) -> Begun:
    """An exchange whose array is asked for when its function returns."""
    return Seen(site, known, type(None), NO_KIND, NO_KIND.look(None), False), 0, perf_counter_ns()


_MOST_SEEN = 100

_text = lru_cache(maxsize=256)(str)
"""Of devices and dtypes: numpy takes a microsecond for each."""

UNSEEN: Any = object()
"""The result of an exchange that is not seen."""


class Watcher:
    """The tables that are filled, and what both ways of watching have in common."""

    def __init__(self) -> None:
        self.tables: tuple[Ledger, ...] = ()
        self.callables = Callables()

    def fill(self, *tables: Ledger) -> None:
        """Fill *tables* from now on."""
        self.tables = tables

    def refresh(self) -> None:
        """Find the callables of what was imported."""
        self.callables.refresh(self._prepare)

    def _prepare(self, new: list[Known]) -> None:
        raise NotImplementedError

    def begun(self, site: CallSite, known: Known, x: Any) -> Begun | None:
        """The exchange that a call with the array *x* begins; None if it is none."""
        kind = kinds.get(type(x)) or kind_of(x)
        if kind is None or kind.library == known.prefix:
            return None  # also a library's copy of its own array
        what = what_of(kind, x)
        seen = site.seen.get((known, kind, what))
        if seen is None:
            is_told = known.is_fixed and site.arguments == known.arguments
            is_told = is_told and what[0] == "cpu" and what[3] != 0
            seen = Seen(site, known, type(x), kind, what, is_told)
        return seen, 0 if seen.is_told else address_of(kind, x), perf_counter_ns()

    def ended(
        self, begun: Begun, result: Any, frame: FrameType | None = None, at: int = 0
    ) -> ExchangeError | None:
        """Enter the exchange; the error to be raised if a table forbids it.

        *frame* is that of the Python function that returns *result*, *at* when it returned.
        """
        seen, start, started = begun
        ns = (at or perf_counter_ns()) - started
        made, there, made_what = None, 0, None
        if result is not UNSEEN:
            made = kinds.get(type(result)) or kind_of(result)
            if made is not None:
                there = address_of(made, result)
                is_inside = start < there < start + seen.what[3] and not seen.kind.is_first
                if not (start and (there == start or is_inside)):
                    made_what = what_of(made, result)
        is_same = made is seen.made and made_what == seen.made_what and seen.tables is self.tables
        is_clear = made is None or (there and start)
        rows = seen.rows.get(get_ident()) if is_same and is_clear else None
        if rows is not None:
            for row in rows:
                row.calls += 1
                row.nbytes += seen.nbytes
                row.ns += ns
            return None
        key, nbytes, note = self._judged(begun, made, there, made_what, frame)
        shape = seen.what[2]
        rows = [row for table in self.tables if key for row in table.rows_for(key, shape, note)]
        for row in rows:
            row.add(shape, nbytes, 1, ns)
        forbidden = next((row.forbidden for row in rows if row.forbidden and nbytes), "")
        if forbidden and key:
            return _error(seen, key, nbytes, forbidden)
        # What dlbridge's own plan says may change from call to call.
        if is_clear and (made_what is None or seen.known.library != "dlbridge"):
            all_rows = {**(seen.rows if is_same else {}), get_ident(): rows}
            said = seen.known, seen.cls, seen.kind, seen.what, seen.is_told, made, made_what
            site, same = seen.site, (seen.known, seen.kind, seen.what)
            if len(site.seen) > _MOST_SEEN:
                site.seen.clear()
            site.seen[same] = site.last = Seen(site, *said, self.tables, nbytes, all_rows)
        return None

    def _judged(
        self,
        begun: Begun,
        made: Kind | None,
        there: int,
        made_what: What | None,
        frame: FrameType | None,
    ) -> tuple[RowKey | None, int, str]:
        """The row of an exchange, its bytes, and what is to be said of it; no row: it is none."""
        seen, start, _ = begun
        kind, what, exchange = seen.kind, seen.what, seen.known.exchange
        where, device, target, note = _text(what[0]), "cpu", exchange.makes, ""
        verdict: str = exchange.result
        nbytes = what[3]
        if made is not None:
            device = where if made_what is None else _text(made_what[0])
            nbytes = 0 if made_what is None else made_what[3]
            if made.library == kind.library and device == where:
                return None, 0, ""
            target = text_of(made.name, device)
            if made_what is None or not (nbytes or what[3]):
                verdict = "shared"
            elif device != where:
                verdict = "moved"
            elif not seen.is_told:
                # Without an address: of a device, or a picture, which has no memory to share.
                verdict = "copied" if there and (start or where in HOST) else "not seen"
            if frame is not None and verdict != "shared" and seen.known.library == "dlbridge":
                verdict, note = _planned(frame, verdict, kind.name, what)
        elif verdict == "moved":
            return None, 0, ""  # not seen: most stay where they are
        elif not seen.is_told and target not in ("list", "number"):
            verdict = "not seen"
        if not note and where not in HOST and device in HOST:
            note = "waits for the device"
        dtype = _text(what[1]).removeprefix(f"{kind.library}.")
        key = seen.site.position, kind.name, where, target, dtype, len(what[2]), verdict
        return key, nbytes if verdict in ("copied", "moved") else 0, note

    def known(self, callee: Any) -> tuple[Known | None, Any]:
        """What is known of *callee*; its object, if it is bound to one."""
        found = self.callables.find(callee)
        return (found, UNSEEN) if found is not None else self.method(callee)

    def method(self, callee: Any) -> tuple[Known | None, Any]:
        """What is known of the method that *callee* is of an object, and the object."""
        cls = type(callee)  # `isinstance` would ask the callee
        if cls is MethodType:
            return self.callables.find(callee.__func__), callee.__self__
        if cls is not BuiltinMethodType:
            return None, UNSEEN
        owner = callee.__self__
        # Its name is a new text each time. CPython's cache of types keeps each (4,096 of them).
        name = sys.intern(callee.__name__)
        return self.callables.find(getattr(type(owner), name, None)), owner

    def in_place(
        self, error: ExchangeError | None, site: CallSite, code: CodeType, offset: int
    ) -> ExchangeError | None:
        """The *error* of an exchange at *site*, if it can be raised at *offset* behind the call.

        It cannot where a `with` or a `try` ends between the two: their ends would be left out, and
        a lock would stay locked. The end of the watch raises it then.
        """
        if error is None or site.has_handler_of(code, offset):
            return error
        for table in self.tables:
            table.put_off(error)
        return None

    def failed(self, exc: Exception) -> None:
        """Note an exception of ours, which the program must not get."""
        for table in self.tables:
            table.remark(f"an exchange could not be read: {type(exc).__name__}: {exc}")


def _error(seen: Seen, key: RowKey, nbytes: int, forbidden: str) -> ExchangeError:
    (file, line, function), source, where, target, dtype, _, verdict = key
    name = seen.known.exchange.name.rpartition(":")[2]
    return ExchangeError(
        f"{short(file)}:{line}, in {function}: {name} of "
        f"{text_of(source, where)}, {dtype} {tuple(seen.what[2])}, is a {forbidden} ({nbytes} "
        f"bytes {verdict} to {target}), which watch(fail_on=...) forbids; share the memory "
        "(dlbridge.explain says what hinders it), or do this outside of the watch"
    )


def _planned(frame: FrameType, verdict: str, name: str, what: What) -> tuple[str, str]:
    """The verdict and the reason of dlbridge's own plan, for its function that runs in *frame*."""
    import dlbridge as bridge

    given = frame.f_locals
    if "x" not in given or "device" not in given:
        return verdict, ""
    x, device = given["x"], given["device"]
    kind = kind_of(x)
    if kind is None or kind.name != name or what_of(kind, x) != what:
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
    is_copy = _COPIES and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(names) <= _ONLY_OURS:
        names.clear()
    return value


_COPIES = sys.version_info[:2] == (3, 12)
_ONLY_OURS = 3
"""The references to such a dictionary that nobody has asked for: the frame's and two of ours."""
