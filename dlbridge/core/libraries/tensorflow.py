"""tensorflow: immutable tensors by legacy capsules; values of a graph are none."""

from __future__ import annotations

from typing import Any

from dlbridge.core.values.devices import DLDeviceType
from dlbridge.core.values.suggestions import with_article
from dlbridge.errors import ExchangeError

from .library import NUMPY_TYPES, Library, origin_of


def _refuse(x: Any) -> None:
    """Tensors of a graph, ragged and sparse ones, and types without plain memory."""
    kind = type(x).__name__
    if kind in ("SymbolicTensor", "KerasTensor"):
        raise ExchangeError(
            f"{with_article(origin_of(x))} stands for a value in a function that is being traced, "
            "and has no memory; call dlbridge outside of tf.function, or inside tf.py_function"
        )
    ways = {"RaggedTensor": "x.to_tensor()", "SparseTensor": "tf.sparse.to_dense(x)"}
    if kind in ways:
        raise ExchangeError(
            f"{with_article(origin_of(x))} is not one block of memory; pass {ways[kind]}"
        )
    name = getattr(getattr(x, "dtype", None), "name", "")
    if name.startswith("float8"):
        raise ExchangeError(f"tensorflow does not export {name}; pass x.numpy()")
    if name in ("string", "resource", "variant"):
        # tensorflow 2.21 aborts the process in __dlpack__ of such a tensor.
        raise ExchangeError(
            f"a tensorflow tensor of {name} elements has no plain memory; convert it to numbers "
            "(tf.io.decode_raw, tf.strings.to_number)"
        )


LIBRARY = Library(
    "tensorflow",
    ("tensorflow.Tensor", "tensorflow.EagerTensor"),
    refuse=_refuse,
    immutable=True,
    make="tensorflow:experimental.dlpack.from_dlpack",
    takes="capsule",
    compact_only=True,
    types=NUMPY_TYPES | {"bfloat16"},
    device_types=frozenset({DLDeviceType.kDLCPU, DLDeviceType.kDLCUDA}),
)
