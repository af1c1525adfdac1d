"""VkResult codes: what each one means, and which exception it becomes."""

from __future__ import annotations

from dlbridge.errors import DeviceError, DeviceLost, DeviceMemoryError, Error, ExchangeError

__all__ = ["AFTER_FORK", "check"]

AFTER_FORK = (
    "Vulkan does not survive os.fork(): open the device in the child only, or start processes "
    "with multiprocessing's 'spawn'"
)
"""What a use in a forked child is told."""

# Code: (name, meaning, exception). Vulkan 1.3 specification, "Return Codes".
RESULTS: dict[int, tuple[str, str, type[Error]]] = {
    -1: ("VK_ERROR_OUT_OF_HOST_MEMORY", "no host memory left", DeviceMemoryError),
    -2: ("VK_ERROR_OUT_OF_DEVICE_MEMORY", "no device memory left", DeviceMemoryError),
    -3: ("VK_ERROR_INITIALIZATION_FAILED", "the driver could not start", DeviceError),
    -4: (
        "VK_ERROR_DEVICE_LOST",
        "the device crashed, was reset or was removed; start a new process",
        DeviceLost,
    ),
    -5: ("VK_ERROR_MEMORY_MAP_FAILED", "the host could not map the memory", DeviceMemoryError),
    -6: ("VK_ERROR_LAYER_NOT_PRESENT", "a layer of VK_INSTANCE_LAYERS is missing", DeviceError),
    -7: ("VK_ERROR_EXTENSION_NOT_PRESENT", "the driver lacks an extension", DeviceError),
    -8: ("VK_ERROR_FEATURE_NOT_PRESENT", "the driver lacks a feature", DeviceError),
    -9: ("VK_ERROR_INCOMPATIBLE_DRIVER", "no driver speaks this Vulkan version", DeviceError),
    -10: ("VK_ERROR_TOO_MANY_OBJECTS", "too many objects of this kind", DeviceMemoryError),
    -12: ("VK_ERROR_FRAGMENTED_POOL", "the pool is fragmented", DeviceMemoryError),
    -13: ("VK_ERROR_UNKNOWN", "the driver does not say why", DeviceError),
    -1000012000: ("VK_ERROR_INVALID_SHADER_NV", "the SPIR-V module is not valid", ExchangeError),
    -1000069000: ("VK_ERROR_OUT_OF_POOL_MEMORY", "the pool is full", DeviceMemoryError),
    -1000072003: (
        "VK_ERROR_INVALID_EXTERNAL_HANDLE",
        "the driver cannot use this host memory in place",
        ExchangeError,
    ),
    -1000161000: ("VK_ERROR_FRAGMENTATION", "the pool is fragmented", DeviceMemoryError),
    -1000257000: (
        "VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS",
        "no address is free",
        DeviceMemoryError,
    ),
}


def check(result: int, call: str) -> int:
    """*result* of the Vulkan function *call*, if it is not an error.

    Errors are negative; the others (VK_TIMEOUT, VK_INCOMPLETE) are the caller's.
    *call* may go on after the function's name with what was asked of it.
    """
    if result >= 0:
        return result
    name, meaning, exception = RESULTS.get(
        result, (f"VkResult {result}", "an error that this package does not know", DeviceError)
    )
    raise exception(f"{call} failed: {name}: {meaning}")
