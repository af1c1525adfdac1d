"""Arrays with something that DLPack cannot say, or without plain memory: refused, with a way out.

Each function gets an array of one library, and raises ExchangeError or returns.
The library has been imported by whoever made the array.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

from dlbridge.core.values.suggestions import with_article
from dlbridge.errors import ExchangeError

from .library import origin_of

__all__ = [
    "is_arrow_only",
    "is_readonly_torch",
    "plain_torch",
    "refuse_dali",
    "refuse_dask",
    "refuse_jax",
    "refuse_masks",
    "refuse_paddle",
    "refuse_pyarrow",
    "refuse_sparse",
    "refuse_tensorflow",
    "refuse_tinygrad",
    "refuse_torch",
    "refuse_warp",
]


def refuse_masks(x: Any) -> None:
    """Masked arrays of numpy."""
    if hasattr(type(x), "__array_ufunc__") and hasattr(x, "mask") and hasattr(x, "filled"):
        raise ExchangeError("a masked array has no DLPack form; pass x.filled() or x.data")


def is_readonly_torch(cls: type) -> bool:
    """Whether *cls* is torch's ReadOnlyTensorWrapper (torch 2.15), or a class under it."""
    wrapper = getattr(sys.modules.get("torch.utils.dlpack"), "ReadOnlyTensorWrapper", None)
    return wrapper is not None and issubclass(cls, wrapper)


def plain_torch(x: Any) -> Any:
    """The ``torch.Tensor`` in a ReadOnlyTensorWrapper, which allows DLPack's methods only."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(torch.Tensor)


def refuse_torch(x: Any) -> None:
    """Gradients, lazy signs, and layouts that have no plain memory."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return
    readonly = is_readonly_torch(type(x))
    if readonly:
        x = plain_torch(x)
    if x.is_meta or type(x).__name__ == "FakeTensor":
        raise ExchangeError(
            f"the {origin_of(x)} is a meta or fake tensor: it has a shape and no memory; make "
            "a real one of it first (torch.empty_like(x, device='cpu') and its values)"
        )
    if type(x).__name__ == "MaskedTensor":
        raise ExchangeError(
            "a torch MaskedTensor has a mask, which DLPack cannot carry; pass x.to_tensor(value), "
            "which fills it, or x.get_data()"
        )
    if x.is_nested:
        raise ExchangeError(
            "a nested torch tensor is not one block of memory; pass x.to_padded_tensor(value), or "
            "its parts (x.unbind())"
        )
    if x.is_quantized:
        raise ExchangeError(
            "a quantized torch tensor has a scale, which DLPack cannot carry; pass x.dequantize(), "
            "or its integers (x.int_repr())"
        )
    if x.layout is not torch.strided:
        raise ExchangeError(
            f"a torch tensor of layout {str(x.layout).removeprefix('torch.')} has no strides; "
            "pass x.to_dense()"
        )
    if getattr(x, "_is_zerotensor", bool)():
        raise ExchangeError(
            "the torch tensor is a ZeroTensor, which has no memory; pass torch.zeros(x.shape, "
            "dtype=x.dtype) in its place"
        )
    try:
        # data_ptr() copies memory that is copied on write; what is only read need not be.
        x.untyped_storage() if readonly else x.data_ptr()
    except RuntimeError as exc:
        raise ExchangeError(
            "the torch tensor has no memory of its own: it stands for a value in a function that "
            "is being transformed (torch.vmap, torch.func.grad); call dlbridge outside of that "
            "function"
        ) from exc
    if x.requires_grad:
        raise ExchangeError("the torch tensor requires grad; pass x.detach()")
    if x.is_conj() or x.is_neg():
        raise ExchangeError(
            "the torch tensor is lazily conjugated or negated, which other libraries do not "
            "see; pass x.resolve_conj().resolve_neg()"
        )


def refuse_jax(x: Any) -> None:
    """Deleted arrays, the values of a function that is being traced, and types without DLPack."""
    if not type(x).__name__.endswith("ArrayImpl"):
        _refuse_values_of_jax(x)
    way_out = _types_of_jax(getattr(x, "dtype", None))
    if way_out:
        raise ExchangeError(f"{with_article(origin_of(x))} {way_out}")
    if getattr(x, "is_deleted", bool)():
        raise ExchangeError(
            f"the {origin_of(x)} has been deleted (by delete(), or as a donated argument): it has "
            "no memory any more; pass the array that replaced it"
        )


def _refuse_values_of_jax(x: Any) -> None:
    """Tracers, sparse arrays and references."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.core.Tracer):
        raise ExchangeError(
            f"{with_article(origin_of(x))} stands for a value in a function that is being "
            "traced, and has no "
            "memory; call dlbridge outside of jax.jit, jax.grad and jax.vmap, or in a function "
            "that jax.pure_callback calls"
        )
    if ".sparse" in type(x).__module__:
        raise ExchangeError(
            f"a sparse {origin_of(x)} is not one block of memory; pass x.todense(), or its parts "
            "(x.data)"
        )
    if type(x).__name__ == "Ref":
        raise ExchangeError(
            f"{with_article(origin_of(x))} is a reference to an array that changes; pass x[...], "
            "the array "
            "that it has now"
        )


@lru_cache(maxsize=64)
def _types_of_jax(dtype: Any) -> str:
    """What to do with an array of a type that jax does not export; empty for others."""
    name = str(dtype)
    if name.startswith("key<"):
        return "of random keys has no plain memory; pass jax.random.key_data(x)"
    if name in ("int2", "uint2", "int4", "uint4"):
        return (
            f"of {name} is not exported by jax; pass numpy.asarray(x), which is a copy, or "
            "x.astype('int8')"
        )
    return ""


def refuse_tensorflow(x: Any) -> None:
    """Tensors of a graph, ragged and sparse ones, and types without plain memory."""
    kind = type(x).__name__
    if kind in ("SymbolicTensor", "KerasTensor"):
        raise ExchangeError(
            f"{with_article(origin_of(x))} stands for a value in a function that is being "
            "traced, and has no "
            "memory; call dlbridge outside of tf.function, or inside tf.py_function"
        )
    ways = {"RaggedTensor": "x.to_tensor()", "SparseTensor": "tf.sparse.to_dense(x)"}
    if kind in ways:
        raise ExchangeError(
            f"{with_article(origin_of(x))} is not one block of memory; pass {ways[kind]}"
        )
    name = getattr(getattr(x, "dtype", None), "name", "")
    if name in ("string", "resource", "variant"):
        # tensorflow 2.21 aborts the process in __dlpack__ of such a tensor.
        raise ExchangeError(
            f"a tensorflow tensor of {name} elements has no plain memory; convert it to numbers "
            "(tf.io.decode_raw, tf.strings.to_number)"
        )


def refuse_paddle(x: Any) -> None:
    """Gradients, which paddle's exchange table does not look at, and sparse layouts."""
    if getattr(x, "is_sparse", bool)():
        raise ExchangeError("a sparse paddle tensor is not one block of memory; pass x.to_dense()")
    if not getattr(x, "stop_gradient", True):
        raise ExchangeError(
            "the paddle tensor requires gradients (stop_gradient is False); pass x.detach()"
        )


def refuse_pyarrow(x: Any) -> None:
    """Arrays with null values, and those of types that its ``__dlpack__`` refuses."""
    if not _is_array_of_pyarrow(x):
        return  # a table, a tensor, chunks: what they are asked for looks at the values
    inside = x.storage.flatten() if hasattr(x, "to_numpy_ndarray") else x
    for who, column, way_out in (
        (f"{origin_of(x)} has", x, "x.fill_null(value)"),
        (
            f"tensors in the {origin_of(x)} have",
            inside,
            "x.storage.flatten().fill_null(value), reshaped",
        ),
    ):
        if column.null_count:
            raise ExchangeError(
                f"the {who} {column.null_count} null "
                f"value{'s' if column.null_count > 1 else ''}, which DLPack cannot carry; pass "
                f"{way_out}"
            )
    if is_arrow_only(x):
        if str(x.type) == "bool":
            raise ExchangeError(
                f"the {origin_of(x)} packs bools into bits, which DLPack has not; "
                "dlbridge.asarray(x) makes a copy of them in bytes, as x.cast('uint8') does"
            )
        raise ExchangeError(
            f"the {origin_of(x)} of {x.type} holds no plain numbers, which DLPack needs; "
            "dlbridge.asarray(x) takes lists of one length; cast others (dates and times: "
            "x.cast('int64')), or pass the array inside (x.storage, x.flatten(), "
            "x.dictionary_decode())"
        )


def is_arrow_only(x: Any) -> bool:
    """Whether *x* is an array of pyarrow that it exports by Arrow's interface, not by DLPack."""
    return (
        _is_array_of_pyarrow(x)
        and not hasattr(x, "to_numpy_ndarray")
        and not str(x.type).startswith(_NUMBERS_OF_ARROW)
    )


def _is_array_of_pyarrow(x: Any) -> bool:
    library = sys.modules.get("pyarrow.lib")
    return library is not None and isinstance(x, library.Array)


_NUMBERS_OF_ARROW = ("int", "uint", "float", "double", "halffloat")


def refuse_warp(x: Any) -> None:
    """Indexed arrays."""
    if type(x).__name__ == "indexedarray":
        raise ExchangeError("a warp indexedarray is not one block of memory; pass x.contiguous()")


def refuse_dask(x: Any) -> None:
    """Lazy arrays: nothing is computed unless the user says so."""
    raise ExchangeError(
        f"{with_article(origin_of(x))} is computed when its values are needed, and may not fit "
        "into memory; "
        "pass x.compute()"
    )


def refuse_tinygrad(x: Any) -> None:
    """Every tinygrad tensor: its memory comes out by a copy, as a buffer."""
    raise ExchangeError(
        f"{with_article(origin_of(x))} exports no memory; pass x.data(), a buffer that tinygrad "
        "computes and "
        "copies to the host"
    )


def refuse_sparse(x: Any) -> None:
    """Sparse arrays of scipy and of sparse."""
    way = "x.toarray()" if hasattr(x, "toarray") else "x.todense()"
    raise ExchangeError(
        f"a sparse {origin_of(x)} is not one block of memory; pass {way}, or its parts (x.data)"
    )


def refuse_dali(x: Any) -> None:
    """Lists of samples, which may differ in shape."""
    if "TensorList" in type(x).__name__:
        raise ExchangeError(
            f"{with_article(origin_of(x))} is a list of tensors; pass x.as_tensor(), or its "
            "elements (x[0])"
        )
