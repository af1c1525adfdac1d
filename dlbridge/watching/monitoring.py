"""The watcher of CPython 3.12 and later: events of ``sys.monitoring``, and nothing is patched."""

from __future__ import annotations

import sys
from functools import partial
from time import perf_counter
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any
from weakref import ref

from dlbridge.errors import Error
from dlbridge.extending import unless_handler

from .arrays import is_installed
from .exchanges import NOTHING, UNSEEN, Begun, Watcher, variable
from .sites import CallSite, sites_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from dlbridge.errors import ExchangeError

    from .arrays import Known

MONITORING: Any = sys.__dict__.get("monitoring")
"""``sys.monitoring``, which type checkers for CPython 3.11 do not know."""

_TOOLS = (4, 3, 5, 2)
"""The ids that are tried: two that nobody has, then those of optimizers and profilers."""

_BOUND = (MethodType, BuiltinMethodType)

_QUIET = 100
"""After so many calls that were none of interest the place of a parameter is looked at."""

_MUCH_LATER = -100 * _QUIET
"""Where a look does not help: after a hundred times as many calls it is looked at again."""

_MOST_BEGUN = 10_000
"""Exchanges that have begun and not ended: more are those whose calls have raised."""


class _Code:
    """What is known of a code object of the program, as long as that lives."""

    __slots__ = ("calls", "code", "disabled", "events", "sites", "targets")

    def __init__(self, code: CodeType, forget: Callable[[Any], object]) -> None:
        self.code = ref(code, forget)
        self.calls = sites_of(code)
        self.sites: dict[int, CallSite] = {}  # the calls that are watched
        self.targets: set[int] = set()  # the offsets behind exchanges
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
        self._begun: dict[int, Begun] = {}
        self._names: set[str] = set()
        self._functions: set[CodeType] = set()  # of the described functions in Python
        self._tool = -1

    def start(self) -> None:
        """Take a tool id, and ask for the events."""
        for tool in _TOOLS:
            if MONITORING.get_tool(tool) is None:
                MONITORING.use_tool_id(tool, "dlbridge.watch")
                self._tool = tool
                break
        else:
            names = ", ".join(f"{tool}: {MONITORING.get_tool(tool)}" for tool in sorted(_TOOLS))
            raise Error(
                f"dlbridge.watch needs a tool id of sys.monitoring, and others have them ({names});"
                " end one of these tools first"
            )
        self._prepare(list(self.callables.table.values()))
        for event, function in self._callbacks().items():
            MONITORING.register_callback(tool, event, function)
        MONITORING.set_events(tool, MONITORING.events.CALL)
        MONITORING.restart_events()  # what an earlier watch with this id has disabled

    def stop(self) -> str:
        """Give the tool id back; there is nothing to be said."""
        tool, self._tool = self._tool, -1
        MONITORING.set_events(tool, 0)
        codes = [each.code() for each in self._codes.copy().values() if each.events]
        for code in (*codes, *self._functions):
            if code is not None:
                MONITORING.set_local_events(tool, code, 0)
        for event in self._callbacks():
            MONITORING.register_callback(tool, event, None)
        MONITORING.free_tool_id(tool)
        return ""

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
        codes, disable = self._codes, MONITORING.DISABLE
        method, table, getframe = self.method, self.callables.table, sys._getframe

        def on_call(code: CodeType, offset: int, callee: Any, arg0: Any) -> Any:
            try:
                own = codes.get(id(code))
                site = None if own is None else own.sites.get(offset)
                if site is None:
                    site = self._first(code, offset, callee)
                    if site is None:
                        return disable
                error = self._awaited(site, offset, arg0) if site.awaited else None
                if error is None:
                    try:
                        known = table.get(callee)
                    except unless_handler(Exception):  # it has no hash
                        return None
                    if known is None:
                        if type(callee) not in _BOUND or type(callee.__self__) is ModuleType:
                            return self._quiet(site, code, offset) if site.parameter else None
                        known, arg0 = method(callee)
                    if known is not None:
                        self._begin(site, known, code, arg0, id(getframe(1)))
                    return None
            except unless_handler(Exception) as exc:
                self.failed(exc)
                return None
            raise error

        return on_call

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
            forget = partial(self._codes.pop, id(code))
            own = self._codes.setdefault(id(code), _Code(code, forget))
        site = own.calls.get(offset)
        if site is None:
            site = own.calls[offset] = CallSite(code, None)
        if known is None and not site.awaited and self._is_fixed(site, callee):
            own.disabled.add(offset)
            return None
        own.sites[offset] = site
        return site

    def _is_fixed(self, site: CallSite, callee: Any) -> bool:
        """Whether the call will never call an exchange, as its callee of no interest shows."""
        if not site.callee.startswith("attribute "):
            return bool(site.callee)
        name = site.callee.rpartition(" ")[2]
        if name in self._names:
            return False
        if isinstance(callee, (FunctionType, BuiltinFunctionType, MethodDescriptorType, type)):
            return name == callee.__name__  # `self.function(x)` may be another one next time
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
            for site in self._codes[id(code)].sites.copy().values():
                if site.quiet > _QUIET and self.known(variable(frame, site.parameter))[0]:
                    site.quiet = _MUCH_LATER
                    MONITORING.restart_events()
        except unless_handler(Exception) as exc:
            self.failed(exc)

    def _begin(self, site: CallSite, known: Known, code: CodeType, arg0: Any, frame: int) -> None:
        if known.code is not None and known.exchange.argument:
            begun: Begun | None = Begun(site, known, NOTHING, False, perf_counter())
        else:
            begun = self.begun(site, known, arg0)
        if begun is None:
            return
        if known.code is None and not site.is_followed:
            self._follow(site, code)
        if len(self._begun) > _MOST_BEGUN:
            self._begun.clear()
        self._begun[frame] = begun

    def _follow(self, site: CallSite, code: CodeType) -> None:
        """Ask for the event behind a call of C."""
        own, events = self._codes[id(code)], MONITORING.events
        if site.how == "return":
            own.listen(self._tool, code, events.PY_RETURN | events.PY_YIELD)
        elif site.how == "call":
            own.calls[site.after].awaited = True
            own.enable(site.after)
        else:
            own.targets.add(site.after)
            own.listen(self._tool, code, events.INSTRUCTION)
            own.enable(site.after)
        site.is_followed = True

    def _awaited(self, site: CallSite, offset: int, arg0: Any) -> ExchangeError | None:
        frame = id(sys._getframe(2))
        begun = self._begun.get(frame)
        if begun is None or begun.site.after != offset or begun.site.code != site.code:
            return None
        del self._begun[frame]
        return self.ended(begun, arg0)

    def _instruction_event(self) -> Callable[[CodeType, int], Any]:
        """The function that CPython calls at the instruction behind an exchange."""
        codes, disable, all_begun = self._codes, MONITORING.DISABLE, self._begun
        getframe = sys._getframe

        def on_instruction(code: CodeType, offset: int) -> Any:
            try:
                own = codes.get(id(code))
                if own is None:
                    return disable
                if offset not in own.targets:
                    own.disabled.add(offset)
                    return disable
                frame = getframe(1)
                begun = all_begun.get(id(frame))
                if begun is None:
                    return None
                site, _, _, is_known, _ = begun
                if site.after != offset or site.code != id(code):
                    return None
                del all_begun[id(frame)]
                seen = site.how == "store" and not is_known
                error = self.ended(begun, variable(frame, site.name) if seen else UNSEEN)
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
            if begun is None or begun.known.code is not code:
                key, by = id(frame), None
                begun = self._begun.get(key)
                if begun is None or not begun.site.is_returned(code, offset):
                    return
            del self._begun[key]
            if begun.source is NOTHING:
                x = variable(frame, begun.known.exchange.argument)
                again = self.begun(begun.site, begun.known, x)
                if again is None:
                    return
                begun = again._replace(at=begun.at)
            error = self.ended(begun, result, by)
        except unless_handler(Exception) as exc:
            self.failed(exc)
        if error is not None:
            raise error

    def _on_raise(self, _code: CodeType, _offset: int, _callee: Any, _arg0: Any) -> None:
        self._begun.pop(id(sys._getframe(1)), None)
