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
    DELETER_OFFSETS,
    LEGACY,
    USED_CURRENT,
    VERSIONED_POINTER,
    get_destructor,
    get_pointer,
    new_capsule,
    set_name,
)
from .structs import DLPACK_VERSION, FLAG_SUBBYTE_PADDED, MANAGED, TENSOR, managed_at

if TYPE_CHECKING:
    import numpy as np

    from dlbridge.core.values.dtypes import DType


_LEGACY_FIELDS = struct.Struct(f"{TENSOR.format}QQ")  # dl_tensor, manager_ctx, deleter


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


Image = tuple["DType", int, tuple[int, tuple[int, int], int] | None]
"""What to write over a struct that numpy made, so that it describes our tensor: dtype and flags;
and data, device and byte offset, where numpy's are not right."""


def describe(image: Image, theirs: Any, described: Any, versioned: bool, deleter: int = 0) -> None:
    """Write the struct *theirs* of numpy to *described*, with *image*, before a consumer has it.

    With *deleter* that is one of our own, which has no context.
    """
    dtype, added, where = image
    layout, tensor, context = (MANAGED, 5, 2) if versioned else (_LEGACY_FIELDS, 0, 10)
    fields = [*layout.unpack_from(theirs)]
    if versioned:
        # Since 1.2 strides may not be NULL; numpy 2.2 leaves those of compact arrays so.
        fields[:2] = DLPACK_VERSION if fields[tensor + 8] else (DLPACK_VERSION[0], 1)
        fields[4] |= added  # numpy has set READ_ONLY if its array is read-only
    if deleter:
        fields[context : context + 2] = 0, deleter
    fields[tensor + 4 : tensor + 7] = dtype.code, dtype.bits, dtype.lanes
    if where is not None:
        fields[tensor], (fields[tensor + 1], fields[tensor + 2]), fields[tensor + 9] = where
    layout.pack_into(described, 0, *fields)


class OwnExport:
    """A new struct over *array*, whose owner is numpy's capsule, so that C alone frees it.

    `managed_address` is that of the ``DLManagedTensorVersioned``.
    """

    __slots__ = ("_capsule", "managed_address")

    def __init__(self, array: np.ndarray[Any, Any], image: Image | None) -> None:
        self._capsule = array.__dlpack__(max_version=DLPACK_VERSION)
        self.managed_address = address_in(self._capsule)  # numpy has made it so
        if image is not None:
            octets = managed_at(self.managed_address)
            describe(image, octets, octets, versioned=True)

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
    """The address of a `struct` in our capsule, with numpy's `capsule` that owns the memory."""


_loans: set[Any] = immortal(set())
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
    """A generation of structs: its fields, its capsules' name, and the functions of its structs."""

    __slots__ = ("at", "deleter", "destructor", "name", "new")

    def __init__(self, size: int, name: ctypes.c_void_p) -> None:
        self.new = ctypes.c_uint64 * (size // 8)
        self.at = self.new.from_address
        self.name = name
        self.destructor = 0  # numpy's, taken from the first capsule
        self.deleter = int(ffi.cast("uintptr_t", _discard))


_kinds = {True: _Kind(MANAGED.size, CURRENT), False: _Kind(_LEGACY_FIELDS.size, LEGACY)}


def with_image(capsule: object, image: Image, version: tuple[int, int] | None) -> object:
    """A capsule with a struct of its own, described by *image*; numpy's *capsule* has the memory.

    *version* is what numpy was asked for.
    """
    versioned = version is not None and version >= (1, 0)  # numpy's rule
    if not versioned and image[1] & FLAG_SUBBYTE_PADDED:
        raise ExchangeError(
            "a padded sub-byte tensor does not fit a legacy capsule, which has no flags; "
            "the consumer must ask with max_version=(1, 0) or later"
        )
    kind = _kinds[versioned]
    try:
        if not kind.destructor:
            kind.destructor = get_destructor(capsule)
        theirs = get_pointer(capsule, kind.name)
    except ctypes.ArgumentError as exc:
        raise undisguised(exc) from None
    new = kind.new()
    describe(image, kind.at(theirs), new, versioned, kind.deleter)
    loan: Any = _Loan(ctypes.addressof(new))
    loan.capsule, loan.struct = capsule, new
    _recent.append(new)
    try:
        _loans.add(loan)
        return new_capsule(loan, kind.name, kind.destructor)
    except BaseException as exc:
        _loans.discard(loan)
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
        immortal(loan)
        at = DELETER_OFFSETS[ctypes.sizeof(loan.struct) == _LEGACY_FIELDS.size]
        struct.pack_into("=Q", loan.struct, at, HARMLESS)


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
