"""The watcher of CPython 3.12 and later: events of ``sys.monitoring``, and nothing is patched."""

from __future__ import annotations

import sys
from functools import partial
from time import perf_counter_ns
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import TYPE_CHECKING, Any
from weakref import ref

from dlbridge.errors import Error
from dlbridge.extending import unless_handler

from .arrays import is_installed
from .exchanges import UNSEEN, Watcher, late, variable
from .sites import sites_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from dlbridge.errors import ExchangeError

    from .arrays import Known
    from .exchanges import Begun
    from .sites import CallSite
    from .table import Ledger

MONITORING: Any = sys.__dict__.get("monitoring")
"""``sys.monitoring``, which type checkers for CPython 3.11 do not know."""

_NAME = "dlbridge.watch"
_FREED = (
    "the program has freed the tool id of the watch in sys.monitoring: what came after that may be "
    "missing"
)
_TOOLS = (4, 3, 5, 2)
"""The ids that are tried: two that nobody has, then those of optimizers and profilers."""

_NAMED = (FunctionType, BuiltinFunctionType, MethodDescriptorType, type)
"""What has a name, and runs no code of the program for it."""

_QUIET = 100
"""After so many calls that were none of interest the place of a parameter is looked at."""

_MUCH_LATER = -100 * _QUIET
"""Where a look does not help: after a hundred times as many calls it is looked at again."""

_MOST_BEGUN = 10_000
"""Exchanges that have begun and not ended: more are those whose calls have raised."""


class _Code:
    """What is known of a code object of the program, as long as that lives."""

    __slots__ = ("calls", "code", "disabled", "events")

    def __init__(self, code: CodeType, forget: Callable[[Any], object]) -> None:
        self.code = ref(code, forget)
        self.calls = sites_of(code)
        self.disabled: set[int] = set()  # the offsets of no interest
        self.events = 0

    def enable(self, offset: int) -> None:
        """Ask again for the events at *offset*."""
        if offset in self.disabled:
            self.disabled.discard(offset)
            MONITORING.restart_events()

    def listen(self, tool: int, code: CodeType, events: int) -> None:
        """Ask for *events* of *code*, too."""
        if events & ~self.events:
            self.events |= events
            MONITORING.set_local_events(tool, code, self.events)


class Monitor(Watcher):
    """Sees calls of C and of Python, by callable."""

    def __init__(self) -> None:
        super().__init__()
        self._codes: dict[int, _Code] = {}
        # By place: the address of a code object, whose instructions are in it, plus an offset.
        self._sites: dict[int, CallSite] = {}  # the calls that are watched
        self._targets: dict[int, CallSite] = {}  # by the instructions behind exchanges
        self._begun: dict[int, Begun] = {}
        self._names: set[str] = set()
        self._functions: set[CodeType] = set()  # of the described functions in Python
        self._tool = -1

    def start(self, *tables: Ledger) -> None:
        """Take a tool id, and ask for the events."""
        for tool in _TOOLS:
            if MONITORING.get_tool(tool) is None:
                MONITORING.use_tool_id(tool, _NAME)
                self._tool = tool
                break
        else:
            names = ", ".join(f"{tool}: {MONITORING.get_tool(tool)}" for tool in sorted(_TOOLS))
            raise Error(
                f"dlbridge.watch needs a tool id of sys.monitoring, and others have them ({names});"
                " end one of these tools first"
            )
        self.fill(*tables)
        self._prepare(list(self.callables.table.values()))
        for event, function in self._callbacks().items():
            MONITORING.register_callback(tool, event, function)
        MONITORING.set_events(tool, MONITORING.events.CALL)
        MONITORING.restart_events()  # what an earlier watch with this id has disabled

    def fill(self, *tables: Ledger) -> None:
        """Fill *tables*; what only errors need is asked for if there may be some."""
        super().fill(*tables)
        function = self._on_c_return if any(table.fail_on for table in tables) else None
        MONITORING.register_callback(self._tool, MONITORING.events.C_RETURN, function)

    def stop(self) -> str:
        """Give the tool id back; what is to be said if the program has done so."""
        tool, owner = self._tool, MONITORING.get_tool(self._tool)
        if owner is None:
            MONITORING.use_tool_id(tool, _NAME)  # to end its events, which go on in 3.12 and 3.13
        elif owner != _NAME:
            return _FREED
        MONITORING.set_events(tool, 0)
        codes = [each.code() for each in self._codes.copy().values() if each.events]
        for code in (*codes, *self._functions):
            if code is not None:
                MONITORING.set_local_events(tool, code, 0)
        for event in (*self._callbacks(), MONITORING.events.C_RETURN):
            MONITORING.register_callback(tool, event, None)
        MONITORING.free_tool_id(tool)
        return _FREED if owner is None else ""

    def _callbacks(self) -> dict[int, Callable[..., Any]]:
        events = MONITORING.events
        return {
            events.CALL: self._call_event(),
            events.C_RAISE: self._on_raise,
            events.INSTRUCTION: self._instruction_event(),
            events.PY_START: self._on_start,
            events.PY_RETURN: self._on_return,
            events.PY_YIELD: self._on_return,
        }

    # Described functions -----------------------------------------------------------------

    def _prepare(self, new: list[Known]) -> None:
        """Ask for the results of those in Python."""
        for known in new:
            self._names.add(known.exchange.name.rpartition(".")[2].rpartition(":")[2])
            if known.code is not None:
                self._functions.add(known.code)
                MONITORING.set_local_events(self._tool, known.code, MONITORING.events.PY_RETURN)

    # Events ------------------------------------------------------------------------------

    def _call_event(self) -> Callable[[CodeType, int, Any, Any], Any]:
        """The function that CPython calls before each call that is not disabled."""
        sites, all_begun, disable = self._sites, self._begun, MONITORING.DISABLE
        getframe, clock = sys._getframe, perf_counter_ns

        def on_call(code: CodeType, offset: int, callee: Any, arg0: Any) -> Any:
            error = None
            try:
                site = sites.get(id(code) + offset) or self._first(code, offset, callee)
                if site is None:
                    return disable
                if site.awaited:
                    error = self._awaited(site, offset, callee, arg0)
                last = site.last
                if last is None or callee is not last.known.thing or type(arg0) is not last.cls:
                    if error is None:
                        return self._call(site, code, offset, callee, arg0)
                elif error is None:
                    try:
                        if last.kind.look(arg0) == last.what:
                            # Once more what it was last time: only its address is looked at.
                            address = 0 if last.is_told else last.kind.address(arg0)
                            all_begun[id(getframe(1))] = last, address, clock()
                            return None
                    except unless_handler(Exception):
                        pass  # torch's sparse tensors have no address: `_call` allows for it
                    return self._call(site, code, offset, callee, arg0)
            except unless_handler(Exception) as exc:
                self.failed(exc)
                return None
            raise error

        return on_call

    def _call(self, site: CallSite, code: CodeType, offset: int, callee: Any, x: Any) -> Any:
        """Begin an exchange, if the call of *callee* is one."""
        found = self.callables
        known = found.table.get(callee) if id(type(callee)) in found.types else None
        if known is None:
            known, x = self.method(callee)
            if known is None:
                return self._quiet(site, code, offset) if site.parameter else None
        begun = late(site, known) if known.is_late else self.begun(site, known, x)
        if begun is not None:
            if known.code is None:
                if not site.is_followed:
                    self._follow(site, code)
            elif len(self._begun) > _MOST_BEGUN:
                self._begun.clear()
            self._begun[id(sys._getframe(2))] = begun
        return None

    def _first(self, code: CodeType, offset: int, callee: Any) -> CallSite | None:
        """The site of a call that is seen for the first time; None if it is watched no more."""
        if self.callables.is_own(code.co_filename):
            return None
        self.refresh()
        known, _ = self.known(callee)
        own = self._codes.get(id(code))
        if own is None:
            if known is None and is_installed(code.co_filename):
                return None  # a package's: callees that change are looked for in the program only
            own = self._codes.setdefault(id(code), _Code(code, partial(self._forget, id(code))))
        site = own.calls.get(offset)
        if site is None:
            return None  # CPython tells of `super()` by an instruction that is no call
        if known is None and not site.awaited and self._is_fixed(site, callee):
            own.disabled.add(offset)
            return None
        return self._sites.setdefault(id(code) + offset, site)

    def _forget(self, start: int, _code: object) -> None:
        """Drop what is known of a code object that has ended."""
        own = self._codes.pop(start, None)
        for offset, site in own.calls.items() if own else ():
            self._sites.pop(start + offset, None)
            self._targets.pop(start + site.after, None)

    def _is_fixed(self, site: CallSite, callee: Any) -> bool:
        """Whether the call will never call an exchange, as its callee of no interest shows."""
        if not site.callee.startswith("attribute "):
            return bool(site.callee)
        name = site.callee.rpartition(" ")[2]
        if name in self._names:
            return False
        if issubclass(type(callee), _NAMED):
            return bool(name == callee.__name__)  # `self.function(x)` may be another one next time
        return True

    def _quiet(self, site: CallSite, code: CodeType, offset: int) -> Any:
        """Disable the call of a parameter, as long as its function does not start again.

        That start looks at the parameter (`_on_start`), so no other call of the function may be
        running now: greenlets that wait cannot be found.
        """
        site.quiet += 1
        if site.quiet <= _QUIET or site.awaited or "greenlet" in sys.modules:
            return None
        self._codes[id(code)].listen(self._tool, code, MONITORING.events.PY_START)
        running = 0
        for top in sys._current_frames().values():
            frame: FrameType | None = top
            while frame is not None:
                running += frame.f_code is code
                frame = frame.f_back
        if running == 1:
            self._codes[id(code)].disabled.add(offset)
            return MONITORING.DISABLE
        site.quiet = _MUCH_LATER
        return None

    def _on_start(self, code: CodeType, _offset: int) -> None:
        """Enable the calls of those parameters that are of interest in this call of *code*."""
        try:
            frame = sys._getframe(1)
            for site in self._codes[id(code)].calls.copy().values():
                if site.quiet > _QUIET and self.known(variable(frame, site.parameter))[0]:
                    site.quiet = _MUCH_LATER
                    MONITORING.restart_events()
        except unless_handler(Exception) as exc:
            self.failed(exc)

    def _follow(self, site: CallSite, code: CodeType) -> None:
        """Ask for the event behind a call of C."""
        own, events = self._codes[id(code)], MONITORING.events
        if site.how == "return":
            own.listen(self._tool, code, events.PY_RETURN | events.PY_YIELD)
        elif site.how in ("call", "argument"):
            own.calls[site.after].awaited = True
            own.enable(site.after)
        else:
            self._targets[id(code) + site.after] = site
            own.listen(self._tool, code, events.INSTRUCTION)
            own.enable(site.after)
        site.is_followed = True

    def _awaited(self, site: CallSite, offset: int, callee: Any, x: Any) -> ExchangeError | None:
        """Enter the exchange whose result is the first argument of this call."""
        frame = id(sys._getframe(2))
        begun = self._begun.get(frame)
        if begun is None or begun[0].site.after != offset or begun[0].site.code != site.code:
            return None
        del self._begun[frame]
        if begun[0].site.how == "argument":  # perhaps of a method, whose object *x* is then
            x = UNSEEN if getattr(type(x), getattr(callee, "__name__", ""), None) is callee else x
        return self.ended(begun, x)

    def _instruction_event(self) -> Callable[[CodeType, int], Any]:
        """The function that CPython calls at the instruction behind an exchange."""
        targets, disable, all_begun = self._targets, MONITORING.DISABLE, self._begun
        getframe, ended = sys._getframe, self.ended

        def on_instruction(code: CodeType, offset: int) -> Any:
            try:
                site = targets.get(id(code) + offset)
                if site is None:
                    own = self._codes.get(id(code))
                    if own is not None:
                        own.disabled.add(offset)
                    return disable
                frame = getframe(1)
                begun = all_begun.pop(id(frame), None)
                if begun is None or begun[0].site is not site:
                    return None
                is_read = site.name and not begun[0].is_told
                error = ended(begun, variable(frame, site.name) if is_read else UNSEEN)
                error = self.in_place(error, site, code, offset)
            except unless_handler(Exception) as exc:
                self.failed(exc)
                return None
            if error is not None:
                raise error
            return None

        return on_instruction

    def _on_return(self, code: CodeType, offset: int, result: Any) -> None:
        error = None
        try:
            frame = sys._getframe(1)
            key = id(frame.f_back)
            by: FrameType | None = frame
            begun = self._begun.get(key)
            if begun is None or begun[0].known.code is not code:
                key, by = id(frame), None
                begun = self._begun.get(key)
                if begun is None or not begun[0].site.is_returned(code, offset):
                    return
            del self._begun[key]
            seen, _, at = begun
            if seen.known.is_late:
                begun = self.begun(
                    seen.site, seen.known, variable(frame, seen.known.exchange.argument)
                )
            if begun is not None:
                error = self.ended((*begun[:2], at), result, by)
                error = error if by else self.in_place(error, seen.site, code, offset)
        except unless_handler(Exception) as exc:
            self.failed(exc)
        if error is not None:
            raise error

    def _on_raise(self, _code: CodeType, _offset: int, _callee: Any, _arg0: Any) -> None:
        self._begun.pop(id(sys._getframe(1)), None)

    def _on_c_return(self, _code: CodeType, _offset: int, _callee: Any, _arg0: Any) -> None:
        """End an exchange whose result need not be read, where an error is in its place."""
        error = None
        try:
            key = id(sys._getframe(1))
            begun = self._begun.get(key)
            if begun is not None and begun[0].is_told and begun[0].known.code is None:
                del self._begun[key]
                error = self.ended(begun, UNSEEN)
        except unless_handler(Exception) as exc:
            self.failed(exc)
        if error is not None:
            raise error
