"""The Vulkan loader: opened at first use; its structures, results and objects.

The only module that knows the loader's names and cffi's module.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from dlbridge.errors import (
    BackendUnavailable,
    DeviceError,
    DeviceLost,
    DeviceMemoryError,
    Error,
    ExchangeError,
)
from dlbridge.kit.resources import in_child
from dlbridge.kit.status import StatusTable

from ._cdefs import ffi

__all__ = ["Objects", "array", "check", "constant", "ffi", "handle", "load", "struct", "text"]


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

_MEANINGS: dict[str, tuple[type[Error], str]] = {  # Vulkan 1.3 specification, "Return Codes"
    "VK_ERROR_OUT_OF_HOST_MEMORY": (DeviceMemoryError, "no host memory left"),
    "VK_ERROR_OUT_OF_DEVICE_MEMORY": (DeviceMemoryError, "no device memory left"),
    "VK_ERROR_INITIALIZATION_FAILED": (DeviceError, "the driver could not start"),
    "VK_ERROR_DEVICE_LOST": (
        DeviceLost,
        "the device crashed, was reset or was removed; start a new process",
    ),
    "VK_ERROR_MEMORY_MAP_FAILED": (DeviceMemoryError, "the host could not map the memory"),
    "VK_ERROR_LAYER_NOT_PRESENT": (DeviceError, "a layer of VK_INSTANCE_LAYERS is missing"),
    "VK_ERROR_EXTENSION_NOT_PRESENT": (DeviceError, "the driver lacks an extension"),
    "VK_ERROR_FEATURE_NOT_PRESENT": (DeviceError, "the driver lacks a feature"),
    "VK_ERROR_INCOMPATIBLE_DRIVER": (DeviceError, "no driver speaks this Vulkan version"),
    "VK_ERROR_TOO_MANY_OBJECTS": (DeviceMemoryError, "too many objects of this kind"),
    "VK_ERROR_FRAGMENTED_POOL": (DeviceMemoryError, "the pool is fragmented"),
    "VK_ERROR_UNKNOWN": (DeviceError, "the driver does not say why"),
    "VK_ERROR_INVALID_SHADER_NV": (ExchangeError, "the SPIR-V module is not valid"),
    "VK_ERROR_OUT_OF_POOL_MEMORY": (DeviceMemoryError, "the pool is full"),
    "VK_ERROR_INVALID_EXTERNAL_HANDLE": (
        ExchangeError,
        "the driver cannot use this host memory in place",
    ),
    "VK_ERROR_FRAGMENTATION": (DeviceMemoryError, "the pool is fragmented"),
    "VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS": (DeviceMemoryError, "no address is free"),
}

_NAMES = {int(constant(name)): name for name in _MEANINGS}
STATUS = StatusTable(
    {code: _MEANINGS[name] for code, name in _NAMES.items()},
    lambda code: _NAMES.get(code, f"VkResult {code}"),
)


def check(result: int, call: str) -> int:
    """*result* of the Vulkan function *call*, if it is not an error.

    Errors are negative; the others (VK_TIMEOUT, VK_INCOMPLETE) are the caller's.
    *call* may go on after the function's name with what was asked of it.
    """
    if result < 0:
        STATUS.check(call, result)
    return result


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


def _skip_exit_functions() -> None:
    """Let this forked child end without the exit functions of C libraries, as multiprocessing's do.

    NVIDIA's driver (580.159.04, H100) crashes or waits for ever in its own, where the parent has
    used it. glibc calls the last ones first: C's files are written, then the process ends. Where
    the system has no ``on_exit``, all are called.
    """
    c_library = ctypes.CDLL(None)
    with suppress(AttributeError):
        for last_first in (c_library._exit, c_library.fcloseall):
            # Not by atexit, which programs have in themselves: glibc's library has none.
            c_library.on_exit(last_first, None)


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
                in_child(_skip_exit_functions)
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
        what = f"the enumeration of {kind}"
        check(function(*arguments, count, ffi.NULL) or 0, what)  # some return nothing
        listed = ffi.new(f"{kind}[]", count[0])
        check(function(*arguments, count, listed) or 0, what)
        if count[0] == len(listed):
            return listed


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


class Objects:
    """Vulkan objects that are destroyed together, in reverse order: the resource of an `Owner`.

    The driver writes each new handle into memory that is noted here before.
    """

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: list[tuple[Any, tuple[Any, ...], Any, Any]] = []

    def cell(self, kind: str, *parent: Any) -> Any:
        """A C array for one handle, which is destroyed by ``vkDestroy<kind>(*parent, handle)``."""
        cell = ffi.new(f"Vk{kind}[1]")
        self._made.append((getattr(load(), f"vkDestroy{kind}"), parent, cell, cell[0]))
        return cell

    def make(self, kind: str, create: Callable[[Any], int], *parent: Any, call: str = "") -> Any:
        """The `cell` of a new object; *create* is given it and returns a VkResult."""
        cell = self.cell(kind, *parent)
        none = cell[0]
        result = create(cell)
        if result < 0:
            cell[0] = none  # what a failed call leaves there is not defined
        check(result, call or f"vkCreate{kind}")
        return cell

    def create(self, device: Any, kind: str, info: Any) -> Any:
        """The cell of a new object, by ``vkCreate<kind>``."""
        function = getattr(load(), f"vkCreate{kind}")
        return self.make(kind, lambda cell: function(device, info, ffi.NULL, cell), device)

    def destroy(self) -> bool:
        """Destroy all objects that are left; nothing may be using them.

        Two threads may do so at once, and an interrupted call may be repeated.
        """
        for function, parent, cell, none in reversed(self._made.copy()):
            if cell[0]:
                # Python runs no signal handler and no other thread between these two lines.
                handle, cell[0] = cell[0], none
                function(*parent, handle, ffi.NULL)
        self._made.clear()
        return True

    def __len__(self) -> int:
        return len(self._made)
