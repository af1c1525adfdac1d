"""The order of work: on one stream, between streams, seen by the host; which values are streams."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import DeviceError, DeviceMemoryError, Error
from dlbridge.protocol import (
    Region,
    Span,
    SupportsCopy,
    SupportsFill,
    SupportsStreams,
    SupportsStridedCopy,
)

from .backend_base import (
    OPERATIONS,
    PAGES,
    RUNS,
    STRANGE_STREAM,
    BackendCase,
    DeviceUnderTest,
    are_same,
    catch,
    check_live,
    drawn,
    end_quietly,
    live_allocations,
    random_bytes,
)

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

WORK = {**OPERATIONS, "copy from another device": SupportsCopy}
"""The kinds of work, and the capability that each needs."""


SLOT = 4096
"""Bytes that one piece of work of many has for itself."""


class Scene:
    """Memory on one stream for two pieces of work: an earlier one, and a later one of each kind.

    In the right order the result is 2 in each byte, in the wrong one 0 or 1. So the earlier
    work writes 2 to the source of the later one, or 1 to the target that it writes 2 to.
    """

    def __init__(
        self,
        mine: DeviceUnderTest,
        maker: DeviceUnderTest,
        devices: Sequence[DeviceUnderTest],
        nbytes: int,
    ) -> None:
        """Memory of *nbytes*, made on the stream of *maker*; the work is on that of *mine*."""
        self.mine, self.nbytes = mine, nbytes
        self.source, self.target = (maker.filled(bytes(nbytes)) for _ in range(2))
        self.values = {value: maker.filled(bytes([value]) * nbytes) for value in (1, 2)}
        others = [each for each in devices if each.device_id != mine.device_id]
        self.away: Any = None
        if others:
            self.away = others[0].span(others[0].filled(b"\2" * nbytes), 0, nbytes)
        self.host, self.ones = (memoryview(bytearray(each * nbytes)) for each in (b"\2", b"\1"))
        self.into = memoryview(bytearray(nbytes))

    def earlier(self, operation: str) -> None:
        """The work that is queued first, by another member than *operation* if there is one."""
        reads = operation in ("copy", "copy_to_host", "copy_strided", "copy_strided_to_host")
        data, value = (self.source, 2) if reads else (self.target, 1)
        backend, mine = self.mine.backend, self.mine
        if isinstance(backend, SupportsFill) and operation != "fill":
            mine.fill(data, 0, self.nbytes, value)
        elif isinstance(backend, SupportsCopy) and not operation.startswith("copy from an"):
            mine.copy(self.whole(data), self.whole(self.values[value]))
        else:
            mine.upload(data, 0, self.host if reads else self.ones)

    def later(self, operation: str) -> None:
        """The work of the kind in question."""
        source = self.whole(self.source) if operation in OPERATIONS else self.away
        host = self.into if operation.endswith("to_host") else self.host
        self.mine.run(operation, self.whole(self.target), source, host, RUNS)

    def result(self, operation: str) -> bytes:
        """What the later work has written first, once all is done."""
        nbytes = RUNS.run_nbytes if "strided" in operation else self.nbytes
        content = self.mine.read(self.target, 0, nbytes)
        return bytes(self.into[:nbytes]) if operation.endswith("to_host") else content

    def whole(self, data: int) -> Span:
        """All bytes of one of the memories."""
        return self.mine.span(data, 0, self.nbytes)


class OrderTests(BackendCase):
    """The order that every backend keeps; with `SupportsStreams`, between streams as well."""

    def streams(self, device: DeviceUnderTest) -> tuple[DeviceUnderTest, DeviceUnderTest]:
        """The device on two new streams if there is a `make_stream`, else on one stream twice."""
        self.need(device.backend, SupportsStreams)
        _, *new = self.each_stream(device, 2)
        if not new:
            return device, device
        first, second = new
        assert first.stream != second.stream
        return first, second

    def two_streams(self, device: DeviceUnderTest) -> tuple[DeviceUnderTest, DeviceUnderTest]:
        """The device on two new streams, or a skip."""
        first, second = self.streams(device)
        if first is second:
            pytest.skip("there is one stream (make_stream)")
        return first, second

    @pytest.mark.parametrize("operation", WORK)
    def test_work_is_on_its_stream(
        self, device: DeviceUnderTest, devices: list[DeviceUnderTest], operation: str
    ) -> None:
        """Each kind of work is done after the earlier work on the stream that it is given.

        Whatever stream the memory was made on, and whether the work is short or long.
        """
        self.need(device.backend, WORK[operation])
        mine = self.own(device)
        longest = min(self.max_nbytes // 2, 32 << 20)  # more than a small staging buffer has
        long = drawn(longest * 9 // 16, longest) if longest > RUNS.extent else RUNS.extent
        cases = [(mine, mine, 4096), (mine, device, 4096), (mine, mine, long)]
        if operation not in OPERATIONS:  # the other device has a default stream as well
            cases.append((device, device, 4096))
        for mine, maker, nbytes in cases:
            scene = Scene(mine, maker, devices, nbytes)
            if operation == "copy from another device" and scene.away is None:
                pytest.skip("there is one device")
            work = self.busy(mine)
            scene.earlier(operation)
            scene.later(operation)
            assert set(scene.result(operation)) == {2}, (
                f"{operation} of {nbytes} bytes, made on stream {maker.stream:#x}, did not come "
                f"after the earlier work on stream {mine.stream:#x}"
            )
            del work

    def test_work_on_one_stream_is_in_order(self, device: DeviceUnderTest) -> None:
        """Work on a stream is done in order, without any wait in between."""
        data = device.allocate(100_000)
        contents = [memoryview(random_bytes(100_000, seed)) for seed in range(20)]
        results = [bytearray(100_000) for _ in contents]
        for content, result in zip(contents, results, strict=True):
            device.upload(data, 0, content)
            device.download(data, 0, memoryview(result))
        device.synchronize()
        assert are_same(results, contents)

    @pytest.mark.parametrize("nbytes", [1, 4, 16, 63, 200])
    def test_small_uploads_are_in_order(self, device: DeviceUnderTest, nbytes: int) -> None:
        """Bytes that fit into a command are not written before the work that was queued earlier.

        The earlier work writes to the same memory, and reads it.
        """
        self.need(device.backend, SupportsCopy)
        mine = self.each_stream(device)[-1]
        first, new = random_bytes(256, seed=1), random_bytes(nbytes, seed=2)
        other, data = mine.filled(first), mine.filled(b"-" * 256)
        before = mine.allocate(256)
        whole = [mine.span(each, 0, 256) for each in (other, data, before)]
        source = memoryview(new)
        work = self.busy(mine)
        mine.copy(whole[1], whole[0])
        mine.copy(whole[2], whole[1])
        mine.upload(data, 0, source)
        assert mine.read(data, 0, 256) == new + first[nbytes:], "earlier work came later"
        assert mine.read(before, 0, 256) == first, "earlier work has read the new bytes"
        del work

    def test_free_waits_for_queued_work(self, device: DeviceUnderTest) -> None:
        """Freed memory is not handed out again before the work on it is done."""
        self.need(device.backend, SupportsCopy)
        contents = [memoryview(random_bytes(1 << 20, seed)) for seed in range(10)]
        kept = [device.allocate(1 << 20) for _ in contents]
        work = self.busy(device)
        for content, keep in zip(contents, kept, strict=True):
            passing = device.allocate(1 << 20)
            device.upload(passing, 0, content)
            device.copy(device.span(keep, 0, 1 << 20), device.span(passing, 0, 1 << 20))
            device.free(passing)
        for content, keep in zip(contents, kept, strict=True):
            assert device.holds(keep, content)
        del work

    def test_free_waits_for_queued_downloads(self, device: DeviceUnderTest) -> None:
        """The host gets the bytes of before the free, whoever uses the memory then.

        Also where the memory was last used on another stream than the one that it was made for:
        dlbridge has written that stream to ``stream``.
        """
        first, second = self.streams(device)
        cases = (
            (first, first, second),
            (device, first, device),
            (device, device, first),
            (first, device, second),
        )
        for nbytes in (drawn(16, 4096), drawn(1 << 18, 1 << 20)):
            # More than a pool has at hand that takes first what was freed first.
            others = min(drawn(30, 60), max(self.max_nbytes // nbytes, 3))
            content, junk = random_bytes(nbytes), memoryview(bytes(nbytes))
            for maker, user, later in cases if first is not second else cases[:1]:
                data, into = maker.filled(content), bytearray(nbytes)
                work = self.busy(user)
                user.download(data, 0, memoryview(into))
                maker.free(data, last=user.stream)
                for _ in range(others):
                    later.upload(later.allocate(nbytes), 0, junk)
                later.synchronize()
                user.synchronize()
                assert are_same(into, content), (
                    f"memory of {nbytes} bytes was freed with work on stream {user.stream:#x}, and "
                    f"stream {later.stream:#x} has used it before that work was done"
                )
                del work

    def test_memory_may_outlive_its_stream(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """Its end raises nothing, and that of an import waits for the work that was on the stream.

        That is `Allocation.stream`, which nobody has kept for dlbridge.
        """
        backend, device_id, (address, pages) = device.backend, device.device_id, host_pages
        self.need(backend, SupportsStreams)
        imports = device.can_import(address)
        before = live_allocations(backend)
        for kind in ("memory", "host import") if imports else ("memory",):
            stream = self.new_stream(backend, device_id)
            mine = DeviceUnderTest(backend, device_id, backend.normalize_stream(device_id, stream))
            if kind == "memory":
                data, offset = mine.allocate(PAGES), 0
            else:
                data, offset = mine.import_host(address, PAGES)
            new = random_bytes(PAGES, seed=1)
            work = self.busy(mine)
            mine.upload(data, offset, memoryview(new))
            self.end_stream(backend, device_id, stream)
            del stream
            gc.collect()
            end_quietly(partial(mine.free, data))
            if kind == "host import" and not are_same(bytes(pages), new):
                time.sleep(1)  # no verdict: the work may end before its memory does
                pytest.fail("the end of the import came before the work on its stream")
            data = device.filled(b"and on")
            assert device.read(data, 0, 6) == b"and on"
            device.free(data)
            del work, mine  # `busy` has memory in it where there is no `slow_work`
        device.synchronize()
        if live_allocations(backend) > before:
            check_live(backend, before, "after memory that has outlived its stream")

    def test_memory_of_an_ended_stream_is_not_used_too_early(self, device: DeviceUnderTest) -> None:
        """Its last work is done first, also where nobody has kept the stream of that work."""
        backend, device_id = device.backend, device.device_id
        self.need(backend, SupportsCopy)
        self.need(backend, SupportsStreams)
        for nbytes in (drawn(16, 4096), drawn(1 << 18, 1 << 20)):
            stream = self.new_stream(backend, device_id)
            mine = DeviceUnderTest(backend, device_id, backend.normalize_stream(device_id, stream))
            content, junk = random_bytes(nbytes), memoryview(b"j" * nbytes)
            data, target = device.filled(content), device.filled(bytes(nbytes))
            work = self.busy(mine)
            mine.copy(mine.span(target, 0, nbytes), mine.span(data, 0, nbytes))
            self.end_stream(backend, device_id, stream)
            del stream
            gc.collect()
            device.free(data, last=mine.stream)
            for _ in range(min(drawn(30, 60), max(self.max_nbytes // nbytes, 3))):
                device.upload(device.allocate(nbytes), 0, junk)
            while (got := device.read(target, 0, nbytes)) == bytes(nbytes):
                time.sleep(0.01)  # no verdict: nobody can wait for a stream that is gone
            assert are_same(got, content), (
                f"memory of {nbytes} bytes was used again before the last work on its stream, "
                "which had ended"
            )
            del work

    def test_new_memory_is_of_its_stream(self, device: DeviceUnderTest) -> None:
        """``stream`` is the one that the memory was asked for on, until dlbridge writes it."""
        for mine in self.each_stream(device):
            memory = device.backend.allocate(mine.device_id, 256, 256, mine.stream)
            assert memory.stream == mine.stream
            assert memory.nbytes >= 256
            assert memory.offset == 0
            memory.stream = device.stream
            assert memory.stream == device.stream

    def test_wait_orders_two_streams(self, device: DeviceUnderTest) -> None:
        """Work after `wait` sees the results of all earlier work on the other stream.

        Both streams are new ones, or one of them is the default; each time, and not the first only.
        """
        self.need(device.backend, SupportsCopy)
        first, second = self.streams(device)
        nbytes = 1 << 16
        pairs = [(first, second), (device, second), (first, device)]
        for on, after in 2 * (pairs if first is not second else pairs[:1]):
            new = memoryview(random_bytes(nbytes))
            source, target = device.filled(b"o" * nbytes), device.allocate(nbytes)
            into = bytearray(nbytes)
            work = self.busy(on)
            on.upload(source, 0, new)
            device.backend.wait(device.device_id, after.stream, on.stream)
            after.copy(after.span(target, 0, nbytes), after.span(source, 0, nbytes))
            after.download(target, 0, memoryview(into))
            after.synchronize()
            assert are_same(into, new), f"stream {after.stream:#x} did not wait for {on.stream:#x}"
            on.synchronize()
            del work

    def test_wait_for_work_that_runs(self, device: DeviceUnderTest) -> None:
        """A stream that has one piece of work, which has begun, is waited for all the same.

        So it is where all that the backend has queued there is done, and by a stream that waits for
        one which has no work but a wait.
        """
        first, second = self.streams(device)
        chains = [(first, second), (second, device), (device, second), (first, second, device)]
        for chain in chains if first is not second else chains[:1]:
            on, *others = chain
            work = self.busy(on)
            time.sleep(0.01)  # no verdict: until the device has begun, on most machines
            for earlier, later in itertools.pairwise(chain):
                device.backend.wait(device.device_id, later.stream, earlier.stream)
            others[-1].synchronize()
            done = self.is_done(device.backend, device.device_id, on.stream, work)
            names = " for ".join(f"{each.stream:#x}" for each in chain[::-1])
            assert done in (True, None), f"{names}: the last did not wait for the only work"
            for each in chain:
                each.synchronize()
            del work

    def test_a_stream_waits_for_several(self, device: DeviceUnderTest) -> None:
        """For two others, one after the other, before it has work of its own: for both of them."""
        self.need(device.backend, SupportsCopy)
        new = memoryview(random_bytes(SLOT))
        for *others, after in itertools.permutations((device, *self.two_streams(device))):
            for late in others:
                source, target = device.filled(bytes(SLOT)), device.filled(bytes(SLOT))
                work = self.busy(late)
                late.upload(source, 0, new)
                for on in others:
                    device.backend.wait(device.device_id, after.stream, on.stream)
                after.copy(device.span(target, 0, SLOT), device.span(source, 0, SLOT))
                assert after.holds(target, new), (
                    f"stream {after.stream:#x} waited for {others[0].stream:#x} and then for "
                    f"{others[1].stream:#x}, and {late.stream:#x} was not done"
                )
                late.synchronize()
                del work

    def test_two_streams_at_once(self, device: DeviceUnderTest) -> None:
        """Work of two streams at the same time: neither gets what the other one stages."""
        pair = self.two_streams(device)
        for nbytes in (64, 3000, (1 << 16) + 5, 1 << 20):
            contents = [memoryview(random_bytes(nbytes, seed)) for seed in range(2)]
            held = [each.allocate(nbytes) for each in pair]
            results = [bytearray(nbytes) for _ in pair]
            work = [self.busy(each) for each in pair]
            for each, data, content in zip(pair, held, contents, strict=True):
                each.upload(data, 0, content)
            for each, data, result in zip(pair, held, results, strict=True):
                each.download(data, 0, memoryview(result))
            for each in pair:
                each.synchronize()
            assert are_same(results, contents), f"{nbytes} bytes"
            del work

    def test_each_wait_is_for_its_work(self, device: DeviceUnderTest) -> None:
        """Hundreds of waits are queued before any work is done; each is for the work before it.

        That is one piece of work, of any kind and length, and any stream waits for any other.
        """
        backend = device.backend
        self.need(backend, SupportsCopy)
        streams = [device, *self.two_streams(device)]
        chance, count = random.Random(drawn(0, 1 << 30)), drawn(150, 400)
        writes = [each for each in OPERATIONS if not each.endswith("to_host")]
        kinds = [each for each in writes if isinstance(backend, OPERATIONS[each])]
        first, second = (device.filled(bytes(count * SLOT)) for _ in range(2))
        value, host = device.filled(b"\2" * SLOT), memoryview(b"\2" * SLOT)
        on, queued = chance.choice(streams), []
        work = self.long_work(on)
        for at in range(0, count * SLOT, SLOT):
            kind, nbytes = chance.choice(kinds), chance.choice((16, 600, SLOT))
            span, whole = device.span(first, at, nbytes), Region((1,), (nbytes,), nbytes)
            on.run(kind, span, device.span(value, 0, nbytes), host[:nbytes], whole)
            after = chance.choice([each for each in streams if each is not on])
            backend.wait(device.device_id, after.stream, on.stream)
            after.copy(device.span(second, at, nbytes), span)
            queued.append((at, nbytes, kind, after.stream, on.stream))
            on = chance.choice((on, after))
        for each in streams:
            each.synchronize()
        got = device.read(second, 0, count * SLOT)
        for number, (at, nbytes, kind, later, earlier) in enumerate(queued):
            assert are_same(got[at : at + nbytes], bytes(host[:nbytes])), (
                f"wait {number} of {count}: stream {later:#x} did not wait for {kind} of {nbytes} "
                f"bytes on stream {earlier:#x}"
            )
        del work

    def test_a_wait_holds_beside_many_others(self, device: DeviceUnderTest) -> None:
        """It is for its work still when hundreds of later ones, between other streams, are over."""
        backend, device_id = device.backend, device.device_id
        self.need(backend, SupportsCopy)
        _, *streams = self.each_stream(device, 4)
        if len(streams) < 4:
            pytest.skip("there are no four streams (make_stream)")
        on, after, *others = streams
        new = memoryview(random_bytes(SLOT))
        source, target, small = (on.filled(bytes(SLOT)) for _ in range(3))
        work, until = self.long_work(on), time.monotonic() + 3
        on.upload(source, 0, new)
        backend.wait(device_id, after.stream, on.stream)
        after.copy(device.span(target, 0, SLOT), device.span(source, 0, SLOT))
        with suppress(DeviceMemoryError):  # what there is room for is enough
            for turn in range(drawn(550, 1500)):
                earlier, later = others if turn % 2 else others[::-1]
                earlier.copy(device.span(small, 0, 16), device.span(small, 16, 16))
                backend.wait(device_id, later.stream, earlier.stream)
                if time.monotonic() > until:  # no verdict: a slow device has fewer
                    break
        assert after.holds(target, new), f"stream {after.stream:#x} did not wait for {on.stream:#x}"
        for each in others:
            each.synchronize()
        del work

    def test_much_work_at_once(self, device: DeviceUnderTest) -> None:
        """A thousand pieces of work and more are done in their order, without a wait between them.

        All bytes are written twice, by any kind of work; each piece has other bytes but for fills.
        """
        for mine in self.each_stream(device):
            count = drawn(550, 1500)
            contents = [random_bytes(16 * count, seed) for seed in range(2)]
            data, want = mine.filled(bytes(16 * count)), bytearray(contents[1])
            sources = [mine.filled(each) for each in contents]
            hosts = [memoryview(each) for each in contents]
            kinds = [
                each
                for each in ("copy_from_host", "copy", "fill")
                if isinstance(mine.backend, OPERATIONS[each])
            ]
            work, until = self.long_work(mine), time.monotonic() + 3
            for value, turn in itertools.product(range(2), range(count)):
                kind = kinds[(turn + value) % len(kinds)]
                if value and kind == "fill":
                    want[16 * turn : 16 * turn + 16] = b"\2" * 16
                target, source = (mine.span(each, 16 * turn, 16) for each in (data, sources[value]))
                mine.run(kind, target, source, hosts[value][16 * turn : 16 * turn + 16], RUNS)
                if time.monotonic() > until:  # no verdict: a slow device has less
                    mine.synchronize()
                    until += 1000
            mine.synchronize()
            got = mine.read(data, 0, 16 * count)
            starts = range(0, 16 * count, 16)
            wrong = [at // 16 for at in starts if got[at : at + 16] != want[at : at + 16]]
            assert wrong == [], f"of {2 * count} pieces of work these are not the last ones"
            del work

    def test_many_streams_at_once(self, device: DeviceUnderTest) -> None:
        """The handle of each names that stream, however many others there are."""
        backend, device_id = device.backend, device.device_id
        self.need(backend, SupportsStreams)
        made: list[object] = []
        count, until = min(drawn(80, 160), self.most_streams), time.monotonic() + 3
        while len(made) < count and time.monotonic() < until:  # no verdict: a slow device has fewer
            made.append(self.new_stream(backend, device_id))
        self.made = tuple(made)
        handles = [backend.normalize_stream(device_id, each) for each in made]
        for handle in handles:
            backend.synchronize(device_id, handle)
        if self.streams_end:
            assert len({*handles}) == len(made), "two streams have one handle"
        for handle in (handles[0], handles[-1], *random.Random(count).sample(handles, 3)):
            mine, new = device.on(handle), random_bytes(4096)
            data = mine.filled(bytes(4096))
            work = self.busy(mine)
            mine.upload(data, 0, memoryview(new))
            mine.synchronize()
            done = self.is_done(backend, device_id, handle, work)
            assert done in (True, None), (
                f"with {len(made)} streams, a wait for {handle:#x} was one for another stream"
            )
            assert mine.holds(data, new)
            mine.close()
            del work

    def failing(self, device: DeviceUnderTest) -> None:
        """Queue work that fails on the device's stream, or skip."""
        if not self.failing_work(device.backend, device.device_id, device.stream):
            pytest.skip(f"{self.name}: no queued work can be made to fail (failing_work)")

    def test_failed_work_is_said_once(
        self, device: DeviceUnderTest, host_pages: tuple[int, mmap.mmap]
    ) -> None:
        """By the next `synchronize` of its stream, or a call for it before; the stream goes on.

        Memory and an import that end in between do not take the error away.
        """
        self.need(device.backend, SupportsStreams)
        before = live_allocations(device.backend)
        for mine in self.each_stream(device):
            held = [mine.filled(b"before")]
            if mine.can_import(host_pages[0]):
                held.append(mine.import_host(host_pages[0], PAGES)[0])
            self.failing(mine)
            for data in held:
                mine.free(data)
            with pytest.raises(DeviceError, match="earlier"):
                mine.synchronize()
            mine.synchronize()
            check_live(device.backend, before, "after memory was freed behind work that failed")
            data = mine.filled(b"and on")
            assert mine.read(data, 0, 6) == b"and on"
            mine.free(data)
        self.test_wait_orders_two_streams(device)

    def test_failed_work_is_said_after_a_wait(self, device: DeviceUnderTest) -> None:
        """A stream that waits for the failed work does not take its error away."""
        first, second = self.two_streams(device)
        self.failing(first)
        device.backend.wait(device.device_id, second.stream, first.stream)
        with suppress(DeviceError):
            second.synchronize()
        with pytest.raises(DeviceError, match="earlier"):
            first.synchronize()

    def test_failed_work_is_of_its_stream(self, device: DeviceUnderTest) -> None:
        """No call for another stream raises its error."""
        first, second = self.two_streams(device)
        data = second.allocate(100)
        self.failing(first)
        second.write(data, 0, b"w" * 100)
        assert second.read(data, 0, 100) == b"w" * 100
        with pytest.raises(DeviceError, match="earlier"):
            first.synchronize()

    def test_a_stream_is_the_same_in_each_thread(self, device: DeviceUnderTest) -> None:
        """What one thread has queued is waited for in another, also on the default stream."""
        self.need(device.backend, SupportsStreams)
        for mine in self.each_stream(device):
            content = random_bytes(4096, seed=3)
            failures: list[BaseException] = []
            queued: list[object] = []
            data = mine.filled(bytes(4096))
            work = partial(self.queue_there, mine, data, memoryview(content), queued)
            thread = threading.Thread(target=catch, args=(failures, work), daemon=True)
            thread.start()
            thread.join(self.patience)
            assert not failures, failures
            assert mine.holds(data, content), (
                f"stream {mine.stream:#x} of one thread is another stream in another thread"
            )

    def queue_there(
        self, device: DeviceUnderTest, data: int, content: memoryview, queued: list[object]
    ) -> None:
        """Queue an upload behind work that takes its time."""
        queued.append(self.busy(device))
        device.upload(data, 0, content)

    def test_wait_on_itself_is_nothing(self, device: DeviceUnderTest) -> None:
        """A stream that waits for itself does not deadlock."""
        first, _ = self.streams(device)
        device.backend.wait(device.device_id, first.stream, first.stream)
        first.synchronize()

    def test_synchronize_alone_waits(self, device: DeviceUnderTest) -> None:
        """Without a copy to the host before it, which may have waited for the work itself.

        On a new stream and on the default one.
        """
        self.need(device.backend, SupportsStreams)
        for mine in self.each_stream(device):
            work = self.busy(mine)
            mine.synchronize()
            done = self.is_done(device.backend, device.device_id, mine.stream, work)
            assert done in (True, None), f"synchronize returned before the work on {mine.stream:#x}"
            if done is None:
                pytest.skip(
                    f"{self.name}: nothing says whether work is done, so that a synchronize which "
                    "does nothing may pass; give slow_work and is_done"
                )

    def test_synchronize_waits_for_long_work(self, device: DeviceUnderTest) -> None:
        """It ends with the work, and not after some time: here after a second of it."""
        self.need(device.backend, SupportsStreams)
        mine = self.each_stream(device)[-1]
        data, into = mine.filled(bytes(1000)), bytearray(1000)
        new = memoryview(random_bytes(1000))
        began = time.monotonic()
        work = self.busy(mine)
        mine.synchronize()
        once = time.monotonic() - began  # no verdict: how much of it takes a second
        queued: list[object] = []
        with suppress(DeviceMemoryError):  # what there is room for is enough
            queued.extend(self.busy(mine) for _ in range(min(50, int(1 / once) + 1)))
        mine.upload(data, 0, new)
        mine.download(data, 0, memoryview(into))
        mine.synchronize()
        done = [
            self.is_done(device.backend, device.device_id, mine.stream, each) for each in queued
        ]
        assert False not in done, "synchronize returned before the work was done"
        assert are_same(into, new)
        mine.synchronize()  # with nothing left to do
        del work

    def test_a_thread_that_waits_holds_up_no_other(self, device: DeviceUnderTest) -> None:
        """While one thread waits for a stream, another one waits for a stream without work."""
        if not self.waits_alone:
            pytest.skip("a thread that waits works for other streams (waits_alone)")
        waited, idle = self.two_streams(device)
        for _ in range(5):  # a busy machine may take longer than the work
            failures: list[BaseException] = []
            idle.synchronize()
            work = self.long_work(waited)
            given = failures, waited.synchronize
            thread = threading.Thread(target=catch, args=given, daemon=True)
            thread.start()
            time.sleep(0.02)  # no verdict: until it waits
            idle.synchronize()
            asked = device.backend, device.device_id, waited.stream
            done = [self.is_done(*asked, each) for each in work]
            thread.join(self.patience)
            assert not failures, failures
            if None in done:
                pytest.skip(f"{self.name}: nothing says whether work is done (slow_work, is_done)")
            if not all(done):
                return
        pytest.fail("synchronize of a stream without work waits for the work of another thread")

    def test_the_source_may_change_after_synchronize(self, device: DeviceUnderTest) -> None:
        """Until then it may be read, and not any more."""
        first, _ = self.streams(device)
        content = random_bytes(1 << 20)
        data, source = device.allocate(1 << 20), bytearray(content)
        work = self.busy(first)
        first.upload(data, 0, memoryview(source))
        first.synchronize()
        source[:] = bytes(1 << 20)
        assert first.holds(data, content)
        del work

    def test_host_copies_block_as_declared(self, device: DeviceUnderTest) -> None:
        """With ``host_copies_block`` the host's memory is free again when a copy returns.

        Whatever the size, and strided copies too.
        """
        if not getattr(device.backend, "host_copies_block", False):
            pytest.skip(f"{self.name} does not declare host_copies_block")
        for nbytes in (64, 1 << 20):
            self.blocks(device, Region((1,), (nbytes,), nbytes))
        if isinstance(device.backend, SupportsStridedCopy):
            self.blocks(device, Region((16,), (8192,), 4096), "copy_strided")

    def blocks(self, device: DeviceUnderTest, region: Region, kind: str = "copy") -> None:
        """Change the source of an upload, and look at the target of a download, at once."""
        content = random_bytes(region.extent)
        source, into = bytearray(content), bytearray(region.extent)
        span = device.span(device.filled(bytes(region.extent)), 0, region.extent)
        work = self.busy(device)
        device.run(f"{kind}_from_host", span, span, memoryview(source), region)
        source[:] = bytes(len(source))
        again = self.busy(device)
        device.run(f"{kind}_to_host", span, span, memoryview(into), region)
        run = region.run_nbytes
        for at in range(0, region.extent, region.strides[0]):
            assert are_same(into[at : at + run], content[at : at + run])
        device.synchronize()
        del work, again


KEPT = 4
"""So many streams may be those of the last calls."""

FORBIDDEN_STREAMS = {
    "cpu": [0, 1, 2, -2],
    "cuda": [0, -2],
    "cuda_managed": [0, -2],
    "rocm": [1, 2, -2],
}
"""Integers that the array API (2025.12, ``__dlpack__``) forbids."""


class StreamTests(BackendCase, needs=SupportsStreams):
    """`SupportsStreams`, apart from the order of the work."""

    def current(self, backend: Any, device_id: int) -> tuple[Any, AbstractContextManager[object]]:
        """A new stream, and a block in which it is current; or a skip where there is none."""
        stream = self.make_stream(backend, device_id)
        block = None if stream is None else self.make_current(backend, device_id, stream)
        if block is None:
            pytest.skip("no stream can be made current here (make_current)")
        return stream, block

    def test_current_stream_is_the_threads_own(self, device: DeviceUnderTest) -> None:
        """A stream that one thread makes current is not that of another, nor its own afterwards.

        Whichever thread it is.
        """
        self.check_current_stream(device)
        with ThreadPoolExecutor(1) as other:
            other.submit(self.check_current_stream, device).result(self.patience)

    def check_current_stream(self, device: DeviceUnderTest) -> None:
        """The same in the thread that calls this."""
        backend, device_id = device.backend, device.device_id
        stream, block = self.current(backend, device_id)
        with ThreadPoolExecutor(1) as other:

            def elsewhere() -> int:
                handle = other.submit(backend.current_stream, device_id).result(self.patience)
                return int(handle)

            mine, before = backend.current_stream(device_id), elsewhere()
            with block:
                now = backend.current_stream(device_id)
                assert now == backend.normalize_stream(device_id, stream) != before
                assert elsewhere() == before
            assert elsewhere() == before
            assert backend.current_stream(device_id) == mine, "the block has ended"
            stream, block = self.current(backend, device_id)
            with suppress(KeyError), block:
                raise KeyError
            assert backend.current_stream(device_id) == mine, "an exception has ended the block"

    def test_streams_are_let_go(self, device: DeviceUnderTest) -> None:
        """Whoever makes a stream owns it: a backend keeps the last ones at most."""
        backend, device_id = device.backend, device.device_id
        if not self.streams_end:
            pytest.skip("the library keeps its streams until the process ends (streams_end)")
        data, seen = device.allocate(64), []
        for _ in range(20):
            stream = self.new_stream(backend, device_id)
            try:
                seen.append(weakref.ref(stream))
            except TypeError:
                pytest.skip(f"{type(stream).__name__} can have no weak reference")
            mine = DeviceUnderTest(backend, device_id, backend.normalize_stream(device_id, stream))
            mine.write(data, 0, b"s" * 64)
            mine.synchronize()
            self.end_stream(backend, device_id, stream)
            del stream, mine
        device.write(data, 0, b"d" * 64)
        gc.collect()
        kept = sum(each() is not None for each in seen)
        assert kept <= KEPT, (
            f"{kept} of {len(seen)} streams that nobody uses any more are still referred to"
        )

    def test_current_stream_is_the_devices_own(self, devices: list[DeviceUnderTest]) -> None:
        """A stream that is made current on one device is not the current one of another.

        Nor does it take that of another away, while both are current.
        """
        backend = devices[0].backend
        if len(devices) < 2:
            pytest.skip("there is one device")
        ids = [device.device_id for device in devices]
        now = [backend.current_stream(each) for each in ids]
        before = now.copy()
        with ExitStack() as blocks:
            for index, device_id in enumerate(ids):
                stream, block = self.current(backend, device_id)
                blocks.enter_context(block)
                now[index] = backend.normalize_stream(device_id, stream)
                assert [backend.current_stream(each) for each in ids] == now
        assert [backend.current_stream(each) for each in ids] == before

    def test_none_is_the_default_stream(self, device: DeviceUnderTest) -> None:
        """Whatever stream is the current one: None is no question about it."""
        backend, device_id = device.backend, device.device_id
        _, block = self.current(backend, device_id)
        before = backend.normalize_stream(device_id, None)
        with block:
            assert backend.normalize_stream(device_id, None) == before

    def test_none_is_a_stream(self, device: DeviceUnderTest) -> None:  # S1 S2 S11 S16
        """None means the default stream."""
        backend = device.backend
        stream = backend.normalize_stream(device.device_id, None)
        assert isinstance(stream, int)
        assert stream != -1
        backend.synchronize(device.device_id, stream)

    def test_minus_one_is_no_order(self, backend: Any) -> None:  # S1 S3 S11 S16
        """-1, which means no ordering, is returned unchanged."""
        assert backend.normalize_stream(self.device_id, -1) == -1

    @pytest.mark.parametrize(  # S9 S10
        "stream",
        [True, False, 1.5, "1", b"", [], {}, object(), int],
        ids=["True", "False", "1.5", "text", "bytes", "list", "dict", "object", "class"],
    )
    def test_no_stream_at_all(self, backend: Any, stream: object) -> None:
        """A bool is refused, because True would be CUDA's legacy stream."""
        with pytest.raises(TypeError, match="stream"):
            backend.normalize_stream(self.device_id, stream)

    def test_unknown_streams(self, backend: Any) -> None:
        """A number that names no stream is refused, or stays itself: it becomes no other stream.

        The error names it, its device (or host memory, which has no streams), and what may be
        passed instead.
        """
        try:
            handle = backend.normalize_stream(self.device_id, STRANGE_STREAM)
        except (ValueError, TypeError) as exc:
            text, where = str(exc).lower(), f"{self.name}:{self.device_id}".lower()
            assert f"{STRANGE_STREAM:#x}" in text or str(STRANGE_STREAM) in text, text
            assert where in text or "host memory" in text, text
            assert "none" in text or "-1" in text, text
            return
        assert handle == STRANGE_STREAM

    def test_streams_of_other_devices(self, backend: Any, devices: list[DeviceUnderTest]) -> None:
        """A stream of another device is refused, or keeps its handle, which is of no use here."""
        others = [each.device_id for each in devices if each.device_id != self.device_id]
        made = [(other, self.make_stream(backend, other)) for other in others]
        if not made or made[0][1] is None:
            pytest.skip("there are no streams of another device")
        for other, stream in made:
            theirs = backend.normalize_stream(other, stream)
            try:
                handle = backend.normalize_stream(self.device_id, stream)
            except (ValueError, TypeError, Error):
                continue
            assert handle == theirs

    def test_forbidden_streams(self, backend: Any) -> None:  # S1 S7 S8 S11
        """The integers that the standard forbids for this device; below 0 only -1 has a meaning."""
        forbidden = FORBIDDEN_STREAMS.get(self.name, [])
        for stream in (-2, -(1 << 40), *forbidden):
            kinds = ValueError if stream in forbidden else (ValueError, TypeError)
            with pytest.raises(kinds, match="stream"):
                backend.normalize_stream(self.device_id, stream)
