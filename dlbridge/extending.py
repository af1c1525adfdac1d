"""The public contract for packages that bring a file format, an interface or a library.

For a device it is `dlbridge.protocol` instead. All rooms of dlbridge that are not its kernel use
only these names and public ones of `dlbridge` (``pyproject.toml`` lists them, under "Guests use
public names only"); ``docs/extending.md`` has two small examples.

`CPU` is the device of the host's memory, `MAX_NDIM` the most dimensions that a tensor can have,
`MAX_NBYTES` the bytes of the largest address space. `LOADED` is the dict of the backends that have
been loaded, by name, and `TRACES` the list of the active traces. For the description of a library:
`NUMPY_OWN`, `FLOAT8` and `PACKED` are names of dtypes, `HOST_ONLY` and `ALL_HOST` types of devices.
"""

from __future__ import annotations

from dlbridge.core.dlpack.exports import check_copy, check_host_stream
from dlbridge.core.dlpack.structs import MAX_NDIM
from dlbridge.core.implementation_details.handlers import handlers_cause, unless_handler
from dlbridge.core.interfaces.dlpack import import_from_host, import_producer
from dlbridge.core.interfaces.native import import_native, is_of_backend
from dlbridge.core.libraries.library import (
    ALL_HOST,
    FLOAT8,
    HOST_ONLY,
    PACKED,
    Exchange,
    Library,
    exchanges,
    is_array_of,
    origin_of,
)
from dlbridge.core.libraries.lookup import (
    described_packages,
    find_library,
    is_known_library,
    is_native_library,
    known_libraries,
    library_of,
    loaded_libraries,
)
from dlbridge.core.moves.copies import copy_elements, packed_bytes, part_of
from dlbridge.core.moves.fills import fill
from dlbridge.core.moves.plans import recorded, running
from dlbridge.core.moves.progress import tally
from dlbridge.core.moves.transfer import (
    export_memory,
    export_refusal,
    host_import_refusal,
    import_memory,
    new_exportable,
    new_tensor,
)
from dlbridge.core.moves.within_host import copy_array
from dlbridge.core.plugins.contract import check_backend, parameters_of
from dlbridge.core.plugins.lookup import check_device
from dlbridge.core.plugins.registry import (
    LOADED,
    all_backends,
    installation,
    plugin_of,
    provider_of,
)
from dlbridge.core.public import public_in
from dlbridge.core.tensor.array_tensor import check_array, import_array, tensor_on, wrap_array
from dlbridge.core.tensor.memory import (
    Memory,
    memory_of,
    native_dtypes,
    order_after,
    ready_stream,
)
from dlbridge.core.tensor.metadata import numpy_type
from dlbridge.core.tensor.operand import host_array, operand_of, wait_for_work
from dlbridge.core.traces import TRACES
from dlbridge.core.values.devices import CPU
from dlbridge.core.values.dtypes import NUMPY_OWN, alignment_of, check_dtype, limits_of
from dlbridge.core.values.layout import (
    MAX_NBYTES,
    byte_reach,
    strides_in_elements,
    why_impossible,
)
from dlbridge.core.values.text import bytes_text, did_you_mean, html_table, with_article

__all__ = [
    "ALL_HOST",
    "CPU",
    "FLOAT8",
    "HOST_ONLY",
    "LOADED",
    "MAX_NBYTES",
    "MAX_NDIM",
    "NUMPY_OWN",
    "PACKED",
    "TRACES",
    "Exchange",
    "Library",
    "Memory",
    "alignment_of",
    "all_backends",
    "byte_reach",
    "bytes_text",
    "check_array",
    "check_backend",
    "check_copy",
    "check_device",
    "check_dtype",
    "check_host_stream",
    "copy_array",
    "copy_elements",
    "described_packages",
    "did_you_mean",
    "exchanges",
    "export_memory",
    "export_refusal",
    "fill",
    "find_library",
    "handlers_cause",
    "host_array",
    "host_import_refusal",
    "html_table",
    "import_array",
    "import_from_host",
    "import_memory",
    "import_native",
    "import_producer",
    "installation",
    "is_array_of",
    "is_known_library",
    "is_native_library",
    "is_of_backend",
    "known_libraries",
    "library_of",
    "limits_of",
    "loaded_libraries",
    "memory_of",
    "native_dtypes",
    "new_exportable",
    "new_tensor",
    "numpy_type",
    "operand_of",
    "order_after",
    "origin_of",
    "packed_bytes",
    "parameters_of",
    "part_of",
    "plugin_of",
    "provider_of",
    "public_in",
    "ready_stream",
    "recorded",
    "running",
    "strides_in_elements",
    "tally",
    "tensor_on",
    "unless_handler",
    "wait_for_work",
    "why_impossible",
    "with_article",
    "wrap_array",
]
