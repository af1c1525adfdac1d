"""The conformance kit fails where it should: each test on a sound backend, and on a faulty one."""

from __future__ import annotations

import ctypes
import inspect
import math
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from dlbridge_fake import Fake, Stream
from dlbridge_fake.stream import by_handle

from dlbridge import protocol
from dlbridge.core.plugins import registry
from dlbridge.core.plugins.cpu import CPU
from dlbridge.errors import ExchangeError
from dlbridge.testing import BackendTests
from dlbridge.testing.backend_base import DeviceUnderTest
from dlbridge.testing.backend_demo import blurred
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
            by_handle[stream].enqueue(backend.gate.wait)
        return backend


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
    def copy_from_host(self, device_id, data, offset, source, stream):
        super().copy_from_host(device_id, data, 0, source, stream)


class OneByteTooMany(Fake):
    def copy_from_host(self, device_id, data, offset, source, stream):
        super().copy_from_host(device_id, data, offset, source, stream)
        _, content = self.table[data]
        if offset + len(source) < len(content):
            content[offset + len(source)] ^= 0xFF


class PiecesInTheWrongPlace(Fake):
    def copy_from_host(self, device_id, data, offset, source, stream):
        for at in range(0, len(source), 4096):
            to = 0 if at == 8192 else offset + at
            super().copy_from_host(device_id, data, to, source[at : at + 4096], stream)


class NeedsAWritableSource(Fake):
    def copy_from_host(self, device_id, data, offset, source, stream):
        ctypes.c_char.from_buffer(source)
        super().copy_from_host(device_id, data, offset, source, stream)


class OneMemoryForAll(Fake):
    memory = memoryview(bytearray(1 << 20))

    def add(self, device_id, content):
        return super().add(device_id, self.memory[: len(content)])


class LosesTheLastByte(Fake):
    def copy_to_host(self, device_id, data, offset, into, stream):
        super().copy_to_host(device_id, data, offset, into[:-1], stream)


class FlipsABit(Fake):
    def copy_to_host(self, device_id, data, offset, into, stream):
        super().copy_to_host(device_id, data, offset, into, stream)
        into[0] ^= 1


class ReadsFromTheStart(Fake):
    def copy_to_host(self, device_id, data, offset, into, stream):
        super().copy_to_host(device_id, data, 0, into, stream)


class FillsHalf(Fake):
    def fill(self, device_id, data, offset, nbytes, value, stream):
        super().fill(device_id, data, offset, nbytes, 1, stream)


class ReadsTheSourceLate(Gated):
    """As if `synchronize` were only for reading back."""

    def copy_from_host(self, device_id, data, offset, source, stream):
        self.gate.clear()
        self.stream(device_id, stream).enqueue(self.gate.wait)
        super().copy_from_host(device_id, data, offset, source, stream)

    def copy_to_host(self, device_id, data, offset, into, stream):
        super().copy_to_host(device_id, data, offset, into, stream)
        self.gate.set()

    def synchronize(self, device_id, stream):
        if self.gate.is_set():
            super().synchronize(device_id, stream)


class ForgetsPeers(Fake):
    def copy(self, device_id, data, offset, source_device_id, *rest):
        if device_id == source_device_id:
            super().copy(device_id, data, offset, source_device_id, *rest)


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

    def copy_from_host(self, device_id, data, offset, source, stream):
        self.busy = True
        [[] for _ in range(1000)]  # the collector has work to do
        super().copy_from_host(device_id, data, offset, source, stream)
        self.busy = False

    def free(self, device_id, data, stream):
        if self.busy:
            self.over.wait()
        super().free(device_id, data, stream)


class ThreadsShareAStagingBuffer(Fake):
    staging = memoryview(bytearray(1 << 20))

    def copy_from_host(self, device_id, data, offset, source, stream):
        self.staging[: len(source)] = source
        threading.Event().wait(0.001)  # others come in
        super().copy_from_host(device_id, data, offset, self.staging[: len(source)], stream)


class TakesAnySizeAndDevice(Fake):
    def allocate(self, device_id, nbytes, alignment, stream):
        return super().allocate(device_id % 2, min(nbytes, 4096), alignment, stream)


class ForeignError(Fake):
    def allocate(self, device_id, nbytes, alignment, stream):
        if nbytes > 1 << 40 or device_id > 1:
            raise OverflowError("too much")
        return super().allocate(device_id, nbytes, alignment, stream)


class CopiesWhatFits(Fake):
    def region(self, device_id, data, offset, nbytes, write=False):
        _, content = self.table[data]
        return content[max(offset, 0) :][:nbytes]

    def move(self, stream, into, source):
        n = min(len(into), len(source))
        super().move(stream, into[:n], source[:n])


class FillsWholeWords(Fake):
    def fill(self, device_id, data, offset, nbytes, value, stream):
        super().fill(device_id, data, offset & ~3, nbytes + 3 & ~3, value, stream)


class SwapsOffsets(Fake):
    def copy(self, device_id, data, offset, from_id, source, source_offset, nbytes, stream):
        super().copy(device_id, data, source_offset, from_id, source, offset, nbytes, stream)


class PeerCopyDropsTheOffset(Fake):
    def copy(self, device_id, data, offset, from_id, source, source_offset, *rest):
        source_offset *= device_id == from_id
        super().copy(device_id, data, offset, from_id, source, source_offset, *rest)


class ForgetsTheOuterStride(Fake):
    def copy_strided_to_host(self, device_id, data, offset, strides, into, into_strides, *rest):
        into_strides = [into_strides[-1]] * len(into_strides)
        super().copy_strided_to_host(device_id, data, offset, strides, into, into_strides, *rest)


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


class Blurs(Fake):
    def box_blur(
        self, device_id, source, source_offset, target, target_offset, shape, radius, stream
    ):
        nbytes = math.prod(shape)
        image = np.frombuffer(self.region(device_id, source, source_offset, nbytes), "u1")
        result = self.mean(image.reshape(shape), radius).tobytes()
        self.region(device_id, target, target_offset, nbytes)[:] = result

    def mean(self, image, radius):
        return blurred(image, radius)


class BlursDownwards(Blurs):
    def mean(self, image, radius):
        return np.maximum(blurred(image, radius), 1) - 1


class ViewIsACopy(Shared):
    def host_view(self, device_id, data, offset, nbytes, writable, stream):
        self.copy_of_it = bytearray(self.region(device_id, data, offset, nbytes))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.copy_of_it))
        self.views.append((data, address))
        return address


class ViewBeforeTheWork(Gated, Shared):
    def copy_from_host(self, device_id, data, offset, source, stream):
        self.gate.clear()
        self.stream(device_id, stream).enqueue(self.gate.wait)
        super().copy_from_host(device_id, data, offset, source, stream)

    def host_view(self, device_id, data, offset, nbytes, writable, stream):
        content = self.region(device_id, data, offset, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(content))
        self.views.append((data, address))
        return address


class ViewDespiteRefusal(Fake):
    def host_view(self, device_id, data, offset, nbytes, writable, stream):
        return 0


class SecondReleaseHurts(Shared):
    def release_host_view(self, device_id, data, address, stream):
        _, content = self.table[data]
        content[:] = bytes(len(content))


class ImportIsACopy(Shared):
    def import_host(self, device_id, address, nbytes, readonly):
        return self.add(device_id, memoryview(bytearray(ctypes.string_at(address, nbytes)))), 0


class ImportDespiteRefusal(Fake):
    def import_host(self, device_id, address, nbytes, readonly):
        return self.add(device_id, memoryview(bytearray(nbytes))), 0


class NativeForEverything(Fake):
    def from_native(self, obj):
        return obj


class NativeElsewhere(Fake):
    def from_native(self, obj):
        description = super().from_native(obj)
        return type(description)(**{**vars(description), "offset": 4})


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
        return self.add(device_id, memoryview(b"?" * nbytes)), 0


class OneBehind(Fake):
    def copy_from_host(self, device_id, data, offset, source, stream):
        passing = self.waiting if hasattr(self, "waiting") else source
        self.waiting = source
        super().copy_from_host(device_id, data, offset, passing, stream)


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
    ("test_source_and_target_may_lie_anywhere", Fake, NeedsAWritableSource, {}),
    ("test_fill", Fake, FillsWholeWords, {"offset": 1, "nbytes": 2, "value": 255}),
    ("test_threads", Fake, ThreadsShareAStagingBuffer, {}),
    ("test_many_allocations_leak_nothing", Fake, Leaks, {}),
    ("test_many_allocations_leak_nothing", CPU, LeaksUncounted, {}),
    ("test_free_in_a_finalizer", Fake, LocksItselfOut, {}),
    ("test_too_much_is_refused", Fake, TakesAnySizeAndDevice, {"nbytes": 1 << 50}),
    ("test_too_much_is_refused", Fake, ForeignError, {"nbytes": 1 << 50}),
    ("test_out_of_bounds_is_refused", Fake, CopiesWhatFits, {"offset": 1, "nbytes": 100}),
    ("test_copy_inside", Fake, SwapsOffsets, {"nbytes": 3, "offset": 0, "source_offset": 3}),
    ("test_copy_within_one_buffer", Fake, SwapsOffsets, {}),
    ("test_copy_between_devices", Fake, PeerCopyDropsTheOffset, {}),
    ("test_copy_out_of_bounds_is_refused", Fake, CopiesWhatFits, {"offset": 1, "source_offset": 0}),
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
    ("test_strangers_are_not_native", Fake, NativeForEverything, {}),
    ("test_work_on_one_stream_is_in_order", Fake, OneBehind, {}),
    ("test_free_waits_for_queued_work", Fake, OneMemoryForAll, {}),
    ("test_wait_orders_two_streams", Gated, NoWait, {}),
    ("test_synchronize_waits", Gated, NoSynchronize, {}),
    ("test_to_device_and_back", Fake, LosesTheLastByte, {"dtype": "float32"}),
    ("test_shapes", Fake, PiecesInTheWrongPlace, {"shape": (300_007,)}),
    ("test_zeros_and_empty", Fake, FillsHalf, {}),
    ("test_strided_both_ways", Fake, ReadsFromTheStart, {"index": slice(1, None)}),
    ("test_copy_into_a_view", Fake, OffsetIgnored, {"index": slice(2, 4)}),
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
    ("test_threads_move_tensors", Fake, ThreadsShareAStagingBuffer, {}),
    ("test_errors_leave_all_in_order", Fake, TakesAnySizeAndDevice, {}),
    ("test_box_blur", Blurs, BlursDownwards, {}),
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


ALONE = "DLBRIDGE_TEST_ALONE"


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
    if faulty is LeaksUncounted and ALONE not in os.environ:
        # In a whole run on 3.10 and 3.13 the kit missed this leak, alone it never has;
        # why is not known. Counted leaks (`live_allocations`) are seen in any run.
        again = [sys.executable, "-m", "pytest", "-q", __file__, "-k", faulty.__name__]
        alone = {**os.environ, ALONE: "1"}
        assert (
            subprocess.run(again, env=alone, cwd=Path(__file__).parents[2], check=False).returncode
            == 0
        )
        return
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


def test_every_test_of_the_kit_is_shown_to_fail():
    tests = {name for name in dir(BackendTests) if name.startswith("test_")}
    of_dlbridge_itself = {"test_dlpack_device", "test_moving_leaks_nothing"}
    assert tests - of_dlbridge_itself == {case[0] for case in CASES + PLUGIN_CASES}


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
