"""The global registry: functions by name, of the library, of others and of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.public import public_in
from dlbridge.core.values.suggestions import did_you_mean

from .._lib import C, address, ffi, py
from ..values.errors import raised
from ..values.words import ByteArray, Handle, made_with_gil, new_place
from ..values.wrappers import handle_of, wrap
from .callbacks import make_function
from .frames import call_with_gil
from .functions import Function, check_callable, described
from .schemas import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "builtin",
    "get_global_func",
    "get_global_func_metadata",
    "list_global_func_names",
    "register_global_func",
    "remove_global_func",
]

_Callable = TypeVar("_Callable", bound="Callable[..., object]")


@overload
def get_global_func(name: str, allow_missing: Literal[False] = False) -> Function: ...
@overload
def get_global_func(name: str, allow_missing: bool) -> Function | None: ...
@public_in("dlbridge.ffi")
def get_global_func(name: str, allow_missing: bool = False) -> Function | None:
    """The global function *name*.

    Parameters
    ----------
    name : str
        As the library registered it.
    allow_missing : bool
        Whether None is returned where there is no such function.

    Returns
    -------
    Function or None
        The function, which keeps working when the name is removed.

    Raises
    ------
    ValueError
        If there is no such function, unless *allow_missing*.

    Examples
    --------
    >>> ffi.get_global_func("ffi.Array")(1, 2)
    (1, 2)
    >>> ffi.get_global_func("docs.nothing", allow_missing=True) is None
    True
    """
    status, handle = _look_up(_name(name))
    if status:
        raise raised()
    if handle is None:
        if allow_missing:
            return None
        hint = did_you_mean(name, list_global_func_names())
        raise ValueError(
            f"there is no global function {name!r}{hint}; list_global_func_names() lists them, and "
            "a library that registers functions must be loaded first"
        )
    function = wrap(handle, C.kTVMFFIFunction, Function)
    try:
        text = call_with_gil(builtin("ffi.GetGlobalFuncMetadata"), name) or ""
    except RuntimeError as exc:
        if is_from_handler(exc.__traceback__):
            raise
        text = ""  # another thread has just removed the name; the function is ours
    if '"arg_names"' in text or "DLTensor*" in text:
        return described(function, parse(text), name)
    return described(function, text, name)


def _name(name: str) -> ByteArray:
    if not isinstance(name, str):
        raise TypeError(f"the name of a global function is a str, not {name!r}")
    return ByteArray(name)


_builtins: dict[str, Handle] = {}


def builtin(name: str) -> Handle:
    """The handle of a function of the library's own, kept."""
    handle = _builtins.get(name)
    if handle is None:
        _status, handle = _look_up(ByteArray(name))
        if handle is None:
            raise ValueError(f"this libtvm_ffi has no {name}")
        _builtins[name] = handle
    return handle


def _look_up(name: ByteArray) -> tuple[int, Handle | None]:
    return made_with_gil(new_place(), py.TVMFFIFunctionGetGlobal, name)


@public_in("dlbridge.ffi")
def get_global_func_metadata(name: str) -> Mapping[str, Any]:
    """The metadata of the global function *name*.

    Parameters
    ----------
    name : str
        As the library registered it.

    Returns
    -------
    Mapping
        What the registrar said about the function, its ``type_schema`` first.

    Raises
    ------
    ValueError
        If there is no such function.

    Examples
    --------
    >>> "type_schema" in ffi.get_global_func_metadata("ffi.GetRegisteredTypeKeys")
    True
    """
    return get_global_func(name).metadata


@overload
def register_global_func(func_name: _Callable, *, override: bool = False) -> _Callable: ...
@overload
def register_global_func(func_name: str, f: _Callable, override: bool = False) -> _Callable: ...
@overload
def register_global_func(
    func_name: str, f: None = None, override: bool = False
) -> Callable[[_Callable], _Callable]: ...
@public_in("dlbridge.ffi")
def register_global_func(func_name: Any, f: Any = None, override: bool = False) -> Any:
    """Make the Python callable *f* the global function *func_name*.

    ``register_global_func("name", f)``, or as a decorator: ``@register_global_func``
    (the function's own name), ``@register_global_func("name")``. Positional
    parameters are published by name, so that others can pass keywords.

    Parameters
    ----------
    func_name : str or callable
        The name, or the decorated function.
    f : callable, optional
        The function.
    override : bool
        Whether a function with that name is replaced.

    Returns
    -------
    callable
        *f* itself; without it, a decorator.

    Raises
    ------
    RuntimeError
        If the name is taken and *override* is false.

    Examples
    --------
    >>> @ffi.register_global_func("docs.double")
    ... def double(x):
    ...     return 2 * x
    >>> ffi.get_global_func("docs.double")(x=4)
    8
    >>> ffi.remove_global_func("docs.double")
    """
    if callable(func_name):
        f, func_name = func_name, func_name.__name__
    if f is None:
        return lambda found: register_global_func(func_name, found, override)
    import inspect
    import json

    name = _name(func_name)
    check_callable(f)
    handle = handle_of(f) if isinstance(f, Function) else make_function(f)
    metadata = ByteArray(json.dumps(_published(f)))
    doc = ByteArray(inspect.getdoc(f) or "")
    info = ffi.new("TVMFFIMethodInfo *")
    info.name, info.doc, info.metadata = name.pointer[0], doc.pointer[0], metadata.pointer[0]
    info.method.type_index = C.kTVMFFIFunction
    info.method.v_ptr = ffi.cast("void *", handle)
    if py.TVMFFIFunctionSetGlobalFromMethodInfo(address(info), int(override)):
        raise raised()
    return f


def _published(function: Any) -> dict[str, Any]:
    """The metadata that is registered with *function*: a schema, and its parameters' names."""
    if isinstance(function, Function):
        return dict(function.metadata)
    metadata: dict[str, Any] = {"type_schema": '{"type":"ffi.Function"}'}
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as exc:
        if is_from_handler(exc.__traceback__):
            raise
        return metadata
    if all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        metadata["arg_names"] = [parameter.name for parameter in parameters]
        metadata["arg_optional"] = sum(
            parameter.default is not parameter.empty for parameter in parameters
        )
    return metadata


@public_in("dlbridge.ffi")
def remove_global_func(name: str) -> None:
    """Remove the global function *name*; functions that were got keep working.

    Parameters
    ----------
    name : str
        As it was registered.

    Examples
    --------
    >>> _ = ffi.register_global_func("docs.short", lambda: 1)
    >>> ffi.remove_global_func("docs.short")
    >>> "docs.short" in ffi.list_global_func_names()
    False
    """
    _name(name)
    call_with_gil(builtin("ffi.FunctionRemoveGlobal"), name)


@public_in("dlbridge.ffi")
def list_global_func_names() -> list[str]:
    """The names of all global functions.

    Returns
    -------
    list of str
        Sorted.

    Examples
    --------
    >>> "ffi.Array" in ffi.list_global_func_names()
    True
    """
    # The list is copied when the functor is made: nothing changes in between.
    functor = call_with_gil(builtin("ffi.FunctionListGlobalNamesFunctor"))
    return sorted(functor(i) for i in range(functor(-1)))
