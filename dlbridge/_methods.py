"""The functions that methods of `Tensor` and `Device` call in modules above them: one table.

The modules of the two classes do not import modules above them: their methods look functions up
here, by name. So imports run one way, and a method loads what it needs when it is first called.
`empty` uses it for memory that processes share, and no other module does.
"""

# ruff: noqa: PLC0414 - for type checkers a re-export says `as`
from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import looked_up

if TYPE_CHECKING:
    from .api.moving import to_device as to_device, way_to_host as way_to_host
    from .core.interfaces.dlpack import produce as produce
    from .core.interfaces.native import to_native as to_native
    from .core.interfaces.own_table import table_capsule as table_capsule
    from .core.moves.host_views import host_view as host_view
    from .core.moves.plans import array_copy as array_copy, recorded as recorded
    from .core.plugins.lookup import identity_of as identity_of, same_device as same_device
    from .core.tensor.array_tensor import build as build, view_resized as view_resized
    from .core.tensor.operand import operand_of as operand_of
    from .dask import token_of as token_of
    from .interop.array_interfaces import (
        array_interface as array_interface,
        cuda_array_interface as cuda_array_interface,
    )
    from .interop.arrow import arrow_exporter as arrow_exporter
    from .printing import (
        host_elements as host_elements,
        html_of as html_of,
        text_of as text_of,
    )
    from .processes.descriptors import to_fd as to_fd
    from .processes.pickles import (
        pickled as pickled,
        tobytes as tobytes,
        unpickle as unpickle,
    )
    from .processes.shared_tensors import empty_shared as empty_shared

# The table. (The imports above are for type checkers; a test compares.)
_FUNCTIONS = {
    "api.moving": "to_device way_to_host",
    "interop.array_interfaces": "array_interface cuda_array_interface",
    "interop.arrow": "arrow_exporter",
    "core.interfaces.dlpack": "produce",
    "core.interfaces.native": "to_native",
    "core.interfaces.own_table": "table_capsule",
    "core.moves.host_views": "host_view",
    "core.moves.plans": "array_copy recorded",
    "core.plugins.lookup": "identity_of same_device",
    "printing": "host_elements html_of text_of",
    "processes.descriptors": "to_fd",
    "processes.pickles": "pickled tobytes unpickle",
    "processes.shared_tensors": "empty_shared",
    "core.tensor.array_tensor": "build view_resized",
    "core.tensor.operand": "operand_of",
    "dask": "token_of",
}
_MODULES = {name: module for module, names in _FUNCTIONS.items() for name in names.split()}


if not TYPE_CHECKING:  # to a type checker it would say that there is every name
    __getattr__ = looked_up(globals(), _MODULES)
