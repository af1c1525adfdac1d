"""The watcher of CPython 3.11, which has no ``sys.monitoring``: ``sys.setprofile``."""

from __future__ import annotations

import dis
import sys
import threading
from time import perf_counter_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dlbridge.errors import Error
from dlbridge.extending import unless_handler

from .exchanges import UNSEEN, Watcher, variable
from .sites import CallSite, sites_of

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from dlbridge.errors import ExchangeError

    from .arrays import Known
    from .exchanges import Begun
    from .table import Ledger

_MOST_CODES = 10_000


class Profiler(Watcher):
    """Sees calls of functions that CPython itself made, and of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[CodeType, dict[int, CallSite]] = {}
        # By the frame of a described function of C; None where its array is not seen.
        self._begun: dict[int, Begun | None] = {}
        self._called: dict[int, tuple[Begun, int]] = {}
        self._returned: dict[int, tuple[Begun, int]] = {}
        self._functions: dict[int, Known] = {}
        self._users: set[int] = set()

    def start(self, *tables: Ledger) -> None:
        """Be the profile function of this thread and of those that start later."""
        other = sys.getprofile()
        if other is not None:
            raise Error(
                f"dlbridge.watch needs sys.setprofile on this CPython, and {other!r} has it; end "
                "that first, or use CPython 3.12 or later"
            )
        self.fill(*tables)
        self._prepare(list(self.callables.table.values()))
        self._function = self._on_event  # one object, to be recognised
        threading.setprofile(self._function)
        sys.setprofile(self._function)

    def stop(self) -> str:
        """Be it no more; what is to be said if another one has come."""
        if threading.getprofile() is self._function:
            threading.setprofile(None)
        other = sys.getprofile()
        if other is self._function:
            sys.setprofile(None)
            return ""
        why = f"the program has called sys.setprofile ({other!r} is the profile function now)"
        if other is None:
            why += ", or an error in it (fail_on, or the recursion limit) has ended the watch"
        return f"{why}: what came after that in its thread is missing"

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        error = None
        try:
            if not self.tables:
                sys.setprofile(None)  # of a thread that has outlived the watch
                return
            if self._returned:
                here = frame.f_back if event == "call" else frame
                if here is not None and id(here) in self._returned:
                    error = self._read(here, event, arg)
            if error is None:
                error = self._event(frame, event, arg)
        except unless_handler(Exception) as exc:
            self.failed(exc)
        if error is not None:
            raise error

    def _event(self, frame: FrameType, event: str, arg: Any) -> ExchangeError | None:
        if event == "c_call":
            if not self.callables.is_own(frame.f_code.co_filename):
                return self._c_call(frame, arg)
        elif event == "call":
            self._call(frame)
        elif event == "return":
            called = self._called.pop(id(frame), None)
            if called is not None:
                self._users.discard(called[1])
                arg = _made(frame) if arg is None else arg
                if called[1] in self._begun:
                    arg = UNSEEN  # a function of C goes on with it
                if arg is not None:
                    return self.ended(called[0], arg, frame)
        elif event == "c_return":
            begun = self._begun.pop(id(frame), None)
            if begun is not None:
                return self._c_return(frame, begun)
        else:
            self._begun.pop(id(frame), None)
        return None

    def _prepare(self, new: list[Known]) -> None:
        self._functions.update({id(known.inner): known for known in new if known.inner})

    def _place(self, frame: FrameType) -> CallSite:
        code = frame.f_code
        sites = self._sites.get(code)
        if sites is None:
            if len(self._sites) > _MOST_CODES:
                self._sites.clear()
            sites = self._sites.setdefault(code, sites_of(code))
        at = frame.f_lasti
        return sites.get(at) or sites.setdefault(at, CallSite(code, frame.f_lineno, at))

    def _c_call(self, frame: FrameType, callee: Any) -> ExchangeError | None:
        self.refresh()
        known, x = self.known(callee)
        if known is None:
            return None
        site = self._place(frame)
        if x is UNSEEN and not isinstance(callee.__self__, (ModuleType, type(None))):
            x = callee.__self__
        if x is UNSEEN and site.argument:
            x = variable(frame, site.argument)
        self._begun[id(frame)] = None if x is UNSEEN else self.begun(site, known, x)
        return None

    def _c_return(self, frame: FrameType, begun: Begun) -> ExchangeError | None:
        if begun[0].site.how == "lost" or begun[0].is_told:
            return self.ended(begun, UNSEEN)
        self._returned[id(frame)] = begun, perf_counter_ns()
        return None

    def _read(self, frame: FrameType, event: str, arg: Any) -> ExchangeError | None:
        """Enter the exchange that was made before in *frame*: this is its next event there."""
        begun, at = self._returned.pop(id(frame))
        site, last, result = begun[0].site, frame.f_lasti, UNSEEN
        if site.how == "store":
            if site.until == -1 or site.after <= last < (site.until or last + 1):
                result = variable(frame, site.name)
        elif last == site.after:
            if site.how == "return" and event == "return" and arg is not None:
                result = arg
            elif site.how == "call" and event == "c_call":
                owner = getattr(arg, "__self__", None)
                result = UNSEEN if isinstance(owner, (ModuleType, type(None))) else owner
        error = self.ended(begun, result, at=at)
        return self.in_place(error, site, frame.f_code, last)

    def _call(self, frame: FrameType) -> None:
        user: FrameType | None = frame.f_back
        if user is None:
            return
        grown = len(sys.modules) != self.callables.modules
        if grown and not self.callables.is_own(user.f_code.co_filename):
            self.refresh()
        known = self._functions.get(id(frame.f_code))
        if known is None:
            return
        # What C code or a class runs by this function: its caller itself, not a library within.
        if known.code is None and self.callables.is_own(user.f_code.co_filename):
            return
        while user is not None and self.callables.is_own(user.f_code.co_filename):
            user = user.f_back
        if user is None or id(user) in self._users or self._begun.get(id(user)):
            return  # the outermost exchange counts
        name = known.exchange.argument or frame.f_code.co_varnames[_is_init(frame)]
        begun = self.begun(self._place(user), known, variable(frame, name))
        if begun is not None:
            self._users.add(id(user))
            self._called[id(frame)] = begun, id(user)


def _is_init(frame: FrameType) -> bool:
    return frame.f_code.co_name == "__init__"


def _made(frame: FrameType) -> Any:
    """The object whose ``__init__`` returns in *frame*; None if it raises, or is another one."""
    code = frame.f_code
    if not _is_init(frame) or code.co_code[frame.f_lasti] != _RETURN:
        return None
    return variable(frame, code.co_varnames[0])


_RETURN = dis.opmap["RETURN_VALUE"]
