"""Neither the import of the FFI nor a first call imports what is heavy."""

from __future__ import annotations

import sys

from dlbridge import ffi

HEAVY = {"numpy", "torch", "jax", "tvm_ffi", "importlib.metadata"}
SLOW = {"dataclasses", "inspect", "pathlib"}


def is_light() -> None:
    assert not (HEAVY | SLOW | {"_cffi_backend"}) & set(sys.modules)
    assert not [name for name in sys.modules if name.startswith("dlbridge.ffi.")]
    ffi.get_global_func("ffi.String")("text")
    assert not (HEAVY | SLOW) & set(sys.modules)
    assert not [name for name in sys.modules if name.startswith("dlbridge_")]
