"""Capsules and structs of our tensors, and the arguments by which consumers ask for them.

Two rules keep a script alive here (measured; ``docs/safety.md``):

* Functions that a consumer may call late are C code. numpy makes the capsule of
  a private array, so shape, strides and memory are freed by numpy's functions:
  they take the GIL, keep a pending exception, and return at once when Python
  has ended. Where the struct must say more than numpy can, it is a copy of
  ours, whose deleter calls a method of a set and nothing else.
* A capsule keeps the *pointer* to its name, so names are immortal C memory.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from dlbridge.core._cdefs import ffi
from dlbridge.core.implementation_details.ends import at_exit
from dlbridge.core.implementation_details.python_api import (
    HARMLESS,
    address_in,
    immortal,
    undisguised,
)
from dlbridge.core.public import for_guests
from dlbridge.core.values.devices import plain_number
from dlbridge.errors import ExchangeError

from .capsules import (
    CURRENT,
    LEGACY,
    LEGACY_POINTER,
    USED_CURRENT,
    VERSIONED_POINTER,
    get_destructor,
    get_pointer,
    new_capsule,
    set_name,
)
from .structs import DLPACK_VERSION, FLAG_SUBBYTE_PADDED, HEADER, TENSOR

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.values.dtypes import DType


# Parts of DLManagedTensorVersioned and DLTensor (dlpack.h 1.3), and where they begin.
_LEGACY_END = struct.Struct("=QQ")  # manager_ctx, deleter
_PLACE = struct.Struct("=Qii")  # data, device
_DTYPE = struct.Struct("=BBH")
_UINT64 = struct.Struct("=Q")
_FLAGS_AT = 24
_ADDRESS = ffi.typeof("uintptr_t")
_TENSOR_AT = HEADER.size  # of dl_tensor in DLManagedTensorVersioned; 0 in DLManagedTensor
_DTYPE_AT, _STRIDES_AT, _BYTE_OFFSET_AT = 20, 32, 40  # from dl_tensor


def export_capsule(
    array: np.ndarray[Any, Any], max_version: tuple[int, int] | None, image: Image | None
) -> object:
    """A new capsule over *array*, with the fields of *image* in its struct.

    *max_version* as in the standard: None or below (1, 0) gives the legacy
    struct. ExchangeError for a read-only array in a legacy capsule.
    """
    capsule = export_array(array, max_version=max_version)
    if image is None:
        return capsule
    versioned = max_version is not None and max_version >= (1, 0)  # numpy's rule
    if not versioned and image.flags & FLAG_SUBBYTE_PADDED:
        raise ExchangeError(
            "a padded sub-byte tensor does not fit a legacy capsule, which has no flags; "
            "the consumer must ask with max_version=(1, 0) or later"
        )
    return _lend(capsule, image, versioned)


def export_array(
    array: np.ndarray[Any, Any], *, max_version: object = None, **keywords: Any
) -> object:
    """Numpy's own ``__dlpack__`` of *array*; its refusal of a read-only one names the way out."""
    try:
        return array.__dlpack__(max_version=max_version, **keywords)  # type: ignore[arg-type]  # numpy checks it
    except BufferError as exc:
        if array.flags.writeable or "readonly" not in str(exc):
            raise
        raise ExchangeError(
            "the tensor is read-only, which a legacy capsule cannot say, and the consumer asked "
            "for one (without max_version); name its library, as in dlbridge.to_device(t, 'cpu', "
            "like='jax') or like='warp', which gives its array and keeps this memory unwritten; "
            "or copy the tensor"
        ) from exc


class OwnExport:
    """A new struct over *array*, whose owner is numpy's capsule, so that C alone frees it.

    `managed_address` is that of the ``DLManagedTensorVersioned``.
    """

    __slots__ = ("_capsule", "managed_address")

    def __init__(self, array: np.ndarray[Any, Any], image: Image | None) -> None:
        self._capsule = array.__dlpack__(max_version=DLPACK_VERSION)
        self.managed_address = address_in(self._capsule)  # numpy has made it so
        if image is not None:
            image.describe(ffi.buffer(self.pointer))

    @property
    def pointer(self) -> Any:
        """The struct, as a cffi pointer."""
        return ffi.cast(VERSIONED_POINTER, self.managed_address)

    def release(self) -> int:
        """Give the struct to the caller: its address."""
        try:
            set_name(self._capsule, USED_CURRENT)
        except ctypes.ArgumentError as exc:
            raise undisguised(exc) from None
        return self.managed_address


# Structs whose deleter may be called twice --------------------------------------


class _Loan(int):
    """The address of a struct in a capsule of ours, with numpy's capsule that owns the memory."""

    capsule: object
    struct: Any


_loans: set[int] = immortal(set())
"""The loans whose deleter has not been called. An int finds the loan of its value."""

_recent: deque[Any] = deque(maxlen=4096)
"""The latest structs, kept after their deletion.

torch (2.13) calls the deleter of a tensor that it refuses, and leaves the
capsule its name, so that the capsule's destructor calls the deleter again: it
must find the struct, and a deleter that does nothing the second time.
"""

# It calls C directly: no signal handler can interrupt it, and a pending exception
# of the consumer is kept.
_discard = immortal(ffi.callback("void(intptr_t)", _loans.discard))


class _Kind:
    """A generation of structs: its type, its capsules' name, and the functions of its structs."""

    __slots__ = ("deleter", "destructor", "name", "type")

    def __init__(self, type: Any, name: ctypes.c_void_p) -> None:
        self.type = type
        self.name = name
        self.destructor = 0  # numpy's, taken from the first capsule
        self.deleter = int(ffi.cast("uintptr_t", _discard))


_kinds = {True: _Kind(VERSIONED_POINTER, CURRENT), False: _Kind(LEGACY_POINTER, LEGACY)}


def _lend(capsule: object, image: Image, versioned: bool) -> object:
    """A capsule with a struct of its own; numpy's *capsule* owns the memory."""
    kind = _kinds[versioned]
    try:
        if not kind.destructor:
            kind.destructor = get_destructor(capsule)
        theirs = get_pointer(capsule, kind.name)
    except ctypes.ArgumentError as exc:
        raise undisguised(exc) from None
    new = ffi.new(kind.type, ffi.cast(kind.type, theirs)[0])
    described = ffi.buffer(new)
    if versioned:
        image.describe(described, kind.deleter)
    else:
        image.write(described, 0)
        _LEGACY_END.pack_into(described, TENSOR.size, 0, kind.deleter)
    address = int(ffi.cast(_ADDRESS, new))
    loan = _Loan(address)
    loan.capsule, loan.struct = capsule, new
    _recent.append(new)
    try:
        _loans.add(loan)
        return new_capsule(address, kind.name, kind.destructor)
    except BaseException as exc:
        _loans.discard(address)
        if isinstance(exc, ctypes.ArgumentError):
            raise undisguised(exc) from None
        raise


@at_exit
def _at_exit() -> None:
    # Consumers may hold tensors until after Python has ended. They read the
    # deleter when they call it, so from now on it is a harmless C function.
    for kind in _kinds.values():
        kind.deleter = HARMLESS
    immortal(_recent)
    for loan in tuple(_loans):
        held: Any = loan
        immortal(held)
        held.struct.deleter = ffi.cast(ffi.typeof(held.struct.deleter), HARMLESS)


class Image:
    """The fields to write over a struct that numpy made, so that it describes our tensor.

    *place* is the data, the device and the byte offset, where numpy's are not right.
    """

    __slots__ = ("dtype", "flags", "place")  # a NamedTuple would make each export 3 % dearer

    def __init__(
        self, dtype: DType, flags: int, place: tuple[int, tuple[int, int], int] | None
    ) -> None:
        self.dtype = dtype
        self.flags = flags
        self.place = place

    def describe(self, described: Any, deleter: int | None = None) -> None:
        """Overwrite a ``DLManagedTensorVersioned``, before a consumer has it.

        With *deleter* the struct is one of our own, which has no context.
        """
        # numpy has set READ_ONLY if its array is read-only.
        flags = _UINT64.unpack_from(described, _FLAGS_AT)[0] | self.flags
        # Since 1.2 strides may not be NULL; numpy 2.2 leaves those of compact arrays so.
        strides = _UINT64.unpack_from(described, _TENSOR_AT + _STRIDES_AT)[0]
        major, minor = DLPACK_VERSION if strides else (DLPACK_VERSION[0], 1)
        if deleter is None:
            _, _, context, deleter, _ = HEADER.unpack_from(described)
        else:
            context = 0
        HEADER.pack_into(described, 0, major, minor, context, deleter, flags)
        self.write(described, _TENSOR_AT)

    def write(self, described: Any, start: int) -> None:
        """Overwrite the ``DLTensor`` at *start*."""
        dtype = self.dtype
        _DTYPE.pack_into(described, start + _DTYPE_AT, dtype.code, dtype.bits, dtype.lanes)
        if self.place is not None:
            data, device, byte_offset = self.place
            _PLACE.pack_into(described, start, data, *device)
            _UINT64.pack_into(described, start + _BYTE_OFFSET_AT, byte_offset)


# The arguments of __dlpack__, by the rules of the array API standard 2025.12 ----------


@for_guests
def check_copy(copy: object) -> None:
    """Raise unless ``copy=`` is True, False or None: 0 would be taken for None.

    Parameters
    ----------
    copy : object
        What the user passed.

    Raises
    ------
    TypeError
        Naming it.

    Examples
    --------
    >>> from dlbridge.extending import check_copy
    >>> check_copy(None)
    """
    if copy is not None and not isinstance(copy, bool):
        raise TypeError(f"copy must be True, False or None, not {copy!r}")


@for_guests
def check_host_stream(stream: object) -> None:
    """Raise unless a stream is none, as it must be for memory of the host.

    Parameters
    ----------
    stream : object
        What somebody passed as ``stream=``: None or -1 (no order is wanted).

    Raises
    ------
    TypeError, ValueError
        For anything else: host memory has no streams.

    Examples
    --------
    >>> from dlbridge.extending import check_host_stream
    >>> check_host_stream(None)
    """
    if stream is None:
        return
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise TypeError(f"host memory has no streams; stream must be None or -1, not {stream!r}")
    if stream != -1:
        raise ValueError(f"host memory has no streams; stream must be None or -1, not {stream}")


def check_version(max_version: object) -> tuple[int, int] | None:
    """*max_version* as the version to export: at most ours. TypeError if it is not a version."""
    if max_version is None:
        return None
    if type(max_version) is tuple and max_version == DLPACK_VERSION:
        return DLPACK_VERSION
    if isinstance(max_version, (tuple, list)) and len(max_version) == 2:
        major, minor = max_version
        if isinstance(major, int) and isinstance(minor, int):
            # A newer version means our own, which fits the struct.
            if (major, minor) >= DLPACK_VERSION:
                return DLPACK_VERSION
            return max((int(major), int(minor)), (0, 0))
    raise TypeError(f"max_version must be a tuple (major, minor) of two ints, not {max_version!r}")


def check_device(dl_device: object) -> tuple[int, int]:
    """*dl_device* as two plain ints. TypeError if it is not a device."""
    if isinstance(dl_device, (tuple, list)) and len(dl_device) == 2:
        kind, index = plain_number(dl_device[0]), plain_number(dl_device[1])
        if kind is not None and index is not None:
            return kind, index
    raise TypeError(
        f"dl_device must be a tuple (device_type, device_id) of two ints, not {dl_device!r}"
    )
