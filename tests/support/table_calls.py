"""What a consumer does with an exchange table and its structs, beside what dlbridge itself does."""

from __future__ import annotations

import ctypes

from dlbridge.abi import decrement_references, ffi


def delete_managed(address):
    """Call the deleter of the ``DLManagedTensorVersioned`` at *address*, which is ours."""
    managed = ffi.cast("DLManagedTensorVersioned *", address)
    if managed.deleter:
        managed.deleter(managed)


def wrapped(table, address):
    """The object that *table*'s library makes of the struct at *address*, which it takes over.

    On failure the struct is deleted.
    """
    # Not py_object: taking it by reference would leak one reference a call.
    out = ctypes.c_void_p()
    try:
        # The product gives a library its own exports only, so there is no public name for this.
        failed = table._to_py_object(address, ctypes.addressof(out)) != 0
    finally:
        if not out.value:
            delete_managed(address)
    if failed or not out.value:
        raise BufferError("the library's exchange table failed without an error")
    made = ctypes.cast(out, ctypes.py_object).value
    decrement_references(made)  # that of *out*; ctypes has added another
    return made
