"""The other libraries that tests run beside: imported, or their tests skipped.

Only some Pythons have their wheels. ``DLBRIDGE_EXPECT=peers`` says that this
one has: a missing peer is a failure then; ``newest`` that they are the newest.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.support.expected_parts import expected


def peer(name: str) -> Any:
    """The module *name*; without it the calling test is skipped, or failed if peers are expected.

    At the top of a test module it skips, or fails, the whole module.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # mpi4py's, where there is no MPI
        if expected("peers"):
            pytest.fail(f"DLBRIDGE_EXPECT=peers, but {name} cannot be imported: {error}")
        why = "is not installed here" if isinstance(error, ImportError) else f"says: {error}"
        pytest.skip(f"{name} {why}", allow_module_level=True)


def readonly_torch() -> Any:
    """torch's class for memory that is only read, which older releases than 2.14.1 may not have.

    An older torch skips the whole module, or fails it if the newest peers are expected.
    """
    found = getattr(peer("torch").utils.dlpack, "ReadOnlyTensorWrapper", None)
    if found is None and expected("newest"):
        pytest.fail("DLBRIDGE_EXPECT=newest, but torch is older than 2.14.1")
    return found or pytest.skip("torch is older than 2.14.1", allow_module_level=True)
