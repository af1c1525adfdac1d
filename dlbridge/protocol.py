"""The contract between dlbridge and a device backend.

A backend is a class that an entry point of the group ``dlbridge.backends``
names. It implements `Backend`, and those ``Supports*`` protocols that its device
can support: each capability is a protocol. The guide for authors is
``docs/writing-a-backend.md`` in the source distribution of dlbridge.

Rules that hold for every member:

* Only integers, memoryviews and plain Python objects cross; no cffi types.
* What a backend gives is an object, an `Allocation`: memory, a host view, an import of
  memory. **Dropped is given back**: there is no call that frees. dlbridge keeps it as long
  as anything uses the memory, and drops it in any thread, also in a finalizer. The end does the
  same wherever it comes: in a collection of cycles, in a callback, after other memory has ended.
* ``data`` is opaque to dlbridge: an address, a ``cl_mem``, a buffer handle. It is
  an integer from 1 to 2**64 - 1; 0 stands for no memory. Until its allocation is dropped, no
  other memory of that device has the same number. A `Span` names bytes of it by an offset;
  dlbridge adds the two only on devices whose ``data`` is an address
  (`ADDRESS_DEVICES`).
* ``device_id`` counts from 0 to ``device_count() - 1``. For any other, every member
  raises an `dlbridge.errors.ExchangeError` that names it.
  `SupportsForeignData.import_data` gets the number of an exporter, which is not checked.
* dlbridge asks for no bytes outside of memory that it knows. Where ``data`` is a handle, a
  backend refuses other bytes with an ExchangeError before it calls the driver. Where it is
  an address, a backend cannot know where the memory of others ends, and need not look.
* ``stream`` is the device's native stream handle as an integer, 0 for the
  default. -1 ("do not order") is only what ``normalize_stream`` returns. Work may be
  queued on a stream; it is complete after ``synchronize``. A backend without
  `SupportsStreams` completes everything before it returns.
* dlbridge never requests 0 bytes, and the two sides of a copy inside a device never overlap. Host
  memory in a copy may be the device's own where the two share memory (a host view, an import): the
  result is as if the source had been read before anything is written.
* Every member may be called from any thread.
* What a call does depends on its arguments alone. What is kept of one call (a plan, a native
  object, an import) serves another where all arguments that matter are equal.
* Thousands of pieces of work, waits, streams and memories may be there before the first
  ``synchronize``. Where the driver has room for fewer, a member waits until there is room, or
  raises `dlbridge.errors.DeviceMemoryError`.
* If a driver refuses a call, raise `dlbridge.errors.DeviceError`; if the device
  has not enough memory, `dlbridge.errors.DeviceMemoryError`; for a request that
  the device can never fulfil, `dlbridge.errors.ExchangeError`; for a device that is
  gone, `dlbridge.errors.DeviceLost`. A member that raises has allocated nothing, and
  queued no work; dlbridge may have called it for other parts of one copy before.
  Any other exception becomes a `dlbridge.errors.BackendError` that names the
  backend and the member, except where a member's description allows it.
* An error about a stream names the stream, its device, and what may be passed
  instead; one that comes late, from work that was queued before, says that it is
  about earlier work.
* Queued work that fails says so once: by the next ``synchronize`` of its stream, or by a
  member that is given this stream before that. No call for another stream raises it, and the
  stream takes work again, unless the device is lost.
* An error is not kept once it is raised: with it the frames of the caller would be.
* No stream must be used or waited for so that another one works, or for memory to be given back:
  a program may use streams of its own only.
* A thread that waits for a stream holds up no other thread, except one that needs the same work.
  Where the driver gives a waiting thread other work, that is the driver's (``waits_alone`` in the
  conformance kit).
* A handle that ``current_stream`` or ``normalize_stream`` returns is good for as long as whoever
  owns the stream keeps it: dlbridge keeps the object that ``use_stream`` got until its block
  ends, and asks ``current_stream`` anew for each call. Memory may still name the stream
  afterwards, in `Allocation.stream`: the end of an allocation whose stream is gone is behind
  the work that was on it, or waits for the device, and raises nothing.
* A destructor may run in any line of Python code, and in the middle of any call of the same
  thread. What it uses may therefore be a single operation of a dict, set, deque or SimpleQueue,
  or a lock that it only tries (``acquire(blocking=False)``) or that is re-entrant and guards
  nothing half done. `dlbridge.kit.resources` does this for a backend.
* The exception of a signal handler may come between any two lines. A lock is taken by ``with``,
  and what a driver gave has an owner before it is given (`dlbridge.kit.resources`, again).
  It leaves the call as it is: a member neither swallows a KeyboardInterrupt nor replaces it.
* The process belongs to its user. Neither a member nor the opening of the driver changes what all
  of it shares: the garbage collector, signal handlers, random numbers, logging, numpy's settings,
  limits, how processes are started; and nothing is printed to ``sys.stdout``, or when the process
  ends. It ends with the status that it would have had.
* A handle names the same stream in each thread, and no member works in some threads only.
* A lost device: every member that needs it raises `dlbridge.errors.DeviceLost`, at
  once and without waiting for its work; `SupportsNative.to_native` is one of them. Other devices
  keep their memory, unless the driver loses them at the same moment, as devices of one context
  or one process: a backend says in its documentation which (``lost_together`` in the conformance
  kit). dlbridge asks no device for a plan or for the numbers of a tensor: ``explain`` and
  ``operand`` answer for lost memory as for any other, and its use raises.
  An `Allocation` that is dropped then is
  forgotten. Memory of the lost device never becomes valid
  again, also if the same ``device_id`` does: a backend may open the device anew in
  an `Backend.allocate` after the loss was reported, or say in the error that a new
  process is needed.
* Streams end with the device, except 0. A stream from before the loss may still be
  passed for a device that was opened anew, by a ``use_stream`` block that is open:
  raise `dlbridge.errors.DeviceLost`, or do the work on a stream that exists.
* Devices may appear: ``device_count`` then grows. It never shrinks, and a
  ``device_id`` means the same device as long as the process lives: one that was
  removed is lost, and keeps its number. Processes with the same environment have the same
  devices, in the same order and with the same UUIDs.
* A child of ``fork()`` must not call a driver that its parent has opened: members
  raise `dlbridge.errors.DeviceError`, which says so and how to start processes
  instead; what is dropped there stays, as the memory is the parent's. A backend that was
  not used before the fork works in the child.
* Memory that is freed and kept for the next request (a pool) is given back to the driver
  before a request is refused for lack of memory (`SupportsTrim`).
* What else dlbridge must know before it copies is declared by attributes, each of
  which has a default: `Facts`.
* A backend may offer ``live_allocations() -> int``, how many `Allocation` objects there are
  whose memory is not back; the conformance kit then counts exactly.
* A setting of a backend is an environment variable whose name begins with ``DLBRIDGE_``, the name
  of the backend in capitals, and ``_``; ``doctor`` leaves those to the backend.
* When a backend is loaded, dlbridge checks `Backend.api`, `Backend.device_type`,
  ``device_count()``, the parameters of every member, and the values of `Facts`. The name, that of
  the entry point, is an identifier.
* A library may serve devices whose names are known only where it runs. Its entry point then
  ends with a dash (``torch-``), names a `BackendFamily`, and serves all names that begin so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = [
    "ADDRESS_DEVICES",
    "API",
    "CONTEXT_DEVICES",
    "HOST_DEVICES",
    "MIN_API",
    "Allocation",
    "Backend",
    "BackendFamily",
    "ExportedMemory",
    "Facts",
    "NativeArray",
    "PlainAllocation",
    "Region",
    "Span",
    "SupportsCopy",
    "SupportsDeviceInfo",
    "SupportsFill",
    "SupportsForeignData",
    "SupportsHostImport",
    "SupportsHostView",
    "SupportsMemoryExport",
    "SupportsMemoryImport",
    "SupportsNative",
    "SupportsStreams",
    "SupportsStridedCopy",
    "SupportsTrim",
]

API = 2
"""Version of this contract; a backend states the one it was written for.

A change to a member raises it. A new ``Supports*`` protocol does not. A backend
writes the number itself, ``api = 2``, and never ``api = API``: with a later
dlbridge that would claim a version for which the backend was not written. Version 1
was never published.
"""

MIN_API = 2
"""The oldest version that is still accepted.

dlbridge accepts ``MIN_API`` to ``API``. Where a backend is of ``MIN_API`` and that
is not ``API``, loading it gives a FutureWarning, at least one release before
``MIN_API`` is raised.
"""

ADDRESS_DEVICES = frozenset({1, 2, 3, 10, 11, 13, 14})
"""DLDeviceTypes whose ``data + byte_offset`` is an address, CPU, CUDA, CUDAHost,
ROCM, ROCMHost, CUDAManaged, OneAPI (``IsDirectAddressDevice`` of tvm-ffi, and
USM pointers)."""

CONTEXT_DEVICES = frozenset({14})
"""Those of `ADDRESS_DEVICES` where an address belongs to one context of the driver, so that
`SupportsForeignData.import_data` is asked about it: OneAPI (a SYCL context)."""

HOST_DEVICES = frozenset({1, 3, 11, 13})
"""DLDeviceTypes that the CPU may read, CPU, CUDAHost, ROCMHost and, once the
device is synchronised, CUDAManaged."""


class _Contract(type(Protocol)):  # type: ignore[misc]
    """The class of the protocols: ``help`` shows what they declare, and nothing of `typing`."""

    def __dir__(cls) -> list[str]:
        if "_is_protocol" not in vars(cls) or not cls._is_protocol:
            return list(super().__dir__())
        return [name for name in vars(cls) if not name.startswith("_")]


class Allocation(Protocol, metaclass=_Contract):
    """Memory that a backend gives: it is given back when this object is dropped.

    A backend returns a `PlainAllocation`, or an object of its own that has these attributes.

    Attributes
    ----------
    data : int
        An address or a handle, from 1 to 2**64 - 1.
    nbytes : int
        How many bytes there are, from *data* and *offset* on.
    offset : int
        Bytes from *data* to the first of them: 0, except where an import needs more.
    stream : int
        The stream of the last work on the memory: dlbridge writes it whenever that changes.
        When the object is dropped, other work may use the memory again once the work that is
        on this stream then has passed. The end of an import waits for that work, as its memory
        belongs to somebody else, who may use it as soon as the object is gone.
    """

    data: int
    nbytes: int
    offset: int
    stream: int


class PlainAllocation:
    """An `Allocation` over an object that gives the memory back when it is dropped.

    Parameters
    ----------
    data : int
        An address or a handle, from 1 to 2**64 - 1.
    nbytes : int
        How many bytes there are.
    stream : int
        The stream that the memory is made for.
    offset : int
        Bytes from *data* to the first of them.
    owner : object
        What is dropped with this object.

    Examples
    --------
    ``return PlainAllocation(buffer.handle, nbytes, stream, owner=buffer)``
    """

    __slots__ = ("__weakref__", "data", "nbytes", "offset", "owner", "stream")

    def __init__(
        self, data: int, nbytes: int, stream: int = 0, *, offset: int = 0, owner: object = None
    ) -> None:
        self.data: int = data
        self.nbytes: int = nbytes
        self.stream: int = stream
        self.offset: int = offset
        self.owner: object = owner


class Span(NamedTuple):
    """Contiguous bytes of a device's memory: one side of a copy.

    Attributes
    ----------
    device_id : int
        The device of the memory.
    data : int
        That of an `Allocation`, or of a native or imported object.
    offset : int
        Bytes from the beginning of *data* to the first byte of the span.
    nbytes : int
        The length, more than 0.
    """

    device_id: int
    data: int
    offset: int
    nbytes: int


class Region(NamedTuple):
    """The bytes of a strided copy, in a `Span` or a memoryview that ends where they end.

    They are ``shape`` runs of *run_nbytes* contiguous bytes each. Both sides of a
    copy have the same *shape* and *run_nbytes*. The runs of one region never overlap
    or interleave: each stride is at least as long as all the bytes that it steps
    over, from the first to the last byte of the dimensions inside. dlbridge copies
    other layouts, such as overlapping windows, run by run.

    Attributes
    ----------
    shape : tuple of int
        How many runs there are in each strided dimension, outermost first.
    strides : tuple of int
        Bytes from the beginning of a run to that of its neighbour, in each of these dimensions.
        All are positive, and none is less than the next inner one or than *run_nbytes*.
    run_nbytes : int
        The contiguous bytes of one run.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    run_nbytes: int

    @property
    def extent(self) -> int:
        """Bytes from the first byte of the region to its last, gaps included."""
        steps = zip(self.shape, self.strides, strict=True)
        return sum((length - 1) * stride for length, stride in steps) + self.run_nbytes


class Facts:
    """What a backend may say of its copies; the values are the defaults.

    A backend sets those that differ, on the class or on the instance before its
    ``__init__`` ends; it need not inherit this class.

    Attributes
    ----------
    host_copies_block : bool
        Whether a copy from or to the host has finished with the host's memory when it returns.
        True: a copy from the host has read all of it, and may still be on its way to the
        target, on its stream; a copy to the host has written all of it. dlbridge then does
        not call ``synchronize`` after such a copy. False: the device may read or write the
        host's memory until ``synchronize`` returns. It counts for strided copies, too.
    content_limit : int
        Up to how many bytes `Backend.allocate` takes *content*. It is for a driver that makes
        memory together with its content faster than one after the other.
    """

    host_copies_block: bool = False
    content_limit: int = 0


class Backend(Protocol, metaclass=_Contract):
    """Memory on one kind of device: all that a backend must provide.

    The class is called without arguments, by the thread in which the device is first
    needed, and which may end before others; other threads wait. Open the driver there, and raise
    `dlbridge.errors.BackendUnavailable` with the reason and the remedy if this machine
    has none. If it raises, nothing is kept, and the next use calls it again. Once it has
    returned a backend that keeps the contract, it is not called again in this process.

    Attributes
    ----------
    api : int
        The `API` that the backend was written for.
    device_type : int
        Its DLDeviceType (``dlpack.h``): that of the backend's name, else kDLExtDev (12).
        Backends of any name may share kDLExtDev. Any other type belongs to the name that
        DLPack gives it (8 to ``metal``), as what is exported with it would come back as a
        tensor of that; the backends of a `BackendFamily` may have it, too. Where it is one of
        `HOST_DEVICES`, dlbridge tries the backend when it
        is loaded: ``current_stream(0)`` and ``allocate(0, 256, 256, stream)``. What `allocate`
        gives must have an address that this process can read, else loading fails with an
        error that names the package. If `current_stream` or `allocate` raises, nothing is said.
    """

    api: int
    device_type: int

    def device_count(self) -> int:
        """Number of usable devices, at least 1; it is asked when the backend is loaded, too."""

    def allocate(
        self,
        device_id: int,
        nbytes: int,
        alignment: int,
        stream: int,
        content: memoryview | None = None,
    ) -> Allocation:
        """New memory of *nbytes* > 0 bytes, usable by work on *stream*.

        *alignment* (bytes, a power of two) is honoured where ``data`` is an
        address, and elsewhere where the device can. With *content* the memory holds these
        bytes, *nbytes* of them, for work on *stream*; they are not needed after the return.
        dlbridge gives none, unless `Facts.content_limit` allows it.
        """

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy all bytes of *source* to *target*, which is as long.

        *source* is flat bytes (``format 'B'``, C-contiguous, possibly
        read-only). It may be read until ``synchronize``, and dlbridge keeps it as
        long; with `Facts.host_copies_block` only until this returns.
        """

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy all bytes of *source* to *into* (flat, writable), which is as long.

        They are there after ``synchronize``; on return, if `Facts.host_copies_block` is
        True or there is no `SupportsStreams`. After the exception of a signal handler (Ctrl-C)
        dlbridge calls ``synchronize`` again before it lets *into* go, because the device may
        still write there: the user waits as long as the device works. If this wait is cut off
        as well, *into* is kept for ever. A call of C is not cut off: where a device may stop for
        good, wait in steps, so that the handler runs between them.
        """

    def current_stream(self, device_id: int) -> int:
        """The stream that work goes to now in this thread; 0: default, or none.

        What other threads make current does not matter, nor what is current on other devices.
        """


class BackendFamily(Protocol, metaclass=_Contract):
    """Backends of one library, whose names are known where it runs: ``torch-npu``, ``torch-xpu``.

    An entry point whose name ends with a dash names such a class. It is called without
    arguments, and asked only when a device with this beginning is named, or when all devices are
    listed; until then nothing of the library may be imported.

    Its backends may have the DLDeviceType of another backend. The name tells them apart. Of
    memory that is imported they recognise (`SupportsForeignData`) only what they have given or
    been given themselves; what both recognise, where the other one knows all memory of its
    driver, is theirs.
    """

    def names(self) -> Sequence[str]:
        """The full names of the backends that can be used here; empty if there is none."""

    def open(self, name: str) -> Backend:
        """The backend of that full name, as the class of a `Backend` gives it when it is called.

        BackendUnavailable with the reason if there is none. The beginning alone asks for the
        reason why `names` is empty.
        """


@runtime_checkable
class SupportsStreams(Protocol, metaclass=_Contract):
    """A backend whose work is queued: streams, and the order between them."""

    def synchronize(self, device_id: int, stream: int) -> None:
        """Block until the work on *stream* is done."""

    def wait(self, device_id: int, stream: int, on: int) -> None:
        """Make later work on *stream* wait for the work now on stream *on*.

        By an event on the device, without blocking the host, where it can. Work that has
        begun and is not done counts, also if it is the only work there is.
        """

    def normalize_stream(self, device_id: int, stream: object) -> int:
        """The handle for what a caller passed as ``stream=``; -1: do not order.

        Takes None (the default stream, whatever the current one is), integers by the device's rules
        (array API 2025.12, ``__dlpack__``), and the ecosystem's own stream
        objects. ValueError for integers that the device's rules forbid,
        TypeError for an object that is not a stream, a bool included. A stream
        that is not known here, or is another device's, is refused as well or
        keeps its handle, so that its use fails; it never becomes another stream.
        """


@runtime_checkable
class SupportsCopy(Protocol, metaclass=_Contract):
    """A backend that copies inside its own devices, and between them."""

    def copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy *source* to *target*, which is as long, on *stream* of the target's device.

        The two never overlap: dlbridge copies such bytes through a third place. It never asks
        for a copy between two memories of which both use host memory in place
        (`SupportsHostImport`), as these may be the same bytes. Work on the source device is
        already ordered before *stream* when the two devices are one, and synchronised by
        dlbridge when they are not: no stream of the source's device has a part in the copy.
        After a copy between two devices dlbridge waits for *stream* before anything else
        uses either side.
        """


@runtime_checkable
class SupportsStridedCopy(Protocol, metaclass=_Contract):
    """A backend that copies strided regions in one call (rectangles, regions).

    The shape of a `Region` has 1 to `max_strided_ndim` entries, and the strides of
    both sides descend, outermost first, and no runs overlap (`Region`); dlbridge
    splits or packs other regions. A span and a memoryview begin and end with the
    region that they hold: ``span.nbytes == region.extent``.

    Attributes
    ----------
    max_strided_ndim : int
        How many strided dimensions one call takes, beside the contiguous run.
    """

    max_strided_ndim: int

    def copy_strided(
        self,
        target: Span,
        target_region: Region,
        source: Span,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region inside one device.

        The two spans never overlap, so that the regions may not be interleaved.
        """

    def copy_strided_from_host(
        self,
        target: Span,
        target_region: Region,
        source: memoryview,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of host memory, *source* (flat), to the device."""

    def copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of the device to host memory, *into* (flat)."""


@runtime_checkable
class SupportsFill(Protocol, metaclass=_Contract):
    """A backend that fills memory with one byte value."""

    def fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target* to *value* (0 to 255)."""


@runtime_checkable
class SupportsHostView(Protocol, metaclass=_Contract):
    """A backend some of whose memory the host can address in place."""

    def host_view_refusal(self, device_id: int, data: int) -> str:
        """Why the host cannot address *data*; empty if it can. No side effect."""

    def host_view(self, span: Span, writable: bool, stream: int) -> Allocation:
        """The bytes of *span* for the host: ``data`` is the address, readable on return.

        ExchangeError where `host_view_refusal` gives a reason. Work on
        *stream* is complete by then. Device work on the memory must wait
        for the end of the view, when the object is dropped; host writes are visible to work
        after it, on any stream. The backend waits for that end, if its driver has to be
        waited for (an unmapping, for example): dlbridge calls nothing after the drop. In the
        block of a ``Tensor.host_view`` dlbridge itself queues no work on the memory.
        """


@runtime_checkable
class SupportsHostImport(Protocol, metaclass=_Contract):
    """A backend that can use host memory in place, if its address and size allow it."""

    def host_import_refusal(self, device_id: int, address: int, nbytes: int, demanded: bool) -> str:
        """Why this host memory is not used in place; empty if it is.

        *demanded*: ``copy=False`` asks for it. If not, a drawback is a reason, too: on a device
        with memory of its own each use of host memory crosses the bus, and a copy is better.
        """

    def import_host(
        self, device_id: int, address: int, nbytes: int, readonly: bool, stream: int
    ) -> Allocation:
        """Host memory, which dlbridge keeps alive until the object is dropped.

        Its end blocks until the work already on its ``stream`` has used the memory for the
        last time, and it is the end of this import only: the same memory may be imported twice,
        or the second import is refused. With *readonly* the memory must never be written, also
        not by the import itself or by its end: its pages may not allow it. dlbridge asks for no
        write to such an import.
        """


class ExportedMemory(NamedTuple):
    """Memory of one driver, as another driver of the same device can open it.

    Attributes
    ----------
    fd : int
        An opaque POSIX file descriptor (``VK_KHR_external_memory_fd``).
    nbytes : int
        The length of the whole allocation that *fd* stands for.
    offset : int
        Bytes from the beginning of that allocation to the first byte of ``data``.
    driver : str
        The name of the backend whose own driver opens *fd* in another way than other drivers
        do. ``"cuda"``: a shareable handle of CUDA. Empty: one way for all of them.
    owner : object
        What closes *fd* when it is dropped (`dlbridge.kit.resources.Descriptor`).
    """

    fd: int
    nbytes: int
    offset: int
    driver: str = ""
    owner: object = None


@runtime_checkable
class SupportsMemoryExport(Protocol, metaclass=_Contract):
    """A backend that gives other drivers of the same device, and other processes, its memory.

    For other processes (`dlbridge.share`) it is a `SupportsMemoryImport`, too: there the
    same backend imports what this one has exported, on the device of the same UUID
    (`SupportsDeviceInfo`). Several imports and exports of one allocation may live at once,
    and any of them may end first, also because its process was killed. dlbridge asks where a
    device does not use host memory in place (`SupportsHostImport`), or has a drawback there.
    """

    def memory_export_refusal(self, device_id: int, data: int) -> str:
        """Why *data* cannot be given to others; empty if it can. No side effect.

        *data* of 0: why the device has no memory for `allocate_exportable`.
        """

    def export_memory(self, device_id: int, data: int) -> ExportedMemory:
        """A new file descriptor for the allocation that *data* is in.

        ExchangeError where `memory_export_refusal` gives a reason. dlbridge has waited for
        the work on *data*, and keeps *data* as long as the other driver uses it.
        """

    def allocate_exportable(self, device_id: int, nbytes: int, stream: int) -> Allocation:
        """New memory, as `Backend.allocate` gives it, that can be exported.

        It is an allocation of its own: whoever opens it finds no other memory there. An address
        is a multiple of 256.
        """


@runtime_checkable
class SupportsMemoryImport(Protocol, metaclass=_Contract):
    """A backend that uses memory which another driver of the same device has exported.

    dlbridge asks where the two devices have the same UUID (`SupportsDeviceInfo`). If the driver
    refuses, the import raises, and dlbridge copies instead unless ``copy=False`` was given.
    """

    def memory_import_refusal(self, device_id: int) -> str:
        """Why the device imports no memory of other drivers; empty if it does."""

    def import_memory(self, device_id: int, memory: ExportedMemory, stream: int) -> Allocation:
        """The memory of *memory*, which dlbridge keeps alive until the object is dropped.

        ``memory.fd`` stays the caller's: duplicate it for a driver that takes it over. The end
        of the object blocks until the work already on its ``stream``, and on streams that were
        ordered with it, has used the memory for the last time.
        """


class NativeArray(NamedTuple):
    """An array of the device's own ecosystem, described for dlbridge.

    *dtype* is a dtype string (``"float32"``, ``"bfloat16"``, ``"uint8"``);
    *shape* is in elements; *strides* in bytes, None for C order; *owner* is the
    object that keeps *data* alive. *stream* is for `SupportsNative.to_native` only: the stream
    that the user has chosen for the device (``use_stream``), 0 if none.
    Elements below a byte (``"int4"``) take a byte each where *strides* are given, so that these
    count whole elements, and are packed in C order where these are None: packed elements have
    no strides. `SupportsNative.to_native` never gets packed ones.
    """

    device_id: int
    data: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    readonly: bool
    owner: object
    stream: int = 0


@runtime_checkable
class SupportsNative(Protocol, metaclass=_Contract):
    """A backend that converts from and to the objects of its ecosystem."""

    def from_native(self, obj: object) -> NativeArray | None:
        """The description of *obj*, or None, quickly, if it is not such an object.

        It is one whoever has made it: `to_native`, or the ecosystem's own library.
        dlbridge never frees the memory: it drops *owner* when the last tensor on it
        is gone, and the owner releases it. No work of dlbridge is waited for then,
        so the owner must release it in the order of the stream, as its library
        does with work of its own. Where two backends describe one object, the user
        has to name the one that is meant.
        """

    def to_native(self, array: NativeArray) -> object:
        """The ecosystem's object over the memory; it keeps *array.owner* alive.

        *array.data* of an empty tensor is 0 and belongs to nobody: return an empty
        object of that shape, or raise ExchangeError where the ecosystem has none.
        An object that cannot express the strides, or that *array* is read-only, is
        refused by ExchangeError as well, never given out as something else.
        ``from_native(to_native(array))`` names the same memory: the same *data* and *offset*, or
        where *data* is an address the same sum of them. Work on the memory may still be queued:
        dlbridge has ordered the device's current stream behind it, and does not wait. So work
        with the object belongs on that stream; where its library has no streams, or another
        one, the member waits.
        """


@runtime_checkable
class SupportsForeignData(Protocol, metaclass=_Contract):
    """A backend that must translate the ``data`` that another library exported."""

    def import_data(self, device_id: int, data: int, module: str) -> tuple[int, int]:
        """Our ``(device_id, data)`` for a foreign tensor's.

        dlbridge asks about each imported tensor with elements whose *data* is a handle,
        or an address on one of `CONTEXT_DEVICES`; about other addresses where nothing
        else says the device (the CUDA Array Interface). *device_id* is the exporter's,
        which may count in another way, and may be any int32, -1 included: return the
        number of the device that the memory is on. *module* is the name of the module
        of the object that exported it. ExchangeError if the convention is not
        recognised; *data* is never dereferenced on a guess. It is an integer from 0 to
        2**64 - 1: a ``void *`` of -1 is passed as 2**64 - 1.
        """


@runtime_checkable
class SupportsDeviceInfo(Protocol, metaclass=_Contract):
    """A backend that describes its devices, for ``info``, and finds them by name."""

    def device_info(self, device_id: int) -> Mapping[str, object]:
        """The properties of the device, by name.

        Always ``name``; where known ``kind`` (``"cpu"``, ``"gpu"``, ``"accelerator"`` or
        ``"other"``), ``memory`` (bytes), ``memory_used`` (bytes that this
        process has from the driver now, with those that are kept to be used again), ``uuid``,
        ``pci``, ``driver``, ``host_memory_shared`` (bool) and the device's limits. Two devices
        never have one UUID. A UUID is 32 hexadecimal digits, dashes and a prefix ``GPU-`` or
        ``MIG-`` do not count; AMD's 16 are taken, too. ``pci`` is ``domain:bus:device.function``.
        `dlbridge.Device` gives both in one form.
        """

    def find_device(self, name: str) -> int:
        """The device that *name* names (``"opencl:Intel"``; the first of a kind: ``"opencl:gpu"``).

        LookupError with a list of the devices if there is none, or more than one.
        """


@runtime_checkable
class SupportsTrim(Protocol, metaclass=_Contract):
    """A backend that keeps memory which was freed, because new memory costs time.

    It keeps at most as many bytes as the environment variable ``DLBRIDGE_POOL_LIMIT`` says
    (`dlbridge.kit.limits.pool_limit`), counted for each device.
    """

    def trim(self, device_id: int) -> None:
        """Give the driver all memory of the device that was freed and is kept.

        It may wait for work that was queued before. Memory that is not freed does not
        change, nor what is kept of other devices. A device that was not used yet is not opened
        for this.
        """
