"""The CPU backend: the conformance kit, and what only the CPU has."""

from __future__ import annotations

from dlbridge.testing import BackendTests


class TestCPU(BackendTests):
    name = "cpu"
