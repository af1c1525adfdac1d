"""numpy's array interface of our tensors: host memory of a type that numpy has by itself.

Source: numpy's documentation, "The array interface protocol", version 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["describe_array"]


def describe_array(tensor: Tensor) -> dict[str, Any]:
    """The dictionary for *tensor*, new at each call; it does not keep the memory alive.

    AttributeError for other memory and types, so that ``hasattr`` is right for
    consumers: numpy then asks ``__array__``, which has the types of ml_dtypes. So
    also for the tensor of a host view: consumers keep the tensor, which lets its
    memory go when the block ends, and an array of ``__array__`` keeps the memory.
    """
    if getattr(tensor, "expires", False):
        raise AttributeError("the tensor of a host view has no __array_interface__; use h.numpy()")
    if not tensor.device.is_host:
        raise AttributeError(
            f"a tensor on {tensor.device} has no __array_interface__: the host does not read it; "
            "dlbridge.to_device(t, 'cpu') copies it"
        )
    if tensor.dtype.is_subbyte or tensor.dtype.lanes != 1:
        raise _no_type(tensor)
    array = tensor.numpy()
    if array.dtype.isbuiltin != 1:
        raise _no_type(tensor)
    interface: dict[str, Any] = array.__array_interface__
    interface["strides"] = array.strides  # also of compact arrays: Pillow fails without
    return interface


def _no_type(tensor: Tensor) -> AttributeError:
    return AttributeError(
        f"{tensor.dtype} has no name in the array interface; use DLPack, or t.view('uint8')"
    )
