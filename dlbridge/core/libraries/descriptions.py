"""The description of each library that ``like=`` can name, and how a library is found.

How each library treats a DLPack tensor was measured
(``tests/core/outgoing/test_like.py`` shows every rule).
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.core.tensor.tensor import Tensor, writable
from dlbridge.core.values.devices import DLDeviceType

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KNOWN", "Library", "find_library"]

_CPU = DLDeviceType.kDLCPU


class Library(NamedTuple):
    """The rules for tensors that are given to a library. The defaults are the safest."""

    name: str
    keeps_readonly: bool = False
    """Whether it never writes to memory that is marked READ_ONLY."""
    takes_negative_strides: bool = False
    takes_padding: bool = False
    """Whether it understands padded sub-byte elements (IS_SUBBYTE_TYPE_PADDED)."""
    keeps_types: bool = False
    """Whether it refuses the types that it does not have, instead of changing them."""
    compact_only: bool = False
    alignment: int = 1
    """Bytes. The library copies memory of lower alignment."""
    host_types: frozenset[int] = frozenset({_CPU})
    """DLDeviceTypes of host memory that it accepts; others are exported as kDLCPU."""


_ALL_HOST = frozenset(
    {
        _CPU,
        DLDeviceType.kDLCUDAHost,
        DLDeviceType.kDLCUDAManaged,
        DLDeviceType.kDLROCMHost,
    }
)

KNOWN = {
    library.name: library
    for library in (
        Library(
            "dlbridge",
            keeps_readonly=True,
            takes_negative_strides=True,
            takes_padding=True,
            keeps_types=True,
            host_types=_ALL_HOST,
        ),
        Library(
            "numpy",
            keeps_readonly=True,
            takes_negative_strides=True,
            takes_padding=True,
            keeps_types=True,
        ),
        # torch 2.13 aborts the process on negative strides.
        Library("torch", keeps_types=True),
        # jax never writes into memory that it was given, donated or not.
        Library("jax", keeps_readonly=True, compact_only=True, alignment=64),
        Library("tvm_ffi", keeps_types=True, host_types=_ALL_HOST),
        # Not run: cupy needs a GPU. Its from_dlpack says that it ignores READ_ONLY.
        Library("cupy", host_types=_ALL_HOST),
    )
}


def _to_jax(tensor: Tensor) -> Any:
    import jax.dlpack

    if tensor.readonly:
        # jax asks for legacy capsules, which cannot carry READ_ONLY. Its own
        # arrays are immutable, so it is given the memory without that mark.
        tensor = writable(tensor)
    return jax.dlpack.from_dlpack(tensor)


_CONVERTERS: dict[str, Callable[[Tensor], Any]] = {
    "dlbridge": lambda tensor: tensor,
    "numpy": lambda tensor: tensor.numpy(),
    "jax": _to_jax,
}
"""Conversions that are better than the library's ``from_dlpack``."""


def find_library(like: object) -> tuple[Library, Callable[[Tensor], Any]]:
    """The library that *like* names, and the function that makes its array of a Tensor."""
    return _find_by_name(like) if isinstance(like, str) else _search(like)


def _search(like: object) -> tuple[Library, Callable[[Tensor], Any]]:
    module = like if isinstance(like, ModuleType) else _import(like)
    if module.__name__ in _CONVERTERS:
        return KNOWN[module.__name__], _CONVERTERS[module.__name__]
    function = _from_dlpack_of(module)
    # jax.numpy and array_api_compat.torch are jax and torch.
    name = _package(getattr(function, "__module__", None) or module.__name__)
    if name in _CONVERTERS:
        return KNOWN[name], _CONVERTERS[name]
    return KNOWN.get(name, Library(module.__name__)), function


_find_by_name = lru_cache(maxsize=32)(_search)  # a search takes as long as torch's import


def _import(like: object) -> ModuleType:
    """The module that a name, an array or an array type belongs to."""
    if isinstance(like, str):
        name = like
    else:
        cls = like if isinstance(like, type) else type(like)
        name = _package(cls.__module__)
        if not (hasattr(cls, "__dlpack__") or (cls is like and name in KNOWN)):
            name = ""  # jax.Array is abstract: it has no methods
    if not all(part.isidentifier() for part in name.split(".")):
        raise TypeError(
            f"like={like!r} is neither a library's name, nor a module with from_dlpack, nor an "
            "array or array type"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise  # something that the module itself misses
        raise ModuleNotFoundError(
            f"like={like!r}: there is no module {name!r} here; install it, or name a library that "
            f"is installed ({', '.join(KNOWN)} are known)",
            name=exc.name,
        ) from exc


def _package(module: str) -> str:
    name = module.partition(".")[0]
    return "jax" if name == "jaxlib" else name


def _from_dlpack_of(module: ModuleType) -> Any:
    function = getattr(module, "from_dlpack", None)
    if function is None:
        try:
            inner = importlib.import_module(f"{module.__name__}.dlpack")
        except ModuleNotFoundError:
            inner = None
        function = getattr(inner, "from_dlpack", None)
    if function is None:
        raise TypeError(
            f"the module {module.__name__!r} has neither from_dlpack nor dlpack.from_dlpack, so "
            "it makes no arrays of tensors; like='numpy' gives an array that most libraries take"
        )
    return function
