"""DLPack in C: the structs of ``dlpack.h``, capsules, references, and calls of functions of C.

Everything here is as in C: a wrong address or one reference too few ends the process. Most packages
need `dlbridge.extending` only. The conformance suite and `dlbridge.ffi` use these names.

A package that calls functions of C with tensors takes a struct from their owner (`table_of`,
`Received`, `own_export_of`), makes a Tensor of one (`read_managed`, `adopt`), puts the work of the
call in order (`access` to `memory_under`, `user_stream`, `begin_call`, `end_blocks`, `note_work`,
`order_consumer`), and ends what it has lent (`expire_lent`). For what C calls later there are
`immortal`, `HARMLESS`, `wait_for` and, as a signal may come at any moment, `handlers_exception` and
`raise_when_dropped`.

`ffi` is cffi's object with the declarations of ``dlpack.h`` 1.3 (``DLTensor``,
``DLManagedTensorVersioned``, ``DLPackExchangeAPI``, ...) and of the TVM-FFI C API. It loads no
library. cffi releases the GIL around each call, so that it must not be used to call what needs the
GIL: functions of CPython and of exchange tables are called through `python_api` or
``ctypes.PYFUNCTYPE``.

What checks nothing, for the short ways of libraries, where a call counts: `is_plain_host` looks at
a capsule's struct, `wrap_plain` and `label_plain` make a tensor of a new array of numpy whose
type, strides and elements are known to be plain, `new_array_tensor` an empty one (its maker sets
``_array`` and ``__tensor_export__``), `writable` drops the mark READ_ONLY for a library that never
writes. `address_of` reads where the elements of an array of numpy are. `bind` asks the backends
whose memory a handle is.

For classes that export as a `Tensor` does (`dlbridge.Exporter`): `ExchangeTable`, under
`TABLE_NAMES`, `produce`, the body of ``__dlpack__``, `as_tensor`, `no_tensor`, `MethodProperty`,
`ArrayTensor` and `is_given_back`. For code that runs when memory ends: `report`, and
`handlers_exception`, `raise_when_dropped` and `RESUME`, by which the exception of a signal handler
is not lost there. Each of these says in its own words what it does:
``help(dlbridge.abi.wrap_plain)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge._lazy import looked_up
from dlbridge.core._cdefs import ffi
from dlbridge.core.dlpack.capsules import (
    Received,
    capsule_pointer,
    get_destructor,
    is_plain_host,
    new_capsule,
    read_managed,
    set_name,
)
from dlbridge.core.dlpack.exports import OwnExport
from dlbridge.core.dlpack.foreign_tables import TABLE_NAMES, ForeignTable, table_of
from dlbridge.core.dlpack.structs import (
    DLPACK_VERSION,
    FLAG_IS_COPIED,
    FLAG_READ_ONLY,
    FLAG_SUBBYTE_PADDED,
)
from dlbridge.core.implementation_details.ends import report, wait_for
from dlbridge.core.implementation_details.handlers import (
    RESUME,
    handlers_exception,
    is_from_handler,
    raise_when_dropped,
)
from dlbridge.core.implementation_details.python_api import (
    HARMLESS,
    address_in,
    address_of,
    decrement_references,
    immortal,
    memory,
    object_at,
    python_api,
    undisguised,
    word_at,
)
from dlbridge.core.interfaces.dlpack import as_tensor, no_tensor, produce
from dlbridge.core.plugins.streams import Begun, begin_call, end_blocks, note_work, user_stream
from dlbridge.core.tensor.array_tensor import (
    ArrayTensor,
    MethodProperty,
    expire_lent,
    label_plain,
    new_array_tensor,
    wrap_plain,
    writable,
)
from dlbridge.core.tensor.exchange import adopt, bind, order_consumer, own_export_of
from dlbridge.core.tensor.memory import access
from dlbridge.core.tensor.metadata import is_given_back, memory_under
from dlbridge.core.tensor.tensor import ExchangeTable

if TYPE_CHECKING:
    from dlbridge.core.interfaces.own_table import managed_tensor_allocator
else:  # its callbacks of C take 1 ms of a first call, which needs none
    __getattr__ = looked_up(globals(), {"managed_tensor_allocator": "core.interfaces.own_table"})

__all__ = [
    "DLPACK_VERSION",
    "FLAG_IS_COPIED",
    "FLAG_READ_ONLY",
    "FLAG_SUBBYTE_PADDED",
    "HARMLESS",
    "RESUME",
    "TABLE_NAMES",
    "ArrayTensor",
    "Begun",
    "ExchangeTable",
    "ForeignTable",
    "MethodProperty",
    "OwnExport",
    "Received",
    "access",
    "address_in",
    "address_of",
    "adopt",
    "as_tensor",
    "begin_call",
    "bind",
    "capsule_pointer",
    "decrement_references",
    "end_blocks",
    "expire_lent",
    "ffi",
    "get_destructor",
    "handlers_exception",
    "immortal",
    "is_from_handler",
    "is_given_back",
    "is_plain_host",
    "label_plain",
    "managed_tensor_allocator",
    "memory",
    "memory_under",
    "new_array_tensor",
    "new_capsule",
    "no_tensor",
    "note_work",
    "object_at",
    "order_consumer",
    "own_export_of",
    "produce",
    "python_api",
    "raise_when_dropped",
    "read_managed",
    "report",
    "set_name",
    "table_of",
    "undisguised",
    "user_stream",
    "wait_for",
    "word_at",
    "wrap_plain",
    "writable",
]


def __dir__() -> list[str]:
    return __all__
