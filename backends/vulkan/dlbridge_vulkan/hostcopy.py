"""Moving bytes between host addresses."""

from __future__ import annotations

import ctypes

from .library import ffi

__all__ = ["HOLD_GIL", "address_of", "move", "read", "write"]

HOLD_GIL = 64 << 10
"""Bytes up to which a copy keeps the GIL: ffi.memmove keeps it and takes 0.3 us
for 4 KiB, ctypes.memmove drops it and takes 0.5 us."""

CHARS = ffi.typeof("char *")  # looking a type up by name costs as much as the cast


def address_of(memory: memoryview) -> int:
    """The address of *memory*'s first byte; *memory* stays the caller's to keep."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def write(address: int, source: memoryview) -> None:
    """Copy the bytes of *source* to *address*."""
    nbytes = len(source)
    if nbytes <= HOLD_GIL:
        ffi.memmove(ffi.cast(CHARS, address), source, nbytes)
    else:
        ctypes.memmove(address, address_of(source), nbytes)


def read(into: memoryview, address: int) -> None:
    """Copy ``len(into)`` bytes at *address* to *into*."""
    nbytes = len(into)
    if nbytes <= HOLD_GIL:
        ffi.memmove(into, ffi.cast(CHARS, address), nbytes)
    else:
        ctypes.memmove(address_of(into), address, nbytes)


def move(target: int, source: int, nbytes: int) -> None:
    """Copy *nbytes* bytes from one host address to another."""
    if nbytes <= HOLD_GIL:
        ffi.memmove(ffi.cast(CHARS, target), ffi.cast(CHARS, source), nbytes)
    else:
        ctypes.memmove(target, source, nbytes)
