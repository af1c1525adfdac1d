"""One type of torch's devices as a backend: its memory, its copies, and its streams if it has any.

torch allocates, copies and orders; this finds torch's tensor for each span of bytes and calls it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from weakref import ref

from dlbridge.errors import DeviceError, DeviceMemoryError, Error, ExchangeError
from dlbridge.kit.backend import address_of, bytes_at
from dlbridge.kit.devices import Devices
from dlbridge.kit.gate import Gate
from dlbridge.kit.resources import AllocationOwner, Resources, recall, remember, shared_lock
from dlbridge.kit.streams import NO_ORDER, StreamRules
from dlbridge.protocol import ADDRESS_DEVICES, Allocation, NativeArray, Region, Span

__all__ = ["TorchDevice", "TorchStreams"]

_BELOW_A_BYTE = re.compile("u?int[1-7]")  # torch does not say how many of them a byte has


class _Memory:
    """torch's bytes, uint8 in one dimension, and the stream of the last work on them."""

    tensor: Any = None
    late: int = 0
    """A stream that torch could not note as a user of the memory: it is waited for at the end."""

    def __init__(self, backend: TorchDevice, device_id: int, stream: int, borrowed: bool) -> None:
        self.backend, self.device_id = backend, device_id
        self.borrowed, self._stream = borrowed, stream

    @property
    def stream(self) -> int:
        return self._stream

    @stream.setter
    def stream(self, stream: int) -> None:
        # torch frees in the order of the stream that it has allocated for, and of those noted here.
        if stream != self._stream and self.tensor is not None:
            self._stream = stream
            self.backend.note_use(self, stream)


class TorchDevice(Devices):
    """Devices of one type of torch, which has no streams for them; each call waits for its work.

    ``data`` is the address that torch has for the memory.
    """

    api = 2
    name: str  # type: ignore[misc]  # of each object
    host_copies_block = True
    max_strided_ndim = 7  # with the bytes of a run 8 dimensions, as much as some devices take

    def __init__(self, torch: Any, kind: str, module: Any) -> None:
        self.torch, self.kind, self.module = torch, kind, module
        self.name = f"torch-{kind}"
        try:
            self.device_type = int(torch._C._torchDeviceToDLDevice(torch.device(kind, 0))[0])
        except (AttributeError, BufferError, RuntimeError, ValueError):
            self.device_type = 12  # kDLExtDev: torch exports no tensors of it
        self._memory: Resources[_Memory] = Resources(_give_back)
        self._borrowed: Resources[_Memory] = Resources(_give_back)
        self._known: dict[int, ref[AllocationOwner[_Memory]]] = {}
        self._lock = shared_lock()
        meanings = {torch.OutOfMemoryError: DeviceMemoryError, RuntimeError: DeviceError}
        self._gate = Gate("torch", self, meanings, several=True)

    def device_count(self) -> int:
        """Number of devices of this type."""
        return int(self.module.device_count())

    def device_info(self, device_id: int) -> dict[str, object]:
        """Describe a device.

        Parameters
        ----------
        device_id : int
            The device.

        Returns
        -------
        mapping of str to object
            ``name``, ``driver`` (the version of torch), and where torch says it ``memory``, and
            ``memory_used``: the bytes of tensors in torch's allocator, without what it keeps.

        Examples
        --------
        ``bridge.backend("torch-npu").device_info(0)["name"]``
        """
        self.check_device(device_id)
        ask, version = self.module, self.torch.__version__
        info: dict[str, object] = {"name": f"torch.{self.kind}", "driver": f"torch {version}"}
        with suppress(Exception):  # what torch does not say stays out
            info["name"] = str(ask.get_device_name(device_id))
            info["memory_used"] = int(ask.memory_allocated(device_id))
            info["memory"] = int(ask.get_device_properties(device_id).total_memory)
        return info

    def allocate(
        self, device_id: int, nbytes: int, alignment: int, stream: int, content: Any = None
    ) -> Allocation:
        """New memory by torch's allocator, for work on *stream*."""
        self.check_device(device_id)
        if nbytes >= 1 << 63:
            raise DeviceMemoryError(f"{self.name}: {nbytes} bytes are more than torch can count")
        owner = AllocationOwner(self._memory, _Memory(self, device_id, stream, borrowed=False))
        what = device_id, stream, self._empty, device_id, nbytes, alignment
        return self._enter(owner, self._run(f"allocating {nbytes} bytes", *what))

    def _empty(self, device_id: int, nbytes: int, alignment: int) -> Any:
        make, device = self.torch.empty, self.torch.device(self.kind, device_id)
        made = make(nbytes, dtype=self.torch.uint8, device=device)
        if self.device_type in ADDRESS_DEVICES and made.data_ptr() % alignment:
            made = make(nbytes + alignment, dtype=self.torch.uint8, device=device)
            start = -made.data_ptr() % alignment
            made = made[start : start + nbytes]
        return made

    def _enter(self, owner: AllocationOwner[_Memory], tensor: Any) -> AllocationOwner[_Memory]:
        """Let *owner* have *tensor*, and be found by its address."""
        owner.resource.tensor = tensor
        owner.data, owner.nbytes = tensor.data_ptr(), tensor.numel()
        if not owner.data:
            raise ExchangeError(f"{self.name}: torch gives no address of its memory")
        remember(self._known, owner.data, owner)
        return owner

    def live_allocations(self) -> int:
        """How many allocations there are."""
        self._memory.sweep()
        return len(self._memory)

    # Calls ------------------------------------------------------------------------------

    def _queue(self, call: str, span: Span, stream: int, work: Any, *arguments: Any) -> None:
        self._run(call, span.device_id, stream, work, stream, *arguments)

    def _run(self, call: str, device_id: int, stream: int, work: Any, *arguments: Any) -> Any:
        """Call *work* on *stream*, whatever modes of torch the caller is in."""
        what = device_id, stream, work, *arguments
        return self._gate.run(f"{self.name}: {call}", self._plainly, *what)

    def _plainly(self, device_id: int, stream: int, work: Any, *arguments: Any) -> Any:
        torch = self.torch
        with (
            torch._C.DisableTorchFunction(),  # set_default_device, and modes of users
            torch._C._DisableTorchDispatch(),  # FakeTensorMode
            torch.inference_mode(False),  # whose tensors could not be written outside of it
            torch.no_grad(),
        ):
            return self._on(device_id, stream, work, *arguments)

    def _on(self, device_id: int, stream: int, work: Any, *arguments: Any) -> Any:
        """Call *work*, and wait for what it has queued: there is no stream to name."""
        done = work(*arguments)
        self.finish(device_id)
        return done

    def finish(self, device_id: int) -> None:
        """Wait for all work on the device, where torch has a function for it."""
        if hasattr(self.module, "synchronize"):
            self.module.synchronize(*() if self.kind == "mps" else (device_id,))

    def note_use(self, memory: _Memory, stream: int) -> None:
        """Let torch keep *memory* until the work that is on *stream* at its end is done."""

    # Copies -----------------------------------------------------------------------------

    def _find(self, data: int) -> tuple[AllocationOwner[_Memory], int]:
        """Who owns the memory at *data*, and where in it that is; ExchangeError if nobody here."""
        owner = recall(self._known, data)
        if owner is None and self.device_type in ADDRESS_DEVICES:
            for known in [reference() for reference in self._known.copy().values()]:
                if known is not None and known.data <= data < known.data + known.nbytes:
                    owner = known
        if owner is None:
            raise ExchangeError(f"{data:#x} is no memory that {self.name} has given or been given")
        return owner, data - owner.data

    def _bytes(self, span: Span, stream: int) -> Any:
        """The tensor of the bytes of *span*, for work on *stream*."""
        self.check_device(span.device_id)
        owner, start = self._find(span.data)
        memory, start = owner.resource, start + span.offset
        wrong = memory.device_id != span.device_id
        if wrong or not 0 <= start <= owner.nbytes - span.nbytes:
            raise ExchangeError(
                f"{span.nbytes} bytes at {start} of {self.name}:{span.device_id} are not inside "
                f"the {owner.nbytes} at {owner.data:#x}, on {self.name}:{memory.device_id}"
            )
        if memory.borrowed:  # torch's user may drop it when he likes
            memory.stream = stream
        return memory.tensor[start : start + span.nbytes]

    def _side(self, side: Span | memoryview, region: Region | None, stream: int) -> Any:
        """One side of a copy as torch's tensor; host memory is not copied."""
        if isinstance(side, Span):
            elements = self._bytes(side, stream)
        else:
            host = bytes_at(address_of(side), side.nbytes)
            elements = self.torch.frombuffer(host, dtype=self.torch.uint8)
        if region is None:
            return elements
        shape, strides, run = region
        return elements.as_strided((*shape, run), (*strides, 1), elements.storage_offset())

    def _copy(self, stream: int, target: Any, source: Any, *regions: Region) -> None:
        """Copy between two spans, or a span and host memory, which is done with on return."""
        there, here = regions or (None, None)
        inside = isinstance(target, Span) and isinstance(source, Span)
        tensors = self._side(target, there, stream), self._side(source, here, stream)
        tensors[0].copy_(tensors[1], non_blocking=inside)

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source*, which have been read on return."""
        self._queue("copying from the host", target, stream, self._copy, target, source)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *into*; they are there on return."""
        self._queue("copying to the host", source, stream, self._copy, into, source)

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy on *stream* of the target's device; between two devices as torch can."""
        self._queue("copying", target, stream, self._copy, target, source)
        if target.device_id != source.device_id:  # torch need not have read the source yet
            self._gate.run(f"{self.name}: copying", self.finish, target.device_id)

    def copy_strided(
        self, target: Span, target_region: Region, source: Any, source_region: Region, stream: int
    ) -> None:
        """Copy a region inside one device."""
        sides = target, source, target_region, source_region
        self._queue("copying a region", target, stream, self._copy, *sides)

    copy_strided_from_host = copy_strided

    def copy_strided_to_host(
        self, source: Span, source_region: Region, into: Any, into_region: Region, stream: int
    ) -> None:
        """Copy a region to host memory; it is there on return."""
        sides = into, source, into_region, source_region
        self._queue("copying a region", source, stream, self._copy, *sides)

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value*."""
        self._queue("filling", target, stream, lambda on: self._bytes(target, on).fill_(value))

    def current_stream(self, device_id: int) -> int:
        """0: the work of each call is done when it returns."""
        self.check_device(device_id)
        return 0

    def host_import_refusal(self, device_id: int, address: int, nbytes: int, demanded: bool) -> str:
        """Why host memory is copied: the words that ``explain`` shows."""
        return f"by torch's allocator: {self.name}:{device_id} has new memory of its own"

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> Allocation:
        """Nothing that torch can do on all devices."""
        raise ExchangeError(f"{self.name}:{device_id} does not use host memory in place; copy it")

    # torch's tensors --------------------------------------------------------------------

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """The device of memory that this backend has given, or has been given as a tensor.

        What torch exports itself is known by its tensor (`from_native`), which keeps the memory.
        """
        if module.partition(".")[0] == "torch":
            raise ExchangeError(f"{data:#x} is of a tensor of torch; {self.name} takes that itself")
        owner, _ = self._find(data)
        return owner.resource.device_id, data

    def from_native(self, obj: Any) -> NativeArray | None:
        """The description of a tensor of this type of device; None for other objects."""
        torch = self.torch
        if not isinstance(obj, torch.Tensor) or obj.device.type != self.kind:
            return None
        device_id, size = obj.device.index or 0, obj.element_size()
        layout = tuple(obj.shape), tuple(step * size for step in obj.stride())
        dtype = str(obj.dtype).removeprefix("torch.").replace("_x2", "x2")
        if not obj.numel():
            return NativeArray(device_id, 0, 0, dtype, *layout, readonly=False, owner=obj)
        storage = obj.untyped_storage()
        with self._lock:
            owner = recall(self._known, storage.data_ptr())
            if owner is None:
                stream = self.current_stream(device_id)
                owner = AllocationOwner(self._borrowed, _Memory(self, device_id, stream, True))
                what = device_id, stream, self._over, obj, torch.uint8
                self._enter(owner, self._run("taking a tensor", *what))
        offset = obj.storage_offset() * size + storage.data_ptr() - owner.data
        return NativeArray(device_id, owner.data, offset, dtype, *layout, False, (owner, obj))

    def _over(self, base: Any, dtype: Any, *layout: Any) -> Any:
        """A tensor on the storage of *base*, with the given offset, shape and strides."""
        made = self.torch.empty(0, dtype=dtype, device=base.device)
        return made.set_(base.untyped_storage(), *layout)

    def to_native(self, array: NativeArray) -> Any:
        """A ``torch.Tensor`` on the memory, for torch's current stream; it keeps the owner."""
        torch = self.torch
        dtype: Any = getattr(torch, array.dtype.replace("fnx2", "fn_x2"), None)
        whole = isinstance(dtype, torch.dtype) and not _BELOW_A_BYTE.fullmatch(array.dtype)
        size, strides, empty = dtype.itemsize if whole else 1, array.strides, 0 in array.shape
        odd = not empty and (min(strides or (0,)) < 0 or array.offset % size)
        if not whole or array.readonly or odd:
            raise ExchangeError(
                f"torch has no tensors of {array.dtype} at byte {array.offset}, in steps of "
                f"{strides} bytes, readonly={array.readonly}; copy it, or view it as uint8"
            )
        if empty:
            device = torch.device(self.kind, array.device_id)
            return torch.empty(array.shape, dtype=dtype, device=device)
        owner, start = self._find(array.data)
        base, start = owner.resource.tensor, start + array.offset
        first = start + base.storage_offset()
        compact = torch.empty(array.shape, device="meta").stride()
        steps = [step // size for step in strides] if strides else compact
        layout = first // size, array.shape, steps
        made = self._run("making a tensor", array.device_id, 0, self._over, base, dtype, *layout)
        made.dlbridge_owner = array.owner
        return made


class TorchStreams(TorchDevice):
    """Devices of one type of torch, with torch's streams.

    A stream is torch's native handle of it, or its ``stream_id`` where torch has no handle. Work
    goes to the stream that it is given, which is torch's current one meanwhile.
    """

    def __init__(self, torch: Any, kind: str, module: Any) -> None:
        super().__init__(torch, kind, module)
        self._classes = (torch.Stream, getattr(module, "Stream", torch.Stream))
        self._streams: dict[tuple[int, int], Any] = {}
        is_cuda = kind == "cuda" and torch.version.hip is None
        forbidden = {0: "can be one of two streams of CUDA; pass 1", 2: "is not in torch"}
        advice = f"-1, or a stream of torch.{kind}"
        self._rules = StreamRules("torch", 0, forbidden if is_cuda else {}, advice=advice)

    def stream(self, device_id: int, stream: int = 0) -> Any:
        """The stream object of torch, for work of your own.

        Parameters
        ----------
        device_id : int
            The device.
        stream : int
            A stream that dlbridge knows: of `Tensor.operand`, for example. By default the
            device's default stream.

        Returns
        -------
        torch.Stream
            The stream, or an object of the device's own class of streams.

        Raises
        ------
        DeviceError
            If no such stream has come here.

        Examples
        --------
        ``stream = bridge.backend("torch-npu").stream(0)``
        """
        self.check_device(device_id)
        known = self._streams.get((device_id, stream)) if stream else self._default(device_id)
        if known is None:
            raise DeviceError(
                f"{self.name}:{device_id} knows no stream {stream:#x}; pass torch's object of it"
            )
        return known

    def _default(self, device_id: int) -> Any:
        if hasattr(self.module, "default_stream"):
            return self.module.default_stream(device_id)
        kind = self.module.current_stream(device_id).device_type
        return self.torch.Stream(stream_id=0, device_index=device_id, device_type=kind)

    def _handle(self, device_id: int, stream: Any) -> int:
        """The handle of *stream*, by which it is found again."""
        handle = None
        with suppress(RuntimeError):
            handle = getattr(stream, "native_handle", None)
        if handle is None:
            handle = getattr(stream, f"{self.kind}_stream", stream.stream_id)
        handle = int(handle) & (1 << 64) - 1
        if handle:  # torch keeps its streams until the process ends
            self._streams.setdefault((device_id, handle), stream)
        return handle

    def normalize_stream(self, device_id: int, stream: Any) -> int:
        """The handle of a stream object of torch, of None, or of a number that torch can take."""
        self.check_device(device_id)
        device = self.torch.device(self.kind, device_id)
        if isinstance(stream, self._classes):
            if stream.device != device:
                raise ValueError(f"{stream!r} is no stream of {self.name}:{device_id}; pass one")
            return self._handle(device_id, stream)
        number = self._rules.normalize(stream)
        if number == 1 and self._rules.forbidden:
            return 0
        if number in (0, NO_ORDER) or (device_id, number) in self._streams:
            return number
        make = getattr(self.module, "get_stream_from_external", None)
        if make is None:
            raise ValueError(
                f"stream={number} is no known stream of {self.name}:{device_id}, and torch takes "
                f"no handles of others there; pass None, {self._rules.advice}"
            )
        external = self._gate.run(f"{self.name}: stream {number}", make, number, device)
        self._streams.setdefault((device_id, number), external)
        return number

    def current_stream(self, device_id: int) -> int:
        """Torch's current stream of this thread."""
        self.check_device(device_id)
        ask = self._gate.run(f"{self.name}: current_stream", self.module.current_stream, device_id)
        return self._handle(device_id, ask)

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""
        call = f"{self.name}:{device_id}: work that was queued before on stream {stream:#x}"
        self._gate.run(call, self.stream(device_id, stream).synchronize)

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on *on*, by an event of torch."""
        later, earlier = self.stream(device_id, stream), self.stream(device_id, on)
        if later != earlier:
            self._gate.run(f"{self.name}: ordering streams", later.wait_stream, earlier)

    def _on(self, device_id: int, stream: int, work: Any, *arguments: Any) -> Any:
        with self.module.stream(self.stream(device_id, stream)):
            return work(*arguments)

    def note_use(self, memory: _Memory, stream: int) -> None:
        """Let torch keep *memory* until the work that is on *stream* at its end is done."""
        try:
            user = self.stream(memory.device_id, stream)
            self._gate.run(f"{self.name}: record_stream", memory.tensor.record_stream, user)
        except Error:  # not known, or the device cannot do it
            memory.late = stream

    def to_native(self, array: NativeArray) -> Any:
        """As `TorchDevice.to_native`, after the work on the stream that the user has chosen."""
        if array.stream:
            self.wait(array.device_id, self.current_stream(array.device_id), array.stream)
        return super().to_native(array)


def _give_back(memory: _Memory) -> bool:
    """Drop the tensor: torch frees it behind the work on the streams that it knows."""
    if memory.late:
        with suppress(Exception):
            memory.backend.finish(memory.device_id)
    memory.tensor = None
    return True
