"""tvm_ffi: its tensors on the CPU by numpy's C code; the others as any producer's."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dlbridge import dtype as as_dtype
from dlbridge.abi import DLPACK_VERSION, is_plain_host, wrap_plain
from dlbridge.extending import (
    ALL_HOST,
    MAX_NBYTES,
    Library,
    exchanges,
    import_from_host,
    import_producer,
    native_dtypes,
    unless_handler,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge import DType, Tensor


def _importer(cls: type) -> Callable[[Any], Tensor]:
    def from_tvm_ffi(x: Any) -> Tensor:
        array: Any = None
        try:
            # tvm_ffi keeps what a stranger's struct says. numpy reads a shape that is NULL, and
            # looks neither at device_id and byte_offset nor at products that overflow; where
            # data is NULL, it allocates. A type that it lacks takes it 1 us to refuse.
            if is_plain_host(x.__dlpack__(max_version=DLPACK_VERSION)):
                array = from_dlpack(x)
        except unless_handler(BufferError, RuntimeError, TypeError, ValueError):
            pass
        if array is None:  # inside `except` it would take 1 us more
            return import_from_host(x)
        if array.flags.carray and 0 < array.nbytes < MAX_NBYTES:
            return wrap_plain(array, cls)
        return import_producer(x)

    import numpy as np

    native_dtypes()
    from_dlpack = np.from_dlpack
    sample = sys.modules["tvm_ffi"].from_dlpack(np.zeros(1))
    versioned = "versioned" in repr(sample.__dlpack__(max_version=DLPACK_VERSION))
    return from_tvm_ffi if versioned else import_from_host


@lru_cache(maxsize=64)
def _element(dtype: str) -> DType:
    return as_dtype(str(dtype))


def _look(x: Any) -> tuple[object, object, tuple[int, ...], int]:
    device, dtype = str(x.device), _element(x.dtype)
    device = "cpu" if device == "cpu:0" else device
    return device, dtype.name, tuple(x.shape), dtype.nbytes(x.numel())


def _address(x: Any) -> int:
    address: int = x.data_ptr() if x.__dlpack_device__()[0] in ALL_HOST else 0
    return address


LIBRARY = Library(
    "tvm_ffi",
    ("tvm_ffi.Tensor",),
    importer=_importer,
    new_structs=True,
    keeps_types=True,
    host_types=ALL_HOST,
    exchanges=exchanges("tvm_ffi.Tensor", "from_dlpack", "shared"),
    look=(_look, _address),
)
