"""Opens the Vulkan loader at first use, and makes its structures.

The only module that knows the loader's names and cffi's module.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from dlbridge.errors import BackendUnavailable

from ._cdefs import ffi
from .errors import check

__all__ = ["array", "constant", "ffi", "handle", "load", "struct", "text"]


def names(platform: str, sdk: str | None) -> tuple[str, ...]:
    """The names that the loader may have on *platform*; *sdk* is the environment's VULKAN_SDK.

    On macOS the dynamic linker does not look where the SDK and Homebrew install.
    """
    if platform == "win32":
        return ("vulkan-1.dll",)
    if platform == "darwin":
        folders = ["/opt/homebrew/lib", "/usr/local/lib"]
        if sdk:
            folders.insert(0, f"{sdk}/lib")
        plain = ("libvulkan.1.dylib", "libvulkan.dylib")
        paths = [f"{folder}/{name}" for folder in folders for name in plain]
        moltenvk = ["libMoltenVK.dylib", *(f"{folder}/libMoltenVK.dylib" for folder in folders)]
        return (*plain, *paths, *moltenvk)
    return ("libvulkan.so.1", "libvulkan.so")


constant = cache(ffi.integer_const)
"""The value of a constant of ``vulkan.h``; needs no library."""

_library: Any = None


def _realize_types() -> None:
    """Have cffi make all structures of ``vulkan.h`` now.

    It makes each one at its first use, and ends the process if a finalizer then
    uses the same one (cffi 2.0: an assertion in ``_realize_c_struct_or_union``).
    """
    for name in ffi.list_types()[0]:
        if ffi.typeof(name).kind == "struct":
            with suppress(TypeError):  # only declared, such as VkAllocationCallbacks
                ffi.new(f"{name} *")


def load() -> Any:
    """The Vulkan loader, opened at the first call and never closed.

    BackendUnavailable, with every name that was tried, if there is none.
    """
    global _library
    if _library is None:
        attempts = []
        for name in names(sys.platform, os.environ.get("VULKAN_SDK")):
            try:
                opened = ffi.dlopen(name)
                _realize_types()
                _library = opened
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
        f"{value!r} is not a Vulkan handle, and so not a stream either; give an integer or a cffi "
        "pointer"
    )
