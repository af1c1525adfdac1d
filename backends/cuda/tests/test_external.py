"""Memory that Vulkan exported, at an address of CUDA's; and CUDA's memory as a VkBuffer.

On the simulated driver the other side is lavapipe: its memory is a file, which the simulated
driver maps. So bytes are shared here, and the calls, lifetimes and errors are what is tested;
that NVIDIA's two drivers do so is for `tests/hardware/identity.py`.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

import dlbridge as bridge
from backends.cuda.tests.cuda_support import python, slow, stream
from dlbridge.errors import BackendUnavailable, DeviceError, DeviceMemoryError, ExchangeError
from dlbridge.extending import LOADED
from dlbridge.protocol import ExportedMemory
from dlbridge.testing.backend_base import open_files
from tests.drivers.suite.rig import default
from tests.support.known_backends import forget_identities

VALUES = np.arange(3000, dtype="i4").reshape(30, 100)


@pytest.fixture(scope="module")
def exporting():
    """A Vulkan backend whose memory can be exported, or a skip."""
    vulkan = pytest.importorskip("dlbridge_vulkan")
    try:
        made = vulkan.Vulkan(exportable=True)
    except BackendUnavailable as exc:
        pytest.skip(str(exc))
    if "llvmpipe" not in made.device_info(0)["name"]:
        pytest.skip("the simulated driver maps lavapipe's memory only")
    if made.devices[0].export_refusal:
        pytest.skip(made.devices[0].export_refusal)
    return made


@pytest.fixture
def vulkan(exporting, fake, cuda, monkeypatch):
    """The same device as ``cuda:0``, by its UUID."""
    monkeypatch.setitem(LOADED, "vulkan", exporting)
    forget_identities(monkeypatch)
    raw = bytes.fromhex(exporting.device_info(0)["uuid"].replace("-", ""))
    fake.cuda.fake_cuda_uuid(raw)
    fake.cuda.fake_cuda_header(header_of(exporting))
    yield exporting
    gc.collect()
    assert exporting.live_allocations() == 0


def header_of(exporting):
    """How lavapipe's files begin."""
    exported = exporting.allocate(0, 64, 4, 0)
    memory = exporting.export_memory(0, exported.data)
    return os.pread(memory.fd, 64, 0)


def there(values=VALUES):
    return bridge.to_device(values, "vulkan:0", copy=True)


def host(tensor):
    return bridge.to_device(tensor, "cpu", copy=True, like="numpy")


def kinds(plan):
    return [step.kind for step in plan.steps]


def test_the_bytes_are_shared(vulkan):
    """Both drivers read what the other has written, in both directions, and nothing is copied."""
    source = there()
    here = bridge.to_device(source, "cuda:0", copy=False)
    assert str(here.device) == "cuda:0"
    assert (host(here) == VALUES).all()
    bridge.copy_(here, VALUES * 2)
    bridge.synchronize("cuda:0")
    assert (host(source) == VALUES * 2).all()
    bridge.copy_(source, VALUES * 3)
    bridge.synchronize("vulkan:0")
    assert (host(here) == VALUES * 3).all()


def test_a_descriptor_of_another_program_is_opened(vulkan):
    """`from_fd`: what came as a number, with the length that its exporter has said."""
    source = there()
    exported = vulkan.export_memory(0, source.operand().data)
    bridge.synchronize("vulkan:0")
    before = open_files()
    layout = {"offset": exported.offset, "nbytes": exported.nbytes, "kind": "opaque"}
    here = bridge.from_fd(exported.fd, VALUES.shape, "int32", device="cuda:0", **layout)
    assert here.origin == "a file descriptor"
    assert (host(here) == VALUES).all()
    bridge.copy_(here, VALUES * 2)
    bridge.synchronize("cuda:0")
    assert (host(source) == VALUES * 2).all()
    with pytest.raises(BufferError, match="of memory that has"):
        bridge.from_fd(exported.fd, 1 << 40, "int32", device="cuda:0", **layout)
    del here
    gc.collect()
    assert open_files() == before


def test_a_block_holds_many_tensors(vulkan):
    """Each is found at its own offset, and its neighbours are not touched."""
    tensors = [there(np.full(100, k, "u1")) for k in range(5)]
    here = [bridge.to_device(each, "cuda:0", copy=False) for each in tensors]
    bridge.copy_(here[2], np.full(100, 77, "u1"))
    bridge.synchronize("cuda:0")
    assert [set(host(each).tolist()) for each in tensors] == [{0}, {1}, {77}, {3}, {4}]
    assert [set(host(each).tolist()) for each in here] == [{0}, {1}, {77}, {3}, {4}]


def test_two_imports_of_one_memory(vulkan, fake):
    """They have two addresses: a copy between them goes through the host, as they may overlap."""
    values = np.arange(1 << 20, dtype="i4")
    source = there(values)
    first, second = (bridge.to_device(source, "cuda:0", copy=False) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    before = fake.calls("cuMemcpyAsync")
    bridge.copy_(first[1:], second[:-1])
    assert fake.calls("cuMemcpyAsync") == before
    bridge.synchronize("cuda:0")
    assert (host(source)[1:] == values[:-1]).all()


def test_the_end_of_an_import(vulkan, fake):
    """Each call to make it has its call to end it; Vulkan's memory goes back after that."""
    names = ("cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer", "cuDestroyExternalMemory")
    before, live, open_before = [fake.calls(name) for name in names], fake.live(), open_files()
    here = bridge.to_device(there(), "cuda:0")
    gc.collect()
    assert (vulkan.live_allocations(), open_files() - open_before) == (1, 1)  # CUDA's own
    del here
    gc.collect()
    assert [fake.calls(name) - b for name, b in zip(names, before, strict=True)] == [1, 1, 1]
    assert (fake.live(), vulkan.live_allocations(), open_files()) == (live, 0, open_before)


def test_the_end_of_an_import_waits_for_other_streams(vulkan):
    """Also for one that was ordered after the work on it."""
    source = there(np.zeros(4096, "u1"))
    fives = bridge.to_device(np.full(4096, 5, "u1"), "cuda:0", copy=True)
    with stream() as busy, stream() as other:
        here = bridge.to_device(source, "cuda:0")
        with bridge.use_stream("cuda:0", busy):
            slow(busy)
            bridge.copy_(here, fives)
        with bridge.use_stream("cuda:0", other):
            here.operand().access()
        del here
        gc.collect()
        assert (host(source) == 5).all()


def test_work_of_vulkan_is_done_before(vulkan):
    """The import waits for it: CUDA's streams know nothing of Vulkan's queue."""
    queue = vulkan.devices[0].queue
    source = there(np.zeros(64 << 20, "u1"))
    bridge.copy_(source, bridge.to_device(np.full(64 << 20, 3, "u1"), "vulkan:0", copy=True))
    here = bridge.to_device(source, "cuda:0")
    assert queue.reached >= vulkan.devices.find(source.operand().data).last_use
    assert (host(here) == 3).all()


@pytest.mark.parametrize("name", ["cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer"])
@pytest.mark.parametrize(
    ("status", "error"), [(1, DeviceError), (2, DeviceMemoryError), (801, ExchangeError)]
)
def test_a_driver_that_refuses(vulkan, fake, name, status, error):
    """The move copies instead, or raises with copy=False; no file and no memory is left."""
    live, open_before = fake.live(), open_files()
    fake.fail(name, status)
    source = there()
    with bridge.trace() as trace:
        here = bridge.to_device(source, "cuda:0")
    assert kinds(trace.plans[0]) == ["host view", "upload"]
    assert f"it was refused in place: {name}" in trace.plans[0].steps[-1].reason
    assert (host(here) == VALUES).all()
    with pytest.raises(error, match=name):
        bridge.to_device(source, "cuda:0", copy=False)
    del here
    gc.collect()
    assert open_files() == open_before
    assert fake.live() <= live


def test_a_file_that_is_no_memory(cuda, fake):
    """The driver refuses it, and it stays the caller's."""
    with Path("/dev/null").open("rb") as file:
        for nbytes in (4096, 1 << 62):
            with pytest.raises(DeviceError, match="cuImportExternalMemory"):
                cuda.import_memory(0, ExportedMemory(file.fileno(), nbytes, 0), 1)
        assert file.read() == b""
    with pytest.raises(ExchangeError, match="there is no cuda:9"):
        cuda.import_memory(9, ExportedMemory(0, 1, 0), 1)


# The other way round


@pytest.fixture
def exports(vulkan, cuda, monkeypatch):
    """CUDA allocates memory that it can export, as with DLBRIDGE_CUDA_EXPORT=1."""
    monkeypatch.setattr(cuda._device_memory, "obtain", cuda._device_memory._create)
    return cuda


def test_vulkan_uses_cudas_memory(exports):
    """Both drivers read what the other has written, and nothing is copied."""
    source = bridge.to_device(VALUES, "cuda:0", copy=True)
    with bridge.trace() as trace:
        here = bridge.to_device(source, "vulkan:0", copy=False)
    assert kinds(trace.plans[0]) == ["memory import"]
    assert (host(here) == VALUES).all()
    bridge.copy_(here, VALUES * 2)
    bridge.synchronize("vulkan:0")
    assert (host(source) == VALUES * 2).all()
    bridge.copy_(source, VALUES * 3)
    bridge.synchronize("cuda:0")
    assert (host(here) == VALUES * 3).all()
    view = bridge.to_device(source[3:, 1::2], "vulkan:0", copy=False)
    assert (host(view) == VALUES[3:, 1::2] * 3).all()


def test_work_of_cuda_is_done_before(exports):
    """Vulkan's queue knows nothing of CUDA's streams."""
    source = bridge.to_device(np.zeros(4096, "u1"), "cuda:0", copy=True)
    fives = bridge.to_device(np.full(4096, 5, "u1"), "cuda:0", copy=True)
    with stream() as busy, bridge.use_stream("cuda:0", busy):
        slow(busy)
        bridge.copy_(source, fives)
        assert (host(bridge.to_device(source, "vulkan:0", copy=False)) == 5).all()


def test_the_end_of_cudas_memory(exports, vulkan, fake):
    """It goes back after Vulkan's import of it, with each of its parts."""
    live, open_before = fake.live(), open_files()
    here = bridge.to_device(bridge.to_device(VALUES, "cuda:0", copy=True), "vulkan:0", copy=False)
    gc.collect()
    assert fake.live() == live + 3  # the memory, its addresses, and what is mapped there
    assert (host(here) == VALUES).all()
    del here
    gc.collect()
    assert (fake.live(), open_files(), vulkan.live_allocations()) == (live, open_before, 0)


@pytest.mark.parametrize("on_default", [False, True])
def test_memory_that_can_be_exported_is_freed_behind_the_work(exports, on_default):
    """As any other; on the simulated driver work on unmapped memory ends the process."""
    fives = bridge.to_device(np.full(4096, 5, "u1"), "cuda:0", copy=True)
    with stream() as own:
        busy = default() if on_default else own
        with bridge.use_stream("cuda:0", busy):
            target = bridge.empty(4096, "u1", "cuda:0")
            slow(busy)
            bridge.copy_(target, fives)
            del target
            gc.collect()
    bridge.synchronize("cuda:0")


def test_cudas_memory_that_cannot_be_exported(vulkan, fake, cuda):
    """By default it comes from the pool; it is copied, and the plan says what to set."""
    source = bridge.to_device(VALUES, "cuda:0", copy=True)
    plan = bridge.plan(source, "vulkan:0")
    assert kinds(plan) == ["download", "upload"]
    assert "set DLBRIDGE_CUDA_EXPORT=1 before the first use of CUDA" in plan.steps[1].reason
    with pytest.raises(ExchangeError, match="DLBRIDGE_CUDA_EXPORT=1"):
        cuda.export_memory(0, source.operand().data)


def test_the_environment_asks_for_it(fake):
    code = """
import dlbridge
cuda = dlbridge.backend("cuda")
memory = cuda.allocate(0, 64, 4, 1)
print(repr(cuda.memory_export_refusal(0, memory.data)))
"""
    assert python(code, DLBRIDGE_CUDA_EXPORT="1").stdout.strip() == "''"
    assert "DLBRIDGE_CUDA_EXPORT=1" in python(code).stdout
