"""Opens the Vulkan loader at first use, and makes its structures.

The only module that knows the loader's names and cffi's module.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any

from dlbridge.errors import BackendUnavailable

from ._cdefs import ffi
from .errors import check

__all__ = ["array", "constant", "ffi", "handle", "load", "struct", "text"]

NAMES = {
    "win32": ("vulkan-1.dll",),
    "darwin": ("libvulkan.1.dylib", "libvulkan.dylib", "libMoltenVK.dylib"),
}.get(sys.platform, ("libvulkan.so.1", "libvulkan.so"))

constant = cache(ffi.integer_const)
"""The value of a constant of ``vulkan.h``; needs no library."""

_library: Any = None


def load() -> Any:
    """The Vulkan loader, opened at the first call and never closed.

    BackendUnavailable, with every name that was tried, if there is none.
    """
    global _library
    if _library is None:
        attempts = []
        for name in NAMES:
            try:
                _library = ffi.dlopen(name)
                break
            except OSError as exc:
                attempts.append(f"{name} ({exc})")
        else:
            raise BackendUnavailable(
                f"no Vulkan loader: tried {'; '.join(attempts)}. Install your GPU's driver and "
                "the loader (Debian, Ubuntu: apt install libvulkan1 mesa-vulkan-drivers)"
            )
    return _library


@cache
def _structure_type(name: str) -> int:
    # VkPhysicalDeviceVulkan12Features -> ..._PHYSICAL_DEVICE_VULKAN_1_2_FEATURES
    words = re.sub(
        r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z])(?=\d)|(?<=\d)(?=\d)",
        "_",
        name.removeprefix("Vk"),
    )
    return int(constant(f"VK_STRUCTURE_TYPE_{words.upper()}"))


def struct(name: str, **members: Any) -> Any:
    """A new structure *name*, its ``sType`` set; what *members* point to stays the caller's."""
    return ffi.new(f"{name} *", {"sType": _structure_type(name), **members})


def array(function: Any, kind: str, *arguments: Any) -> Any:
    """All *kind* that a Vulkan enumeration *function* gives, as an owned C array.

    Asks for the count and then for the content, again if the count has changed.
    """
    count = ffi.new("uint32_t *")
    while True:
        _check(function(*arguments, count, ffi.NULL), kind)
        found = ffi.new(f"{kind}[]", count[0])
        _check(function(*arguments, count, found), kind)
        if count[0] == len(found):
            return found


def _check(result: int | None, kind: str) -> None:
    # Some of these functions return nothing.
    check(result or 0, f"the enumeration of {kind}")


def text(characters: Any) -> str:
    """The string in a fixed ``char`` array."""
    return str(ffi.string(characters).decode("utf-8", "replace"))


def handle(value: Any) -> int:
    """A Vulkan handle as an integer: an integer, or any cffi package's handle."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, ffi.CData):
        return int(ffi.cast("uintptr_t", value))
    raise TypeError(
        f"{value!r} is no Vulkan handle, and so no stream either; give an integer or a cffi pointer"
    )
