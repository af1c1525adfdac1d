"""What this machine must have: ``DLBRIDGE_EXPECT`` names it, and a skip for want of it fails."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

import dlbridge
from dlbridge.errors import BackendUnavailable
from tests.support.working_drivers import why_left_out


def expected(name: str) -> bool:
    """Whether *name*, a backend, ``peers`` or ``mpi``, must be here."""
    return name in os.environ.get("DLBRIDGE_EXPECT", "").split(",")


def lacking(name: str, reason: str) -> None:
    """Skip with the *reason*, or fail where *name* is expected."""
    if expected(name):
        pytest.fail(f"DLBRIDGE_EXPECT={name}, but: {reason}")
    pytest.skip(reason)


def backend_or_skip(name: str) -> Any:
    """The backend *name*, or a skip with the reason (a failure if it is expected)."""
    try:
        return dlbridge.backend(name)
    except BackendUnavailable as exc:
        reason = why_left_out(name) or str(exc)
        if expected(name):
            raise BackendUnavailable(reason) from exc
        return pytest.skip(reason)


def compiler_or_skip(name: str = "gcc") -> str:
    """The path of the compiler *name*, or a skip (a failure if ``peers`` are expected)."""
    found = shutil.which(name)
    if found is None and expected("peers"):
        pytest.fail(f"DLBRIDGE_EXPECT=peers, but there is no {name}")
    return found or pytest.skip(f"needs a C compiler: there is no {name}")
