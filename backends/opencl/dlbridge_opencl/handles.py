"""Recognise integers that are OpenCL objects, without calling OpenCL.

The first word of every object that a driver makes (platform, device, context,
queue, buffer, event) is the address of the driver's dispatch table: that is
how the ICD loader finds the driver (cl_khr_icd, "ICD dispatch table"). So an
integer is an object of a driver in use here if the word at that address is the
dispatch table of a platform. Measured on PoCL 3.1, Oclgrind 21.10 and Intel 2026.2.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from . import devices

__all__ = ["dispatch", "is_object", "word_at"]

POINTER_SIZE = ctypes.sizeof(ctypes.c_void_p)
FIRST_PAGE = 4096
"""Bytes. No object has a smaller address: small integers are counters, flags or mistakes."""


def is_object(handle: int) -> bool:
    """Whether *handle* is an object of a driver in use here, and may be memory or a queue.

    Platforms, devices and known contexts are excluded: PoCL 3.1 ends the process
    if it is asked to retain one of them as a queue. Other kinds of objects cannot
    be recognised before the driver looks at them.
    """
    if handle in _roots() or handle in devices.contexts():
        return False
    return word_at(handle) in dispatch()


@functools.cache
def _roots() -> frozenset[int]:
    """The handles of the platforms and devices in use."""
    found = [devices.device(i).handle for i in range(devices.device_count())]
    return frozenset(obj.int_ptr for device in found for obj in (device, device.platform))


@functools.cache
def dispatch() -> frozenset[int]:
    """The dispatch tables of the platforms in use."""
    words = {word_at(devices.device(i).handle.int_ptr) for i in range(devices.device_count())}
    return frozenset(word for word in words if word is not None)


def word_at(address: int) -> int | None:
    """The pointer-sized word at *address*; None if no object of a driver can be there.

    Where the system lets a process read its own memory as a file, the result is
    None for an address that is not mapped, too; elsewhere that is a crash.
    """
    if address < FIRST_PAGE or address >> (8 * POINTER_SIZE) or address % POINTER_SIZE:
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError):  # not Linux, or not allowed
        return ctypes.c_size_t.from_address(address).value
    try:
        return int.from_bytes(os.pread(memory, POINTER_SIZE, address), sys.byteorder)
    except (OSError, OverflowError):  # not mapped; beyond what a file offset can be
        return None
    finally:
        os.close(memory)
