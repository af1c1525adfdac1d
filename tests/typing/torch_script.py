"""As script.py, with torch and jax, whose types a checker knows where they are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import dlbridge as bridge

if not TYPE_CHECKING:  # where it is a builtin

    def reveal_type(_thing: object) -> None: ...


x = torch.ones(3)
reveal_type(bridge.from_dlpack(x))  # dlbridge.Tensor
reveal_type(bridge.from_dlpack(x, like="torch"))  # torch.Tensor
reveal_type(bridge.from_dlpack(bridge.zeros(3), like=x))  # torch.Tensor
reveal_type(bridge.to_device(x, "cpu"))  # dlbridge.Tensor
reveal_type(bridge.to_device(x, torch.device("cpu")))  # dlbridge.Tensor
reveal_type(bridge.to_device([1.0], "cpu", like="torch"))  # torch.Tensor
reveal_type(bridge.to_device(x, "cpu", like="numpy"))  # numpy.ndarray
reveal_type(bridge.to_device([1.0], "cpu", like=torch.Tensor))  # torch.Tensor
reveal_type(bridge.to_device([1.0], "cpu", like=x))  # torch.Tensor
reveal_type(bridge.to_device([1.0], "cpu", like=torch))  # torch.Tensor
reveal_type(bridge.from_dlpack(x, like=torch))  # torch.Tensor
reveal_type(bridge.to_device(x, "cpu", like=jax))  # jax.Array
reveal_type(bridge.to_device(x, "cpu", like=jnp))  # jax.Array
reveal_type(bridge.to_device(x, "cpu", like="jax"))  # jax.Array


@bridge.accepts("numpy")
def scaled(array: np.ndarray[Any, Any], by: float = 2.0) -> np.ndarray[Any, Any]:
    """It takes torch's tensors, too."""
    return array * by


reveal_type(scaled(x))  # torch.Tensor
reveal_type(scaled(x, by=3.0))  # torch.Tensor
reveal_type(bridge.dtype(torch.float32))  # dlbridge.DType
reveal_type(bridge.device(torch.device("cpu")))  # dlbridge.Device
