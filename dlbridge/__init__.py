"""dlbridge moves tensors between array libraries and devices.

The functions that most programs need::

    import dlbridge as bridge

    t = bridge.from_dlpack(torch_tensor)           # a bridge.Tensor on the same memory
    g = bridge.to_device(numpy_array, "opencl:0")  # any source, any device with a backend
    y = bridge.to_device(g, "cpu", like="torch")   # and out again, as the library you name
    print(bridge.explain(torch_tensor, "opencl:0"))

Importing it loads no library, no backend and no framework. Source: DLPack
(``dlpack.h`` 1.3), the array API standard 2025.12 and the TVM-FFI C API.
"""

from __future__ import annotations

import importlib

from . import _imports_at_fork as _imports_at_fork  # before any other module of ours is imported

__version__ = "0.1.0"


TYPE_CHECKING = False  # as in typing, whose import would take half of ours
if TYPE_CHECKING:
    from . import ffi as ffi
    from .api.anything import device_of as device_of
    from .api.creation import (
        empty as empty,
        empty_like as empty_like,
        full as full,
        full_like as full_like,
        ones as ones,
        ones_like as ones_like,
        zeros as zeros,
        zeros_like as zeros_like,
    )
    from .api.moving import (
        asarray as asarray,
        copy_ as copy_,
        explain as explain,
        from_dlpack as from_dlpack,
        plan as plan,
        to_device as to_device,
    )
    from .casts import astype as astype
    from .core.moves.host_views import HostView as HostView
    from .core.moves.plans import Plan as Plan, Step as Step
    from .core.plugins.lookup import device as device, devices as devices, trim as trim
    from .core.plugins.registry import (
        backend as backend,
        backends as backends,
        register_backend as register_backend,
    )
    from .core.plugins.streams import (
        current_stream as current_stream,
        synchronize as synchronize,
        use_stream as use_stream,
    )
    from .core.tensor.operand import Operand as Operand
    from .core.tensor.tensor import Tensor as Tensor
    from .core.values.devices import Device as Device, DLDeviceType as DLDeviceType
    from .core.values.dtypes import DLDataTypeCode as DLDataTypeCode, DType as DType, dtype as dtype
    from .core.values.subbyte import pack_bits as pack_bits, unpack_bits as unpack_bits
    from .diagnosis.report import Info as Info, info as info
    from .errors import (
        BackendError as BackendError,
        BackendUnavailable as BackendUnavailable,
        DeviceError as DeviceError,
        DeviceLost as DeviceLost,
        DeviceMemoryError as DeviceMemoryError,
        DeviceNotFound as DeviceNotFound,
        Error as Error,
        ExchangeError as ExchangeError,
        FileError as FileError,
        LibraryUnavailable as LibraryUnavailable,
    )
    from .files.loading import TensorFile as TensorFile, load as load
    from .files.saving import save as save
    from .frames import planes as planes
    from .interop.accepting import accepts as accepts
    from .interop.array_interfaces import (
        from_cuda_array_interface as from_cuda_array_interface,
    )
    from .interop.blobs import from_blob as from_blob
    from .interop.exporter import Exporter as Exporter
    from .processes.descriptors import from_fd as from_fd
    from .processes.pickles import unpickle_to as unpickle_to
    from .processes.shared_tensors import share as share
    from .tracing import Trace as Trace, trace as trace
    from .trees import tree_to_device as tree_to_device
    from .watching.table import ExchangeRow as ExchangeRow, Exchanges as Exchanges
    from .watching.watch import watch as watch

# The list of public names; everything else here follows from it. (The imports
# above are for type checkers, which need them written out; a test compares.)
_PUBLIC = {
    "interop.accepting": "accepts",
    "api.moving": "asarray copy_ explain from_dlpack plan to_device",
    "api.creation": "empty empty_like full full_like ones ones_like zeros zeros_like",
    "interop.blobs": "from_blob",
    "casts": "astype",
    "tracing": "Trace trace",
    "trees": "tree_to_device",
    "files.loading": "TensorFile load",
    "files.saving": "save",
    "frames": "planes",
    "interop.array_interfaces": "from_cuda_array_interface",
    "api.anything": "device_of",
    "interop.exporter": "Exporter",
    "core.moves.host_views": "HostView",
    "core.moves.plans": "Plan Step",
    "processes.descriptors": "from_fd",
    "processes.pickles": "unpickle_to",
    "processes.shared_tensors": "share",
    "core.plugins.lookup": "device devices trim",
    "core.plugins.registry": "backend backends register_backend",
    "core.plugins.streams": "current_stream synchronize use_stream",
    "core.tensor.operand": "Operand",
    "core.tensor.tensor": "Tensor",
    "core.values.devices": "DLDeviceType Device",
    "core.values.dtypes": "DLDataTypeCode DType dtype",
    "core.values.subbyte": "pack_bits unpack_bits",
    "diagnosis.report": "Info info",
    "watching.table": "ExchangeRow Exchanges",
    "watching.watch": "watch",
    "errors": "BackendError BackendUnavailable DeviceError DeviceLost DeviceMemoryError"
    " DeviceNotFound Error ExchangeError FileError LibraryUnavailable",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted([*_MODULES, "__version__", "ffi"])  # noqa: PLE0605 - a list, from the one above
_UNLISTED = {"unpickle": "processes.pickles"}
"""What the pickle of a Tensor names."""


if not TYPE_CHECKING:  # to a type checker it would say that there is every name

    def __getattr__(name: str) -> object:
        """Load a public name from its module at its first use."""
        if name == "ffi":
            return importlib.import_module(".ffi", __name__)
        module = _MODULES.get(name) or _UNLISTED.get(name)
        if module is None:
            if name in ("_methods", "protocol"):  # our own imports ask first: no hint is made
                raise AttributeError(f"module 'dlbridge' has no attribute {name!r}")
            import sys

            from ._absent_names import PACKAGE_NAMES
            from .core.values.text import did_you_mean

            known = PACKAGE_NAMES.get(name)
            tensor = getattr(sys.modules.get("dlbridge.core.tensor.tensor"), "Tensor", None)
            if tensor is not None and not known and name[:1] != "_" and name in dir(tensor):
                known = f"it is of a Tensor: dlbridge.asarray(x).{name}"
            hint = f"; {known}" if known else did_you_mean(name, __all__)
            raise AttributeError(f"module 'dlbridge' has no attribute {name!r}{hint}")
        value = getattr(importlib.import_module(f".{module}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
