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

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in typing, whose import would take half of ours
if TYPE_CHECKING:
    from typing import Any

    from . import ffi as ffi
    from .core.incoming.array_likes import asarray
    from .core.incoming.cuda_array_interface import from_cuda_array_interface
    from .core.incoming.producers import from_dlpack
    from .core.moves.plans import Plan, Step
    from .core.moves.traces import Trace, trace
    from .core.moves.transfer import copy_, empty, explain, plan, to_device, zeros
    from .core.plugins.lookup import device
    from .core.plugins.registry import backend, backends, register_backend
    from .core.plugins.streams import current_stream, synchronize, use_stream
    from .core.tensor.tensor import Tensor
    from .core.values.devices import Device, DLDeviceType
    from .core.values.dtypes import DLDataTypeCode, DType, dtype
    from .core.values.subbyte import pack_bits, unpack_bits
    from .errors import (
        BackendError,
        BackendUnavailable,
        DeviceError,
        DeviceMemoryError,
        Error,
        ExchangeError,
        LibraryUnavailable,
    )

_HOMES = {
    "core.incoming.array_likes": ("asarray",),
    "core.incoming.producers": ("from_dlpack",),
    "core.incoming.cuda_array_interface": ("from_cuda_array_interface",),
    "core.values.devices": ("Device", "DLDeviceType"),
    "core.plugins.lookup": ("device",),
    "core.values.dtypes": ("DLDataTypeCode", "DType", "dtype"),
    "errors": (
        "BackendError",
        "BackendUnavailable",
        "DeviceError",
        "DeviceMemoryError",
        "Error",
        "ExchangeError",
        "LibraryUnavailable",
    ),
    "core.moves.plans": ("Plan", "Step"),
    "core.plugins.registry": ("backend", "backends", "register_backend"),
    "core.plugins.streams": ("current_stream", "synchronize", "use_stream"),
    "core.values.subbyte": ("pack_bits", "unpack_bits"),
    "core.tensor.tensor": ("Tensor",),
    "core.moves.traces": ("Trace", "trace"),
    "core.moves.transfer": ("copy_", "empty", "explain", "plan", "to_device", "zeros"),
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
    for module in (
        "core.moves.host_views",
        "core.outgoing.own_table",
        "core.incoming.cuda_array_interface",
    ):
        importlib.import_module(f".{module}", __name__)
    found = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    _values[name] = found
    return found
