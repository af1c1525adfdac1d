"""A Tensor out again, as the library that the caller names.

What each library makes of a DLPack tensor was measured (``tests/core/outgoing/test_like.py``
shows every rule); where it would write into read-only memory, crash, or
silently give other values, the tensor is copied first or refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

from dlbridge.core.tensor.tensor import Tensor, make_tensor
from dlbridge.core.values.devices import Device, DLDeviceType
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.core.values.layout import is_compact
from dlbridge.errors import Error, ExchangeError

from .producer import OPERATIONS, has_negative_strides

__all__ = ["as_library", "library_step"]

_CPU = DLDeviceType.kDLCPU


class _Library(NamedTuple):
    """What a library does with the tensors it is given. The defaults trust it least."""

    name: str
    keeps_readonly: bool = False
    """Whether memory marked READ_ONLY stays unwritten in its hands."""
    takes_negative_strides: bool = False
    takes_padding: bool = False
    """Whether it knows padded sub-byte elements (IS_SUBBYTE_TYPE_PADDED)."""
    keeps_types: bool = False
    """Whether it refuses the types that it has not, instead of giving others."""
    compact_only: bool = False
    alignment: int = 1
    """Bytes. Other memory it copies by itself."""
    host_types: frozenset[int] = frozenset({_CPU})
    """DLDeviceTypes of host memory that it takes; others are called kDLCPU for it."""


_ALL_HOST = frozenset(
    {
        _CPU,
        DLDeviceType.kDLCUDAHost,
        DLDeviceType.kDLCUDAManaged,
        DLDeviceType.kDLROCMHost,
    }
)

_KNOWN = {
    library.name: library
    for library in (
        _Library(
            "dlbridge",
            keeps_readonly=True,
            takes_negative_strides=True,
            takes_padding=True,
            keeps_types=True,
            host_types=_ALL_HOST,
        ),
        _Library(
            "numpy",
            keeps_readonly=True,
            takes_negative_strides=True,
            takes_padding=True,
            keeps_types=True,
        ),
        # torch 2.13 aborts the process on negative strides.
        _Library("torch", keeps_types=True),
        # jax never writes into memory that it was given, donated or not.
        _Library("jax", keeps_readonly=True, compact_only=True, alignment=64),
        _Library("tvm_ffi", keeps_types=True, host_types=_ALL_HOST),
        # Not run: cupy needs a GPU. Its from_dlpack says that it ignores READ_ONLY.
        _Library("cupy", host_types=_ALL_HOST),
    )
}


def as_library(tensor: Tensor, like: object, copy: bool | None) -> Any:
    """*tensor* as an array of the library *like*, over the same memory where that is safe.

    *like*: ``"torch"``, ``"numpy"``, ``"jax"``, ``"tvm_ffi"``, ``"cupy"``,
    ``"dlbridge"``, the name of any module with ``from_dlpack`` (or
    ``dlpack.from_dlpack``), such a module, or an array or array type of the
    library. *copy* False forbids the copy that a library may need; True was
    the caller's to fulfil, so it allows one like None.

    ExchangeError where the library cannot have the tensor, chained to what it
    said; TypeError or ModuleNotFoundError for a *like* that is no library.
    """
    library, convert = _find(like)
    needs_copy, _ = _step(library, tensor, tensor.device, copy, fresh=False)
    given = tensor
    if tensor.device.is_host and tensor.device.type not in library.host_types:
        given = OPERATIONS["as_host"](tensor)
    if needs_copy:
        given = OPERATIONS["copy"](given)
    try:
        result = convert(given)
    except (Error, MemoryError):
        raise
    except Exception as exc:
        raise ExchangeError(
            f"{library.name} refuses {tensor!r}: {exc}; {_way_out(library, tensor)}"
        ) from exc
    if not library.keeps_types:
        _verify(library, tensor, result)
    return result


def library_step(
    tensor: Tensor,
    like: object,
    copy: bool | None,
    *,
    device: Device | None = None,
    fresh: bool = False,
) -> tuple[bool, str]:
    """Whether `as_library` with the same arguments would copy *tensor*, and why or why not.

    Where a move comes first, *device* is where it leads, and *fresh* says
    that it ends with a new compact copy. Raises what `as_library` would,
    except for what only the library itself finds out.
    """
    library, _ = _find(like)
    return _step(library, tensor, device or tensor.device, copy, fresh=fresh)


# Which library ------------------------------------------------------------------


def _find(like: object) -> tuple[_Library, Callable[[Tensor], Any]]:
    """The library that *like* means, and what makes its array of a Tensor."""
    return _find_by_name(like) if isinstance(like, str) else _search(like)


def _search(like: object) -> tuple[_Library, Callable[[Tensor], Any]]:
    module = like if isinstance(like, ModuleType) else _import(like)
    if module.__name__ in _CONVERTERS:
        return _KNOWN[module.__name__], _CONVERTERS[module.__name__]
    function = _from_dlpack_of(module)
    # jax.numpy and array_api_compat.torch are jax and torch.
    name = _package(getattr(function, "__module__", None) or module.__name__)
    if name in _CONVERTERS:
        return _KNOWN[name], _CONVERTERS[name]
    return _KNOWN.get(name, _Library(module.__name__)), function


_find_by_name = lru_cache(maxsize=32)(_search)  # a search takes as long as torch's import


def _import(like: object) -> ModuleType:
    """The module that a name, an array or an array type belongs to."""
    if isinstance(like, str):
        name = like
    else:
        cls = like if isinstance(like, type) else type(like)
        name = _package(cls.__module__)
        if not (hasattr(cls, "__dlpack__") or (cls is like and name in _KNOWN)):
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
            f"is installed ({', '.join(_KNOWN)} are known)",
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


# What it needs --------------------------------------------------------------------


def _step(
    library: _Library, tensor: Tensor, device: Device, copy: bool | None, *, fresh: bool
) -> tuple[bool, str]:
    """See `library_step`."""
    if tensor.is_padded and not library.takes_padding and tensor.dtype.is_subbyte:
        raise ExchangeError(
            f"{library.name} does not know padded {tensor.dtype} elements, one per byte; "
            "like='numpy' gives them as an array of ml_dtypes"
        )
    if library.name == "numpy" and not device.is_host:
        raise ExchangeError(
            f"numpy has arrays in host memory only, and the tensor is on {device}; "
            "dlbridge.to_device(t, 'cpu', like='numpy') copies it"
        )
    if library.name == "jax":
        _refuse_narrowing(tensor)
    reason = "" if fresh or not tensor.size else _why_copy(library, tensor)
    if reason and copy is False:
        raise ExchangeError(
            f"{library.name} needs a copy, which copy=False forbids: {reason}; pass copy=None"
        )
    if reason:
        return True, reason
    if device.is_host and device.type not in library.host_types:
        return False, f"{library.name} takes {device} memory as what it is to the CPU, host memory"
    return False, f"{library.name} takes the memory as it is"


def _why_copy(library: _Library, tensor: Tensor) -> str:
    name = library.name
    if tensor.readonly and not library.keeps_readonly:
        known = "ignores" if name in _KNOWN else "may ignore"
        return f"the memory is read-only, which {name} {known}"
    if has_negative_strides(tensor) and not library.takes_negative_strides:
        return f"{name} takes no negative strides {tensor.strides}"
    if library.compact_only and not _is_permuted_compact(tensor.shape, tensor.strides):
        return f"{name} takes compact memory only, in any order of axes, not {tensor.strides}"
    if library.alignment > 1 and tensor.device.is_host and tensor.data_ptr() % library.alignment:
        return f"{name} takes memory that is aligned to {library.alignment} bytes"
    return ""


def _is_permuted_compact(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis]))
    return is_compact([shape[axis] for axis in order], [strides[axis] for axis in order])


def _refuse_narrowing(tensor: Tensor) -> None:
    """ExchangeError for 64-bit types, which jax without x64 silently makes 32-bit ones."""
    if tensor.dtype.name not in {"float64", "int64", "uint64", "complex128"}:
        return
    import jax

    narrow = as_dtype(jax.dtypes.canonicalize_dtype(tensor.dtype.numpy))
    if narrow is not tensor.dtype:
        raise ExchangeError(
            f"jax would turn {tensor.dtype} into {narrow}: call "
            "jax.config.update('jax_enable_x64', True) at the start, or convert the elements "
            "yourself beforehand"
        )


# Giving it ------------------------------------------------------------------------


def _to_jax(tensor: Tensor) -> Any:
    import jax.dlpack

    if tensor.readonly:
        # jax asks for legacy capsules, which cannot carry READ_ONLY. Its own
        # arrays are immutable, so it is given the memory without that mark.
        tensor = make_tensor(
            tensor._memory, tensor._byte_offset, tensor.dtype, tensor.shape, tensor.strides
        )
    return jax.dlpack.from_dlpack(tensor)


_CONVERTERS: dict[str, Callable[[Tensor], Any]] = {
    "dlbridge": lambda tensor: tensor,
    "numpy": lambda tensor: tensor.numpy(),
    "jax": _to_jax,
}
"""Ways that are better than the library's ``from_dlpack``."""


def _way_out(library: _Library, tensor: Tensor) -> str:
    if not tensor.device.is_host:
        return f"dlbridge.to_device(t, 'cpu', like={library.name!r}) brings it to the CPU first"
    if tensor.dtype.is_subbyte:
        return "dlbridge.unpack_bits(t.tobytes(), t.dtype, t.size) gives the raw codes"
    return (
        "if it is the type of the elements, t.view() can call them something of the same size, "
        "and like='numpy' knows more types"
    )


def _verify(library: _Library, tensor: Tensor, result: Any) -> None:
    """ExchangeError if *result* has other elements than *tensor*."""
    try:
        found = as_dtype(result.dtype)
        shape = tuple(result.shape)
    except (AttributeError, TypeError, ValueError, Error):
        return  # no array, or a type that only the library itself has a name for
    if found is not tensor.dtype or shape != tensor.shape:
        raise ExchangeError(
            f"{library.name} made {found} {shape} of {tensor.dtype} {tensor.shape}; convert the "
            "elements to a type that it has beforehand"
        )
