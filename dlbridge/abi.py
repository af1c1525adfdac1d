"""DLPack in C: the structs of ``dlpack.h``, capsules, and references.

Everything here is as in C: a wrong address or one reference too few ends the process. Most packages
need `dlbridge.extending` only. The conformance suite is written with these names.

`ffi` is cffi's object with the declarations of ``dlpack.h`` 1.3 (``DLTensor``,
``DLManagedTensorVersioned``, ``DLPackExchangeAPI``, ...) and of the TVM-FFI C API. It loads no
library. cffi releases the GIL around each call, so that it must not be used to call what needs the
GIL: functions of CPython and of exchange tables are called through `python_api` or
``ctypes.PYFUNCTYPE``.
"""

from __future__ import annotations

from dlbridge.core._cdefs import ffi
from dlbridge.core.dlpack.capsules import (
    capsule_pointer,
    get_destructor,
    new_capsule,
    set_name,
)
from dlbridge.core.dlpack.structs import (
    DLPACK_VERSION,
    FLAG_IS_COPIED,
    FLAG_READ_ONLY,
    FLAG_SUBBYTE_PADDED,
)
from dlbridge.core.implementation_details.python_api import (
    address_in,
    decrement_references,
    immortal,
    python_api,
)

__all__ = [
    "DLPACK_VERSION",
    "FLAG_IS_COPIED",
    "FLAG_READ_ONLY",
    "FLAG_SUBBYTE_PADDED",
    "address_in",
    "capsule_pointer",
    "decrement_references",
    "ffi",
    "get_destructor",
    "immortal",
    "new_capsule",
    "python_api",
    "set_name",
]
