"""A user's script of typical calls. Read by type checkers, and run by the tests too."""

from __future__ import annotations

import io
import os
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

import dlbridge as bridge
from dlbridge.typing import ArrayLike

if not TYPE_CHECKING:  # where it is a builtin

    def reveal_type(_thing: object) -> None: ...


x = np.arange(6, dtype="float32").reshape(2, 3)

# In.
t = bridge.from_dlpack(x)
reveal_type(t)  # dlbridge.Tensor
reveal_type(bridge.from_dlpack(x, like="numpy"))  # numpy.ndarray
reveal_type(bridge.from_dlpack(x, like=x))  # numpy.ndarray
reveal_type(bridge.from_dlpack(x, like=np))  # numpy.ndarray
reveal_type(bridge.asarray([[1, 2], [3, 4]], dtype="uint8"))  # dlbridge.Tensor
reveal_type(bridge.asarray(array("d", [1.0])))  # dlbridge.Tensor

# Made, moved, copied.
reveal_type(bridge.empty((2, 3), np.float16))  # dlbridge.Tensor
reveal_type(bridge.zeros(3, "bfloat16", "cpu"))  # dlbridge.Tensor
reveal_type(bridge.full((2, 3), 7, "uint8", alignment=4096))  # dlbridge.Tensor
reveal_type(bridge.ones_like(x))  # dlbridge.Tensor
reveal_type(bridge.astype(x, "bfloat16", saturate=True))  # dlbridge.Tensor
reveal_type(t.view("uint8"))  # dlbridge.Tensor
reveal_type(bridge.to_device(x, "cpu"))  # dlbridge.Tensor
reveal_type(bridge.to_device(x, bridge.device("cpu"), like="dlbridge"))  # dlbridge.Tensor
reveal_type(bridge.to_device(t, "cpu", like="numpy"))  # numpy.ndarray
reveal_type(bridge.to_device(t, "cpu", like=x))  # numpy.ndarray
reveal_type(bridge.to_device(t, "cpu", like=np))  # numpy.ndarray
reveal_type(bridge.to_device(x, "cpu", like=t))  # dlbridge.Tensor
reveal_type(bridge.to_device(x, "cpu", like=bridge.Tensor))  # dlbridge.Tensor
reveal_type(bridge.to_device(x, "cpu", like=bridge.Tensor))  # dlbridge.Tensor
reveal_type(bridge.to_device(t, "cpu", "numpy"))  # numpy.ndarray
reveal_type(t.to_device("cpu", "numpy"))  # numpy.ndarray
reveal_type(t.to_device("cpu", stream=None))  # dlbridge.Tensor
bridge.copy_(x, t)

# Looked at.
reveal_type(bridge.plan(x, "cpu", copy=True))  # dlbridge.Plan
reveal_type(bridge.plan(x, "cpu").steps[0].source)  # dlbridge.Device
reveal_type(bridge.explain(x, "cpu"))  # str
with bridge.trace() as trace:
    reveal_type(trace)  # dlbridge.Trace
    reveal_type(trace.nbytes)  # int

# Devices, streams, dtypes.
reveal_type(bridge.device(("cpu", 0)[0]))  # dlbridge.Device
reveal_type(bridge.device(x))  # dlbridge.Device
reveal_type(bridge.dtype(float))  # dlbridge.DType
reveal_type(bridge.dtype(x.dtype))  # dlbridge.DType
reveal_type(bridge.dtype("int4").numpy)  # numpy.dtype
reveal_type(bridge.current_stream("cpu"))  # int
reveal_type(bridge.backends())  # list[str]
reveal_type(bridge.devices())  # list[Device]
reveal_type(bridge.device_of(x))  # dlbridge.Device
reveal_type(bridge.backend("cpu").device_count())  # int


def some_backend(name: str) -> None:
    """Typed by its name where that is known; otherwise by the contract."""
    reveal_type(bridge.backend(name))  # dlbridge.protocol.Backend
    reveal_type(bridge.backend("vulkan"))  # dlbridge_vulkan.Vulkan
    reveal_type(bridge.backend("opencl"))  # dlbridge_opencl.OpenCL
    reveal_type(bridge.backend("cpu"))  # dlbridge.CPU
    # An array of a library that only its name says may be anything; of these it is known.
    reveal_type(bridge.to_device(x, "cpu", like=name))  # Any
    reveal_type(bridge.to_device(x, "vulkan:0", like="vulkan"))  # dlbridge_vulkan.VulkanArray
    reveal_type(bridge.to_device(x, "opencl:0", like="opencl"))  # pyopencl.Array
    reveal_type(bridge.from_dlpack(t, like="opencl"))  # pyopencl.Array


def files(path: str) -> None:
    """Only the file says whether it has one tensor, or several by name."""
    file = bridge.load(path)
    reveal_type(file["weight"])  # dlbridge.Tensor
    reveal_type(file.metadata)  # dict[str, Any]
    reveal_type(file.tolist())  # Any
    one: bridge.Tensor = file
    several: bridge.TensorFile = file
    reveal_type(bridge.load(path, "cpu", True))  # dlbridge.TensorFile
    reveal_type(bridge.load(path, names=["weight"]))  # dlbridge.TensorFile
    reveal_type(bridge.load(io.BytesIO())["weight"])  # dlbridge.Tensor
    reveal_type(bridge.load(path, like="numpy")["weight"])  # numpy.ndarray
    reveal_type(bridge.load(path, like=name_of(one, several))["weight"])  # Any


def name_of(*_tensors: object) -> str:
    """A library that is known at run time only."""
    return "numpy"


@bridge.accepts("numpy")
def mean(array: ArrayLike, axis: int = 0) -> bridge.Tensor:
    """It keeps its signature."""
    return bridge.asarray(np.asarray(array).mean(axis))


reveal_type(mean(t, axis=0))  # dlbridge.Tensor


@bridge.accepts("numpy")
def scaled(array: np.ndarray[Any, Any], by: float = 2.0) -> np.ndarray[Any, Any]:
    """It also takes the arrays that the annotation does not name, and gives the same kind."""
    return array * by


@bridge.accepts("numpy")
def largest(array: np.ndarray[Any, Any]) -> float:
    """It returns no array."""
    return float(array.max())


@bridge.accepts("numpy")
async def later(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """It is awaited."""
    return array


class Model:
    """A method is decorated in the same way."""

    @bridge.accepts("numpy")
    def run(self, array: np.ndarray[Any, Any], by: float = 1.0) -> np.ndarray[Any, Any]:
        """Return an array."""
        return array * by

    @bridge.accepts("numpy")
    def largest(self, array: np.ndarray[Any, Any]) -> float:
        """Return none."""
        return float(array.max())


@bridge.accepts("numpy")
def weighted(
    array: np.ndarray[Any, Any],
    weights: np.ndarray[Any, Any] | None = None,
    bias: float | np.ndarray[Any, Any] = 0.0,
    *,
    by: float = 1.0,
) -> np.ndarray[Any, Any]:
    """Several of its arguments are arrays."""
    return array * (1.0 if weights is None else weights) * by + bias


@bridge.accepts("numpy")
def joined(*arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As many as there are."""
    return np.concatenate(arrays)


reveal_type(scaled(x))  # numpy.ndarray
reveal_type(scaled(x, 3.0))  # numpy.ndarray
reveal_type(scaled(t))  # dlbridge.Tensor
reveal_type(scaled(t, by=3.0))  # dlbridge.Tensor
reveal_type(scaled(array=x))  # numpy.ndarray
reveal_type(scaled.__name__)  # str
reveal_type(largest(t))  # float
reveal_type(Model().run(t))  # dlbridge.Tensor
reveal_type(Model().run(t, by=2.0))  # dlbridge.Tensor
reveal_type(Model().run(array=x))  # numpy.ndarray
reveal_type(Model.run(Model(), x))  # numpy.ndarray
reveal_type(Model().largest(t))  # float
reveal_type(Model().largest(array=x))  # float
reveal_type(weighted(t, t))  # dlbridge.Tensor
reveal_type(weighted(t, t, by=2.0))  # dlbridge.Tensor
reveal_type(weighted(x, t, t))  # numpy.ndarray
reveal_type(weighted(x, weights=x))  # numpy.ndarray
reveal_type(joined(t, t))  # dlbridge.Tensor


async def wait() -> None:
    """Never run here."""
    reveal_type(await later(x))  # numpy.ndarray
    await later(t)


def on_a_stream(device: str, stream: object) -> None:
    """Never run here: the CPU has no streams."""
    with bridge.use_stream(device, stream) as handle:
        reveal_type(handle)  # int


# A tensor's own.
reveal_type(t.shape)  # tuple[int, ...]
reveal_type(t.dtype)  # dlbridge.DType
reveal_type(t.device)  # dlbridge.Device
reveal_type(t[0, 1:])  # dlbridge.Tensor
reveal_type(t.numpy())  # numpy.ndarray
reveal_type(t.tobytes())  # bytes
reveal_type(t[0, 0].item())  # Number
reveal_type(float(t[0, 0]))  # float
reveal_type(int(t[0, 0]))  # int
reveal_type(complex(t[0, 0]))  # complex
reveal_type(t.tolist())  # Any
reveal_type(t.to_native())  # Any
shared = bridge.share(x)
fd, layout = shared.to_fd()
reveal_type(fd)  # int
reveal_type(layout)  # dict[str, Any]
reveal_type(bridge.from_fd(fd, **layout))  # dlbridge.Tensor
reveal_type(bridge.from_fd(fd, (2, 3), "float32", kind="memory", copy=False))  # dlbridge.Tensor
os.close(fd)
reveal_type(t.operand())  # dlbridge.Operand
reveal_type(t.operand().data + t.operand().byte_offset)  # int
reveal_type(t.host_view())  # dlbridge.HostView
with t.host_view() as h:
    reveal_type(h)  # dlbridge.Tensor
reveal_type(np.asarray(t.numpy()))  # numpy.ndarray
reveal_type(bridge.pack_bits([1, 2], bridge.dtype("uint4")))  # bytes
reveal_type(bridge.pack_bits([1, 2], "uint4"))  # bytes
reveal_type(bridge.unpack_bits(b"!", bridge.dtype("uint4"), 2))  # numpy.ndarray
