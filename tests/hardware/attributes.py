"""What the driver says of each GPU that decides how the CUDA backend behaves."""

from __future__ import annotations

import importlib
import platform
from importlib.metadata import PackageNotFoundError, version

from cuda.bindings import driver

ATTRIBUTES = (
    "PAGEABLE_MEMORY_ACCESS",
    "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
    "HOST_REGISTER_SUPPORTED",
    "READ_ONLY_HOST_REGISTER_SUPPORTED",
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    "MEMORY_POOLS_SUPPORTED",
    "CONCURRENT_MANAGED_ACCESS",
    "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST",
    "UNIFIED_ADDRESSING",
    "ASYNC_ENGINE_COUNT",
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "MEMPOOL_SUPPORTED_HANDLE_TYPES",
    "INTEGRATED",
    "COMPUTE_CAPABILITY_MAJOR",
    "COMPUTE_CAPABILITY_MINOR",
)
PACKAGES = (
    *("numpy", "cffi", "torch", "cupy-cuda13x", "jax", "numba-cuda", "numba", "cuda-bindings"),
    *("cuda-core", "apache-tvm-ffi", "pyopencl", "pytest"),
)


def main() -> None:
    """Print versions and attributes."""
    print(f"Python {platform.python_version()}, {platform.platform()}")
    for name in PACKAGES:
        try:
            print(f"{name} {version(name)}")
        except PackageNotFoundError:
            print(f"{name}: not installed")
    for name in ("torch", "cupy", "jax", "numba.cuda", "pyopencl", "tvm_ffi"):
        try:
            importlib.import_module(name)
        except Exception as error:  # each library has its own way to fail
            print(f"import {name}: {type(error).__name__}: {error}")
    check(driver.cuInit(0))
    print("driver", check(driver.cuDriverGetVersion()))
    for number in range(check(driver.cuDeviceGetCount())):
        device = check(driver.cuDeviceGet(number))
        print(f"cuda:{number}", check(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode())
        for name in ATTRIBUTES:
            attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
            if attribute is not None:
                print(f"  {name} = {check(driver.cuDeviceGetAttribute(attribute, device))}")


def check(answer: tuple) -> object:
    """What a call gave; AssertionError for a status."""
    error, *found = answer
    assert not int(error), error
    return found[0] if found else None


if __name__ == "__main__":
    main()
