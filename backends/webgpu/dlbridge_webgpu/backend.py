"""The backend class: dlbridge's contract over wgpu; and the arrays that users of wgpu get."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn
from weakref import WeakSet

from dlbridge import errors
from dlbridge.kit.devices import Devices, ThroughHost
from dlbridge.kit.gate import Gate
from dlbridge.kit.streams import StreamRules
from dlbridge.protocol import Allocation, NativeArray, Region, Span

from .devices import PIECE, Slot, bytes_of, one_per_gpu
from .handles import Handles

__all__ = ["WebGPU", "WebGPUArray"]

_STREAMS = StreamRules("WebGPU", default=0, advice="0 or -1")


@dataclass(frozen=True, eq=False)
class WebGPUArray:
    """Elements in a ``wgpu.GPUBuffer``; *offset* and *strides* are in bytes.

    It keeps *owner* alive. Work on the queue of its *device* comes in turn with dlbridge's work.
    """

    buffer: Any
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    readonly: bool = False
    owner: object = field(default=None, repr=False)
    device: Any = None

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Raise TypeError: numpy would make an array of one object."""
        raise TypeError(
            "a WebGPUArray is memory of a device: dlbridge.to_device(x, 'cpu', like='numpy') "
            "copies its elements"
        )

    def described(self, device_id: int, data: int, readonly: bool = False) -> NativeArray:
        """What ``from_native`` returns; with *readonly* the buffer itself must not be written."""
        layout = self.offset, self.dtype, self.shape, self.strides
        return NativeArray(device_id, data, *layout, self.readonly or readonly, owner=self)


class WebGPU(Devices, ThroughHost):
    """WebGPU devices; ``data`` is the address of a WGPUBuffer, and each device has one queue."""

    api = 2
    device_type = 15  # kDLWebGPU
    name = "webgpu"
    host_copies_block = True
    max_strided_ndim = 32

    def __init__(self) -> None:
        try:
            import wgpu
            from wgpu.backends.wgpu_native import extras, ffi
        except (ImportError, OSError, RuntimeError) as exc:
            raise errors.BackendUnavailable(f"webgpu: pip install --upgrade wgpu ({exc})") from exc
        with suppress(RuntimeError):  # the program has made wgpu's one instance already
            extras.set_instance_extras(backends=["Primary"])  # Mesa's OpenGL crashes after a fork
        self._wgpu, self._ffi = wgpu, ffi
        self._slots = [Slot(each) for each in one_per_gpu(wgpu.gpu.enumerate_adapters_sync())]
        if not self._slots:
            why = "install a GPU's driver (on Linux also: mesa-vulkan-drivers)"
            raise errors.BackendUnavailable(f"webgpu: no device; {why}")
        self._gone: WeakSet[Any] = WeakSet()  # GPUDevices that were lost
        meanings: dict[Any, Any] = {wgpu.GPUOutOfMemoryError: errors.DeviceMemoryError}
        meanings |= dict.fromkeys((wgpu.GPUError, RuntimeError), errors.DeviceError)
        self._gate = Gate("WebGPU", self, meanings, its_threads="wgpu.")
        self._buffers = Handles("webgpu", self._describe)
        self.live_allocations = self._buffers.__len__  # the conformance kit asks for it
        self.import_data = self._buffers.import_data

    def device_count(self) -> int:
        """The GPUs that wgpu finds, then the GPUDevices of users whose buffers came in."""
        return len(self._slots)

    def allocate(
        self, device_id: int, nbytes: int, alignment: int, stream: int, content: Any = None
    ) -> Allocation:
        """A new buffer for shaders, which wgpu keeps until the submitted work is done.

        *alignment* has no meaning for a handle.
        """
        buffer = self._on(device_id, f"allocating {nbytes} bytes", Slot.create, (), nbytes)
        return self._buffers.own(self._address(buffer), nbytes, stream, buffer)

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Write to the buffer; wgpu has read *source* on return."""
        for part, size in self._pieces(target):
            start = part.offset - target.offset
            bytes_ = source[start : start + size]
            self._on(target.device_id, "copying from the host", Slot.write, (part,), bytes_)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Read from the buffer; done on return."""
        for part, size in self._pieces(source):
            start = part.offset - source.offset
            bytes_ = into[start : start + size]
            self._on(source.device_id, "copying to the host", Slot.read, (part,), bytes_)

    def current_stream(self, device_id: int) -> int:
        """0: there is one queue, whose work is done in the order of submission."""
        self.check_device(device_id)
        return 0

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Do nothing: both are the one queue."""
        self.check_device(device_id)

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """0 for None and 0, and -1 for -1."""
        self.check_device(device_id)
        handle = _STREAMS.normalize(stream)
        if handle > 0:
            raise ValueError(
                f"webgpu:{device_id} has one queue: stream={stream} is not one of its streams; "
                "pass None or 0, or -1 for no order"
            )
        return handle

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the queue is empty."""
        self._on(device_id, "waiting for the queue", Slot.wait, ())

    def copy_inside(self, target: Span, source: Span, stream: int) -> None:
        """Copy on the device."""
        sources = self._pieces(source)
        for (there, size), (here, _) in zip(self._pieces(target), sources, strict=True):
            self._on(target.device_id, "copying", Slot.copy, (there, here), size)

    def copy_strided(
        self,
        target: Span,
        target_region: Region,
        source: Span,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region by way of the host, as WebGPU has no call for one."""
        import numpy as np

        shape, _, run = source_region
        host = np.empty((*shape, run), "u1")
        self._exchange(source, source_region, host, reads=True)
        self._exchange(target, target_region, host, reads=False)

    def copy_strided_from_host(
        self,
        target: Span,
        target_region: Region,
        source: memoryview,
        source_region: Region,
        stream: int,
    ) -> None:
        """Write to a region; of what lies between only the rest of its units."""
        self._exchange(target, target_region, bytes_of(source, source_region), reads=False)

    def copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Read a region with what lies between; done on return."""
        self._exchange(source, source_region, bytes_of(into, into_region), reads=True)

    def _exchange(self, span: Span, region: Region, host: Any, *, reads: bool) -> None:
        call = "reading a region" if reads else "writing a region"
        self._on(span.device_id, call, Slot.exchange, (span,), region, host, reads)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Clear on the device, or write the byte from the host."""
        for part, size in self._pieces(target):
            self._on(target.device_id, "filling", Slot.fill, (part,), size, value)

    def _pieces(self, span: Span) -> list[tuple[Span, int]]:
        """The parts of a span, each at most a `PIECE`, and their bytes; itself if not longer."""
        if span.nbytes <= PIECE:
            return [(span, span.nbytes)]
        self._buffers.at(span)  # before the first part is copied
        sizes = [(at, min(PIECE, span.nbytes - at)) for at in range(0, span.nbytes, PIECE)]
        return [(Span(*span[:2], span.offset + at, size), size) for at, size in sizes]

    def from_native(self, obj: Any) -> NativeArray | None:
        """The description of a `WebGPUArray`, or of the bytes of a GPUBuffer; None for others."""
        is_bytes = isinstance(obj, self._wgpu.GPUBuffer)
        array: Any = WebGPUArray(obj, "uint8", (obj.size,)) if is_bytes else obj
        if not isinstance(array, WebGPUArray):
            return None
        buffer, usage = array.buffer, self._wgpu.BufferUsage
        if not buffer.usage & usage.COPY_SRC:
            raise errors.ExchangeError(f"webgpu: usage {buffer.usage:#x} lacks COPY_SRC; add it")
        self._gate.run("webgpu: taking a GPUBuffer", self._let_in, buffer._device)
        data = self._buffers.enter(self._address(buffer), buffer) if buffer.size else 0
        readonly = not buffer.usage & usage.COPY_DST
        return array.described(self._describe(buffer)[0], data, readonly)

    def to_native(self, array: NativeArray) -> WebGPUArray:
        """A `WebGPUArray`, which has the GPUBuffer and keeps the owner."""
        self._gate.check()
        if array.data:
            buffer = self._buffers.at(Span(*array[:3], 0))
            self._slots[array.device_id].asked.pop(buffer, None)  # whose bytes are all the user's
        else:
            buffer = self._on(array.device_id, "making an empty buffer", Slot.create, (), 0)
        layout = array.dtype, array.shape, array.offset, array.strides, array.readonly
        return WebGPUArray(buffer, *layout, array.owner, buffer._device)

    def device_info(self, device_id: int) -> dict[str, object]:
        """Describe a device.

        Parameters
        ----------
        device_id : int
            The device.

        Returns
        -------
        mapping of str to object
            ``name``, ``kind``, what wgpu says of the adapter, and ``max_buffer_size`` in bytes.

        Examples
        --------
        ``bridge.backend("webgpu").device_info(0)["name"]``
        """
        self.check_device(device_id)
        info, limits = self._slots[device_id].adapter.info, self._slots[device_id].adapter.limits
        kind = "cpu" if info["adapter_type"] == "CPU" else "gpu"
        return {
            "name": info["device"],
            "kind": kind,
            **info,
            "max_buffer_size": limits["max-buffer-size"],
        }

    def _let_in(self, device: Any) -> None:
        if device not in self._gone and all(slot.device is not device for slot in self._slots):
            self._slots.append(Slot(device.adapter, device))

    def _address(self, buffer: Any) -> int:
        return int(self._ffi.cast("uintptr_t", buffer._internal))

    def _describe(self, buffer: Any) -> tuple[int, int]:
        if buffer.map_state != "unmapped":  # a submission with it would end the process
            raise errors.ExchangeError("webgpu: the GPUBuffer is mapped; call its unmap() first")
        for number, slot in enumerate(self._slots):
            if slot.device is buffer._device and not slot.lost:
                return number, buffer.size
        raise errors.DeviceLost("webgpu: this memory was lost with its device; copy the data anew")

    def _on(self, device_id: int, call: str, work: Any, spans: Any, *arguments: Any) -> Any:
        """Call *work* with the device and each span's buffer and offset; one thread at a time."""

        def inside() -> Any:
            self.check_device(device_id)
            slot = self._slots[device_id]
            if slot.lost and work is Slot.create:
                slot = self._slots[device_id] = Slot(slot.adapter)
            if slot.lost:
                raise errors.DeviceLost(slot.lost)
            try:
                slot.open()
                return work(slot, *((self._buffers.at(x), x.offset) for x in spans), *arguments)
            except self._wgpu.GPUError as exc:
                if "is lost" not in str(exc):
                    raise
                self._gone.add(slot.device)
                slot.lost = f"webgpu:{device_id} is lost, with its memory; found by {call}"
                raise errors.DeviceLost(slot.lost) from exc

        return self._gate.run(f"webgpu:{device_id}: {call}", inside)
