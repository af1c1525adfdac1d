"""The public contract for packages that bring a file format, an interface or a library.

For a device it is `dlbridge.protocol` instead. The file formats (``dlbridge.files``, except for
``loading.py``) and the conversions (``dlbridge.casts``), pickles and shared memory
(``dlbridge.processes``) use only these names and public ones
of `dlbridge`; ``docs/extending.md`` has two small examples. `CPU` is the device of the host's
memory, `MAX_NDIM` the most dimensions that a tensor can have. `LOADED` is the dict of the backends
that have been loaded, by name, and `INSTALLATION` says how those of dlbridge are installed.
"""

from __future__ import annotations

from dlbridge.core.dlpack.structs import MAX_NDIM
from dlbridge.core.implementation_details.handlers import handlers_cause, unless_handler
from dlbridge.core.libraries.library import Library
from dlbridge.core.libraries.lookup import known_libraries
from dlbridge.core.moves.copies import copy_elements, packed_bytes, part_of
from dlbridge.core.moves.fills import fill
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
from dlbridge.core.plugins.contract import check_backend
from dlbridge.core.plugins.lookup import check_device
from dlbridge.core.plugins.registry import INSTALLATION, LOADED, provider_of
from dlbridge.core.public import public_in
from dlbridge.core.tensor.array_tensor import tensor_on
from dlbridge.core.tensor.memory import Memory, memory_of
from dlbridge.core.tensor.operand import host_array, operand_of, wait_for_work
from dlbridge.core.values.devices import CPU
from dlbridge.core.values.dtypes import check_dtype, limits_of
from dlbridge.core.values.layout import byte_reach
from dlbridge.core.values.text import bytes_text, did_you_mean, html_table, with_article

__all__ = [
    "CPU",
    "INSTALLATION",
    "LOADED",
    "MAX_NDIM",
    "Library",
    "Memory",
    "byte_reach",
    "bytes_text",
    "check_backend",
    "check_device",
    "check_dtype",
    "copy_array",
    "copy_elements",
    "did_you_mean",
    "export_memory",
    "export_refusal",
    "fill",
    "handlers_cause",
    "host_array",
    "host_import_refusal",
    "html_table",
    "import_memory",
    "known_libraries",
    "limits_of",
    "memory_of",
    "new_exportable",
    "new_tensor",
    "operand_of",
    "packed_bytes",
    "part_of",
    "provider_of",
    "public_in",
    "tally",
    "tensor_on",
    "unless_handler",
    "wait_for_work",
    "with_article",
]
