"""Errors across the C interface: C to Python exceptions, Python exceptions to C.

An exception that leaves a callback goes to C as an Error object with its kind,
message, backtrace and causes, and the exception itself as ``extra_context``: if
the error returns to Python, the caller gets the same exception object.
"""

from __future__ import annotations

import atexit
import builtins
import re
import threading
from functools import lru_cache
from threading import get_ident
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from dlbridge.abi import is_from_handler
from dlbridge.extending import public_in, unless_handler
from dlbridge.kit.resources import shared_lock

from ._lib import C, address, ffi, py
from .any import HEADER, ByteArray, made, made_with_gil, native_type_index, new_slot, text_of, view
from .objects import Object, borrow, make_opaque, new_wrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .any import Handle, Temporaries


# The frames of cffi between Python and C, which are left out.
_PASSAGE: Final = frozenset({"cdata_call", "cffistatic_ffi_call"})
_LAST_LINE: Final = (1 << 31) - 1
"""The largest line number of a traceback: CPython keeps it in a C int."""
_FRAME: Final = r'\s*File "(.+?)", line (\d+), in (.+)'


def traceback_of(backtrace: str) -> TracebackType | None:
    """The lines of *backtrace* (most recent first) as a traceback."""
    traceback = None
    for line in backtrace.splitlines():
        match = re.match(_FRAME, line)
        if match and match[3] not in _PASSAGE:
            file, number, function = match.groups()
            frame = _frame(file, function)
            line_number = int(number) if len(number) < 10 else _LAST_LINE
            traceback = TracebackType(traceback, frame, -1, line_number)
    return traceback


def _location() -> Iterator[None]:
    yield


@lru_cache(maxsize=1024)
def _code(file: str, function: str) -> CodeType:
    return _location.__code__.replace(co_filename=file, co_name=function)


def _frame(file: str, function: str) -> FrameType:
    """A frame that says it is *function* in *file*, and refers to nothing.

    The frame of a generator that never ran has no caller, so that it keeps
    no local variables alive.
    """
    generator: Any = FunctionType(_code(file, function), {"__name__": file})()
    return generator.gi_frame  # type: ignore[no-any-return]


def backtrace_of(traceback: TracebackType | None) -> str:
    """The frames of *traceback* as lines, most recent first."""
    lines = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        lines.append(
            f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}\n'
        )
        traceback = traceback.tb_next
    return "".join(reversed(lines))


_MAX_CAUSES: Final = 32
_TOO_DEEP: Final = b"maximum recursion depth exceeded"

# An update of a backtrace frees the text that another thread may be reading.
_backtraces: Final = shared_lock()

_Exception = TypeVar("_Exception", bound=type[BaseException])

_kinds: dict[type, str] = {}
_classes: dict[str, type[BaseException]] = {}


@overload
def register_error(name_or_cls: _Exception) -> _Exception: ...
@overload
def register_error(name_or_cls: str, cls: _Exception) -> _Exception: ...
@overload
def register_error(name_or_cls: str | None = None) -> Callable[[_Exception], _Exception]: ...
@public_in("dlbridge.ffi")
def register_error(name_or_cls: Any = None, cls: Any = None) -> Any:
    """Connect a kind of error with an exception class, in both directions.

    ``register_error("Kind", Class)``, or as a decorator, with the class's own
    name or another: ``@register_error``, ``@register_error("Kind")``.

    Parameters
    ----------
    name_or_cls : str or type, optional
        The kind, as C has it, or the decorated class.
    cls : type, optional
        The exception class, which is constructed with the message.

    Returns
    -------
    type or callable
        The class; without it, a decorator.

    Raises
    ------
    TypeError
        If there is no exception class.

    Examples
    --------
    >>> @ffi.register_error("DocsError")
    ... class DocsError(ValueError): ...
    >>> ffi.Error("DocsError", "text").py_error()
    DocsError('text')
    """
    if isinstance(name_or_cls, type):
        return register_error(name_or_cls.__name__, name_or_cls)
    if cls is None:
        return lambda error: register_error(name_or_cls or error.__name__, error)
    if not (isinstance(name_or_cls, str) and isinstance(cls, type)) or not issubclass(
        cls, BaseException
    ):
        raise TypeError(
            f"register_error({name_or_cls!r}, {cls!r}): give a kind's name and an exception class"
        )
    _kinds[cls] = name_or_cls
    _classes[name_or_cls] = cls
    return cls


_BUILTIN: Final = """
    AssertionError AttributeError BufferError GeneratorExit IndexError KeyError KeyboardInterrupt
    MemoryError NotImplementedError OSError OverflowError RecursionError RuntimeError StopIteration
    SystemExit TypeError ValueError ZeroDivisionError
"""
for _name in _BUILTIN.split():
    register_error(_name, getattr(builtins, _name))


@public_in("dlbridge.ffi")
class Error(Object):
    """An error object of libtvm_ffi. It is not an exception; `py_error` makes one.

    Parameters
    ----------
    kind : str
        By convention the name of a Python exception class.
    message : str
        What happened.
    backtrace : str
        Lines as in Python's tracebacks, the most recent call first.

    Examples
    --------
    >>> ffi.Error("ValueError", "wrong").py_error()
    ValueError('wrong')
    """

    __slots__ = ()

    def __new__(cls, kind: str = "RuntimeError", message: str = "", backtrace: str = "") -> Error:
        """A new error; *backtrace* lists the most recent call first."""
        return new_wrapper(_create(kind, message, backtrace, None, None), C.kTVMFFIError, cls)

    @property
    def kind(self) -> str:
        """The kind of the error, by convention the name of a Python class."""
        return text_of(_cell(self._handle).kind)

    @property
    def message(self) -> str:
        """The message."""
        return text_of(_cell(self._handle).message)

    @property
    def backtrace(self) -> str:
        """Python-style lines, most recent call first."""
        return _backtrace(_cell(self._handle))

    @property
    def cause(self) -> Error | None:
        """The error that caused this one."""
        return _member(_cell(self._handle).cause_chain)  # type: ignore[no-any-return]

    @property
    def extra_context(self) -> Any:  # anybody's: what the raiser attached
        """The value that the raiser attached; for an error from Python, the exception."""
        return _member(_cell(self._handle).extra_context)

    def update_backtrace(self, backtrace: str) -> None:
        """Replace the backtrace.

        Parameters
        ----------
        backtrace : str
            Lines as in Python's tracebacks, the most recent call first.

        Raises
        ------
        TypeError
            If it is not text.

        Examples
        --------
        >>> error = ffi.Error("ValueError", "wrong")
        >>> error.update_backtrace('File "a.cc", line 1, in f')
        >>> error.backtrace
        'File "a.cc", line 1, in f'
        """
        text, cell = ByteArray(backtrace), _cell(self._handle)
        handle = ffi.cast("void *", self._handle)
        with _backtraces:
            cell.update_backtrace(handle, text.pointer, C.kTVMFFIBacktraceUpdateModeReplace)

    def py_error(self) -> BaseException:
        """The error as a Python exception.

        Returns
        -------
        BaseException
            The exception itself, if the error was made of one. Else a new one of the
            class that `register_error` knows for the kind, or a RuntimeError; its
            traceback shows the lines of the backtrace.

        Examples
        --------
        >>> ffi.Error("ValueError", "wrong").py_error()
        ValueError('wrong')
        >>> ffi.Error("UnknownKind", "wrong").py_error()
        RuntimeError('UnknownKind: wrong')
        """
        return _exception(self._handle, _MAX_CAUSES)

    def __reduce__(self) -> tuple[Any, ...]:
        return Error, (self.kind, self.message, self.backtrace)

    def __repr__(self) -> str:
        if self._handle is None:
            return super().__repr__()
        return f"Error({self.kind!r}, {self.message!r})"


# --- C to Python ---------------------------------------------------------------


# Threads in which a callback has failed, whose error has perhaps not been taken yet.
untaken: Final[set[int]] = set()


def drop_untaken() -> None:
    """Drop the error that a callee has left behind: it ignored a callback's failure.

    To be called after a call that went well, if `untaken` is not empty. In a
    daemon thread the error would be freed when Python is gone, and end the process.
    """
    thread = get_ident()
    if thread in untaken:
        untaken.discard(thread)
        take_raised()
    else:  # threads that have ended left nothing
        untaken.intersection_update([other.ident for other in threading.enumerate()])


def raised() -> BaseException:
    """The exception for the call that has just failed, in the statement before.

    The error is taken out of libtvm_ffi's thread-local state. A RuntimeError if
    there is none: the callee broke the rule, or a finalizer or signal handler
    has made another failing call in between.
    """
    owned = take_raised()
    if untaken:
        untaken.discard(get_ident())
    if owned is None:
        return RuntimeError(
            "a TVM-FFI function failed without saying why (it set no error, or the error was lost)"
        )
    return _exception(owned, _MAX_CAUSES)


def interrupted(error: SystemError) -> BaseException:
    """The exception to raise when a call returned with a Python exception set.

    That is how `PyErr_CheckSignals` inside a long call ends: cffi reports a
    SystemError whose cause is the KeyboardInterrupt.
    """
    take_raised()
    return error.__cause__ or error


def take_raised() -> Handle | None:
    """Take the thread's pending error out of its state; None if there is none."""
    return made_with_gil(new_slot(), py.TVMFFIErrorMoveFromRaised)[1]


# An error left in thread-local state is freed after Python is gone; one that
# holds a Python object crashes then.
atexit.register(take_raised)


def _cell(handle: Any) -> Any:
    if handle is None:
        raise ValueError("the Error was moved into a call and is empty now")
    return ffi.cast("TVMFFIErrorCell *", handle + HEADER)


def _backtrace(cell: Any) -> str:
    with _backtraces:
        return text_of(cell.backtrace)


def _member(pointer: Any) -> Any:
    """The value of a borrowed object in an error's cell; None for NULL."""
    if not pointer:
        return None
    handle = address(pointer)
    return view(native_type_index(handle), handle)


_NUMBERS_FOR_TENSOR = re.compile(
    r"Expected `(Optional<)?(DLTensor\*|ffi\.Tensor)>?` but got `(ffi\.Array|float|int)`"
)
"""What libtvm_ffi says of an argument that is no tensor."""


def _exception(handle: Any, causes: int) -> BaseException:
    cell = _cell(handle)
    original = _member(cell.extra_context)
    if isinstance(original, BaseException):
        return original
    kind, message = text_of(cell.kind), text_of(cell.message)
    exception = _instance(kind, message)
    if _NUMBERS_FOR_TENSOR.search(message):
        exception.add_note("numbers and lists are no tensors here: pass dlbridge.asarray(x)")
    exception.__tvm_ffi_error__ = borrow(handle, C.kTVMFFIError, Error)  # type: ignore[attr-defined]
    if cell.cause_chain and causes:
        exception.__cause__ = _exception(address(cell.cause_chain), causes - 1)
    return exception.with_traceback(traceback_of(_backtrace(cell)))


def _instance(kind: str, message: str) -> BaseException:
    cls = _classes.get(kind)
    if cls is not None:
        try:
            return cls(message)
        except unless_handler(Exception):
            pass  # a class whose constructor wants something else, or is wrong
    return RuntimeError(f"{kind}: {message}")


# --- Python to C ---------------------------------------------------------------


def set_raised(exception: BaseException) -> None:
    """Make *exception* the error with which the running callback fails."""
    try:
        _describe_raised(exception)
    except RecursionError:  # the calls that this depth leaves do not suffice: this is one
        C.TVMFFIErrorSetRaisedFromCStr(b"RecursionError", _TOO_DEEP)


def _describe_raised(exception: BaseException) -> None:
    thread = get_ident()
    # Threads that C made run no Python at exit, and may never call to have it dropped.
    if any(thread == known.ident for known in threading.enumerate()):
        untaken.add(thread)
    try:
        _set_error(exception)
    except BaseException as second:  # nothing may escape: C waits for an error
        # An interruption goes on as one, also if it came while another error was described.
        stop = next((exc for exc in (exception, second) if _interrupts(exc)), None)
        try:
            if stop is not second:
                raise
            _set_error(second)
        except BaseException:  # this one cannot be described either
            if stop is None and isinstance(exception, RecursionError):
                raise exception from None  # `set_raised` has room for one call more
            kind = b"RuntimeError" if stop is None else type(stop).__name__.encode()
            C.TVMFFIErrorSetRaisedFromCStr(kind, b"an exception that cannot be described")


def _set_error(exception: BaseException) -> None:
    # Its own frame: the traceback of *exception* must not refer to the error that keeps it.
    error = error_of(exception)
    C.TVMFFIErrorSetRaised(ffi.cast("void *", error))


def _interrupts(exception: BaseException) -> bool:
    """Whether *exception* must reach the caller, whatever else has failed."""
    stops = (KeyboardInterrupt, SystemExit, MemoryError)
    return isinstance(exception, stops) or is_from_handler(exception.__traceback__)


def error_of(exception: BaseException, causes: int = _MAX_CAUSES) -> Handle:
    """A new Error object that carries *exception*, its traceback and its causes."""
    kind, message = _described(exception)
    cause = exception.__cause__
    return _create(
        kind,
        message,
        backtrace_of(exception.__traceback__),
        error_of(cause, causes - 1) if cause is not None and causes else None,
        make_opaque(exception),
    )


def _described(exception: BaseException) -> tuple[str, str]:
    """The kind and the message, as C can have them, whatever the exception's own code does."""
    try:
        first = getattr(exception, "__tvm_ffi_error__", None)
        kind, message = (first.kind, first.message) if first else (_kind(exception), str(exception))
        ByteArray(kind)
    except unless_handler(Exception):  # the class's own __str__, or an attribute of that name
        return _kind(exception), "(an exception whose message cannot be made)"
    try:
        ByteArray(message)
    except UnicodeEncodeError:  # half of a surrogate pair
        message = message.encode("utf-8", "backslashreplace").decode()
    return kind, message


def _kind(exception: BaseException) -> str:
    cls = type(exception)
    known = _kinds.get(cls)
    # A class that C has no translation for goes by its nearest base that has one.
    return known or next((_kinds[base] for base in cls.__mro__ if base in _kinds), cls.__name__)


def _create(
    kind: str, message: str, backtrace: str, cause: Handle | None, context: Handle | None
) -> Handle:
    texts = [ByteArray(text) for text in (kind, message, backtrace)]
    objects = [ffi.cast("void *", handle or 0) for handle in (cause, context)]
    _status, error = made(
        new_slot(),
        C.TVMFFIErrorCreateWithCauseAndExtraContext,
        *(text.pointer for text in texts),
        *objects,
    )
    if error is None:
        raise MemoryError("libtvm_ffi could not allocate an error")
    return error


def pack_exception(value: BaseException, keep: Temporaries) -> tuple[int, int]:
    """An exception as an Error object."""
    return keep.own(C.kTVMFFIError, error_of(value))
