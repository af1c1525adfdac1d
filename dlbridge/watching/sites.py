"""The calls in a code object: their lines, and where the result of each can be read."""

from __future__ import annotations

import dis
import inspect
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import CodeType


class CallSite:
    """One call in the code of a program. It holds no code and no frame."""

    __slots__ = (
        *("after", "argument", "awaited", "callee", "code", "filename", "function", "how"),
        *("arguments", "is_followed", "line", "name", "parameter", "quiet", "until"),
    )

    after: int
    """Where the result is read: the offset of an instruction behind the call."""
    how: str
    """``store``: it is in the variable `name` then; ``return``: the function returns or yields it;
    ``call``: it is the first argument of the call at `after`; ``lost``: it is not seen."""

    def __init__(self, code: CodeType, line: int | None) -> None:
        self.filename, self.function, self.line = code.co_filename, code.co_qualname, line or 0
        self.code = id(code)
        self.after, self.how, self.name = -1, "lost", ""
        self.until = -1  # the next offset that stores into `name`; 0: one before; -1: none
        self.awaited = False  # whether its first argument may be the result of an exchange
        self.arguments = -1  # how many it has, where that is written there
        self.argument = ""  # the variable that is its first argument, if it is one
        self.callee = ""  # "fixed", "attribute x", or empty: a variable, which may change
        self.parameter = ""  # the parameter that is called, if nothing else is stored there
        self.is_followed = False  # whether the event at `after` is asked for
        self.quiet = 0  # the calls that have called nothing of interest

    def is_returned(self, code: CodeType, offset: int) -> bool:
        """Whether the instruction of *code* at *offset* returns or yields the result."""
        return self.how == "return" and self.after == offset and self.code == id(code)


class _Step(NamedTuple):
    """An instruction, or half of one that does the work of two."""

    opname: str
    arg: int
    argval: Any
    offset: int
    effect: int
    is_target: bool


def sites_of(code: CodeType) -> dict[int, CallSite]:
    """The calls of *code* by offset."""
    found: dict[int, CallSite] = {}
    steps: list[_Step] = []
    calls = []
    for each in dis.get_instructions(code):
        if each.opname in _CALLS:
            calls.append((len(steps), each.positions and each.positions.lineno))
        steps += _steps_of(each)
    for number, line in calls:
        site = found[steps[number].offset] = CallSite(code, line)
        _follow(site, steps, number)
        if steps[number].opname != "CALL_FUNCTION_EX":
            _look_back(site, steps, number, code)
    return found


def _steps_of(each: dis.Instruction) -> list[_Step]:
    if each.opname in _NO_STEPS:
        return []
    names = _PAIR.findall(each.opname)
    if len(names) == 2 and isinstance(each.argval, tuple):  # STORE_FAST_LOAD_FAST
        return [
            _Step(name, 0, variable, each.offset, 1 if "LOAD" in name else -1, each.is_jump_target)
            for name, variable in zip(names, each.argval, strict=True)
        ]
    effect = dis.stack_effect(each.opcode, each.arg, jump=False)
    return [
        _Step(each.opname, each.arg or 0, each.argval, each.offset, effect, each.is_jump_target)
    ]


_PAIR = re.compile("(?:LOAD|STORE)_FAST")
_NO_STEPS = {"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN"}
_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_NAMES = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")


def _is_name(step: _Step) -> bool:
    return step.opname.startswith(_NAMES) and isinstance(step.argval, str)


# Behind the call ---------------------------------------------------------------------


def _follow(site: CallSite, steps: list[_Step], number: int) -> None:
    """Find where the result of the call *number* can be read."""
    behind = steps[number + 1 : number + 4]
    if not behind:
        return
    site.after = behind[0].offset
    if behind[0].opname in _STORES:
        site.how, site.name = "store", behind[0].argval
        site.after = next(step.offset for step in behind if step.offset > behind[0].offset)
        stores = [step.offset for step in steps if _stores(step, site.name)]
        later = [offset for offset in stores if offset > behind[0].offset]
        site.until = -1 if len(stores) == 1 else later[0] if later else 0
    elif behind[0].opname in ("RETURN_VALUE", "YIELD_VALUE"):
        site.how = "return"
    elif (consumer := _consumer(steps, number + 1)) is not None:
        site.how, site.after = "call", consumer


def _stores(step: _Step, name: str) -> bool:
    return step.opname.startswith(("STORE_", "DELETE_")) and step.argval == name


def _consumer(steps: list[_Step], number: int) -> int | None:
    """The offset of the call whose first argument, or ``self``, is on top of the stack now."""
    above, is_self = 1, False
    for step in steps[number:]:
        if step.opname in _CALLS:
            values = step.arg + (step.opname == "CALL_KW")
            if above == values + 2 * is_self:
                return step.offset
            return None
        if step.opname in ("LOAD_METHOD", "LOAD_ATTR") and above == 1:
            is_self = True
            if step.effect != 1:
                return None  # an attribute, no method
        elif step.is_target or not step.opname.startswith(("LOAD_", "PUSH_NULL", "KW_NAMES")):
            if step.opname != "PRECALL":
                return None
            continue
        elif "AND_CLEAR" in step.opname:
            return None
        above += step.effect
    return None


# Before the call ---------------------------------------------------------------------


def _look_back(site: CallSite, steps: list[_Step], number: int, code: CodeType) -> None:
    """Find what the callee and the first argument of the call *number* are, if they are names."""
    arguments = steps[number].arg
    site.arguments = arguments
    needed = arguments + (steps[number].opname == "CALL_KW")
    at = number - 1
    while steps[at].opname in ("PRECALL", "KW_NAMES"):
        at -= 1
    depth = 0
    second = at + 1 if needed == 1 else -1  # where the first argument ends
    while depth < needed:
        step = steps[at]
        if at < 0 or step.is_target or "JUMP" in step.opname:
            return
        depth += step.effect
        at -= 1
        if depth == needed - 1 and second < 0:
            second = at + 1
    if depth > needed:
        return
    if arguments and second == at + 2 and _is_name(steps[at + 1]):
        site.argument = steps[at + 1].argval
    if at >= 0 and steps[at].opname == "PUSH_NULL":
        at -= 1
    if at >= 0:
        site.callee = _callee(steps[at], steps, code)
        if not site.callee and _is_parameter(steps[at], steps, code):
            site.parameter = steps[at].argval


def _is_parameter(step: _Step, steps: list[_Step], code: CodeType) -> bool:
    """Whether *step* loads a parameter of *code* that has one value in each call of it."""
    return (
        step.opname.startswith("LOAD_FAST")
        and step.argval in _parameters(code)
        and not any(_stores(each, step.argval) for each in steps)
        and not code.co_flags & _SUSPENDED
    )


_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _parameters(code: CodeType) -> tuple[str, ...]:
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags.bit_count()]


def _callee(step: _Step, steps: list[_Step], code: CodeType) -> str:
    if step.opname in ("LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR"):
        return f"attribute {step.argval}"
    if step.opname in ("LOAD_BUILD_CLASS", "LOAD_ASSERTION_ERROR"):
        return "fixed"
    if not _is_name(step) or step.opname.startswith(("LOAD_DEREF", "LOAD_CLASSDEREF")):
        return ""
    name = step.argval
    if step.opname.startswith("LOAD_FAST") and name in _parameters(code):
        return ""
    before = [
        steps[at - 1].opname if at else "" for at, each in enumerate(steps) if _stores(each, name)
    ]
    if not before:
        return "fixed" if not step.opname.startswith("LOAD_FAST") else ""
    # `f = abs` and `f = np.abs` before a loop: the name says what is called.
    return "fixed" if len(before) == 1 and before[0] in _VALUES else ""


_VALUES = {
    *("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "IMPORT_NAME", "IMPORT_FROM"),
    *("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"),
}
