"""What to write in place of an object that is no tensor, for messages."""

from __future__ import annotations

import os
from collections.abc import (
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from dlbridge.core.plugins.registry import known_backends
from dlbridge.core.values.devices import Device, type_names
from dlbridge.core.values.dtypes import is_name


def instead_of(x: Any) -> str:
    """What to write where *x* is a usual mistake; empty if it is none."""
    if x is None:
        return (
            "None was given; perhaps the function that should have made the array returns nothing"
        )
    if isinstance(x, Device) or (isinstance(x, str) and _names_device(x)):
        named = repr(str(x))
        return (
            f"{named} is a device, and a device comes second: dlbridge.to_device(x, {named}); for "
            f"the device itself write dlbridge.device({named})"
        )
    if isinstance(x, (str, os.PathLike)):
        return _instead_of_text(x)
    if isinstance(x, Mapping) or hasattr(x, "__dataclass_fields__"):
        return "dlbridge.tree_to_device(x, device) moves each of its arrays, and keeps the keys"
    if isinstance(x, ItemsView):
        return "dlbridge.tree_to_device(dict(x), device) moves each array, and keeps the keys"
    if isinstance(x, Set) and not isinstance(x, KeysView):
        return "a set has no order; pass sorted(x)"
    return method_of(x) or _instead_of_others(x)


ENDINGS = (".npy", ".npz", ".safetensors", ".gguf")
"""Of the names of files that `dlbridge.load` reads."""


def way_of_picture(path: str) -> str:
    """What reads the picture *path*, for messages; empty where its suffix is of something else."""
    import mimetypes  # for messages only

    if not (mimetypes.guess_type(path)[0] or "").startswith("image/"):
        return ""
    return f"for a picture, dlbridge.asarray(PIL.Image.open({path!r}))"


def _instead_of_text(x: str | os.PathLike[Any]) -> str:
    name = os.fspath(x)
    if str(name).lower().endswith(ENDINGS):
        return f"for a file, write dlbridge.load({str(name)!r})"
    if picture := way_of_picture(str(name)):
        return picture
    if not isinstance(x, str):
        return "dlbridge.load(path) reads a file"
    if is_name(x):
        return f"{x!r} is a dtype, and the array comes before it"
    return (
        f"{x!r:.80} is a text, and a tensor has numbers: dlbridge.load(path) reads a file of "
        "tensors, and dlbridge.asarray(x.encode()) has the bytes of the text"
    )


def _instead_of_others(x: Any) -> str:
    if hasattr(x, "read"):
        return (
            "an open file is not read here: dlbridge.load(x) reads a file of tensors, and "
            "dlbridge.asarray(x.read()) takes its bytes"
        )
    if isinstance(x, (range, Iterator, Sequence, KeysView, ValuesView)):
        return "pass its numbers as a list: list(x)"
    if isinstance(x, (FunctionType, MethodType, BuiltinFunctionType)):
        return "it is a function; pass what it returns"
    if isinstance(x, ModuleType):
        return "it is a module; pass an array (like= names the library of the result)"
    if hasattr(type(x), "__iter__"):
        return "move what it gives: [dlbridge.tree_to_device(each, device) for each in x]"
    if hasattr(type(x), "__float__"):
        return "pass float(x)"
    if any(hasattr(getattr(x, "data", None), name) for name in OF_ARRAYS):
        return "pass the array that it holds, x.data, or derive its class from dlbridge.Exporter"
    return ""


OF_ARRAYS = ("__dlpack__", "__array__", "__array_interface__", "__cuda_array_interface__")
"""What an object has that is an array itself."""


def method_of(x: Any) -> str:
    """What to write where a method of *x* gives an array or numbers; empty if none is known."""
    cls = type(x)
    package = cls.__module__.partition(".")[0]
    if package == "_cffi_backend":
        return "dlbridge.from_blob(x, shape, dtype) is a tensor on its memory"
    if getattr(x, "is_valid", True) is False:  # a scalar of pyarrow
        return "it is null; pass the number that it shall be"
    if (package, cls.__name__) in _CLASSES:
        return _CLASSES[package, cls.__name__]
    for method, way_out in _METHODS.items():
        if hasattr(cls, method):
            return way_out
    if hasattr(x, "dtype") and hasattr(x, "shape"):  # of PyTables
        if hasattr(cls, "read"):
            return "pass x.read(), which reads its elements"
        if hasattr(cls, "__getitem__"):
            return "pass x[:], which reads its elements"
    return ""


_CLASSES = {
    ("torch", "UntypedStorage"): "pass torch.tensor((), dtype=dtype).set_(x), with the dtype of "
    "its elements: torch.tensor((), dtype=torch.uint8).set_(x) for the bytes",
    ("torch", "TypedStorage"): "pass torch.tensor((), dtype=x.dtype).set_(x)",
    ("multiprocessing", "SharedMemory"): "pass x.buf, and keep x open",
    ("cv2", "UMat"): "pass x.get()",
    ("h5py", "Empty"): "it has a type, and neither a shape nor elements",
    ("av", "VideoPlane"): "dlbridge.planes(frame) gives a tensor of each plane of a frame",
}
"""Of the classes of a package: what to write in place of an object of one."""


_METHODS = {
    "to_dense": "pass x.to_dense()",
    "todense": "pass x.todense()",
    "toarray": "pass x.toarray()",
    "to_tensor": "pass x.to_tensor()",  # before to_numpy: pyarrow's sparse ones give parts there
    "to_ndarray": "pass x.to_ndarray()",
    "to_numpy": "pass x.to_numpy()",
    "numpy": "pass x.numpy()",
    "to_dlpack": "pass x.to_dlpack(), a capsule",
    "state_dict": "dlbridge.tree_to_device(x.state_dict(), device) moves its arrays, and keeps the "
    "names",
    "as_py": "pass x.as_py()",
    "__array_struct__": "pass numpy.asarray(x), which reads its __array_struct__",
}
"""Methods that give an array or numbers, the best one first: what to write where one is there."""


def _names_device(text: str) -> bool:
    name, _, _ = text.partition(":")
    return name in {*known_backends(), *type_names()}
