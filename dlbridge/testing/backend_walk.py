"""Random calls of the members, most of which differ from the call before in one argument."""

from __future__ import annotations

import ctypes
import gc
import mmap
import random
import threading
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import Error
from dlbridge.protocol import (
    ADDRESS_DEVICES,
    NativeArray,
    Region,
    Span,
    SupportsCopy,
    SupportsFill,
    SupportsNative,
    SupportsStreams,
    SupportsStridedCopy,
    SupportsTrim,
)

from .backend_base import (
    ENDS,
    PAGES,
    BackendCase,
    DeviceUnderTest,
    are_same,
    catch,
    check_live,
    drawn,
    drop,
    live_allocations,
    random_bytes,
)
from .backend_copy import region, strides_of
from .backend_native import same_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.protocol import Allocation

SIZE = 12_000
"""Bytes of each memory."""

TOGETHER = 4
"""So many imports, and so many native objects, are there at the same time."""

SLOW = 6
"""How often a walk queues work that takes its time."""

ARGUMENTS: dict[str, list[Any]] = {
    "stream": [0, 1, 2],
    "target": [*range(8)],
    "source": [*range(8)],
    "to": [0, 1, 4, 256, 1000, 4096, 7001],
    "at": [0, 1, 4, 256, 1000, 4096, 7001],
    "nbytes": [1, 3, 4, 16, 64, 255, 1000, 4096, 4900, 8192, SIZE],
    "value": [0, 1, 127, 128, 255],
    "seed": [*range(1000)],
    "buffer": [0, 0, 1, 2],
    "shape": [(1,), (2,), (5,), (1, 4), (4, 1), (3, 4), (4, 3)],
    "run": [1, 2, 4, 7, 64, 130],
    "gaps": [(0, 0), (1, 0), (4, 4), (5, 3), (8, 0)],
    "source_gaps": [(0, 0), (1, 0), (4, 4), (5, 3), (8, 0)],
    "writable": [True, False],
    "dtype": ["float32", "int32", "int16", "uint8"],
    "layout": ["packed", "rows", "columns"],
    "owner": ["new", "the memory's"],
    "way": ["copy_strided", "copy_strided", "from_host", "to_host"],
    "thread": [False] * 7 + [True],
}
"""What the arguments of a walk are drawn from; a value that is there twice comes twice as often."""

_BYTES = ("target", "to", "nbytes")
_RUNS = ("target", "to", "source", "at", "shape", "run", "gaps", "source_gaps", "seed")

TAKES: dict[str, tuple[str, ...]] = {
    "upload": (*_BYTES, "seed", "buffer"),
    "download": ("source", "at", "nbytes"),
    "fill": (*_BYTES, "value"),
    "copy": (*_BYTES, "source", "at"),
    "strided": (*_RUNS, "buffer", "way"),
    "allocate": ("target",),
    "refusal": (),
    "trim": (),
    "native": ("target", "to", "dtype", "shape", "layout", "writable", "owner"),
    "views": (*_BYTES, "writable"),
    "use_in_place": ("to", "nbytes", "writable"),
}
"""The arguments that each call has; beside these `stream` and `thread`."""


class Owner:
    """Owns a native object's memory, as far as the backend knows."""


class Held:
    """One memory, and the bytes that it must have."""

    def __init__(
        self, device: DeviceUnderTest, made: Allocation, model: memoryview, is_import: bool = False
    ) -> None:
        self.device, self.made, self.model = device, [made], model
        self.data, self.start, self.is_import = made.data, made.offset, is_import
        self.owner = Owner()

    def span(self, offset: int, nbytes: int) -> Span:
        """Some of its bytes."""
        return self.device.span(self.data, self.start + offset, nbytes)


class Walk:
    """Calls of the members in a random order, and the same done to bytes of the host.

    Each call is done again with one other argument, once for each of them, and in between as
    before. So what a backend keeps of a call and takes for another one shows; so does what a
    refusal has left behind. *streams* says on which streams all of it is: ``"default"``,
    ``"own"`` or ``"all"``.
    """

    def __init__(
        self, case: BackendCase, devices: list[DeviceUnderTest], seed: int, streams: str = "all"
    ) -> None:
        self.case, self.backend = case, devices[0].backend
        self.chance = random.Random(seed)
        self.streams: list[list[DeviceUnderTest]] = []
        for device in devices:
            on = case.each_stream(device, 2) if streams != "default" else [device]
            self.streams.append(on[1:] or on if streams == "own" else on)
        self.last = [on[0] for on in self.streams]
        self.now = {name: self.chance.choice(of) for name, of in ARGUMENTS.items()}
        self.said: deque[str] = deque(maxlen=12)
        self.pending: list[tuple[bytearray, bytes, str]] = []
        self.buffers = [bytearray(SIZE), bytearray(SIZE)]
        self.natives: list[tuple[object, NativeArray, weakref.ref[Owner]]] = []
        self.owners: list[weakref.ref[Owner]] = []
        self.work: list[object] = []
        self.slow = SLOW
        self.area = mmap.mmap(-1, PAGES)
        self.pin = ctypes.c_char.from_buffer(self.area)
        self.address = ctypes.addressof(self.pin)
        self.area_model = bytearray(PAGES)
        self.held = [self.memory(index % len(devices)) for index in (0, 0, 0, 1)]
        self.imports: list[Held] = []
        self.calls = self.possible_calls()

    def possible_calls(self) -> list[Callable[[], None]]:
        """What may be called; what is there twice is called twice as often."""
        backend, device = self.backend, self.streams[0][0]
        calls = [self.upload, self.download, self.allocate, self.refusal] * 2
        if isinstance(backend, SupportsCopy):
            calls += [self.copy] * 2
        if isinstance(backend, SupportsFill):
            calls += [self.fill] * 2
        if isinstance(backend, SupportsStridedCopy):
            calls += [self.strided] * 3
        if isinstance(backend, SupportsTrim):
            calls.append(self.trim)
        if isinstance(backend, SupportsNative):
            calls += [self.native] * 2
        if device.can_view(self.held[0].data):
            calls += [self.views] * 2
        if device.can_import(self.address):
            calls += [self.use_in_place] * 2
        return calls

    def run(self, calls: int) -> None:
        """Do so many calls, or fewer on a slow device; look at all memory at the end."""
        until = time.monotonic() + 3  # no verdict: it is only looked at less
        while calls > 0 and time.monotonic() < until:
            call = self.chance.choice(self.calls)
            takes = ["stream", "thread", *TAKES[call.__name__]]
            self.now |= {name: self.chance.choice(ARGUMENTS[name]) for name in takes}
            first = self.now.copy()
            call()
            for name in self.chance.sample(takes, len(takes)):
                self.now = {**first, name: self.chance.choice(ARGUMENTS[name])}
                call()
                draw = self.chance.random()
                if draw < 0.4:
                    self.now = first.copy()
                    call()
                if draw > 0.85:
                    break
                calls -= 2
            calls -= 1
        self.close()

    # What a call has -----------------------------------------------------------

    def memory(self, index: int, content: bytes | None = None) -> Held:
        """New memory on a device with some content."""
        device = self.on(index)
        content = content or self.chance.randbytes(SIZE)
        given: list[Any] = [device.device_id, SIZE, 256, device.stream]
        at_once = getattr(self.backend, "content_limit", 0) >= SIZE and self.chance.random() < 0.5
        if at_once:
            given.append(memoryview(content))
        made = self.backend.allocate(*given)
        assert made.stream == device.stream
        if not at_once:
            self.work.append(content)  # as in `buffer`
            device.upload(made.data, 0, memoryview(content))
        return Held(device, made, memoryview(bytearray(content)))

    def on(self, index: int) -> DeviceUnderTest:
        """The device on the stream of this call, which is behind all work so far."""
        of, last = self.streams[index], self.last[index]
        mine: DeviceUnderTest = of[self.now["stream"] % len(of)]
        if mine is not last:
            self.last[index] = mine
            if self.chance.random() < 0.3:
                last.synchronize()
            else:
                self.backend.wait(mine.device_id, mine.stream, last.stream)
        if self.slow and self.chance.random() < 0.1:
            self.slow -= 1
            self.work.append(self.case.slow_work(self.backend, mine.device_id, mine.stream))
        return mine

    def index(self, held: Held) -> int:
        """Where its device is in `streams`."""
        return [of[0].device_id for of in self.streams].index(held.device.device_id)

    def one(self, name: str) -> Held:
        """One memory of the call."""
        known = [*self.held, *self.imports]
        number: int = self.now[name]
        return known[number % len(known)]

    def side(self, name: str, offset: str, nbytes: int) -> tuple[Held, int]:
        """One memory of the call, and an offset with so many bytes behind it."""
        held = self.one(name)
        return held, min(self.now[offset], len(held.model) - nbytes)

    def length(self, *names: str) -> int:
        """The length of the call, as far as each memory goes."""
        return int(min(self.now["nbytes"], *(len(self.one(name).model) for name in names)))

    def buffer(self, nbytes: int) -> memoryview:
        """Host memory with new bytes: an object of its own, or one that was used before."""
        content = random_bytes(nbytes, self.now["seed"])
        which = self.now["buffer"]
        if not which:
            self.work.append(content)  # the device may read it until the next settle()
            return memoryview(content)
        self.settle()
        self.buffers[which - 1][:nbytes] = content
        return memoryview(self.buffers[which - 1])[:nbytes]

    def do(self, what: str, call: Callable[..., Any], *given: object) -> Any:
        """Call it, in this thread or in another, and return what it returns."""
        self.said.append(f"{what}{given!r}"[:400])
        if not self.now["thread"]:
            return call(*given)
        got: list[Any] = []
        failures: list[BaseException] = []
        work = partial(catch, failures, lambda: got.append(call(*given)))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.case.patience)
        assert not thread.is_alive(), f"{what} does not return in another thread"
        if failures:
            raise failures.pop()
        return got.pop()

    def written(self, held: Held, mine: DeviceUnderTest) -> None:
        """Sometimes have all of it read, behind the work."""
        held.device = mine
        if self.chance.random() < 0.4:
            self.read(held, mine)

    def read(self, held: Held, mine: DeviceUnderTest) -> None:
        """Queue a look at all bytes of a memory."""
        into = bytearray(len(held.model))
        mine.download(held.data, held.start, memoryview(into))
        self.expect(into, bytes(held.model))

    def expect(self, got: bytearray, want: bytes) -> None:
        """*got* is *want* once the work is done."""
        self.pending.append((got, want, "\n".join(self.said)))
        if len(self.pending) > 40 or self.chance.random() < 0.05:
            self.settle()

    def settle(self) -> None:
        """Wait for all work, and look at what it has read."""
        for last in self.last:
            self.do("synchronize", last.synchronize)
        self.work.clear()
        for got, want, said in self.pending:
            if not are_same(got, want):
                at = next(
                    i for i, pair in enumerate(zip(got, want, strict=True)) if len({*pair}) > 1
                )
                what = f"byte {at} of {len(want)} is {got[at]}, not {want[at]}"
                pytest.fail(f"{what}; the last calls:\n{said}")
        self.pending.clear()
        self.look_at_area()

    def look_at_area(self) -> None:
        """The host's own memory has what was written through the imports of it."""
        if not are_same(bytes(self.area), self.area_model):
            pytest.fail("the host's memory is not as it must be after\n" + "\n".join(self.said))

    # The calls -------------------------------------------------------------------

    def upload(self) -> None:
        """`copy_from_host`."""
        nbytes = self.length("target")
        held, to = self.side("target", "to", nbytes)
        source = self.buffer(nbytes)
        mine = self.on(self.index(held))
        self.do("upload", mine.upload, held.data, held.start + to, source)
        held.model[to : to + nbytes] = source
        self.written(held, mine)

    def download(self) -> None:
        """`copy_to_host`."""
        nbytes = self.length("source")
        held, at = self.side("source", "at", nbytes)
        into = bytearray(nbytes)
        mine = self.on(self.index(held))
        self.do("download", mine.download, held.data, held.start + at, memoryview(into))
        held.device = mine
        self.expect(into, bytes(held.model[at : at + nbytes]))

    def fill(self) -> None:
        """`SupportsFill`."""
        nbytes = self.length("target")
        held, to = self.side("target", "to", nbytes)
        mine, value = self.on(self.index(held)), self.now["value"]
        self.do("fill", mine.fill, held.data, held.start + to, nbytes, value)
        held.model[to : to + nbytes] = bytes([value]) * nbytes
        self.written(held, mine)

    def may_copy(self, held: Held, to: int, other: Held, at: int, sizes: list[int]) -> bool:
        """Whether the two sides, of these *sizes*, have no byte in common, as dlbridge promises."""
        if held is other:
            return to + sizes[0] <= at or at + sizes[1] <= to
        return not (held.is_import and other.is_import)

    def ordered(self, held: Held, other: Held) -> DeviceUnderTest:
        """The target's device, behind the work on the source."""
        if held.device.device_id != other.device.device_id:
            self.last[self.index(other)].synchronize()
        return self.on(self.index(held))

    def copied(self, held: Held, other: Held, mine: DeviceUnderTest) -> None:
        """What is done after a copy on the device."""
        if held.device.device_id != other.device.device_id:
            mine.synchronize()
        else:
            other.device = mine
        self.written(held, mine)

    def copy(self) -> None:
        """`SupportsCopy`."""
        nbytes = self.length("target", "source")
        held, to = self.side("target", "to", nbytes)
        other, at = self.side("source", "at", nbytes)
        if not self.may_copy(held, to, other, at, [nbytes, nbytes]):
            return
        mine = self.ordered(held, other)
        self.do("copy", mine.copy, held.span(to, nbytes), other.span(at, nbytes))
        held.model[to : to + nbytes] = bytes(other.model[at : at + nbytes])
        self.copied(held, other, mine)

    def strided(self) -> None:
        """`SupportsStridedCopy`, each of its members."""
        shape, run = self.now["shape"][-self.backend.max_strided_ndim :], self.now["run"]
        strides = [strides_of([*shape], run, self.now[each]) for each in ("gaps", "source_gaps")]
        regions = [Region(shape, tuple(each), run) for each in strides]
        sizes = [each.extent for each in regions]
        if max(sizes) > min(len(self.one(name).model) for name in ("target", "source")):
            return
        held, to = self.side("target", "to", sizes[0])
        other, at = self.side("source", "at", sizes[1])
        member = self.now["way"]
        taken, into = bytearray(other.model[at : at + sizes[1]]), bytearray(sizes[0])
        if member == "from_host":
            source = self.buffer(sizes[1])
            taken = bytearray(source)
            mine = self.on(self.index(held))
            self.do(member, mine.copy, held.span(to, sizes[0]), source, *regions)
        elif member == "to_host":
            mine = self.on(self.index(other))
            self.do(member, mine.copy, memoryview(into), other.span(at, sizes[1]), *regions)
            other.device = mine
        else:
            is_one_device = held.device.device_id == other.device.device_id
            if not is_one_device or not self.may_copy(held, to, other, at, sizes):
                return
            mine = self.ordered(held, other)
            self.do(member, mine.copy, held.span(to, sizes[0]), other.span(at, sizes[1]), *regions)
        want = bytearray(sizes[0])
        if member != "to_host":
            want[:] = held.model[to : to + sizes[0]]
        moved = region(taken, 0, strides[1], [*shape], run)
        region(want, 0, strides[0], [*shape], run)[...] = moved
        if member == "to_host":
            self.expect(into, bytes(want))
            return
        held.model[to : to + sizes[0]] = want
        held.device = mine
        self.read(held, mine)

    def allocate(self) -> None:
        """One memory is dropped, and another one is made; which has the stream that it is for."""
        number = self.now["target"] % len(self.held)
        held = self.held[number]
        index = self.index(held)
        self.natives = [each for each in self.natives if each[1].data != held.data]
        self.said.append(f"the end of {held.data:#x}, and new memory")
        self.free(held)
        self.held[number] = self.memory(index, random_bytes(SIZE, self.now["seed"]))

    def free(self, held: Held) -> None:
        """Drop it behind the last work, in one of the ways."""
        held.made[0].stream = self.last[self.index(held)].stream
        drop(held.made, self.chance.choice(ENDS), self.case.patience)

    def trim(self) -> None:
        """`SupportsTrim`."""
        self.do("trim", self.backend.trim, self.streams[0][0].device_id)

    def refusal(self) -> None:
        """A call that cannot be right: it raises, and changes nothing."""
        device, held = self.last[0], self.held[0]
        unknown = Span(self.backend.device_count() + 3, held.data, 0, 64)
        wrong = [unknown, Span(-1, held.data, 0, 64)]
        if self.backend.device_type not in ADDRESS_DEVICES:
            wrong += [held.span(SIZE - 63, 64), held.span(0, SIZE + 1), held.span(-1, 64)]
        span = self.chance.choice(wrong)
        good = held.span(0, 64)
        host = memoryview(bytearray(span.nbytes))
        tried: list[Callable[[], object]] = [
            lambda: device.copy(span, host),
            lambda: device.copy(host, span),
            lambda: device.allocate(1 << 62),
        ]
        if isinstance(self.backend, SupportsFill):
            tried.append(lambda: self.backend.fill(span, 1, device.stream))
        if isinstance(self.backend, SupportsCopy):
            tried.append(lambda: device.copy(span, good._replace(nbytes=span.nbytes)))
        if isinstance(self.backend, SupportsStridedCopy):
            ends = Region((2,), (span.nbytes - 1,), 1)
            tried += [
                lambda: device.copy(span, host, ends, ends),
                lambda: device.copy(host, span, ends, ends),
                lambda: device.copy(span, good._replace(nbytes=span.nbytes), ends, ends),
            ]
        if isinstance(self.backend, SupportsStreams):
            tried.append(lambda: self.backend.normalize_stream(device.device_id, "no stream"))
        number = self.chance.randrange(len(tried))
        self.said.append(f"refused call {number} on {span}")
        with pytest.raises((Error, TypeError)):
            self.do("refused", tried[number])

    def native(self) -> None:
        """`to_native`: each object is as it was asked for, beside those that are there."""
        held = self.held[self.now["target"] % len(self.held)]
        dtype, (rows, columns) = self.now["dtype"], (self.now["shape"] * 2)[:2]
        itemsize = {"int16": 2, "uint8": 1}.get(dtype, 4)
        strides = {
            "packed": None,
            "rows": (columns * itemsize * 2, itemsize),
            "columns": (itemsize, rows * itemsize),
        }[self.now["layout"]]
        owner = Owner() if self.now["owner"] == "new" else held.owner
        array = NativeArray(
            held.device.device_id,
            held.data,
            self.now["to"] & ~3,
            dtype,
            (rows, columns),
            strides,
            readonly=not self.now["writable"],
            owner=owner,
        )
        seen = weakref.ref(owner)
        self.said.append(f"to_native{array[:-2]}")
        try:
            made = self.do("to_native", self.backend.to_native, array)
        except Error:
            return
        array = array._replace(owner=None)
        del owner
        assert seen() is not None, "to_native does not keep array.owner alive"
        if self.now["owner"] == "new":
            self.owners.append(seen)
        self.natives.append((made, array, seen))
        if len(self.natives) > TOGETHER:
            self.natives.pop(self.chance.randrange(TOGETHER))
        for each, described, alive in self.natives:
            again = self.backend.from_native(each)
            same_array(self.backend, again, described)
            assert again.readonly or not described.readonly
            assert alive() is not None, "the owner of a native object has gone before it"

    def views(self) -> None:
        """Two host views of one memory, which differ in one argument."""
        held = self.held[self.now["target"] % len(self.held)]
        if not held.device.can_view(held.data):
            return
        mine, opened = self.on(self.index(held)), []
        held.device = mine
        first = {each: self.now[each] for each in ("to", "nbytes", "writable")}
        changed = self.chance.choice(list(first))
        for given in (first, {**first, changed: self.chance.choice(ARGUMENTS[changed])}):
            nbytes = given["nbytes"]
            to = min(given["to"], SIZE - nbytes)
            span = held.span(to, nbytes)
            writable = given["writable"]
            view = self.do("host_view", self.backend.host_view, span, writable, mine.stream)
            assert view.nbytes >= nbytes
            opened.append((view, to, nbytes, writable))
        for view, to, nbytes, writable in opened:
            if writable:
                held.model[to : to + nbytes] = new = self.chance.randbytes(nbytes)
                ctypes.memmove(view.data, new, nbytes)
            for other, begin, length, _ in opened:
                seen = ctypes.string_at(other.data, length)
                assert are_same(seen, bytes(held.model[begin : begin + length])), "\n".join(
                    self.said
                )
        del view, other
        self.said.append("the end of both views")
        self.chance.shuffle(opened)
        while opened:
            drop([opened.pop()], self.chance.choice(ENDS), self.case.patience)
        self.written(held, mine)

    def use_in_place(self) -> None:
        """An import of host memory, beside others that have some of the same bytes; or its end."""
        if len(self.imports) >= TOGETHER or (self.imports and self.chance.random() < 0.3):
            ended = self.imports.pop(self.chance.randrange(len(self.imports)))
            self.said.append(f"the end of the import {ended.data:#x}")
            self.free(ended)
            self.look_at_area()
            return
        step = self.chance.choice((mmap.PAGESIZE, 256))  # most drivers take whole pages
        start = self.now["to"] // step * step
        nbytes = min(max(self.now["nbytes"] - start, 256), PAGES - start)
        readonly, mine = not self.now["writable"], self.on(0)
        self.said.append(f"import_host({start} of {self.address:#x}, {nbytes}, {readonly})")
        given = mine.device_id, self.address + start, nbytes, readonly, mine.stream
        try:
            made = self.do("import_host", self.backend.import_host, *given)
        except Error:  # the driver may refuse memory that is imported already
            return
        assert made.nbytes >= nbytes
        model = memoryview(self.area_model)[start : start + nbytes]
        held = Held(mine, made, model, is_import=True)
        del made
        self.read(held, mine)
        if readonly:
            self.free(held)
        else:
            self.imports.append(held)

    def close(self) -> None:
        """Read all memory, and end all."""
        for held in (*self.held, *self.imports):
            self.read(held, self.on(self.index(held)))
        self.settle()
        self.natives.clear()
        for held in (*self.held, *self.imports):
            self.free(held)
        self.held.clear()
        self.imports.clear()
        self.settle()
        self.work.clear()
        gc.collect()
        assert not [each for each in self.owners if each() is not None], (
            "the owner of a native object is kept after the object is gone"
        )
        del self.pin
        self.area.close()


class WalkTests(BackendCase):
    """All members together."""

    walked = 1500
    """How many calls each walk has."""

    @pytest.mark.parametrize("streams", ["default", "own", "all"])
    def test_calls_with_one_difference(
        self, backend: Any, devices: list[DeviceUnderTest], streams: str
    ) -> None:
        """Each call does what it does alone, whatever was called before with almost the same."""
        first = [each for each in devices if each.device_id == self.device_id]
        others = [each for each in devices if each.device_id != self.device_id]
        gc.collect()
        before = live_allocations(backend)
        Walk(self, [*first, *others][:2], drawn(0, 1 << 30), streams).run(self.walked)
        check_live(backend, before, "after calls with one difference")


def goes_on(case: BackendCase, device: DeviceUnderTest) -> None:
    """Check by a short walk that the device works as before."""
    Walk(case, [device], drawn(0, 1 << 30)).run(150)
