"""Conversion of a Tensor to an array of the library that the caller names.

If the library would write into read-only memory, crash, or change values
without an error, the tensor is copied first or refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.libraries.descriptions import KNOWN, find_library
from dlbridge.core.moves.host_views import shared_on_host
from dlbridge.core.moves.transfer import copy_of
from dlbridge.core.tensor.metadata import has_negative_strides
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.core.values.layout import is_compact
from dlbridge.errors import Error, ExchangeError

if TYPE_CHECKING:
    from dlbridge.core.libraries.descriptions import Library
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.devices import Device

__all__ = ["as_library", "library_step"]


def as_library(tensor: Tensor, like: object, copy: bool | None) -> Any:
    """*tensor* as an array of the library *like*, over the same memory where that is safe.

    *like*: ``"torch"``, ``"numpy"``, ``"jax"``, ``"tvm_ffi"``, ``"cupy"``,
    ``"dlbridge"``, the name of any module with ``from_dlpack`` (or
    ``dlpack.from_dlpack``), such a module, or an array or array type of the
    library. *copy* False forbids the copy that a library may need; True was
    done by the caller, so here it is the same as None.

    ExchangeError if the library cannot have the tensor, chained to the error of
    the library; TypeError or ModuleNotFoundError if *like* is not a library.
    """
    library, convert = find_library(like)
    needs_copy, _ = _step(library, tensor, tensor.device, copy, fresh=False)
    given: Any = tensor
    if tensor.device.is_host and tensor.device.type not in library.host_types:
        given = shared_on_host(tensor)
    if needs_copy:
        given = copy_of(given)
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
    """Whether `as_library` with the same arguments would copy *tensor*, and the reason.

    Where a move comes first, *device* is its target, and *fresh* says that it ends
    with a new compact copy. Raises the errors of `as_library`, except those that
    the library itself raises.
    """
    library, _ = find_library(like)
    return _step(library, tensor, device or tensor.device, copy, fresh=fresh)


def _step(
    library: Library, tensor: Tensor, device: Device, copy: bool | None, *, fresh: bool
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
        return (
            False,
            f"{library.name} takes {device} memory as plain host memory",
        )
    return False, f"{library.name} takes the memory as it is"


def _why_copy(library: Library, tensor: Tensor) -> str:
    name = library.name
    if tensor.readonly and not library.keeps_readonly:
        known = "ignores" if name in KNOWN else "may ignore"
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
    """Raise ExchangeError for 64-bit types, which jax without x64 changes to 32 bits."""
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


def _way_out(library: Library, tensor: Tensor) -> str:
    if not tensor.device.is_host:
        return f"dlbridge.to_device(t, 'cpu', like={library.name!r}) brings it to the CPU first"
    if tensor.dtype.is_subbyte:
        return "dlbridge.unpack_bits(t.tobytes(), t.dtype, t.size) gives the raw codes"
    return (
        "if it is the type of the elements, t.view() can call them something of the same size, "
        "and like='numpy' knows more types"
    )


def _verify(library: Library, tensor: Tensor, result: Any) -> None:
    """Raise ExchangeError if *result* has other elements than *tensor*."""
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
