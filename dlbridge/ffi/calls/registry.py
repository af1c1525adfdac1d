"""The global registry: functions by name, of the library, of others and of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._lib import C, address, ffi, py
from ..values.errors import raised
from ..values.words import ByteArray, Handle, made_with_gil, new_place
from ..values.wrappers import wrap
from .callbacks import make_function
from .frames import call_with_gil
from .functions import Function, check_callable, described
from .schemas import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "builtin",
    "get_global_func",
    "get_global_func_metadata",
    "list_global_func_names",
    "register_global_func",
    "remove_global_func",
]


def get_global_func(name: str, allow_missing: bool = False) -> Any:
    """The global function *name*; None if *allow_missing*, else ValueError if there is none."""
    status, handle = _look_up(_name(name))
    if status:
        raise raised()
    if handle is None:
        if allow_missing:
            return None
        raise ValueError(
            f"there is no global function {name!r}; list_global_func_names() lists them, and "
            "a library that registers functions must be loaded first"
        )
    function = wrap(handle, C.kTVMFFIFunction, Function)
    try:
        text = call_with_gil(builtin("ffi.GetGlobalFuncMetadata"), name) or ""
    except RuntimeError:
        text = ""  # another thread has just removed the name; the function is ours
    if '"arg_names"' in text or "DLTensor*" in text:
        return described(function, parse(text))
    function._metadata = text
    return function


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


def get_global_func_metadata(name: str) -> Mapping[str, Any]:
    """The metadata of the global function *name*; ValueError if there is none."""
    return get_global_func(name).metadata  # type: ignore[no-any-return]


def register_global_func(func_name: Any, f: Any = None, override: bool = False) -> Any:
    """Make the Python callable *f* the global function *func_name*.

    ``register_global_func("name", f)``, or as a decorator: ``@register_global_func``
    (the function's own name), ``@register_global_func("name")``. Positional
    parameters are published by name, so that others can pass keywords.
    RuntimeError if the name is taken and *override* is false.
    """
    if callable(func_name):
        f, func_name = func_name, func_name.__name__
    if f is None:
        return lambda found: register_global_func(func_name, found, override)
    import inspect
    import json

    name = _name(func_name)
    check_callable(f)
    handle = f._handle if isinstance(f, Function) else make_function(f)
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
    """What is registered beside *function*: a schema, and its parameters' names."""
    if isinstance(function, Function):
        return dict(function.metadata)
    metadata: dict[str, Any] = {"type_schema": '{"type":"ffi.Function"}'}
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return metadata
    if all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        metadata["arg_names"] = [parameter.name for parameter in parameters]
        metadata["arg_optional"] = sum(
            parameter.default is not parameter.empty for parameter in parameters
        )
    return metadata


def remove_global_func(name: str) -> None:
    """Remove the global function *name*; functions that were got keep working."""
    _name(name)
    call_with_gil(builtin("ffi.FunctionRemoveGlobal"), name)


def list_global_func_names() -> list[str]:
    """The names of all global functions, sorted."""
    # The list is copied when the functor is made: nothing changes in between.
    functor = call_with_gil(builtin("ffi.FunctionListGlobalNamesFunctor"))
    return sorted(functor(i) for i in range(functor(-1)))
