"""A library of arrays in 30 lines: what `dlbridge.Exporter` makes of a class, for the tests.

``python -m dlbridge conformance toy_arrays`` checks it as any other library.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import dlbridge as bridge


class Array(bridge.Exporter):
    """Memory of its own kind, by a method: each Tensor is made when it is asked for."""

    __slots__ = ("_memory",)

    def __init__(self, memory: bridge.Tensor) -> None:
        self._memory = memory

    def __as_tensor__(self) -> bridge.Tensor:
        return self._memory

    @classmethod
    def __from_tensor__(cls, tensor: bridge.Tensor) -> Array:
        return cls(tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._memory.shape

    @property
    def dtype(self) -> bridge.DType:
        return self._memory.dtype

    @property
    def device(self) -> bridge.Device:
        return self._memory.device

    def __getitem__(self, index: Any) -> Array:
        return type(self)(self._memory[index])

    def numpy(self) -> Any:
        return self._memory.numpy()


class Held(bridge.Exporter, tensor="tensor"):
    """By an attribute."""

    def __init__(self, tensor: bridge.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __from_tensor__(cls, tensor: bridge.Tensor) -> Held:
        return cls(tensor)


class Pointer(Array):
    """By an address, which it makes a new Tensor of each time."""

    __slots__ = ()

    def __as_tensor__(self) -> bridge.Tensor:
        t = self._memory
        if t.dtype.is_subbyte or not t.device.is_host:
            return t
        return bridge.from_blob(
            t.data_ptr(), t.shape, t.dtype, strides=t.strides, readonly=t.readonly, owner=t
        )


def asarray(array: np.ndarray[Any, Any]) -> Array:
    return Array(bridge.asarray(array, copy=True))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    made: Array = bridge.from_dlpack(x, device=device, copy=copy, like=Array)
    return made
