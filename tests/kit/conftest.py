"""A driver in Python whose streams stand still until a test lets them go on."""

from itertools import count
from types import SimpleNamespace

import pytest

from dlbridge.errors import DeviceError, DeviceMemoryError
from dlbridge.kit import order
from dlbridge.kit.driver import ALL_STREAMS, Location, StreamDriver, StreamState
from dlbridge.kit.memory import PinnedMemory, PoolMemory
from dlbridge.kit.order import EventPool
from dlbridge.kit.status import StatusTable, StreamGoneError


class Stream:
    def __init__(self):
        self.queued = self.done = 0
        self.state = StreamState.RUNS


class Owner:
    """The object of a library that keeps a stream; dropped, the stream is destroyed."""

    def __init__(self, driver, handle):
        self.driver, self.handle = driver, handle

    def __del__(self):
        del self.driver.streams[self.handle]


class Driver(StreamDriver):
    """Memory is addresses; an event is done when its stream has gone as far."""

    api, memory_api, device_name, default_stream = "SIM", "the SIM driver", "sim", 1

    def __init__(self):
        self.table = StatusTable({}, str)
        self.functions = SimpleNamespace(is_capturing=self.is_capturing)
        self.places = {0: 0, 1: 1}
        self._capturing = set()
        self.addresses, self.handles = count(1 << 20, 1 << 16), count(100)
        self.streams = {1: Stream()}
        self.owners = {}  # handle -> what keeps the stream, as a library has it
        self.live, self.locked, self.log, self.where = {}, set(), [], []
        self.has_pool, self.fits, self.kinds = True, 1 << 40, {}

    def stream(self, *, known=True):
        """A new stream; if it is not *known*, no library has it."""
        handle = next(self.handles)
        self.streams[handle] = Stream()
        if known:
            self.owners[handle] = Owner(self, handle)
        return handle

    @property
    def pools(self):
        return dict.fromkeys((0, 1), "pool" if self.has_pool else None)

    def is_capturing(self, stream, cell):
        found = self.streams.get(stream)
        state = found.state if found else StreamState.RUNS
        cell.value = state is StreamState.CAPTURED
        return 906 if state is StreamState.BLOCKED else 0

    def work(self, stream):
        self.streams[stream].queued += 1

    def go_on(self, stream):
        self.streams[stream].done = self.streams[stream].queued

    def _get(self, stream):
        if stream not in self.streams:
            raise StreamGoneError(f"{stream} was destroyed")
        return self.streams[stream]

    def device_count(self):
        return 2

    def device_info(self, device_id):
        return {"name": f"Sim {device_id}", "uuid": f"GPU-{device_id}", "pci": "0"}

    def library(self):
        raise NotImplementedError

    describe = version_text = library

    def run(self, place, work, *arguments):
        self.where.append(place)
        try:
            return work(*arguments)
        finally:
            self.where.pop()

    def place_of(self, stream, device_id):
        self._get(stream)
        return device_id

    def destroy_stream(self, stream):
        if self.owners.pop(stream, None) is None:
            del self.streams[stream]

    def wait_for_stream(self, stream):
        self.log.append(("wait for stream", stream))
        self._get(stream)
        self.go_on(stream)

    def is_idle(self, stream):
        return self._get(stream).done >= self._get(stream).queued

    def wait_for_device(self):
        self.log.append(("wait for device",))
        for stream in self.streams:
            self.go_on(stream)

    def create_event(self):
        self.log.append(("event",))
        return [None, 0]

    def destroy_event(self, event):
        self.log.append(("destroy event",))

    def record_event(self, event, stream):
        if stream == ALL_STREAMS:
            self.record_all(event)
        event[:] = [self._get(stream), self._get(stream).queued]

    def wait_event(self, stream, event):
        self.log.append(("wait", stream))
        self._get(stream)

    def wait_for_event(self, event):
        if event[0] is None:
            return  # it was never recorded
        event[0].done = max(event[0].done, event[1])

    def is_event_done(self, event):
        return event[0].done >= event[1]

    def room(self):
        return self.fits, 1 << 40

    def allocate(self, nbytes, cell):
        if nbytes > self.fits:
            raise DeviceMemoryError("full")
        pointer = cell.value = next(self.addresses)
        self.live[pointer] = nbytes

    def free(self, pointer, codes):
        if pointer not in self.live:
            raise DeviceError("not allocated")
        self.log.append(("free", pointer))
        del self.live[pointer]
        codes.append(0)

    def allocate_async(self, pool, nbytes, stream, cell):
        self.allocate(nbytes, cell)

    def free_async(self, pointer, stream, codes):
        self._get(stream)
        self.free(pointer, codes)
        self.log.append(("free behind", stream))

    def trim_pool(self, pool):
        self.log.append(("trim",))

    def lock_pages(self, device_id, address, nbytes, readonly, codes):
        self.locked.add(address)
        codes.append(0)

    def unlock_pages(self, address, codes):
        self.locked.remove(address)
        codes.append(0)

    def locate(self, address, device_id):
        return Location(self.kinds.get(address, "pageable"), device_id)


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(order, "owner", lambda stream, _home: made.owners.get(stream))
    return made


@pytest.fixture
def events(driver):
    return EventPool(driver)


class Callers:
    """Memory of the kit by addresses, as a backend has it."""

    def allocate(self, device_id, nbytes, alignment, stream):
        return self.hold(super().allocate(device_id, nbytes, alignment, stream))

    def hold(self, allocation):
        self.__dict__.setdefault("owned", {}).setdefault(allocation.data, []).append(allocation)
        return allocation.data

    def free(self, _device_id, data, stream):
        self.owned[data][-1].stream = stream
        self.owned[data].pop()

    def import_host(self, device_id, address, nbytes, readonly):
        return self.hold(super().import_host(device_id, address, nbytes, readonly, 1))


class CallablePool(Callers, PoolMemory):
    pass


class CallablePinned(Callers, PinnedMemory):
    pass


@pytest.fixture
def pool(driver, events):
    return CallablePool(driver, events, "sim")


@pytest.fixture
def pinned(driver, events):
    return CallablePinned(driver, events, "sim_host")
