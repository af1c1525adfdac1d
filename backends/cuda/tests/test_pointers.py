"""Foreign contexts, and what is staged."""

import pytest

from backends.cuda.tests.cuda_support import own_context
from dlbridge.errors import ExchangeError


def test_memory_of_somebodys_own_context(cuda):
    """Our primary contexts cannot reach it: refused, and told what to do."""
    from backends.cuda.tests.cuda_support import call

    own = own_context()
    data = int(call("cuMemAlloc", 64))
    call("cuCtxPopCurrent")
    with pytest.raises(
        ExchangeError, match=r"a CUDA context of its exporter's own.*copy it through the host"
    ):
        cuda.import_data(0, data, "test")
    call("cuCtxPushCurrent", own)
    call("cuMemFree", data)
    call("cuCtxDestroy", own)
