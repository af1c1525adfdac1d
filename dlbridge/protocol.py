"""The contract between dlbridge and a device backend.

A backend is a class that an entry point of the group ``dlbridge.backends``
names. The class is called once, without arguments, when a tensor or a call first
needs the device. It implements `Backend`, and those ``Supports*`` protocols that
its device can support: each capability is a protocol.

Rules that hold for every member:

* Only integers, memoryviews and plain Python objects cross; no cffi types.
* ``data`` is opaque to dlbridge: an address, a ``cl_mem``, a buffer handle. An
  offset in bytes is passed with it; dlbridge adds the two only on devices whose
  ``data`` is an address (`ADDRESS_DEVICES`).
* ``device_id`` counts from 0 to ``device_count() - 1``; any other is an
  `dlbridge.errors.ExchangeError` that names it.
* ``stream`` is the device's native stream handle as an integer, 0 for the
  default. Work may be queued on it; it is complete after ``synchronize``. A
  backend without `SupportsStreams` completes everything before it returns.
* dlbridge never requests 0 bytes.
* Every member may be called from any thread, and ``free`` and
  ``release_host_view`` from a finalizer: they must not raise there.
* If a driver refuses a call, raise `dlbridge.errors.DeviceError`; if the device
  has not enough memory, `dlbridge.errors.DeviceMemoryError`; for a request that
  the device can never fulfil, `dlbridge.errors.ExchangeError`. A failed call leaks
  nothing and has no effect.
* A backend may set ``host_copies_block = True``: when a copy from or to the host
  returns, the device has finished with the host's memory. dlbridge then does not
  call ``synchronize`` after it; an upload may still be ordered on its stream.
* A backend may offer ``live_allocations() -> int``, what has been allocated and
  not freed; the conformance kit then counts exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = [
    "ADDRESS_DEVICES",
    "API",
    "HOST_DEVICES",
    "Backend",
    "NativeArray",
    "SupportsCopy",
    "SupportsDemo",
    "SupportsDeviceInfo",
    "SupportsDeviceNames",
    "SupportsFill",
    "SupportsForeignData",
    "SupportsHostImport",
    "SupportsHostImportDrawback",
    "SupportsHostView",
    "SupportsNative",
    "SupportsStreams",
    "SupportsStridedCopy",
]

API = 1
"""Version of this contract; a backend states the one it was written for.

A change to a member raises it. A new ``Supports*`` protocol does not.
"""

ADDRESS_DEVICES = frozenset({1, 2, 3, 10, 11, 13, 14})
"""DLDeviceTypes whose ``data + byte_offset`` is an address: CPU, CUDA, CUDAHost,
ROCM, ROCMHost, CUDAManaged, OneAPI (``IsDirectAddressDevice`` of tvm-ffi, and
USM pointers)."""

HOST_DEVICES = frozenset({1, 3, 11, 13})
"""DLDeviceTypes that the CPU may read: CPU, CUDAHost, ROCMHost and, once the
device is synchronised, CUDAManaged."""


class Backend(Protocol):
    """Memory on one kind of device: all that a backend must provide.

    The class is called once, without arguments. Open the driver there, and
    raise `dlbridge.errors.BackendUnavailable` with the reason and the remedy
    if this machine has none.
    """

    api: int
    """The `API` that the backend was written for."""

    device_type: int
    """Its DLDeviceType (``dlpack.h``). Several backends may share kDLExtDev."""

    def device_count(self) -> int:
        """Number of usable devices, at least 1."""

    def allocate(self, device_id: int, nbytes: int, alignment: int, stream: int) -> int:
        """New memory of *nbytes* > 0 bytes, usable by work on *stream*; its ``data``.

        *alignment* (bytes, a power of two) is honoured where ``data`` is an
        address and where the device can otherwise.
        """

    def free(self, device_id: int, data: int, stream: int) -> None:
        """Give *data* back once the work already on *stream* has passed.

        After `SupportsHostImport.import_host` it ends the import.
        """

    def copy_from_host(
        self, device_id: int, data: int, offset: int, source: memoryview, stream: int
    ) -> None:
        """Copy the bytes of *source* to *data* at *offset* bytes.

        *source* is flat bytes (``format 'B'``, C-contiguous, possibly
        read-only). It may be read until ``synchronize``: dlbridge keeps it.
        """

    def copy_to_host(
        self, device_id: int, data: int, offset: int, into: memoryview, stream: int
    ) -> None:
        """Copy ``len(into)`` bytes at *offset* of *data* to *into* (flat, writable).

        They are there after ``synchronize``.
        """

    def current_stream(self, device_id: int) -> int:
        """The stream that work goes to now in this thread; 0: default, or none."""


@runtime_checkable
class SupportsStreams(Protocol):
    """A backend whose work is queued: streams, and the order between them."""

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on stream *on*.

        By an event on the device, without blocking the host, where it can.
        """

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """The handle for what a caller passed as ``stream=``; -1: do not order.

        Takes None (the default stream), integers by the device's rules
        (array API 2024.12, ``__dlpack__``), and the ecosystem's own stream
        objects. ValueError for integers that the device's rules forbid,
        TypeError for an object that is not a stream, a bool included.
        """


@runtime_checkable
class SupportsCopy(Protocol):
    """A backend that copies inside its own devices, and between them."""

    def copy(
        self,
        device_id: int,
        data: int,
        offset: int,
        source_device_id: int,
        source: int,
        source_offset: int,
        nbytes: int,
        stream: int,
    ) -> None:
        """Copy *nbytes* from *source* to *data*, on *stream* of *device_id*.

        Work on the source device is already ordered before *stream* when the
        two devices are one, and synchronised by dlbridge when they are not.
        """


@runtime_checkable
class SupportsStridedCopy(Protocol):
    """A backend that copies strided regions in one call (rectangles, regions).

    A region is *shape* runs of *run_nbytes* contiguous bytes each, *strides*
    bytes apart, outermost first; *shape* has 1 to `max_strided_ndim` entries.
    Strides of both sides are positive and descend, outermost first; dlbridge
    splits or packs other regions.
    """

    max_strided_ndim: int
    """How many strided dimensions one call takes, beside the contiguous run."""

    def copy_strided(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        source: int,
        source_offset: int,
        source_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Copy a region inside one device."""

    def copy_strided_from_host(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        source: memoryview,
        source_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Copy a region of host memory, from the first byte of *source* (flat)."""

    def copy_strided_to_host(
        self,
        device_id: int,
        data: int,
        offset: int,
        strides: Sequence[int],
        into: memoryview,
        into_strides: Sequence[int],
        shape: Sequence[int],
        run_nbytes: int,
        stream: int,
    ) -> None:
        """Copy a region to host memory, at the first byte of *into* (flat)."""


@runtime_checkable
class SupportsFill(Protocol):
    """A backend that fills memory with one byte value."""

    def fill(
        self, device_id: int, data: int, offset: int, nbytes: int, value: int, stream: int
    ) -> None:
        """Set *nbytes* bytes at *offset* to *value* (0 to 255)."""


@runtime_checkable
class SupportsHostView(Protocol):
    """A backend some of whose memory the host can address in place."""

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if it can. No side effect."""

    def host_view(
        self, device_id: int, data: int, offset: int, nbytes: int, writable: bool, stream: int
    ) -> int:
        """The host address of *nbytes* bytes at *offset*, readable on return.

        ExchangeError where `host_view_refusal` gives a reason. Work on
        *stream* is complete by then. Device work on *data* must wait
        for `release_host_view`; host writes are visible to work after it.
        """

    def release_host_view(self, device_id: int, data: int, address: int, stream: int) -> None:
        """End the view that began at *address*. May run in a finalizer."""


@runtime_checkable
class SupportsHostImport(Protocol):
    """A backend that can use host memory in place, if its address and size allow it."""

    def host_import_refusal(self, device_id: int, address: int, nbytes: int) -> str:
        """Why this host memory cannot be used in place; empty if it can."""

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool
    ) -> tuple[int, int]:
        """``(data, offset)`` for host memory that dlbridge keeps alive until ``free``."""


@runtime_checkable
class SupportsHostImportDrawback(Protocol):
    """A backend of devices on which host memory in place is possible and slow."""

    def host_import_drawback(self, device_id: int) -> str:
        """Why a copy is better on this device, where ``copy=None``; empty if it is not.

        On a device with memory of its own each use of host memory crosses the
        bus. ``copy=False`` imports it all the same.
        """


class NativeArray(NamedTuple):
    """An array of the device's own ecosystem, described for dlbridge.

    *dtype* is a dtype string (``"float32"``, ``"bfloat16"``, ``"uint8"``);
    *shape* is in elements; *strides* in bytes, None for C order; *owner* is the
    object that keeps *data* alive.
    """

    device_id: int
    data: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    readonly: bool
    owner: object


@runtime_checkable
class SupportsNative(Protocol):
    """A backend that converts from and to the objects of its ecosystem."""

    def from_native(self, obj: object) -> NativeArray | None:
        """The description of *obj*, or None, quickly, if it is not such an object."""

    def to_native(self, array: NativeArray) -> object:
        """The ecosystem's object over the memory; it keeps *array.owner* alive."""


@runtime_checkable
class SupportsForeignData(Protocol):
    """A backend that must translate the ``data`` that another library exported."""

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """Our ``(device_id, data)`` for a foreign tensor's.

        *module* is the name of the module of the object that exported it.
        ExchangeError if the convention is not recognised; *data* is
        never dereferenced on a guess.
        """


@runtime_checkable
class SupportsDeviceNames(Protocol):
    """A backend whose devices can be asked for by name (``"opencl:Intel"``)."""

    def find_device(self, name: str) -> int:
        """The device that *name* names; otherwise LookupError with a list of the devices."""


@runtime_checkable
class SupportsDeviceInfo(Protocol):
    """A backend that describes its devices, for ``info``."""

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """The properties of the device, by name.

        Always ``name``; where known ``memory`` (bytes), ``uuid``, ``pci``,
        ``driver``, ``host_memory_shared`` (bool) and the device's limits.
        """


@runtime_checkable
class SupportsDemo(Protocol):
    """A backend that runs the filter of ``python -m dlbridge demo`` on its device."""

    def box_blur(
        self,
        device_id: int,
        source: int,
        source_offset: int,
        target: int,
        target_offset: int,
        shape: tuple[int, int, int],
        radius: int,
        stream: int,
    ) -> None:
        """Blur the image at *source* into *target*, on *stream*.

        Both are uint8, compact, *shape* = (height, width, channels). Each
        pixel becomes the mean of the ``2 * radius + 1`` squared pixels around
        it, as far as they are inside the image, halves rounded up:
        ``(sum + count // 2) // count``.
        """
