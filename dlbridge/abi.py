"""DLPack in C: the structs of ``dlpack.h``, capsules, and references.

Everything here is as in C: a wrong address or one reference too few ends the process. Most
packages need `dlbridge.extending` only. The conformance suite is written with these names.

`ffi` is cffi's object with the declarations of ``dlpack.h`` 1.3 (``DLTensor``,
``DLManagedTensorVersioned``, ``DLPackExchangeAPI``, ...) and of the TVM-FFI C API. It loads no
library. cffi releases the GIL around each call, so that it must not be used to call what needs the
GIL: functions of CPython and of exchange tables are called through `python_api` or
``ctypes.PYFUNCTYPE``.

What checks nothing, for the short ways of libraries, where a call counts: `is_plain_host` looks at
a capsule's struct, `wrap_plain` and `label_plain` make a tensor of a new array of numpy whose
type, strides and elements are known to be plain, `new_array_tensor` an empty one (its maker sets
``_array`` and ``__tensor_export__``), `writable` drops the mark READ_ONLY for a library that never
writes. `bind` asks the backends whose memory a handle is.

For classes that export as a `Tensor` does (`dlbridge.Exporter`): `ExchangeTable`, under
`TABLE_NAMES`, `produce`, the body of ``__dlpack__``, `as_tensor`, `no_tensor`, `MethodProperty`,
`ArrayTensor` and `is_given_back`. For code that runs when memory ends: `report`, and
`handlers_exception`, `raise_when_dropped` and `RESUME`, by which the exception of a signal handler
is not lost there. Each of these says in its own words what it does:
``help(dlbridge.abi.wrap_plain)``.
"""

from __future__ import annotations

from dlbridge.core._cdefs import ffi
from dlbridge.core.dlpack.capsules import (
    capsule_pointer,
    get_destructor,
    is_plain_host,
    new_capsule,
    set_name,
)
from dlbridge.core.dlpack.foreign_tables import TABLE_NAMES
from dlbridge.core.dlpack.structs import (
    DLPACK_VERSION,
    FLAG_IS_COPIED,
    FLAG_READ_ONLY,
    FLAG_SUBBYTE_PADDED,
)
from dlbridge.core.implementation_details.ends import report
from dlbridge.core.implementation_details.handlers import (
    RESUME,
    handlers_exception,
    raise_when_dropped,
)
from dlbridge.core.implementation_details.python_api import (
    address_in,
    decrement_references,
    immortal,
    python_api,
)
from dlbridge.core.interfaces.dlpack import as_tensor, no_tensor, produce
from dlbridge.core.tensor.array_tensor import (
    ArrayTensor,
    MethodProperty,
    label_plain,
    new_array_tensor,
    wrap_plain,
    writable,
)
from dlbridge.core.tensor.exchange import bind
from dlbridge.core.tensor.metadata import is_given_back
from dlbridge.core.tensor.tensor import ExchangeTable

__all__ = [
    "DLPACK_VERSION",
    "FLAG_IS_COPIED",
    "FLAG_READ_ONLY",
    "FLAG_SUBBYTE_PADDED",
    "RESUME",
    "TABLE_NAMES",
    "ArrayTensor",
    "ExchangeTable",
    "MethodProperty",
    "address_in",
    "as_tensor",
    "bind",
    "capsule_pointer",
    "decrement_references",
    "ffi",
    "get_destructor",
    "handlers_exception",
    "immortal",
    "is_given_back",
    "is_plain_host",
    "label_plain",
    "new_array_tensor",
    "new_capsule",
    "no_tensor",
    "produce",
    "python_api",
    "raise_when_dropped",
    "report",
    "set_name",
    "wrap_plain",
    "writable",
]
