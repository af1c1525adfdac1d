"""The conformance kit fails where it should: each test on a sound backend, and on a faulty one."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import mmap
import os
import pkgutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from dlbridge_fake import Fake, Stream
from dlbridge_fake.stream import by_handle
from exporting_backend import Exporting
from noticed import NOTICED

import dlbridge.testing
from dlbridge import protocol
from dlbridge.core.plugins import registry
from dlbridge.core.plugins.cpu import CPU
from dlbridge.errors import ExchangeError
from dlbridge.testing import BackendTests
from dlbridge.testing.backend_base import DeviceUnderTest
from dlbridge.testing.backend_moves import count_frees

PLUGINS = Path(__file__).parents[1] / "support" / "plugins"


class Kit(BackendTests):
    """The tests, called one by one."""

    __test__ = False
    name = "ext_dev"
    max_nbytes = 1 << 16
    allocations = 2000

    def make_stream(self, backend, device_id):
        return Stream(device_id) if isinstance(backend, Gated) else None

    def slow_work(self, backend, device_id, stream):
        if isinstance(backend, Gated):
            backend.gate.clear()
            queue = by_handle[stream] if stream else backend.default_streams[device_id]
            queue.enqueue(backend.gate.wait)
        return backend

    def is_done(self, backend, device_id, stream, work):
        return backend.gate.is_set() if isinstance(backend, Gated) else None


class Gated(Fake):
    """Slow work takes until somebody synchronises, so that no test is timed."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def synchronize(self, device_id, stream):
        self.gate.set()
        super().synchronize(device_id, stream)


class NoWait(Gated):
    def wait(self, device_id, stream, on):
        pass

    def synchronize(self, device_id, stream):
        Fake.synchronize(self, device_id, stream)
        self.gate.set()


class NoSynchronize(Gated):
    def synchronize(self, device_id, stream):
        if stream == 0:
            super().synchronize(device_id, stream)


class Shared(Fake):
    def __init__(self):
        super().__init__()
        self.shared = True


class OffsetIgnored(Fake):
    def copy_from_host(self, target, source, stream):
        super().copy_from_host(target._replace(offset=0), source, stream)


class OneByteTooMany(Fake):
    def copy_from_host(self, target, source, stream):
        super().copy_from_host(target, source, stream)
        _, content = self.table[target.data]
        end = target.offset + target.nbytes
        if end < len(content):
            content[end] ^= 0xFF


class PiecesInTheWrongPlace(Fake):
    def copy_from_host(self, target, source, stream):
        for at in range(0, len(source), 4096):
            to = 0 if at == 8192 else target.offset + at
            piece = source[at : at + 4096]
            super().copy_from_host(target._replace(offset=to, nbytes=len(piece)), piece, stream)


class NeedsAWritableSource(Fake):
    def copy_from_host(self, target, source, stream):
        ctypes.c_char.from_buffer(source)
        super().copy_from_host(target, source, stream)


def entered(plugin, device_id, content):
    """A new handle for *content*, as `import_host` returns it."""
    data = plugin.new_handle()
    plugin.table[data] = device_id, memoryview(content)
    return data, 0


class OneMemoryForAll(Fake):
    memory = memoryview(bytearray(1 << 20))

    def allocate(self, device_id, nbytes, alignment, stream):
        data = super().allocate(device_id, nbytes, alignment, stream)
        self.table[data] = device_id, self.memory[:nbytes]
        return data


class LosesTheLastByte(Fake):
    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source._replace(nbytes=source.nbytes - 1), into[:-1], stream)


class FlipsABit(Fake):
    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source, into, stream)
        into[0] ^= 1


class ReadsFromTheStart(Fake):
    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source._replace(offset=0), into, stream)


class FillsHalf(Fake):
    def fill(self, target, value, stream):
        super().fill(target, 1, stream)


class ReadsTheSourceLate(Gated):
    """As if `synchronize` were only for reading back."""

    def copy_from_host(self, target, source, stream):
        self.gate.clear()
        self.stream(target.device_id, stream).enqueue(self.gate.wait)
        super().copy_from_host(target, source, stream)

    def copy_to_host(self, source, into, stream):
        super().copy_to_host(source, into, stream)
        self.gate.set()

    def synchronize(self, device_id, stream):
        if self.gate.is_set():
            super().synchronize(device_id, stream)


class ForgetsPeers(Fake):
    def copy(self, target, source, stream):
        if target.device_id == source.device_id:
            super().copy(target, source, stream)


class TakesHandlesForOthers(Fake):
    def import_data(self, device_id, data, module):
        return device_id, self.allocate(device_id, 168, 1, 0)


class RefusesItsOwn(Fake):
    def import_data(self, device_id, data, module):
        raise ExchangeError("none of mine")


class Leaks(Fake):
    def free(self, device_id, data, stream):
        pass


class LeaksUncounted(CPU):
    live_allocations = None

    def free(self, device_id, data, stream):
        ctypes.memset(data, 1, 16384)


class Misaligned(CPU):
    def allocate(self, device_id, nbytes, alignment, stream):
        return super().allocate(device_id, nbytes + 32, 32, stream) + 32


class LocksItselfOut(Fake):
    """Whoever comes in while another call is on waits, if only for itself."""

    def __init__(self):
        super().__init__()
        self.busy, self.over = False, threading.Event()

    def copy_from_host(self, target, source, stream):
        self.busy = True
        [[] for _ in range(1000)]  # the collector has work to do
        super().copy_from_host(target, source, stream)
        self.busy = False

    def free(self, device_id, data, stream):
        if self.busy:
            self.over.wait()
        super().free(device_id, data, stream)


class ThreadsShareAStagingBuffer(Fake):
    staging = memoryview(bytearray(1 << 20))

    def copy_from_host(self, target, source, stream):
        self.staging[: len(source)] = source
        threading.Event().wait(0.001)  # others come in
        super().copy_from_host(target, self.staging[: len(source)], stream)


class TakesAnySizeAndDevice(Fake):
    def allocate(self, device_id, nbytes, alignment, stream):
        return super().allocate(device_id % 2, min(nbytes, 4096), alignment, stream)


class ForeignError(Fake):
    def allocate(self, device_id, nbytes, alignment, stream):
        if nbytes > 1 << 40 or device_id > 1:
            raise OverflowError("too much")
        return super().allocate(device_id, nbytes, alignment, stream)


class CopiesWhatFits(Fake):
    def bytes_of(self, span, write=False):
        _, content = self.table[span.data]
        return content[max(span.offset, 0) :][: span.nbytes]

    def move(self, stream, into, source):
        n = min(len(into), len(source))
        super().move(stream, into[:n], source[:n])


class AnyDevice(Fake):
    def bytes_of(self, span, write=False):
        return super().bytes_of(span._replace(device_id=self.table[span.data][0]), write)

    def stream(self, device_id, handle):
        return super().stream(device_id % 2, handle)


class WritesItAll(Fake):
    """Read, change, write back: without a lock."""

    def copy_from_host(self, target, source, stream):
        whole = target._replace(offset=0, nbytes=len(self.table[target.data][1]))
        content = bytearray(self.bytes_of(whole))
        time.sleep(0.002)  # as long as the call of a driver: others come in
        content[target.offset : target.offset + target.nbytes] = source
        super().copy_from_host(whole, memoryview(content), stream)


class FillsWholeWords(Fake):
    def fill(self, target, value, stream):
        offset, nbytes = target.offset & ~3, target.nbytes + 3 & ~3
        super().fill(target._replace(offset=offset, nbytes=nbytes), value, stream)


class SwapsOffsets(Fake):
    def copy(self, target, source, stream):
        swapped = target._replace(offset=source.offset), source._replace(offset=target.offset)
        super().copy(*swapped, stream)


class PeerCopyDropsTheOffset(Fake):
    def copy(self, target, source, stream):
        if target.device_id != source.device_id:
            source = source._replace(offset=0)
        super().copy(target, source, stream)


class ForgetsTheOuterStride(Fake):
    def copy_strided_to_host(self, source, source_region, into, into_region, stream):
        strides = (into_region.strides[-1],) * len(into_region.strides)
        into_region = into_region._replace(strides=strides)
        super().copy_strided_to_host(source, source_region, into, into_region, stream)


class OtherParameters(Fake):
    def free(self, device, data, stream):
        super().free(device, data, stream)


class HalfACapability(CPU):
    def from_native(self, obj):
        return None


class OpenCLInDisguise(Fake):
    device_type = 4


class Nameless(Fake):
    def device_info(self, device_id):
        return {"memory": 1}


class FindsTheFirst(Fake):
    def find_device(self, name):
        return 0


class ViewIsACopy(Shared):
    def host_view(self, span, writable, stream):
        self.copy_of_it = bytearray(self.bytes_of(span))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.copy_of_it))
        self.views.append((span.data, address))
        return address


class ViewBeforeTheWork(Gated, Shared):
    def copy_from_host(self, target, source, stream):
        self.gate.clear()
        self.stream(target.device_id, stream).enqueue(self.gate.wait)
        super().copy_from_host(target, source, stream)

    def host_view(self, span, writable, stream):
        content = self.bytes_of(span)
        address = ctypes.addressof(ctypes.c_char.from_buffer(content))
        self.views.append((span.data, address))
        return address


class ViewDespiteRefusal(Fake):
    def host_view(self, span, writable, stream):
        return 0


class SecondReleaseHurts(Shared):
    def release_host_view(self, span, address, stream):
        _, content = self.table[span.data]
        content[:] = bytes(len(content))


class ImportIsACopy(Shared):
    def import_host(self, device_id, address, nbytes, readonly):
        return entered(self, device_id, bytearray(ctypes.string_at(address, nbytes)))


class ImportDespiteRefusal(Fake):
    def import_host(self, device_id, address, nbytes, readonly):
        return entered(self, device_id, bytearray(nbytes))


class NativeForEverything(Fake):
    def from_native(self, obj):
        return obj


class NothingIsFlat(Fake):
    def to_native(self, array):
        return super().to_native(array._replace(shape=(0,)) if 0 in array.shape else array)


class NativeElsewhere(Fake):
    def from_native(self, obj):
        description = super().from_native(obj)
        return type(description)(**{**vars(description), "offset": 4})


class NativeWithoutStrides(Fake):
    def from_native(self, obj):
        found = super().from_native(obj)
        return found and found._replace(strides=None)


class BoolsAreIntegers(Fake):
    def normalize_stream(self, device_id, stream):
        return int(stream) if isinstance(stream, int) else super().normalize_stream(0, stream)


class AnyStreamWillDo(CPU):
    def normalize_stream(self, device_id, stream):
        return -1 if stream == -1 else 0


class MinusOneIsAStream(Fake):
    def normalize_stream(self, device_id, stream):
        return 0 if stream == -1 else super().normalize_stream(device_id, stream)


class NoneIsNoStream(Fake):
    def normalize_stream(self, device_id, stream):
        return -1 if stream is None else super().normalize_stream(device_id, stream)


class CurrentStreamOfAnotherDevice(Fake):
    def current_stream(self, device_id):
        return self.default_streams[0].handle


class WaitsForItself(Gated):
    def wait(self, device_id, stream, on):
        raise RuntimeError("event recorded twice")


class NoDevice(Fake):
    def device_count(self):
        return 0


class OtherAPI(Fake):
    api = 2


class ImportsOtherMemory(Shared):
    def import_host(self, device_id, address, nbytes, readonly):
        return entered(self, device_id, b"?" * nbytes)


class OneBehind(Fake):
    def copy_from_host(self, target, source, stream):
        passing = self.waiting if hasattr(self, "waiting") else source
        self.waiting = source
        super().copy_from_host(target, passing, stream)


class Trims(Fake):
    def trim(self, device_id):
        self.check_device(device_id)


class TrimsWhatIsInUse(Trims):
    def trim(self, device_id):
        super().trim(device_id)
        for owner, content in list(self.table.values()):
            if owner == device_id:
                content[:] = bytes(len(content))


class TrimForgets(Trims):
    def trim(self, device_id):
        self.table.clear()


class TrimsEveryDevice(Trims):
    def trim(self, device_id):
        """As if there were no others."""


class MakesWithContent(Fake):
    def allocate_from_host_limit(self, device_id):
        self.check_device(device_id)
        return 4096

    def allocate_from_host(self, device_id, source, alignment, stream):
        data = self.allocate(device_id, source.nbytes, alignment, stream)
        self.copy_from_host(protocol.Span(device_id, data, 0, source.nbytes), source, stream)
        return data


class MakesWithoutContent(MakesWithContent):
    def allocate_from_host(self, device_id, source, alignment, stream):
        return self.allocate(device_id, source.nbytes, alignment, stream)


class MakesOneForEachSource(MakesWithContent):
    def __init__(self):
        super().__init__()
        self.made = {}

    def allocate_from_host(self, device_id, source, alignment, stream):
        if id(source.obj) not in self.made:
            made = super().allocate_from_host(device_id, source, alignment, stream)
            self.made[id(source.obj)] = made
        return self.made[id(source.obj)]


class MakesOnEveryDevice(MakesWithContent):
    def allocate_from_host_limit(self, device_id):
        return 4096

    def allocate_from_host(self, device_id, source, alignment, stream):
        return super().allocate_from_host(0, source, alignment, stream)


class ExportsNothing(Exporting):
    def memory_export_refusal(self, device_id, data):
        return "not today"


class ExportsACopy(Exporting):
    def import_memory(self, device_id, memory):
        data, offset = super().import_memory(device_id, memory)
        _, content = self.table[data]
        self.table[data] = device_id, memoryview(bytearray(content))
        return data, offset


class EndsForAll(Exporting):
    def free(self, device_id, data, stream):
        if data in self.files:
            self.table[data][1][:] = bytes(len(self.table[data][1]))
        super().free(device_id, data, stream)


class ExportsItsNeighbours(Exporting):
    def __init__(self):
        super().__init__()
        self.arena = os.memfd_create("exporting")
        self.used = 256
        os.ftruncate(self.arena, 1 << 16)

    def allocate_exportable(self, device_id, nbytes, stream):
        self.exportable_refusal(device_id)
        data = self.entered(device_id, os.dup(self.arena), self.used)
        self.used += nbytes
        return data

    def export_memory(self, device_id, data):
        start = (1 << 16) - len(self.table[data][1])
        return super().export_memory(device_id, data)._replace(offset=start)


class TakesTheDescriptor(Exporting):
    def import_memory(self, device_id, memory):
        made = super().import_memory(device_id, memory)
        os.close(memory.fd)
        return made


class ExportsLeak(Exporting):
    def export_memory(self, device_id, data):
        os.dup(self.files[data])
        return super().export_memory(device_id, data)


class ExportsOfAnyDevice(Exporting):
    def check_device(self, device_id):
        """As if there were no others."""


CASES = [
    ("test_api_is_ours", Fake, OtherAPI, {}),
    ("test_there_is_a_device", Fake, NoDevice, {}),
    ("test_name_and_device_type_match", Fake, OpenCLInDisguise, {}),
    ("test_signatures_are_the_contracts", Fake, OtherParameters, {"contract": protocol.Backend}),
    (
        "test_no_capability_is_half_there",
        CPU,
        HalfACapability,
        {"capability": protocol.SupportsNative},
    ),
    ("test_unknown_device_is_refused", Fake, TakesAnySizeAndDevice, {"beyond": 0}),
    ("test_unknown_device_is_refused", Fake, ForeignError, {"beyond": 0}),
    ("test_device_info_has_a_name", Fake, Nameless, {}),
    ("test_devices_are_found_by_name", Fake, FindsTheFirst, {}),
    ("test_round_trip", Fake, OffsetIgnored, {"nbytes": 256, "offset": 3}),
    ("test_round_trip", Fake, OneByteTooMany, {"nbytes": 256, "offset": 0}),
    ("test_large_round_trip", Fake, PiecesInTheWrongPlace, {}),
    ("test_round_trip_on_every_device", Fake, OneMemoryForAll, {}),
    ("test_alignment", CPU, Misaligned, {}),
    ("test_live_buffers_do_not_alias", Fake, OneMemoryForAll, {}),
    ("test_free_and_reuse", Fake, OneMemoryForAll, {}),
    ("test_source_and_target_may_lie_anywhere", Fake, NeedsAWritableSource, {"nbytes": 5000}),
    ("test_fill", Fake, FillsWholeWords, {"offset": 1, "nbytes": 2, "value": 255}),
    ("test_threads", Fake, ThreadsShareAStagingBuffer, {}),
    ("test_many_allocations_leak_nothing", Fake, Leaks, {}),
    ("test_many_allocations_leak_nothing", CPU, LeaksUncounted, {}),
    ("test_many_moves_leak_nothing", Fake, Leaks, {}),
    ("test_free_in_a_finalizer", Fake, LocksItselfOut, {}),
    ("test_too_much_is_refused", Fake, TakesAnySizeAndDevice, {"nbytes": 1 << 50}),
    ("test_too_much_is_refused", Fake, ForeignError, {"nbytes": 1 << 50}),
    ("test_out_of_bounds_is_refused", Fake, CopiesWhatFits, {"operation": "upload"}),
    ("test_unknown_device_is_refused_by_copies", Fake, AnyDevice, {"operation": "upload"}),
    ("test_strangers_tensors_are_refused", Fake, TakesHandlesForOthers, {}),
    ("test_copy_inside", Fake, SwapsOffsets, {"nbytes": 3, "offset": 0, "source_offset": 3}),
    ("test_copy_within_one_buffer", Fake, SwapsOffsets, {"offset": 4096, "source_offset": 0}),
    ("test_copy_between_devices", Fake, PeerCopyDropsTheOffset, {"nbytes": 4000}),
    ("test_strided_copies", Fake, ForgetsTheOuterStride, {}),
    ("test_host_view_refusal", Fake, ViewDespiteRefusal, {}),
    ("test_host_view_reads", Shared, SecondReleaseHurts, {}),
    ("test_host_view_writes", Shared, ViewIsACopy, {}),
    ("test_host_view_waits_for_queued_work", Shared, ViewBeforeTheWork, {}),
    ("test_two_host_views_at_once", Shared, SecondReleaseHurts, {}),
    ("test_host_import", Shared, ImportIsACopy, {"misaligned": 0, "nbytes": 1000}),
    ("test_host_import", Fake, ImportDespiteRefusal, {"misaligned": 0, "nbytes": 1000}),
    ("test_host_import_of_read_only_memory", Shared, ImportsOtherMemory, {}),
    ("test_native_round_trip", Fake, NativeElsewhere, {}),
    ("test_native_of_nothing", Fake, NothingIsFlat, {}),
    ("test_native_views", Fake, NativeElsewhere, {"index": slice(2, None)}),
    ("test_native_elements_below_a_byte", Fake, NativeWithoutStrides, {}),
    ("test_strangers_are_not_native", Fake, NativeForEverything, {}),
    ("test_work_on_one_stream_is_in_order", Fake, OneBehind, {}),
    ("test_free_waits_for_queued_work", Fake, OneMemoryForAll, {}),
    ("test_wait_orders_two_streams", Gated, NoWait, {}),
    ("test_synchronize_waits", Gated, NoSynchronize, {}),
    ("test_synchronize_alone_waits", Gated, NoSynchronize, {}),
    ("test_the_source_may_change_after_synchronize", Gated, NoSynchronize, {}),
    ("test_to_device_and_back", Fake, LosesTheLastByte, {"dtype": "float32"}),
    ("test_shapes", Fake, PiecesInTheWrongPlace, {"shape": (300_007,)}),
    ("test_zeros_and_empty", Fake, FillsHalf, {}),
    ("test_strided_both_ways", Fake, ReadsFromTheStart, {"index": slice(1, None)}),
    ("test_copy_into_a_view", Fake, OffsetIgnored, {"index": slice(2, 4)}),
    ("test_bytes_around_a_copy_stay", Fake, OneByteTooMany, {}),
    ("test_elements_below_a_byte", Fake, OneByteTooMany, {}),
    (
        "test_copy_inside_a_tensor",
        Fake,
        SwapsOffsets,
        {"to": slice(4096, 8192), "at": slice(4096)},
    ),
    ("test_a_copy_is_one", Fake, OneMemoryForAll, {}),
    ("test_the_source_may_change_or_go_at_once", Gated, ReadsTheSourceLate, {}),
    ("test_between_devices", Fake, ForgetsPeers, {}),
    ("test_export_and_import", Fake, TakesHandlesForOthers, {"version": (1, 3)}),
    ("test_deleters_run_once", Fake, RefusesItsOwn, {"version": (1, 3)}),
    ("test_offsets_of_views", Fake, ReadsFromTheStart, {}),
    ("test_export_to_the_host", Fake, FlipsABit, {}),
    ("test_consumers_streams", Fake, BoolsAreIntegers, {}),
    ("test_consumers_stream_waits", Gated, NoWait, {}),
    ("test_host_view_of_a_tensor", Shared, ViewIsACopy, {}),
    ("test_native_objects_share_memory", Fake, NativeElsewhere, {}),
    ("test_neighbouring_elements", Fake, WritesItAll, {}),
    ("test_threads_move_tensors", Fake, ThreadsShareAStagingBuffer, {}),
    ("test_errors_leave_all_in_order", Fake, TakesAnySizeAndDevice, {}),
    ("test_memory_made_with_its_content", MakesWithContent, MakesWithoutContent, {}),
    (
        "test_memory_made_with_its_content_does_not_alias",
        MakesWithContent,
        MakesOneForEachSource,
        {},
    ),
    (
        "test_memory_made_with_its_content_on_an_unknown_device",
        MakesWithContent,
        MakesOnEveryDevice,
        {"member": "allocate_from_host_limit", "beyond": 0},
    ),
    ("test_trim_keeps_what_is_in_use", Trims, TrimsWhatIsInUse, {}),
    ("test_trim_counts_nothing_as_freed", Trims, TrimForgets, {}),
    ("test_trim_beside_queued_work", Trims, TrimsWhatIsInUse, {}),
    ("test_trim_in_threads", Trims, TrimsWhatIsInUse, {}),
    ("test_trim_refuses_other_devices", Trims, TrimsEveryDevice, {}),
    ("test_exportable_memory_needs_the_rest", Exporting, ExportsNothing, {}),
    ("test_exported_memory_is_one_memory", Exporting, ExportsACopy, {}),
    ("test_exported_memory_lives_until_its_last_use", Exporting, EndsForAll, {"ends": "maker"}),
    ("test_exported_memory_is_its_own", Exporting, ExportsItsNeighbours, {}),
    ("test_exported_descriptors_are_the_callers", Exporting, TakesTheDescriptor, {}),
    ("test_exportable_memory_leaks_nothing", Exporting, ExportsLeak, {}),
    ("test_exportable_memory_of_an_unknown_device", Exporting, ExportsOfAnyDevice, {}),
    ("test_wait_on_itself_is_nothing", Gated, WaitsForItself, {}),
    ("test_current_stream_is_a_stream", Fake, CurrentStreamOfAnotherDevice, {}),
    ("test_none_is_a_stream", Fake, NoneIsNoStream, {}),
    ("test_minus_one_is_no_order", Fake, MinusOneIsAStream, {}),
    ("test_no_stream_at_all", Fake, BoolsAreIntegers, {"stream": True}),
    ("test_negative_streams", CPU, AnyStreamWillDo, {"stream": -2}),
    ("test_forbidden_streams", CPU, AnyStreamWillDo, {}),
]


@pytest.fixture(autouse=True)
def plain_fake(monkeypatch):
    """Without what the environment may say: the cases choose the kind of device."""
    for name in ("DLBRIDGE_FAKE_DELAY_US", "DLBRIDGE_FAKE_SHARED", "DLBRIDGE_BACKENDS"):
        monkeypatch.delenv(name, raising=False)


def run(test, make, monkeypatch, **values):
    """One test of the kit on the backend that *make* makes."""
    if issubclass(make, Gated):
        monkeypatch.setenv("DLBRIDGE_FAKE_DELAY_US", "1")  # streams have threads
    kit, backend = Kit(), make()
    kit.patience = 1 if make is LocksItselfOut else 60
    kit.name = "cpu" if isinstance(backend, CPU) else "ext_dev"
    devices = [DeviceUnderTest(backend, i) for i in range(backend.device_count())]
    pages = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    pin = ctypes.c_char.from_buffer(pages)
    values |= {"backend": backend, "device": next(iter(devices), None), "devices": devices}
    monkeypatch.setitem(registry.LOADED, kit.name, backend)  # for the public functions
    values |= {"where": f"{kit.name}:0", "host_pages": (ctypes.addressof(pin), pages)}
    function = getattr(kit, test)
    names = inspect.signature(function).parameters
    if "frees" in names:
        values["frees"] = count_frees(backend, monkeypatch)
    before = set(threading.enumerate())
    try:
        function(**{name: values[name] for name in names})
    finally:
        if isinstance(backend, LocksItselfOut):  # else no collection would ever end again
            backend.over.set()
            for thread in set(threading.enumerate()) - before:
                thread.join()


@pytest.mark.parametrize(
    ("test", "sound", "faulty", "values"), CASES, ids=[f"{c[0][5:]}-{c[2].__name__}" for c in CASES]
)
def test_the_kit_tells_them_apart(test, sound, faulty, values, monkeypatch):
    run(test, sound, monkeypatch, **values)
    # pytest.skip's exception is neither of the two, and would get out of here.
    with pytest.raises((Exception, pytest.fail.Exception)):
        run(test, faulty, monkeypatch, **values)


@pytest.fixture
def plugins(monkeypatch):
    """The fake installation of tests/plugins, in this process and those it starts."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    path = [str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


PLUGIN_CASES = [
    ("test_entry_point_is_installed", "shared", "nobody"),
    ("test_import_opens_no_library", "shared", "heavy"),
    ("test_import_opens_no_library", "shared", "broken_import"),
    ("test_class_is_called_without_arguments", "shared", "broken_call"),
]


@pytest.mark.parametrize(("test", "sound", "faulty"), PLUGIN_CASES)
def test_the_kit_tells_plugins_apart(test, sound, faulty, plugins):
    kit = Kit()
    kit.name = sound
    getattr(kit, test)()
    kit.name = faulty
    with pytest.raises((AssertionError, TypeError)):
        getattr(kit, test)()


def test_without_a_probe_the_kit_says_what_it_cannot_see(monkeypatch):
    """It passed for a `synchronize` that does nothing, without a word."""
    with pytest.raises(pytest.skip.Exception, match=r"ext_dev: .* give slow_work and is_done"):
        run("test_synchronize_alone_waits", Fake, monkeypatch)


def test_failed_asserts_of_every_part_show_their_values():
    """pytest's loader rewrites them; without it an AssertionError has no text."""
    names = [each.name for each in pkgutil.iter_modules(dlbridge.testing.__path__)]
    assert "backend_trim" in names
    for name in names:
        module = importlib.import_module(f"dlbridge.testing.{name}")
        assert isinstance(module.__spec__.loader, AssertionRewritingHook), name


def test_every_test_of_the_kit_is_shown_to_fail():
    tests = {name for name in dir(BackendTests) if name.startswith("test_")}
    of_dlbridge_itself = {"test_dlpack_device", "test_moving_leaks_nothing"}
    shown = {case[0] for case in CASES + PLUGIN_CASES} | set(NOTICED.values())
    assert tests - of_dlbridge_itself == shown


OUTER = """
from dlbridge.testing import BackendTests

class TestAbsent(BackendTests):
    name = "absent"
"""


@pytest.mark.parametrize(
    ("expected", "passes"), [("", True), ("cpu,other", True), ("cpu, absent", False)]
)
def test_a_missing_device_skips_unless_it_is_expected(tmp_path, plugins, expected, passes):
    path = tmp_path / "test_absent.py"
    path.write_text(OUTER)
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(path)]
    command += ["-k", "round_trip or synchronize or host_view", "--rootdir", str(tmp_path)]
    env = {**os.environ, "DLBRIDGE_EXPECT": expected}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "libabsent.so.1 not found; install the driver" in done.stdout
    assert (done.returncode == 0) is passes
    assert ("skipped" in done.stdout) is passes
