"""A numbered device: opened at first use, anew after a loss; transfers; answers by callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

from dlbridge.errors import DeviceMemoryError, ExchangeError
from dlbridge.protocol import Region

__all__ = ["PIECE", "UNIT", "Callback", "Location", "Slot", "bytes_of", "one_per_gpu"]

Location: TypeAlias = tuple[Any, int]  # a buffer, and an offset in it, in bytes

PIECE = 16 << 20  # bytes of one copy, and of writes that wgpu may keep until they are done
UNIT = 4  # bytes: WebGPU copies and clears whole ones


def one_per_gpu(adapters: list[Any]) -> list[Any]:
    """The adapters of one API, CPUs last: wgpu lists a GPU once for each API that it has."""
    apis = {each.info["backend_type"] for each in adapters}
    best = next((api for api in ("Metal", "D3D12", "Vulkan", "OpenGL") if api in apis), None)
    adapters = [each for each in adapters if each.info["backend_type"] == best]
    return sorted(adapters, key=lambda each: each.info["adapter_type"] == "CPU")


class Slot:
    """What a device number stands for. One thread at a time calls the methods.

    A unit of which only some bytes are written is read first: no other thread comes between.
    """

    def __init__(self, adapter: Any, device: Any = None) -> None:
        self.adapter, self.device = adapter, device
        self.lost = ""  # how the loss showed itself
        self.asked: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """How many bytes of a buffer were asked for: what is behind them is nobody's."""
        self._staging: Any = None
        self._unfinished = 0

    def open(self) -> None:
        """Open the device with the adapter's own limits, as the default ones are small."""
        if self.device is None:
            features, limits = {"shader-f16"} & self.adapter.features, self.adapter.limits
            self.device = self.adapter.request_device_sync(
                required_features=sorted(features), required_limits=limits
            )

    def create(self, nbytes: int) -> Any:
        """A new buffer of whole units for shaders and copies."""
        size = nbytes + -nbytes % UNIT
        if size > self.device.limits["max-buffer-size"]:
            raise DeviceMemoryError(f"webgpu: {nbytes} bytes are too many for one buffer")
        buffer = self.device.create_buffer(size=size, usage="STORAGE | COPY_SRC | COPY_DST")
        self.asked[buffer] = nbytes
        return buffer

    def submit(self, encoder: Any) -> None:
        """Submit what was recorded. ``finish`` raises if the device is lost; ``submit`` aborts."""
        self.device.queue.submit([encoder.finish()])

    def copy(self, target: Location, source: Location, nbytes: int) -> None:
        """Submit a copy of at most a `PIECE`; through the host what is not whole units there."""
        _check_units(target, nbytes)
        _check_units(source, nbytes)
        first, whole, last = _parts(target[1], nbytes)
        if (target[1] - source[1]) % UNIT:
            first, whole, last = nbytes, 0, 0
        for start, size in ((0, first), (first + whole, last)):
            if size:
                content = memoryview(bytearray(size))
                self.read(_at(source, start), content)
                self.write(_at(target, start), content)
        if whole:
            self._copy_units(_at(target, first), _at(source, first), whole)

    def _copy_units(self, target: Location, source: Location, nbytes: int) -> None:
        encoder = self.device.create_command_encoder()
        if target[0] is source[0]:  # wgpu does not copy inside one buffer
            between = self.device.create_buffer(size=nbytes, usage="COPY_SRC | COPY_DST"), 0
            encoder.copy_buffer_to_buffer(*source, *between, nbytes)
            source = between
        encoder.copy_buffer_to_buffer(*source, *target, nbytes)
        self.submit(encoder)

    def fill(self, target: Location, nbytes: int, value: int) -> None:
        """Submit a clear, or write at most a `PIECE` of the byte *value*."""
        if value or target[1] % UNIT or nbytes % UNIT:
            self.write(target, memoryview(bytes([value]) * nbytes))
        else:
            encoder = self.device.create_command_encoder()
            encoder.clear_buffer(*target, nbytes)
            self.submit(encoder)

    def write(self, target: Location, source: memoryview) -> None:
        """Write at most a `PIECE`; wgpu keeps a copy of *source* until a later submission."""
        _check_units(target, len(source))
        first, whole, last = _parts(target[1], len(source))
        if first:
            self._write_inside(target, source[:first])
        if whole:
            self._write_units(_at(target, first), source[first : first + whole])
        if last:
            self._write_inside(_at(target, first + whole), source[first + whole :])

    def _write_inside(self, target: Location, source: memoryview) -> None:
        """Write some bytes of one unit."""
        buffer, offset = target
        before = offset % UNIT
        content = memoryview(bytearray(UNIT))
        if before or self.asked.get(buffer) != offset + len(source):
            self.read((buffer, offset - before), content)
        content[before : before + len(source)] = source
        self._write_units((buffer, offset - before), content)

    def _write_units(self, target: Location, source: memoryview) -> None:
        self.device.queue.write_buffer(*target, source)
        self._unfinished += max(len(source), PIECE // 256)  # small ones cost memory, too
        if self._unfinished >= PIECE:
            self.wait()

    def read(self, source: Location, into: memoryview) -> None:
        """Read at most a `PIECE`, after all other work; wgpu's wait could hang."""
        from wgpu.backends.wgpu_native import ffi, lib

        before = source[1] % UNIT
        nbytes = before + len(into) + -(before + len(into)) % UNIT
        _check_units(source, len(into))
        usage = "COPY_DST|MAP_READ"
        staging = self._staging or self.device.create_buffer(size=PIECE + 2 * UNIT, usage=usage)
        self._staging = None  # an exception may leave it mapped
        encoder, memory = self.device.create_command_encoder(), staging._internal
        encoder.copy_buffer_to_buffer(*_at(source, -before), staging, 0, nbytes)
        self.submit(encoder)
        mapped = Callback(partial(ffi.callback, "WGPUBufferMapCallback"))
        info = {"mode": lib.WGPUCallbackMode_AllowProcessEvents, "callback": mapped.pointer}
        lib.wgpuBufferMapAsync(memory, lib.WGPUMapMode_Read, 0, nbytes, info)
        status, *_ = mapped.wait(partial(lib.wgpuDevicePoll, self.device._internal, 0, ffi.NULL))
        if status != lib.WGPUMapAsyncStatus_Success:  # to read would end the process
            raise RuntimeError(f"wgpu does not map a buffer: status {status}")
        mapped_bytes = ffi.buffer(lib.wgpuBufferGetConstMappedRange(memory, 0, nbytes), nbytes)
        into[:] = memoryview(mapped_bytes)[before : before + len(into)]
        lib.wgpuBufferUnmap(memory)
        self._staging, self._unfinished = staging, 0

    def exchange(self, location: Location, region: Region, host: Any, reads: bool) -> None:
        """Read a region into *host*, an array of its bytes, or write it from there.

        In parts of at most a `PIECE`, as a call for each run takes milliseconds.
        """
        shape, steps, run = region
        if region.extent > PIECE:
            if not shape:  # one long run
                shape, steps, run, host = (run,), (1,), 1, host[:, None]
            rows = PIECE // steps[0]
            for low in range(0, shape[0], max(rows, 1)):
                part = host[low : low + rows] if rows else host[low]
                outer = part.shape[: len(shape) - (not rows)]
                inner = Region(outer, steps[not rows :], run)
                self.exchange(_at(location, low * steps[0]), inner, part, reads)
            return
        before = location[1] % UNIT
        units = memoryview(bytearray(-(-(before + region.extent) // UNIT) * UNIT))
        self.read(_at(location, -before), units)
        there = bytes_of(units[before:], region)
        if reads:
            host[...] = there
        else:
            there[...] = host
            self._write_runs(_at(location, -before), units, *_units_of(region, before))

    def _write_runs(self, location: Location, content: memoryview, low: Any, high: Any) -> None:
        """Write the units of *content* from *low* to *high* each, and none that lie between."""
        if len(low) == 1:  # there are none between
            self._write_units(location, content)
            return
        between = self.device.create_buffer(size=len(content), usage="COPY_SRC | COPY_DST")
        self.device.queue.write_buffer(between, 0, content)
        buffer, start = location
        for first in range(0, len(low), _COMMANDS):
            encoder = self.device.create_command_encoder()
            part = slice(first, first + _COMMANDS)
            for at, end in zip(low[part].tolist(), high[part].tolist(), strict=True):
                encoder.copy_buffer_to_buffer(between, at, buffer, start + at, end - at)
            self.submit(encoder)
        self.wait()  # which frees what wgpu has kept

    def wait(self) -> None:
        """Block until all work is done, by a read: wgpu's own call for that fails (0.32)."""
        last = self.device.create_buffer(size=4, usage="COPY_SRC")
        self.read((last, 0), memoryview(bytearray(4)))


def bytes_of(memory: memoryview, region: Region) -> Any:
    """The bytes of a region in *memory*, as an array of its shape and its runs."""
    import numpy as np

    steps = *region.strides, 1
    return np.ndarray((*region.shape, region.run_nbytes), "u1", memory, strides=steps)


_COMMANDS = 4096
"""Copies that are submitted together."""


def _units_of(region: Region, before: int) -> tuple[Any, Any]:
    """Where the units of a region's runs begin and end, *before* bytes behind a whole unit."""
    import numpy as np

    starts = np.full(1, before, "i8")
    for extent, step in zip(region.shape, region.strides, strict=True):
        starts = (starts[:, None] + np.arange(extent) * step).ravel()
    starts.sort()
    low, high = starts // UNIT * UNIT, -(-(starts + region.run_nbytes) // UNIT) * UNIT
    apart = low[1:] > high[:-1]
    return low[np.r_[True, apart]], high[np.r_[apart, True]]


def _at(location: Location, start: int) -> Location:
    return location[0], location[1] + start


def _check_units(location: Location, nbytes: int) -> None:
    """ExchangeError if the unit of the last byte is not whole in the buffer."""
    buffer, end = location[0], location[1] + nbytes
    if end + -end % UNIT > buffer.size:
        raise ExchangeError(
            f"webgpu: byte {end - 1} is outside of the whole units of {UNIT} bytes, which WebGPU "
            f"copies, in a buffer of {buffer.size}; make the buffer's size a multiple of {UNIT}"
        )


def _parts(offset: int, nbytes: int) -> tuple[int, int, int]:
    """Bytes before the first whole unit, in whole units, and behind the last one."""
    first = min(-offset % UNIT, nbytes)
    last = (nbytes - first) % UNIT
    return first, nbytes - first - last, last


class Callback:
    """A function for C that keeps the arguments of its one call, and a wait for that call.

    A wait by ``threading.Event`` can hang every later one: the exception of a signal handler that
    comes inside leaves its lock locked. A callback in Python can lose such an exception, and its
    own work with it. Here the call is one step in C, into which no handler comes, and the wait
    polls: an exception ends the wait, and nothing else.

    Parameters
    ----------
    make : Callable[[Callable[..., None]], object]
        Makes the pointer that C calls: ``partial(ffi.callback, "void (*)(int)")``. C calls it
        once, with one argument or more; the pointer lives until then, also without a wait.
    """

    _uncalled: ClassVar[dict[BaseException, object]] = {}

    def __init__(self, make: Callable[[Callable[..., None]], object]) -> None:
        # An exception's __init__ keeps what it is called with, and is written in C.
        self._call = BaseException()
        self.pointer: Any = make(partial(BaseException.__init__, self._call))
        """What to give to C."""
        self._uncalled[self._call] = self.pointer

    def wait(self, poll: Callable[[], object]) -> tuple[Any, ...]:
        """Block until C has called.

        Parameters
        ----------
        poll : Callable[[], object]
            Gives the library an opportunity to call, and does not block.

        Returns
        -------
        tuple
            The arguments. What they point to may be gone.
        """
        pause = 0.0
        poll()
        while not self._call.args:
            time.sleep(pause)  # short at first, then at most a millisecond
            pause = min(pause + 1e-5, 1e-3)
            poll()
        for call in list(self._uncalled):  # others too, which nobody waits for any more
            if call.args:
                self._uncalled.pop(call, None)
        return self._call.args
