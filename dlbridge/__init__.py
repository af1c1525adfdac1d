"""dlbridge moves tensors between array libraries and devices.

    import dlbridge as bridge

    t = bridge.from_dlpack(torch_tensor)           # a bridge.Tensor on the same memory
    g = bridge.to_device(numpy_array, "opencl:0")  # any source, any device with a backend
    y = bridge.to_device(g, "cpu", like="torch")   # and out again, as the library you name
    print(bridge.explain(torch_tensor, "opencl:0"))

Importing it loads no library, no backend and no framework. Source: DLPack
(``dlpack.h`` 1.3), the array API standard 2024.12 and the TVM-FFI C API.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in typing, whose import would take half of ours
if TYPE_CHECKING:
    from typing import Any

    from . import ffi as ffi
    from .asarray import asarray
    from .consume import from_dlpack
    from .cuda_array import from_cuda_array_interface
    from .device import Device, DLDeviceType
    from .devices import device
    from .dtype import DLDataTypeCode, DType, dtype
    from .errors import (
        BackendError,
        BackendUnavailable,
        DeviceError,
        DeviceMemoryError,
        Error,
        ExchangeError,
        LibraryUnavailable,
    )
    from .plan import Plan, Step
    from .registry import backend, backends, register_backend
    from .stream import current_stream, synchronize, use_stream
    from .subbyte import pack_bits, unpack_bits
    from .tensor import Tensor
    from .trace import Trace, trace
    from .transfer import copy_, empty, explain, plan, to_device, zeros

_HOMES = {
    "asarray": ("asarray",),
    "consume": ("from_dlpack",),
    "cuda_array": ("from_cuda_array_interface",),
    "device": ("Device", "DLDeviceType"),
    "devices": ("device",),
    "dtype": ("DLDataTypeCode", "DType", "dtype"),
    "errors": (
        "BackendError",
        "BackendUnavailable",
        "DeviceError",
        "DeviceMemoryError",
        "Error",
        "ExchangeError",
        "LibraryUnavailable",
    ),
    "plan": ("Plan", "Step"),
    "registry": ("backend", "backends", "register_backend"),
    "stream": ("current_stream", "synchronize", "use_stream"),
    "subbyte": ("pack_bits", "unpack_bits"),
    "tensor": ("Tensor",),
    "trace": ("Trace", "trace"),
    "transfer": ("copy_", "empty", "explain", "plan", "to_device", "zeros"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "DLDataTypeCode",
    "DLDeviceType",
    "DType",
    "Device",
    "DeviceError",
    "DeviceMemoryError",
    "Error",
    "ExchangeError",
    "LibraryUnavailable",
    "Plan",
    "Step",
    "Tensor",
    "Trace",
    "__version__",
    "asarray",
    "backend",
    "backends",
    "copy_",
    "current_stream",
    "device",
    "dtype",
    "empty",
    "explain",
    "ffi",
    "from_cuda_array_interface",
    "from_dlpack",
    "pack_bits",
    "plan",
    "register_backend",
    "synchronize",
    "to_device",
    "trace",
    "unpack_bits",
    "use_stream",
    "zeros",
]


def __getattr__(name: str) -> Any:
    """The public names, each from its module at the first use."""
    if name == "ffi":
        return importlib.import_module(".ffi", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'dlbridge' has no attribute {name!r}")
    value = _load(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


_values: dict[str, Any] = {}


def _load(name: str) -> Any:
    found = _values.get(name)
    if found is not None:
        return found
    # These fill tables that the rest asks: every use of the package has them.
    for module in ("hostview", "table", "cuda_array"):
        importlib.import_module(f".{module}", __name__)
    found = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    _values[name] = found
    return found


class _Package(ModuleType):
    """The package, with the public names that submodules have too.

    ``dlbridge.dtype`` is the function, whether or not the import system has
    bound the submodule ``dlbridge/dtype.py`` to that name before.
    """


def _public(name: str) -> property:
    return property(lambda _package: _load(name), lambda _package, _submodule: None)


for _name in ("asarray", "device", "dtype", "plan", "trace"):
    setattr(_Package, _name, _public(_name))
sys.modules[__name__].__class__ = _Package
