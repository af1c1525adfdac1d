"""A numbered device: opened at first use, and anew after a loss; its transfers."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

from dlbridge.errors import DeviceMemoryError
from dlbridge.kit.callbacks import Callback

__all__ = ["PIECE", "Place", "Slot", "one_per_gpu"]

Place: TypeAlias = tuple[Any, int]  # a buffer, and an offset in it, in bytes

PIECE = 16 << 20  # bytes of one copy, and of writes that wgpu may keep until they are done


def one_per_gpu(adapters: list[Any]) -> list[Any]:
    """The adapters of one API, CPUs last: wgpu lists a GPU once for each API that it has."""
    apis = {each.info["backend_type"] for each in adapters}
    best = next((api for api in ("Metal", "D3D12", "Vulkan", "OpenGL") if api in apis), None)
    found = [each for each in adapters if each.info["backend_type"] == best]
    return sorted(found, key=lambda each: each.info["adapter_type"] == "CPU")


class Slot:
    """What a device number stands for. One thread at a time calls the methods."""

    def __init__(self, adapter: Any, device: Any = None) -> None:
        self.adapter, self.device = adapter, device
        self.lost = ""  # how the loss showed itself
        self.pipeline: Any = None
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
        """A new buffer for shaders and copies."""
        if nbytes > self.device.limits["max-buffer-size"]:
            raise DeviceMemoryError(f"webgpu: {nbytes} bytes are too many for one buffer")
        return self.device.create_buffer(size=nbytes, usage="STORAGE | COPY_SRC | COPY_DST")

    def submit(self, encoder: Any) -> None:
        """Submit what was recorded. ``finish`` raises if the device is lost; ``submit`` aborts."""
        self.device.queue.submit([encoder.finish()])

    def copy(self, target: Place, source: Place, nbytes: int) -> None:
        """Submit a copy."""
        encoder = self.device.create_command_encoder()
        if target[0] is source[0]:  # wgpu does not copy inside one buffer
            between = self.device.create_buffer(size=nbytes, usage="COPY_SRC | COPY_DST"), 0
            encoder.copy_buffer_to_buffer(*source, *between, nbytes)
            source = between
        encoder.copy_buffer_to_buffer(*source, *target, nbytes)
        self.submit(encoder)

    def fill(self, target: Place, nbytes: int, value: int) -> None:
        """Submit a clear, or write at most a `PIECE` of the byte *value*."""
        if value:
            self.write(target, memoryview(bytes([value]) * nbytes))
        else:
            encoder = self.device.create_command_encoder()
            encoder.clear_buffer(*target, nbytes)
            self.submit(encoder)

    def write(self, target: Place, source: memoryview) -> None:
        """Write at most a `PIECE`; wgpu keeps a copy of *source* until a later submission."""
        self.device.queue.write_buffer(*target, source)
        self._unfinished += max(len(source), PIECE // 256)  # small ones cost memory, too
        if self._unfinished >= PIECE:
            self.wait()

    def read(self, source: Place, into: memoryview) -> None:
        """Read at most a `PIECE`, after all other work; wgpu's wait could hang."""
        from wgpu.backends.wgpu_native import ffi, lib

        staging = self._staging or self.device.create_buffer(size=PIECE, usage="COPY_DST|MAP_READ")
        self._staging = None  # an exception may leave it mapped
        encoder, memory, nbytes = self.device.create_command_encoder(), staging._internal, len(into)
        encoder.copy_buffer_to_buffer(*source, staging, 0, nbytes)
        self.submit(encoder)
        mapped = Callback(partial(ffi.callback, "WGPUBufferMapCallback"))
        info = {"mode": lib.WGPUCallbackMode_AllowProcessEvents, "callback": mapped.pointer}
        lib.wgpuBufferMapAsync(memory, lib.WGPUMapMode_Read, 0, nbytes, info)
        status, *_ = mapped.wait(partial(lib.wgpuDevicePoll, self.device._internal, 0, ffi.NULL))
        if status != lib.WGPUMapAsyncStatus_Success:  # to read would end the process
            raise RuntimeError(f"wgpu does not map a buffer: status {status}")
        into[:] = ffi.buffer(lib.wgpuBufferGetConstMappedRange(memory, 0, nbytes), nbytes)
        lib.wgpuBufferUnmap(memory)
        self._staging, self._unfinished = staging, 0

    def wait(self) -> None:
        """Block until all work is done, by a read: wgpu's own call for that fails (0.32)."""
        last = self.device.create_buffer(size=4, usage="COPY_SRC")
        self.read((last, 0), memoryview(bytearray(4)))
