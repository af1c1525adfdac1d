"""Memory of one backend used by another backend of the same device, in place."""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace

import numpy as np
import pytest

import dlbridge as bridge
from dlbridge.errors import BackendError, DeviceError, ExchangeError
from dlbridge.kit.resources import AllocationOwner, Descriptor, Resources
from dlbridge.protocol import ExportedMemory, PlainAllocation
from tests.support.stream_backend import Streams, installed

UUID = "0123abcd-4567-89ef-0123-456789abcdef"
VALUES = np.arange(24, dtype="i4").reshape(4, 6)


class Exporter(Streams):
    """It exports an address, which it writes into a file of its own."""

    device_type = 4
    uuid: object = UUID
    refusal = ""
    error: Exception | None = None

    def __init__(self):
        super().__init__()
        self.files = []

    def device_info(self, device_id):
        return {"name": "exporter", "uuid": self.uuid}

    def memory_export_refusal(self, device_id, data):
        return self.refusal

    def export_memory(self, device_id, data):
        if self.error is not None:
            raise self.error
        self.log.append(("export", device_id))
        file = Descriptor([os.memfd_create("a test's")])
        (fd,) = file
        os.write(fd, data.to_bytes(8, "little"))
        self.files.append((fd, os.fstat(fd).st_ino))
        return ExportedMemory(fd, 96 + 16, 16, owner=file)

    def find_device(self, name):
        raise LookupError("by number")

    def allocate_exportable(self, device_id, nbytes, stream):
        raise NotImplementedError

    def all_closed(self):
        """Whether none of its files is open, also not under a number that was used again."""
        for fd, inode in self.files:
            try:
                if os.fstat(fd).st_ino == inode:
                    return False
            except OSError:
                pass
        return True


class Importer(Streams):
    """Its *data* is 16 bytes before the exporter's."""

    refusal = ""
    error: Exception | None = None
    result: object = None

    def __init__(self):
        super().__init__()
        self.imports = Resources(self.end)
        self.ended = []

    def end(self, imported):
        if imported.data:
            self.ended.append(imported.data)
        return True

    def device_info(self, device_id):
        return {"name": "importer", "uuid": f"GPU-{UUID.upper()}"}

    def memory_import_refusal(self, device_id):
        return self.refusal

    def find_device(self, name):
        raise LookupError("by number")

    def import_memory(self, device_id, memory, stream):
        if self.error is not None:
            raise self.error
        self.log.append(("import", device_id))
        data = int.from_bytes(os.pread(memory.fd, 8, 0), "little")
        if self.result is not None:
            return self.result
        imported = AllocationOwner(self.imports, SimpleNamespace(data=0, stream=stream))
        imported.data = imported.resource.data = data - memory.offset
        imported.nbytes, imported.offset = memory.nbytes, memory.offset
        return imported


@pytest.fixture
def two():
    """The backends ``opencl``, which exports, and ``cuda``, which imports."""
    with installed("opencl", Exporter()) as exporter, installed("cuda", Importer()) as importer:
        yield exporter, importer
        gc.collect()


def source():
    return bridge.to_device(VALUES, "opencl:0", copy=True)


def kinds(plan):
    return [step.kind for step in plan.steps]


def test_memory_of_the_same_device_is_used_in_place(two):
    """One memory: no byte is copied, and a write to one is seen in the other."""
    there = source()
    with bridge.trace() as trace:
        here = bridge.to_device(there, "cuda:0")
    assert kinds(trace.plans[0]) == ["memory import"]
    assert trace.plans[0].nbytes == 0
    assert (bridge.to_device(here, "cpu", like="numpy") == VALUES).all()
    bridge.copy_(here, VALUES[::-1])
    assert (bridge.to_device(there, "cpu", like="numpy") == VALUES[::-1]).all()


def test_the_layout_stays(two):
    """A view of the source is the same view of the import."""
    view = source()[1:, ::2]
    here = bridge.to_device(view, "cuda:1", copy=False)
    assert (here.shape, here.strides, str(here.device)) == ((3, 3), (6, 2), "cuda:1")
    assert (bridge.to_device(here, "cpu", copy=True, like="numpy") == VALUES[1:, ::2]).all()


def test_the_work_on_the_memory_is_done_before(two):
    """The importer's driver knows nothing of the exporter's streams."""
    exporter, _ = two
    there = source()
    exporter.log.clear()
    bridge.to_device(there, "cuda:0")
    assert exporter.log == [("synchronize", 0), ("export", 0)]


def test_the_import_keeps_the_memory(two):
    """The source is freed after the end of the import, and once."""
    exporter, importer = two
    here = bridge.to_device(source(), "cuda:0")
    gc.collect()
    assert len(exporter.memory) == 1
    part = here[2:]
    del here
    gc.collect()
    assert (len(exporter.memory), importer.ended) == (1, [])
    assert (bridge.to_device(part, "cpu", copy=True, like="numpy") == VALUES[2:]).all()
    del part
    gc.collect()
    assert (len(exporter.memory), len(importer.ended)) == (0, 1)


def test_the_file_is_closed(two):
    exporter, _ = two
    here = bridge.to_device(source(), "cuda:0")
    assert here.shape == (4, 6)
    assert len(exporter.files) == 1
    assert exporter.all_closed()


@pytest.mark.parametrize("error", [DeviceError("it failed"), RuntimeError("it failed")])
@pytest.mark.parametrize("which", [0, 1])
def test_a_driver_that_refuses_late(two, which, error):
    """The move copies after all, and says why; with copy=False the error is raised."""
    two[which].error = error
    there = source()
    with bridge.trace() as trace:
        here = bridge.to_device(there, "cuda:0")
    assert kinds(trace.plans[0]) == ["download", "upload"]
    assert "it was refused in place: " in trace.plans[0].steps[-1].reason
    assert "it failed" in trace.plans[0].steps[-1].reason
    assert (bridge.to_device(here, "cpu", like="numpy") == VALUES).all()
    with pytest.raises((DeviceError, BackendError), match="it failed"):
        bridge.to_device(there, "cuda:0", copy=False)
    error.__traceback__ = None  # which keeps what was exported
    assert two[0].all_closed()
    del here, there
    gc.collect()
    assert two[1].ended == []


def test_an_importer_that_returns_no_address(two):
    """BackendError names the member, and nothing is freed."""
    exporter, importer = two
    importer.result = PlainAllocation("x", 1)
    with pytest.raises(BackendError, match="returned one of data 'x' from import_memory"):
        bridge.to_device(source(), "cuda:0", copy=False)
    gc.collect()
    assert importer.ended == []
    assert exporter.all_closed()


OTHER = "fedcba98-4567-89ef-0123-456789abcdef"
NOT_THE_SAME = "share no memory: their UUIDs are not the same"
REFUSED = {
    "no UUID": (0, {"uuid": None}, f"{NOT_THE_SAME} (None and {UUID})"),
    "another UUID": (0, {"uuid": OTHER}, f"{NOT_THE_SAME} ({OTHER} and {UUID})"),
    "refused": (0, {"refusal": "not allocated for it"}, "share no memory: not allocated for it"),
    "refused there": (1, {"refusal": "no such driver"}, "share no memory: no such driver"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_memory_that_cannot_be_used_in_place(two, why):
    """It is copied through the host as ever, and the plan says why."""
    which, change, says = REFUSED[why]
    vars(two[which]).update(change)
    plan = bridge.plan(source(), "cuda:0")
    assert kinds(plan) == ["download", "upload"]
    assert f"opencl:0 and cuda:0 {says}" in plan.steps[1].reason
    with pytest.raises(ExchangeError, match="copy=False, but download"):
        bridge.to_device(source(), "cuda:0", copy=False)


def test_memory_that_is_copied_without_a_word_of_other_memory(two):
    """With copy=True; and the other way round: one exports nothing, the other imports nothing."""
    there = bridge.to_device(VALUES, "cuda:0", copy=True)
    for x, target, copy in ((source(), "cuda:0", True), (there, "opencl:0", None)):
        plan = bridge.plan(x, target, copy=copy)
        assert kinds(plan) == ["download", "upload"]
        assert plan.steps[1].reason == f"{x.device} and {target} share no memory"


@pytest.mark.parametrize(
    ("which", "member"),
    [(0, "memory_export_refusal"), (1, "memory_import_refusal")],
)
def test_a_backend_that_fails_when_it_is_asked(two, which, member, monkeypatch):
    """The error names the backend and the member."""
    monkeypatch.setattr(type(two[which]), member, lambda *_: 1 / 0)
    with pytest.raises(BackendError, match=f"failed in {member}: ZeroDivisionError"):
        bridge.plan(source(), "cuda:0")


def test_empty_tensors_have_no_memory(two):
    there = bridge.empty((0, 3), "f4", "opencl:0")
    assert bridge.to_device(there, "cuda:0").shape == (0, 3)
    assert two[0].files == []
