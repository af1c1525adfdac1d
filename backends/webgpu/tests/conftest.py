"""The device under test, and wgpu's own view of it."""

from __future__ import annotations

import pytest

from tests.support import peers
from tests.support.expected_parts import backend_or_skip
from tests.support.frozen_objects import older_objects_are_frozen  # noqa: F401 - for pytest to find
from tests.support.not_run import pytest_terminal_summary  # noqa: F401 - for pytest to find
from tests.support.working_drivers import leave_out


def pytest_configure():
    leave_out("webgpu")


@pytest.fixture
def webgpu():
    """The backend, or a skip with the reason (a failure under DLBRIDGE_EXPECT)."""
    return backend_or_skip("webgpu")


@pytest.fixture
def device(webgpu):
    """The GPUDevice behind webgpu:0."""
    import dlbridge as bridge

    return bridge.zeros(1, "uint32", "webgpu:0").to_native().device


@pytest.fixture
def gpu_buffer(device):
    """``gpu_buffer(content, usage)`` is a GPUBuffer of wgpu's own with these bytes."""

    def make(content, usage="STORAGE|COPY_SRC|COPY_DST", on=device):
        buffer = on.create_buffer(size=len(content), usage=usage, mapped_at_creation=True)
        buffer.write_mapped(content)
        buffer.unmap()
        return buffer

    return make


@pytest.fixture
def peer():
    """``peer(name)`` is that library, or a skip (a failure under ``DLBRIDGE_EXPECT=peers``)."""
    return peers.peer
