"""jax: its arrays are immutable, compact and aligned; traced values and references are none."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dlbridge import DLDeviceType, dtype as as_dtype, unpack_bits
from dlbridge.abi import wrap_plain, writable
from dlbridge.errors import ExchangeError
from dlbridge.extending import (
    FLOAT8,
    NUMPY_OWN,
    PACKED,
    Library,
    exchanges,
    import_from_host,
    import_producer,
    native_dtypes,
    origin_of,
    unless_handler,
    with_article,
    wrap_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge import Device, Tensor


def _refuse(x: Any) -> None:
    """Deleted and sharded arrays, values of a function that is traced, types without DLPack."""
    if not type(x).__name__.endswith("ArrayImpl"):
        _refuse_values(x)
    way_out = _type_refused(getattr(x, "dtype", None))
    if way_out:
        raise ExchangeError(f"{with_article(origin_of(x))} {way_out}")
    if getattr(x, "is_deleted", bool)():
        raise ExchangeError(
            f"the {origin_of(x)} has been deleted (by delete(), or as a donated argument): it has "
            "no memory any more; pass the array that replaced it"
        )
    _refuse_sharded(x)


def _refuse_sharded(x: Any) -> None:
    """Arrays on several devices, also those that have all elements on each."""
    try:
        getattr(x, "__dlpack_device__", bool)()
    except BufferError as exc:
        count = len(x.devices())
        if count < 2:
            raise
        whole = "numpy.asarray(x), a copy of all of it, or " if x.is_fully_addressable else ""
        raise ExchangeError(
            f"the {origin_of(x)} is on {count} devices, and a tensor is on one; pass {whole}one "
            "part, x.addressable_shards[0].data"
        ) from exc


def _refuse_values(x: Any) -> None:
    """Tracers, sparse arrays and references."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.core.Tracer):
        raise ExchangeError(
            f"{with_article(origin_of(x))} stands for a value in a function that is being traced, "
            "and has no memory; call dlbridge outside of jax.jit, jax.grad and jax.vmap, or in a "
            "function that jax.pure_callback calls"
        )
    if ".sparse" in type(x).__module__:
        raise ExchangeError(
            f"a sparse {origin_of(x)} is not one block of memory; pass x.todense(), or its parts "
            "(x.data)"
        )
    if type(x).__name__ == "Ref":
        raise ExchangeError(
            f"{with_article(origin_of(x))} is a reference to an array that changes; pass x[...], "
            "the array that it has now"
        )


@lru_cache(maxsize=64)
def _type_refused(dtype: Any) -> str:
    """What to do with an array of a type that jax does not export; empty for others."""
    name = str(dtype)
    if name.startswith("key<"):
        return "of random keys has no plain memory; pass jax.random.key_data(x)"
    if name in PACKED and name != "float4_e2m1fn":
        return (
            f"of {name} is not exported by jax; pass numpy.asarray(x), which is a copy, or "
            "x.astype('int8')"
        )
    return ""


def _importer(cls: type) -> Callable[[Any], Tensor]:
    def from_jax(x: Any) -> Tensor:
        # The buffer protocol gives the CPU's memory in place or refuses; `np.asarray(x)`
        # would copy memory of other devices. It knows numpy's own types only.
        if x.dtype not in native:
            return import_from_host(x)
        try:
            view = memoryview(x)
        except unless_handler(BufferError, RuntimeError, ValueError):
            return import_producer(x)
        array = asarray(view)
        if not array.size:
            return wrap_array(array, cls)
        return wrap_plain(array, cls, readonly=True)

    import numpy as np

    native = native_dtypes()
    asarray = np.asarray
    return from_jax


def _make(tensor: Tensor) -> Any:
    """``jax.Array``."""
    import jax.dlpack

    if tensor.dtype.name in PACKED:  # it takes none by DLPack, and those of ml_dtypes by a copy
        if tensor.is_padded:
            return jax.numpy.array(tensor.numpy())
        codes = unpack_bits(tensor.tobytes(), tensor.dtype, tensor.size)
        return jax.numpy.array(codes.view(tensor.dtype.numpy).reshape(tensor.shape))
    if tensor.readonly:
        # jax before 0.12 asks for legacy capsules, which cannot carry READ_ONLY. Its own
        # arrays are immutable, so it is given the memory without that mark.
        tensor = writable(tensor)
    return jax.dlpack.from_dlpack(tensor)


def _check(tensor: Tensor, device: Device) -> None:
    """Raise ExchangeError for 64-bit types, which jax without x64 changes to 32 bits.

    And for elements below a byte that are not the host's.
    """
    if tensor.dtype.name in PACKED and not device.is_host:
        raise ExchangeError(
            f"jax takes elements of {tensor.dtype} from the host only; "
            "dlbridge.to_device(t, 'cpu', like='jax') brings them there"
        )
    if tensor.dtype.name not in {"float64", "int64", "uint64", "complex128"}:
        return
    import jax

    narrow = as_dtype(jax.dtypes.canonicalize_dtype(tensor.dtype.numpy))
    if narrow is not tensor.dtype:
        raise ExchangeError(
            f"jax would turn {tensor.dtype} into {narrow}: call "
            "jax.config.update('jax_enable_x64', True) at the start, or convert the elements "
            "yourself beforehand"
        )


@lru_cache(maxsize=64)
def _device(sharding: Any) -> str:
    places = sharding.device_set
    if len(places) > 1:
        return f"{len(places)} devices"
    (place,) = places
    return "cpu" if place.platform == "cpu" else f"{place.platform}:{place.id}"


def _look(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    dtype = x.dtype
    return _device(x.sharding), dtype, x.shape, x.size * dtype.itemsize


def _address(x: Any) -> int:
    # Elsewhere it would wait for the work.
    address: int = x.unsafe_buffer_pointer() if _device(x.sharding) == "cpu" else 0
    return address


# jax never writes into memory that it was given, donated or not.
LIBRARY = Library(
    "jax",
    ("jax.Array", "jaxlib.ArrayImpl", "jaxlib.Array"),
    refuse=_refuse,
    importer=_importer,
    new_structs=True,
    immutable=True,
    make=_make,
    check=_check,
    types=NUMPY_OWN
    | FLOAT8
    | PACKED
    | {"bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"},
    copied_types=PACKED,
    keeps_readonly=True,
    compact_only=True,
    any_order=True,
    alignment=64,
    device_types=frozenset({DLDeviceType.kDLCPU, DLDeviceType.kDLCUDA, DLDeviceType.kDLROCM}),
    exchanges=(
        *exchanges("jax.Array", "numpy.asarray numpy.array numpy.from_dlpack dlpack.from_dlpack"),
        *exchanges("jax.Array", "device_put", "moved"),
        *exchanges("numpy.ndarray", "device_get"),
        *exchanges("list", "jax._src.array:ArrayImpl.tolist", "copied"),
        *exchanges("number", "jax._src.array:ArrayImpl.item", "copied"),
    ),
    look=(_look, _address),
)
