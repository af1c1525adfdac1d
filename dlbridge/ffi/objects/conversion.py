"""Conversion without a call, and a library's functions as a module."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.public import public_in

from ..calls.registry import get_global_func, list_global_func_names
from ..values.words import Temporaries, pack, view

if TYPE_CHECKING:
    from ..values.words import Packer

__all__ = ["ObjectConvertible", "convert", "convertible_rule", "init_ffi_api"]


class ObjectConvertible:
    """Base of classes whose instances are passed as something else: what `asobject` returns.

    Examples
    --------
    >>> class Pair(ffi.ObjectConvertible):
    ...     def asobject(self):
    ...         return [1, 2]
    >>> ffi.convert(Pair())
    (1, 2)
    """

    __module__ = "dlbridge.ffi"  # where users and pickles find it

    def asobject(self) -> Any:  # anybody's: what the subclass stands for
        """The value to pass instead of this one; a subclass must define it.

        Returns
        -------
        object
            Any value that can be an argument.

        Examples
        --------
        >>> class Name(ffi.ObjectConvertible):
        ...     def asobject(self):
        ...         return "name"
        >>> ffi.convert([Name()])
        ("name",)
        """
        raise NotImplementedError


@public_in("dlbridge.ffi")
def convert(value: Any) -> Any:  # anybody's: the value itself where nothing changes
    """*value* as it arrives on the other side.

    A list or tuple as an Array, a dict as a Map, a function as a Function, an
    array as a Tensor on the same memory; a value that has no other form as itself.

    Parameters
    ----------
    value : object
        Any value.

    Returns
    -------
    object
        What a callee would get.

    Examples
    --------
    >>> ffi.convert([1, "two", None])
    (1, "two", None)
    >>> ffi.convert(np.ones(3)).shape
    (3,)
    """
    keep = Temporaries()  # what is packed lives until it has been read again
    keep.reading = True  # no function is called, and a Tensor remembers that it is read-only
    return view(*pack(value, keep))


@public_in("dlbridge.ffi")
def init_ffi_api(namespace: str, target_module_name: str | None = None) -> None:
    """Put the global functions ``namespace.name`` into a module, each as ``name``.

    Parameters
    ----------
    namespace : str
        The beginning of the functions' names, without the dot.
    target_module_name : str, optional
        The module's name in `sys.modules`; *namespace* by default.

    Raises
    ------
    KeyError
        If there is no such module.

    Examples
    --------
    >>> import sys, types
    >>> sys.modules["docs_api"] = types.ModuleType("docs_api")
    >>> ffi.init_ffi_api("ffi", "docs_api")
    >>> sys.modules["docs_api"].Array(1)
    (1,)
    """
    if not isinstance(namespace, str):
        raise TypeError(f"a namespace is a str such as 'my_library', not {namespace!r}")
    target = target_module_name or namespace
    module = sys.modules.get(target)
    if module is None:
        raise KeyError(f"there is no module {target!r} in sys.modules: import it before")
    prefix = namespace.removeprefix("tvm.") + "."
    for full in list_global_func_names():
        name = full.removeprefix(prefix)
        if name != full and "." not in name:
            setattr(module, name, get_global_func(full))


def _pack_convertible(value: ObjectConvertible, keep: Temporaries) -> tuple[int, int]:
    found = value.asobject()
    keep.append(found)  # there may be no other reference
    return pack(found, keep)


def convertible_rule(cls: type) -> Packer | None:
    """Subclasses of `ObjectConvertible` say themselves what they are passed as."""
    return _pack_convertible if issubclass(cls, ObjectConvertible) else None
