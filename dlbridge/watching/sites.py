"""The calls in a code object: their lines, and where the result of each can be read."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from .arrays import Kind, Known, What
    from .exchanges import Seen


class CallSite:
    """One call in the code of a program. It holds no code and no frame."""

    __slots__ = (
        *("after", "argument", "arguments", "awaited", "callee", "code", "how", "is_followed"),
        *("last", "name", "offset", "parameter", "position", "quiet", "seen", "until"),
    )

    after: int
    """Where the result is read: the offset of an instruction behind the call."""
    how: str
    """``store``: it is in the variable `name` then; ``return``: the function returns or yields it;
    ``call``: it is the first argument, or the object, of the call at `after`; ``argument``: the
    first argument, but that call may be one of a method; ``lost``: it is not seen."""
    last: Seen | None
    """The exchange of it that was new last: one like it need only be counted."""
    seen: dict[tuple[Known, Kind, What], Seen]
    """Those that need only be counted."""

    def __init__(self, code: CodeType, line: int | None, offset: int) -> None:
        self.position = code.co_filename, line or 0, code.co_qualname
        self.code, self.offset = id(code), offset
        self.after, self.how, self.name = -1, "lost", ""
        self.until = -1  # the next offset that stores into `name`; 0: one before; -1: none
        self.awaited = False  # whether its first argument may be the result of an exchange
        self.arguments = -1  # how many it has, where that is written there
        self.argument = ""  # the variable that is its first argument, if it is one
        self.callee = ""  # "fixed", "attribute x", or empty: a variable, which may change
        self.parameter = ""  # the parameter that is called, if nothing else is stored there
        self.is_followed = False  # whether the event at `after` is asked for
        self.quiet = 0  # the calls that have called nothing of interest
        self.last, self.seen = None, {}

    def is_returned(self, code: CodeType, offset: int) -> bool:
        """Whether the instruction of *code* at *offset* returns or yields the result."""
        return self.how == "return" and self.after == offset and self.code == id(code)

    def has_handler_of(self, code: CodeType, offset: int) -> bool:
        """Whether an exception at *offset* of its *code* goes where one of the call would go."""
        read: Any = dis.Bytecode(code)
        mine, its = (
            [each.target for each in read.exception_entries if each.start <= at < each.end]
            for at in (self.offset, offset)
        )
        return mine == its


class _Step(NamedTuple):
    """An instruction, or half of one that does the work of two."""

    opname: str
    argval: Any
    offset: int
    effect: int
    is_target: bool
    line: int | None

    @property
    def name(self) -> str:
        """The variable that it loads; empty if it loads none."""
        is_name = self.opname.startswith(_VARIABLES) and isinstance(self.argval, str)
        return self.argval if is_name else ""


_PAIR = re.compile("(?:LOAD|STORE)_FAST")
_NO_STEPS = {"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "KW_NAMES"}
_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}
_ATTRIBUTES = {"LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR"}
_STORES = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"}
_VARIABLES = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
_FIXED = {
    *("LOAD_GLOBAL", "LOAD_NAME", "LOAD_BUILD_CLASS", "LOAD_ASSERTION_ERROR"),
    *("LOAD_COMMON_CONSTANT", "IMPORT_NAME", "IMPORT_FROM", "MAKE_FUNCTION"),
    "SET_FUNCTION_ATTRIBUTE",
}
"""What gives the same callee each time, or by a name that is never stored here but once."""
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


_NULL = _Step("PUSH_NULL", None, -1, 1, False, None)
_NULL_FIRST = sys.version_info < (3, 13)
"""Whether NULL is below what is called without an object, and not above."""

Stack = list[_Step | CallSite | None]
Stores = dict[str, list[tuple[int, _Step | None]]]
"""Where each variable is stored or deleted, with the step before."""


def _steps(code: CodeType) -> Iterator[_Step]:
    for each in dis.get_instructions(code):
        if each.opname in _NO_STEPS:
            continue
        rest = each.offset, each.is_jump_target, each.positions and each.positions.lineno
        names = _PAIR.findall(each.opname)
        if len(names) == 2 and isinstance(each.argval, tuple):  # STORE_FAST_LOAD_FAST
            for name, variable in zip(names, each.argval, strict=True):
                yield _Step(name, variable, rest[0], 1 if "LOAD" in name else -1, *rest[1:])
        else:
            effect = dis.stack_effect(each.opcode, each.arg, jump=False)
            yield _Step(each.opname, each.argval, rest[0], effect, *rest[1:])


def sites_of(code: CodeType) -> dict[int, CallSite]:
    """The calls of *code* by offset.

    Its instructions are read once, in order, with what has made each value on the stack: a step, or
    a call that only loads have followed; None where that is not known.
    """
    found: dict[int, CallSite] = {}
    steps = list(_steps(code))
    stores = _stores(steps)
    stack: Stack = []
    last: CallSite | None = None
    for number, step in enumerate(steps):
        if last is not None:
            last.after, last = step.offset, None
        top = stack[-1] if stack else None
        if step.is_target:
            stack.clear()
        if step.opname in _CALLS:
            last = found[step.offset] = CallSite(code, step.line, step.offset)
            _take(stack, last, step, stores, code)
        elif step.opname == "PUSH_NULL":
            stack.append(_NULL)
        elif step.opname.startswith("LOAD_"):
            _load(stack, step)
        else:
            if isinstance(top, CallSite):
                _follow(top, step, steps[number + 1 :], stores)
            _change(stack, step)
    return found


def _stores(steps: list[_Step]) -> Stores:
    found: Stores = {}
    before = None
    for step in steps:
        if step.opname.startswith(("STORE_", "DELETE_")) and isinstance(step.argval, str):
            found.setdefault(step.argval, []).append((step.offset, before))
        before = step
    return found


def _load(stack: Stack, step: _Step) -> None:
    is_attribute = step.opname in _ATTRIBUTES
    takes = 3 if "SUPER" in step.opname else is_attribute or max(0, 1 - step.effect)
    beside = stack[-1] if is_attribute and stack else _NULL  # a method's object; no object
    stack[len(stack) - min(takes, len(stack)) :] = [step]
    if takes + step.effect == 2:
        stack.insert(len(stack) - (_NULL_FIRST and beside is _NULL), beside)


def _change(stack: Stack, step: _Step) -> None:
    """Take what a step of another kind may have changed as not known."""
    touched = step.argval if step.opname == "SWAP" else 1
    depth = max(0, len(stack) + step.effect)
    kept = max(0, min(len(stack), depth) - touched)
    stack[:] = _behind_others(stack[:kept]) + [None] * (depth - kept)


def _behind_others(stack: Stack) -> Stack:
    """What is known of *stack* behind a step that is no load."""
    return [None if isinstance(value, CallSite) else value for value in stack]


def _follow(site: CallSite, step: _Step, later: list[_Step], stores: Stores) -> None:
    """Note what *step*, behind the call, does with its result."""
    if step.opname in ("RETURN_VALUE", "YIELD_VALUE"):
        site.how = "return"
    elif step.opname in _STORES:
        site.how, site.name = "store", step.argval
        site.after = next(each.offset for each in later if each.offset > step.offset)
        offsets = [offset for offset, _ in stores[site.name]]
        behind = [offset for offset in offsets if offset > step.offset]
        site.until = -1 if len(offsets) == 1 else behind[0] if behind else 0


def _take(stack: Stack, site: CallSite, step: _Step, stores: Stores, code: CodeType) -> None:
    """Note what the call *site* takes from the stack, and put its result there."""
    if step.opname == "CALL_FUNCTION_EX":
        _change(stack, step)
        stack[-1:] = [site]
        return
    site.arguments = step.argval
    below = len(stack) - step.argval - 2 - (step.opname == "CALL_KW")
    taken: Stack = [*[None] * -below, *stack[max(0, below) :], None]
    stack[:] = [*_behind_others(stack[: max(0, below)]), site]
    callee, owner, first = taken[:3]
    if callee is _NULL:
        callee, owner = owner, _NULL
    if isinstance(owner, CallSite):
        owner.how, owner.after = "call", step.offset
    elif isinstance(first, CallSite):
        first.how, first.after = "call" if owner is _NULL else "argument", step.offset
    elif isinstance(first, _Step) and step.argval:
        site.argument = first.name
    if isinstance(callee, _Step):
        site.callee, site.parameter = _kind_of_callee(callee, stores, code)


def _kind_of_callee(step: _Step, stores: Stores, code: CodeType) -> tuple[str, str]:
    """`CallSite.callee` and `CallSite.parameter` of a callee that *step* loads."""
    stored = stores.get(step.name, [])
    if step.opname.startswith("LOAD_FAST"):
        flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
        count = code.co_argcount + code.co_kwonlyargcount + flags.bit_count()
        if step.name in code.co_varnames[:count]:
            return "", "" if stored or code.co_flags & _SUSPENDED else step.name
    if len(stored) == 1 and stored[0][1] is not None:
        step = stored[0][1]  # `f = abs`, or `f = np.abs`, before a loop
    elif stored:
        return "", ""
    if step.opname in _ATTRIBUTES:
        return f"attribute {step.argval}", ""
    return "fixed" if step.opname in _FIXED else "", ""
