"""Conversion of a Tensor to an array of the library that the caller names.

If the library would write into read-only memory, crash, or change values
without an error, the tensor is copied first or refused.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.implementation_details.handlers import unless_handler
from dlbridge.core.interfaces.native import check_whole_elements
from dlbridge.core.libraries.library import is_array_of, origin_of
from dlbridge.core.libraries.lookup import check_own_device, find_library, is_known_library
from dlbridge.core.moves.transfer import move, part_of_a_step
from dlbridge.core.plugins.registry import LOADED, backends
from dlbridge.core.tensor.array_tensor import ArrayTensor
from dlbridge.core.tensor.metadata import LOST_WRITES, describe, has_negative_strides, numpy_type
from dlbridge.core.tensor.operand import operand_of, require_compact
from dlbridge.core.values.devices import CPU, Device
from dlbridge.core.values.dtypes import DType, dtype as as_dtype
from dlbridge.core.values.text import with_article
from dlbridge.errors import Error, ExchangeError
from dlbridge.extending import recorded
from dlbridge.interop.descriptions import SMALL, to_native as native_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.libraries.library import Library
    from dlbridge.core.tensor.tensor import Tensor


def as_library(tensor: Tensor, like: object, copy: bool | None, *, in_pairs: bool = False) -> Any:
    """*tensor* as an array of the library *like*, over the same memory where that is safe.

    *copy* False forbids the copy that a library may need; True was done by the caller, so
    here it is the same as None. *in_pairs*: packed elements may become pairs of them, where the
    library has only those (torch's float4), so that the last extent is half of what it was.

    ExchangeError if the library cannot have the tensor, chained to the error of
    the library; TypeError or ModuleNotFoundError if *like* is not a library.
    """
    conversion = Conversion(like, tensor.device)
    result = conversion.at_once(tensor)
    if result is not None:
        return result
    if in_pairs:
        types, pair = conversion.library.types or (), f"{tensor.dtype}x2"
        if tensor.dtype.name not in types and pair in types and not tensor.is_padded:
            tensor = tensor.view(pair)
    copied, reason = conversion.decide(tensor, copy)
    if not copied:
        return conversion.run(tensor, copied, move)
    with recorded(reason, tensor, kind="as library"):
        return conversion.run(tensor, copied)


class Conversion:
    """What ``like=`` asks for: tensors on one device become arrays of one library.

    *like* is ``"torch"``, ``"numpy"``, ``"jax"``, ``"tvm_ffi"``, ``"cupy"``, ``"dlbridge"``,
    the name of a loaded backend (an object of its ecosystem, as `Tensor.to_native` gives),
    the name of any module with ``from_dlpack`` (or ``dlpack.from_dlpack``), such a module, or
    an array or array type of the library.
    """

    __slots__ = ("convert", "device", "library", "like", "module", "of_numpy")

    library: Library
    convert: Callable[[Tensor], Any]
    of_numpy: Callable[[Any], Any] | None
    """The array on the memory of a numpy array, or None if it must be *convert* that makes it."""

    def __init__(self, like: object, device: Device) -> None:
        self.like, self.device = like, device
        if _is_backend(like, device):
            self.library, self.convert = _library_of_backend(str(like)), native_object
        else:
            self.library, self.convert = find_library(like)
            if device.name.startswith(f"{self.library.name}-") and self.library.make is None:
                self.convert = native_object  # the library's own arrays, by its own family
        of_numpy = self.library.of_numpy
        self.of_numpy = None if of_numpy is None else of_numpy()
        self.module = sys.modules.get(self.library.name)

    def renewed(self) -> Conversion:
        """Itself, or another one where a test or a reload has given the library another module."""
        if sys.modules.get(self.library.name) is self.module:
            return self
        return Conversion(self.like, self.device)

    @property
    def is_lasting(self) -> bool:
        """Whether the next ``like=`` that is a text or module equal to this one means the same."""
        name = self.like if isinstance(self.like, str) else getattr(self.like, "__name__", "")
        return self.convert is native_object or is_known_library(name)

    @property
    def name(self) -> str:
        """The name of the library."""
        return self.library.name

    def decide(self, tensor: Tensor, copy: bool | None, fresh: bool = False) -> tuple[bool, str]:
        """Whether *tensor*, once on the device, is copied for the library; and the reason.

        *fresh*: it comes there by a copy, which is new and compact. Raises the errors of
        `as_library`, except those that the library itself raises.
        """
        library, device, name = self.library, self.device, self.library.name
        copies = _always_copies(library, tensor)
        if tensor.is_padded and not (library.takes_padding or copies) and tensor.dtype.is_subbyte:
            raise ExchangeError(
                f"{name} does not know padded {tensor.dtype} elements, one per byte; "
                "like='numpy' gives them as an array of ml_dtypes"
            )
        relabelled = device.is_host and device.type not in library.host_types
        there = CPU if relabelled else device
        if not _can_be_on(library, there):
            raise ExchangeError(f"{name} has no arrays on {device}; {_way_to(library)}")
        if self.convert is native_object:
            check_whole_elements(tensor)
        _check_type(library, tensor)
        asked = None if library.check is None else library.check(tensor, there)
        reason = "" if not tensor.size else _why_copy(library, tensor, asked, fresh=fresh)
        if reason and copy is False:
            raise ExchangeError(
                f"{name} needs a copy, which copy=False forbids: {reason}; pass copy=None"
            )
        if reason:
            if not library.copies and tensor.dtype.is_subbyte and not tensor.is_padded:
                require_compact(operand_of(tensor))
            return True, reason
        made = library.arrays[0] if library.arrays else f"an array of {name}"
        why = f": {device} memory is plain host memory to it" if relabelled else ""
        return False, f"wrap as {made} (no copy){why}"

    def at_once(self, tensor: Tensor) -> Any:
        """*tensor*, which is on the device, as an array, or None where `decide` must be asked."""
        if self.of_numpy is None or type(tensor) is not ArrayTensor:
            return None
        return self.of_numpy(tensor.numpy())

    def run(
        self,
        tensor: Tensor,
        needs_copy: bool,
        move: Callable[[Tensor, Device, bool | None], Tensor] = part_of_a_step,
    ) -> Any:
        """*tensor*, which is on the device, as an array; *needs_copy* is what `decide` said."""
        library, source = self.library, tensor
        if tensor.device.is_host and tensor.device.type not in library.host_types:
            source = move(source, CPU, None)
        if needs_copy and not _always_copies(library, tensor):
            source = move(source, source.device, True)
        try:
            result = self.at_once(source)
            if result is not None:
                return result
            result = self.convert(source)
        except (Error, MemoryError):
            raise
        except unless_handler(Exception) as exc:
            raise ExchangeError(
                f"{library.name} refuses {describe(tensor)}: {exc}; {_way_out(library, tensor)}"
            ) from exc
        if not library.keeps_types:
            _verify(library, tensor, result)
        return result


def _is_backend(like: object, device: Device) -> bool:
    """Whether *like* names the backend of *device*; ExchangeError for another backend's name."""
    if not isinstance(like, str) or is_known_library(like):
        return False
    if like != device.name and like not in LOADED:
        return False
    check_own_device(like, like, device)
    return True


def _library_of_backend(name: str) -> Library:
    """The library whose arrays are the native objects of the backend *name*."""
    for library in SMALL.values():
        if library.backend == name and library.make is native_object:
            return library
    return SMALL["dlbridge"]._replace(name=name, arrays=(f"an object of {name}'s own",))


def _check_type(library: Library, tensor: Tensor) -> None:
    """ExchangeError for elements that the library cannot have, with the way to some that it has."""
    dtype = tensor.dtype
    if library.takes == "numpy":
        numpy_type(tensor)
    if library.types is None or dtype.name in library.types:
        return
    lane = DType.of(dtype.code, dtype.bits, 1)
    numbers = "dlbridge.astype(t, 'float32') gives the numbers, and "
    if f"{dtype}x2" in library.types:
        way = f"t.view('{dtype}x2') is its type, which has two of them in an element"
    elif lane.name in library.types:
        way = f"t.view('{lane}') has each of the {dtype.lanes} numbers as an element"
    elif dtype.is_subbyte:
        way = f"{numbers}dlbridge.unpack_bits(t.tobytes(), t.dtype, t.size) the raw codes"
    elif dtype.name == "handle":
        way = "t.view('uint64') has the same bytes as numbers"
    elif dtype.lanes != 1 or dtype.name.startswith("complex"):
        way = "t.view('float32'), for example, has the same bytes as numbers that it has"
    else:
        way = f"{numbers}t.view('uint8') the bytes"
    raise ExchangeError(f"{library.name} has no elements of {dtype}; {way}")


def _can_be_on(library: Library, device: Device) -> bool:
    types = library.device_types
    return types is None or device.type in types or device.name.startswith(f"{library.name}-")


def _way_to(library: Library) -> str:
    """How to bring a tensor to a device that the library can have arrays on."""
    types = library.device_types or {CPU.type}
    name = "cpu" if CPU.type in types else str(Device.of(min(types), 0))
    if name.partition(":")[0] in backends():
        return (
            f"dlbridge.to_device(t, {name!r}, like={library.name!r}) moves the tensor to its memory"
        )
    return (
        f"it has them on {name.partition(':')[0]} only, for which no backend is installed: make "
        f"one of a numpy array, with {library.name}'s own functions "
        "(dlbridge.to_device(t, 'cpu', like='numpy'))"
    )


def _why_copy(library: Library, tensor: Tensor, asked: object, *, fresh: bool) -> str:
    """Why *library* gets a copy; a *fresh* one of ours has every property that it can need.

    *asked* is what its check has returned: the reason, if it is a text.
    """
    name = library.name
    if library.copies:
        return f"{name} always copies"
    if _always_copies(library, tensor):
        return f"{name} always copies {tensor.dtype}"
    if fresh:
        return ""
    if tensor.readonly and not library.keeps_readonly:
        known = "ignores" if is_known_library(name) else "may ignore"
        return f"the memory is read-only, which {name} {known}"
    if has_negative_strides(tensor) and not library.takes_negative_strides:
        return f"{name} takes no negative strides {tensor.strides}: {LOST_WRITES}"
    if library.compact_only and not _is_compact(library, tensor):
        order = ", in any order of axes" if library.any_order else ""
        return f"{name} takes compact memory only{order}, not {tensor.strides}"
    if library.alignment > 1 and tensor.device.is_host and tensor.data_ptr() % library.alignment:
        return f"{name} takes memory that is aligned to {library.alignment} bytes"
    return asked if isinstance(asked, str) else ""


def _always_copies(library: Library, tensor: Tensor) -> bool:
    return library.copies or tensor.dtype.name in library.copied_types


def _is_compact(library: Library, tensor: Tensor) -> bool:
    if not library.any_order:
        return tensor.is_contiguous()
    shape, strides = tensor.shape, tensor.strides
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis]))
    return tensor.transpose(*order).is_contiguous()


def _way_out(library: Library, tensor: Tensor) -> str:
    if not tensor.device.is_host and _can_be_on(library, CPU):
        return f"dlbridge.to_device(t, 'cpu', like={library.name!r}) brings it to the CPU first"
    if tensor.dtype.is_subbyte:
        return "dlbridge.unpack_bits(t.tobytes(), t.dtype, t.size) gives the raw codes"
    return (
        "if it is the type of the elements, t.view('uint8') has the same bytes, and like='numpy' "
        "knows more types"
    )


def _verify(library: Library, tensor: Tensor, result: Any) -> None:
    """Raise ExchangeError if *result* is no array of *library*, or has other elements."""
    if library.arrays and not is_array_of(library, type(result)):
        raise ExchangeError(
            f"{library.name} made {with_article(origin_of(result))} of {describe(tensor)}, "
            f"which is not an array of {library.name}; name the library of that array in like="
        )
    try:
        found = _dtype_of(result)
        shape = tuple(result.shape)
    except (AttributeError, TypeError, ValueError, Error):
        return  # no array, or a type that only the library itself has a name for
    if found is not tensor.dtype or shape != tensor.shape:
        raise ExchangeError(
            f"{library.name} made {found} {shape} of {tensor.dtype} {tensor.shape}; convert the "
            "elements to a type that it has beforehand"
        )


def _dtype_of(result: Any) -> DType:
    """The dtype of a library's array, by its name where it is an object that we do not know."""
    theirs = result.dtype
    try:
        return as_dtype(theirs)
    except (TypeError, Error):
        # mlx.core.float32, paddle.float32, tensorflow's with a name, warp's classes
        name = getattr(theirs, "name", None) or getattr(theirs, "__name__", None) or str(theirs)
        return as_dtype(name.rpartition(".")[2])
