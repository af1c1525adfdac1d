"""What the API loads on demand: for objects without DLPack, and for ``like=``. One table.

The first call of a process pays for every module that it loads (0.3 to 4 ms), and most have arrays
of numpy or tensors with ``__dlpack__``.
"""

# ruff: noqa: PLC0414 - for type checkers a re-export says `as`
from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge._lazy import looked_up

if TYPE_CHECKING:
    from ..interop.array_interfaces import (
        NOTHING_TO_SHARE as NOTHING_TO_SHARE,
        from_array_interface as from_array_interface,
        from_array_method as from_array_method,
        from_buffer as from_buffer,
        from_cuda_array_interface as from_cuda_array_interface,
    )
    from ..interop.arrow import (
        from_arrow as from_arrow,
        is_arrow as is_arrow,
        is_stream as is_stream,
        used_up as used_up,
    )
    from .like import Conversion as Conversion, as_library as as_library
    from .lists import array_of as array_of
    from .no_tensor import instead_of as instead_of, method_of as method_of

# The table. (The imports above are for type checkers; a test compares.)
_NAMES = {
    ".interop.array_interfaces": "NOTHING_TO_SHARE from_array_interface from_array_method "
    "from_buffer from_cuda_array_interface",
    ".interop.arrow": "from_arrow is_arrow is_stream used_up",
    "like": "Conversion as_library",
    "lists": "array_of",
    "no_tensor": "instead_of method_of",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # to a type checker it would say that there is every name
    __getattr__ = looked_up(globals(), _MODULES)
