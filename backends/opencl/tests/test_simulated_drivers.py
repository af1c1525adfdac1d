"""Other drivers' behaviour, played by the layer in front of this one (layer/layer.c)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

import dlbridge as bridge
from dlbridge.errors import DeviceMemoryError
from dlbridge.protocol import Region, Span
from dlbridge.testing import side

# Host memory in place ---------------------------------------------------------------

REFUSALS = [-4, -5, -6, -30, -34, -37, -38, -59, -61, -9999]
"""No memory (three kinds), invalid value, context, host pointer, memory object, operation,
size; and a status that no table knows."""


@pytest.mark.parametrize("status", REFUSALS)
def test_an_import_that_the_driver_refuses_becomes_a_copy(opencl, layer, shared, status):
    host = bridge.empty(4096, "uint8").numpy()
    host[:] = 7
    bridge.to_device(host, "opencl:0", copy=False)  # so that only this import is refused
    layer.set("refuse_import", status)
    with bridge.trace() as trace:
        tensor = bridge.to_device(host, "opencl:0")
    assert [step.kind for step in trace.plans[0].steps] == ["upload"]
    assert (bridge.to_device(tensor, "cpu", copy=True).numpy() == 7).all()
    with pytest.raises(bridge.Error, match="in place"):
        bridge.to_device(host, "opencl:0", copy=False)


# Memory that is short -------------------------------------------------------------------


def test_allocating_does_not_wait_for_the_stream(opencl, layer, context, gate):
    """Though the first command on new memory is waited for."""
    own = cl.CommandQueue.from_int_ptr(opencl.current_stream(0), True)
    cl.enqueue_barrier(own, wait_for=gate.closed)
    memory = opencl.allocate(0, 12345, 64, own.int_ptr)
    gate.open()
    assert memory.nbytes == 12345


def test_more_than_the_driver_accepts_names_the_promise(opencl):
    promised = opencl.device_info(0)["max_allocation"]
    with pytest.raises(DeviceMemoryError, match=f"accepts up to {promised} bytes"):
        opencl.allocate(0, 1 << 50, 64, 0)


# Transfers and order --------------------------------------------------------------------

COMMANDS = {
    "fill": lambda opencl, a, b: opencl.fill(Span(0, a.data, 0, 64), 1, a.stream),
    "copy": lambda opencl, a, b: opencl.copy(
        Span(0, a.data, 0, 64), Span(0, b.data, 0, 64), a.stream
    ),
    "strided copy": lambda opencl, a, b: opencl.copy_strided(
        *side(0, a.data, 0, (8,), (8,), 4), *side(0, b.data, 0, (8,), (8,), 4), a.stream
    ),
    "upload": lambda opencl, a, b: a.write(np.zeros(64, "u1")),
    "strided upload": lambda opencl, a, b: opencl.copy_strided_from_host(
        *side(0, a.data, 0, (8,), (8,), 4), memoryview(bytes(32)), Region((8,), (4,), 4), a.stream
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_stays_behind_unflushed(opencl, layer, make, command):
    """A driver may keep commands back until a flush, and nobody waits for these."""
    a, b = make(64), make(64)
    layer.set("unflushed", 0)
    COMMANDS[command](opencl, a, b)
    assert layer["unflushed"] == 0


KINDS = {
    "GPU with memory of its own": {"unified": 0, "gpu": 1, "tight": 1},
    "GPU that shares memory": {"gpu": 1},
    "driver that keeps copies": {"shadow": 1},
    "GPU that keeps copies": {"gpu": 1, "shadow": 2},
}
"""They differ in what is said of host memory and in how buffers are made; memory of its own also in
the commands of copies. So often these parts of the kit (kit.py), and all of it each night."""

OWN, HOST = "kit.py::TestMemoryOfItsOwn", "kit.py::TestHostMemory"
KIT = [(kind, HOST if number else OWN) for number, kind in enumerate(KINDS)]
KIT += [pytest.param(kind, "test_conformance.py", marks=pytest.mark.exhaustive) for kind in KINDS]


@pytest.mark.parametrize(("kind", "kit"), KIT)
def test_the_conformance_kit_on_other_drivers(script, kind, kit, shared):
    """Not in front of a GPU with memory of its own: there the switches change too little."""
    file = str(Path(__file__).parent / kit)
    script(
        f"import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {file!r}]))",
        timeout=300,
        **KINDS[kind],
    )
