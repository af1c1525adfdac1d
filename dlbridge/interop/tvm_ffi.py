"""tvm_ffi: its tensors on the CPU by numpy's C code; the others as any producer's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import is_plain_host
from dlbridge.core.dlpack.structs import DLPACK_VERSION
from dlbridge.core.implementation_details.handlers import unless_handler
from dlbridge.core.interfaces.dlpack import import_from_host, import_producer
from dlbridge.core.libraries.library import ALL_HOST, Library
from dlbridge.core.tensor.array_tensor import wrap_plain
from dlbridge.core.tensor.memory import native_dtypes
from dlbridge.core.values.layout import MAX_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.tensor import Tensor


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
        return import_producer(x, None, None, None)

    import numpy as np

    native_dtypes()
    from_dlpack = np.from_dlpack
    sample = sys.modules["tvm_ffi"].from_dlpack(np.zeros(1))
    versioned = "versioned" in repr(sample.__dlpack__(max_version=DLPACK_VERSION))
    return from_tvm_ffi if versioned else import_from_host


LIBRARY = Library(
    "tvm_ffi",
    ("tvm_ffi.Tensor",),
    importer=_importer,
    new_structs=True,
    keeps_types=True,
    host_types=ALL_HOST,
)
