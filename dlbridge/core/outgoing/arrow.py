"""Our tensors by Arrow's PyCapsule interface: one dimension of numbers, on the CPU.

The structs are pyarrow's: what Arrow calls when it drops an array may run late,
even after Python has ended, and has to be C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.core.tensor.operand import operand_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.tensor import Tensor

__all__ = ["exporter"]

_TYPES = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    | {"float16", "float32", "float64"}
)


def exporter(tensor: Tensor) -> Callable[..., tuple[object, object]]:
    """The method ``__arrow_c_array__`` of *tensor*.

    AttributeError for what Arrow cannot hold in place, so that
    ``hasattr(tensor, "__arrow_c_array__")`` is right for consumers.
    """
    if tensor.ndim != 1 or not tensor.device.is_host:
        raise _not_arrow(f"{tensor.ndim} dimensions on {tensor.device}", "one on the CPU")
    if tensor.dtype.name not in _TYPES:
        raise _not_arrow(str(tensor.dtype), "numbers of 8 to 64 bits; Arrow packs bools")
    if not tensor.is_contiguous():
        raise _not_arrow(f"strides {tensor.strides}", "compact memory: to_device(copy=True)")
    try:
        import pyarrow
    except ImportError as exc:
        raise _not_arrow("a tensor without pyarrow", "pip install pyarrow") from exc

    def export(requested_schema: object = None) -> tuple[object, object]:
        operand_of(tensor)  # raises if it was lent and has expired
        # The memory belongs to numpy's array, which the Arrow buffer keeps alive.
        array = tensor.numpy()
        column = pyarrow.Array.from_buffers(
            pyarrow.from_numpy_dtype(array.dtype), array.size, [None, pyarrow.py_buffer(array)]
        )
        exported: tuple[object, object] = column.__arrow_c_array__(requested_schema)
        return exported

    return export


def _not_arrow(given: str, wanted: Any) -> AttributeError:
    return AttributeError(f"{given} cannot be exported to Arrow, which takes {wanted}")
