"""Loading of libtvm_ffi: where it is, which symbols it must have, how each is called.

Importing this module loads the library; nothing else in dlbridge does. Two
views of the same library are given:

* `C`, by cffi, which drops the GIL around each call: for what may block, run
  long, or call back into Python.
* `py`, by ctypes, which keeps the GIL: for the registry and the type table,
  which have no lock of their own, and for reference counts. Where there is no
  GIL, a lock is taken instead (`one_thread`).
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from dlbridge.abi import (
    ffi as ffi,  # noqa: PLC0414  # the other modules take it from here
    handlers_exception,
    immortal,
    raise_when_dropped,
    undisguised,
    wait_for,
)
from dlbridge.errors import LibraryUnavailable
from dlbridge.extending import unless_handler
from dlbridge.kit.resources import shared_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

# A GIL that is off may be turned on later by an extension module, and one that is on stays.
HAS_GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()
tables: Final = nullcontext() if HAS_GIL else shared_lock()
"""Held instead of the GIL, where there is none; a destructor may take it again."""

ENVIRONMENT: Final = "DLBRIDGE_TVM_FFI_LIB"
FILE_NAME: Final = {"darwin": "libtvm_ffi.dylib", "win32": "tvm_ffi.dll"}.get(
    sys.platform, "libtvm_ffi.so"
)

# The oldest interface whose TVMFFIErrorCell has cause_chain (read from an older
# one, it is a bus error): this symbol came with it.
_NEWEST_REQUIRED: Final = "TVMFFIErrorCreateWithCauseAndExtraContext"

_POINTER: Final = ctypes.c_void_p
_WITH_GIL: Final[dict[str, tuple[Any, ...]]] = {
    # name: result, arguments
    "TVMFFIObjectIncRef": (ctypes.c_int, _POINTER),
    "TVMFFIObjectDecRef": (ctypes.c_int, _POINTER),
    "TVMFFIErrorMoveFromRaised": (None, _POINTER),
    "TVMFFIFunctionGetGlobal": (ctypes.c_int, _POINTER, _POINTER),
    "TVMFFIFunctionSetGlobalFromMethodInfo": (ctypes.c_int, _POINTER, ctypes.c_int),
    "TVMFFIFunctionCall": (ctypes.c_int, _POINTER, _POINTER, ctypes.c_int, _POINTER),
    "TVMFFITypeKeyToIndex": (ctypes.c_int, _POINTER, _POINTER),
    "TVMFFIGetTypeInfo": (ctypes.c_size_t, ctypes.c_int32),
    "TVMFFIGetTypeAttrColumn": (ctypes.c_size_t, _POINTER),
    "TVMFFIEnvModRegisterSystemLibSymbol": (ctypes.c_int, ctypes.c_char_p, _POINTER),
}
_BARE: Final = {"TVMFFIObjectIncRef", "TVMFFIObjectDecRef", "TVMFFIFunctionCall"}
"""Functions that are called as they are, from C or often; callers look at the ArgumentError."""
_COUNTS: Final = {"TVMFFIObjectIncRef", "TVMFFIObjectDecRef"}
"""They change a count in one step of the processor, and need neither the GIL nor a lock."""
_REQUIRED: Final = (
    *_WITH_GIL,
    _NEWEST_REQUIRED,
    "TVMFFIFunctionCreate",
    "TVMFFIAnyViewToOwnedAny",
    "TVMFFITensorFromDLPackVersioned",
    "TVMFFITensorToDLPackVersioned",
    "TVMFFIEnvRegisterCAPI",
    "TVMFFIEnvSetStream",
    "TVMFFIEnvTensorAlloc",
)
_FATAL_SIGNALS: Final = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL")


def address(pointer: Any) -> int:
    """The address in the cffi *pointer*."""
    return int(ffi.cast("intptr_t", pointer))


def destructor(
    pointer: str, forget: Callable[..., None], declaration: str = "void(intptr_t)"
) -> Any:
    """A C function of the cffi type *pointer*, ``void (*)(something *)``, that calls *forget*.

    It lives for ever: C calls it late, and from any thread. *forget* takes the
    address, or the integers that *declaration* says. It is a function of C, which no
    signal handler interrupts; or a Python one that makes no call, so that nothing
    interrupts it once it runs. The exception of a signal handler
    that came before its first instruction is raised after it has run. A Python one does
    nothing once the process ends: it may give the GIL away at its first instruction, and a
    daemon thread that wants it back then is unwound, through a destructor of C++.
    """
    code = getattr(immortal(forget), "__code__", None)
    if code is None:
        return immortal(ffi.cast(pointer, immortal(ffi.callback(declaration, forget))))

    def after_interrupt(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        if traceback is None or traceback.tb_frame.f_code is not code:
            return
        given = traceback.tb_frame.f_locals
        forget(*[given[name] for name in code.co_varnames[: code.co_argcount]])
        arrived = handlers_exception(kind, error, traceback)
        if arrived is not None:
            # When this frame is gone: a call would meet the exception in here.
            _at_return = raise_when_dropped(arrived)

    target: Any = partial(forget)
    _in_python.append((target, code))
    callback = ffi.callback(declaration, target, onerror=immortal(after_interrupt))
    return immortal(ffi.cast(pointer, immortal(callback)))


_in_python: Final[list[tuple[Any, Any]]] = []
"""What C calls for the Python functions among the destructors, and the code of each."""


@atexit.register
def _end_destructors() -> None:
    nothing: Any = ()
    for target, _code in _in_python:
        # In one step of C; this function of C takes any arguments, and has no effect.
        target.__setstate__((nothing.__init__, (), {}, {}))
    wait_for({code for _target, code in _in_python})


def has(symbol: str, library: Any = None) -> bool:
    """Whether *library*, or the one that was loaded, has *symbol* (versions say too little)."""
    try:
        getattr(C if library is None else library, symbol)
    except (AttributeError, ffi.error):  # not declared, not exported
        return False
    return True


def _candidates() -> Iterator[tuple[str, str]]:
    """``(path, where it comes from)``, the first that loads is taken."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        yield chosen, f"${ENVIRONMENT}"
        return
    loaded = getattr(sys.modules.get("tvm_ffi"), "LIB", None)
    if loaded is not None:
        yield loaded._name, "the imported tvm_ffi"
    try:
        # Finds the package without importing it.
        spec = importlib.util.find_spec("tvm_ffi")
    except unless_handler(ValueError):  # tvm_ffi in sys.modules is not a package
        spec = None
    for folder in (spec and spec.submodule_search_locations) or ():
        # Not pathlib: its import takes as long as the rest of this module.
        yield f"{folder}{os.sep}lib{os.sep}{FILE_NAME}", "the installed apache-tvm-ffi"
    yield FILE_NAME, "the system's loader"


def _load() -> tuple[Any, str]:
    tried = []
    for path, origin in _candidates():
        try:
            library = ffi.dlopen(path, ffi.RTLD_NOW | ffi.RTLD_GLOBAL)
        except OSError as exc:
            tried.append(f"{origin}: {exc}")
            continue
        except UnicodeEncodeError:
            tried.append(f"{origin}: {path!a} is not UTF-8; rename it, or link to it")
            continue
        missing = [name for name in _REQUIRED if not has(name, library)]
        if not missing:
            # Freed, it would unload under the objects that are still alive.
            return immortal(library), path
        tried.append(f"{origin}: {path} lacks {', '.join(missing)}; upgrade it")
    raise LibraryUnavailable(
        "libtvm_ffi cannot be loaded; pip install apache-tvm-ffi, or set "
        f"{ENVIRONMENT} to the library's path. Tried:\n  " + "\n  ".join(tried)
    )


def _load_keeping_faulthandler() -> tuple[Any, str]:
    """Load; the library's constructor replaces fatal signals' handlers, undo that."""
    if not faulthandler.is_enabled() or sys.platform == "win32":
        return _load()
    sigaction = ctypes.CDLL(None).sigaction
    # struct sigaction is opaque here, and below 256 bytes everywhere.
    saved = []
    for name in _FATAL_SIGNALS:
        action = ctypes.create_string_buffer(256)
        sigaction(getattr(signal, name), None, action)
        saved.append((getattr(signal, name), action))
    try:
        return _load()
    finally:
        for number, action in saved:
            sigaction(number, action, None)


def _with_gil(path: str) -> Any:
    """The functions of `_WITH_GIL`; arguments are integers: addresses and numbers."""
    library, functions = ctypes.PyDLL(path), SimpleNamespace()
    for name, (result, *arguments) in _WITH_GIL.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        called = function if name in _COUNTS else one_thread(function)
        setattr(functions, name, called if name in _BARE else _raising(called))
    return functions


def one_thread(function: Any) -> Any:
    """*function* of ctypes, in which one thread is at a time: by the GIL, or by `tables`."""
    if HAS_GIL:
        return function

    def call(*arguments: Any) -> Any:
        with tables:
            return function(*arguments)

    return call


def _raising(function: Any) -> Callable[..., Any]:
    """The ctypes *function*, whose arguments raise what they raise, and no ArgumentError."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ctypes.ArgumentError as exc:
            raise undisguised(exc) from None

    return call


def _register_python() -> None:
    """Give the library what it needs to notice Ctrl-C in long calls.

    tvm_ffi registers the same three functions: the order does not matter.
    """
    for name in ("PyErr_CheckSignals", "PyGILState_Ensure", "PyGILState_Release"):
        function = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
        if C.TVMFFIEnvRegisterCAPI(name.encode(), ffi.cast("void *", function.value)):
            raise LibraryUnavailable(f"{library_path} refused {name}")


def _version() -> tuple[int, int, int]:
    out = ffi.new("TVMFFIVersion *")
    C.TVMFFIGetVersion(out)
    return (out.major, out.minor, out.patch)


C, library_path = _load_keeping_faulthandler()
py = _with_gil(library_path)
version = _version()
_register_python()
