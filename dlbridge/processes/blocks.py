"""Blocks of memory that several processes have: made, received, and found by an address in them.

A block of the host is a file that no folder has (``memfd_create`` of Linux, elsewhere a deleted
temporary file). A process has the file once, and up to two mappings of it: to write, and to read
only. A block of a device is memory of its own, which the driver exports as a file descriptor, and
which the same driver opens in another process, on the device of the same UUID. The system ends
either with the last process that has it, however that process ends.
"""

from __future__ import annotations

import atexit
import errno
import mmap
import operator
import os
import stat
import sys
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

import dlbridge as bridge
from dlbridge.abi import immortal
from dlbridge.errors import DeviceMemoryError, Error, ExchangeError
from dlbridge.extending import (
    Memory,
    export_memory,
    export_refusal,
    import_memory,
    memory_of,
    new_exportable,
)
from dlbridge.kit.resources import Descriptor, recall, remember
from dlbridge.protocol import ExportedMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge import Device, Operand


PAGE = mmap.PAGESIZE
"""Each mapping begins at a multiple of it, and a block is as long as one."""


class Block:
    """A block's descriptor, open as long as this object exists.

    *token* names the block in all processes, so a process that receives it again finds it.
    """

    __slots__ = ("__weakref__", "descriptor", "token")

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.descriptor = Descriptor()

    def fileno(self) -> int:
        """The descriptor, which stays this object's."""
        return self.descriptor[0]

    def __del__(self) -> None:
        # A signal handler may cut this off at its entry; then the list closes it.
        descriptor = getattr(self, "descriptor", None)
        if descriptor:
            descriptor.close()


# Of the host ------------------------------------------------------------------------


class SharedFile(Block):
    """The file of a block of *nbytes* bytes.

    *is_foreign*: somebody else's, who can cut it off or demands more of who has it. It is not
    passed on as a block.
    """

    __slots__ = ("_mappings", "is_foreign", "nbytes")

    def __init__(self, nbytes: int, token: bytes) -> None:
        super().__init__(token)
        self.nbytes = nbytes
        self.is_foreign = False
        self._mappings: dict[bool, ref[MappedFile]] = {}

    def mapping(self, writable: bool) -> MappedFile:
        """The block in the memory of this process; the same object as long as it lives."""
        mapping = recall(self._mappings, writable)
        if mapping is None:
            mapping = MappedFile(self, writable)
            # Another thread may be as fast: then there are two mappings of the same bytes.
            remember(self._mappings, writable, mapping)
            stay_mapped(mapping)
        return mapping


class MappedFile:
    """A block in the memory of this process, until this object dies.

    *imports* are the devices that use the whole of it in place.
    """

    __slots__ = ("__weakref__", "address", "array", "file", "imports", "nbytes", "writable")

    def __init__(self, file: SharedFile, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        more: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        try:
            mapped = mmap.mmap(
                file.fileno(), file.nbytes, flags=mmap.MAP_SHARED, prot=protection, **more
            )
        except (OSError, ValueError, OverflowError) as exc:
            refused = getattr(exc, "errno", None) in (errno.EACCES, errno.EBADF, errno.ENODEV)
            raise (ExchangeError if refused else DeviceMemoryError)(
                f"cannot map {file.nbytes} bytes of shared memory: {exc}{way_out(exc)}"
            ) from exc
        self.file = file
        self.writable = writable
        self.nbytes = file.nbytes
        self.array: np.ndarray[Any, Any] = np.frombuffer(mapped, "u1")  # it keeps the mapping
        self.address = memory_of(self.array, "shared memory").data
        self.imports: dict[Device, ref[Memory]] = {}


_files: dict[bytes, ref[SharedFile]] = {}
_mapped: dict[int, ref[MappedFile]] = {}
_numbers = count()


def stay_mapped(mapping: MappedFile) -> None:
    """Note *mapping*, so that it is found by its address, and left to the end of the process."""
    remember(_mapped, next(_numbers), mapping)


@atexit.register
def _stay_mapped() -> None:
    """Leave the blocks to the end of the process: a device may be writing to them still."""
    for known in list(_mapped.values()):
        mapping = known()
        if mapping is not None:
            immortal(mapping.array)


def mapping_at(address: int, nbytes: int) -> MappedFile | None:
    """The mapping of a block that these bytes are in; None for any other memory.

    By the address, so that it is found whatever library has handed the memory on.
    """
    for known in list(_mapped.values()):
        mapping = known()
        if mapping is None:
            continue
        if mapping.address <= address and address + nbytes <= mapping.address + mapping.nbytes:
            return mapping
    return None


def make_file(nbytes: int) -> SharedFile:
    """A new block of at least *nbytes* > 0 bytes, all zero, which this user alone may open."""
    if os.name != "posix":
        raise ExchangeError(
            "shared memory is passed on as a file descriptor, which this system does not have; "
            "send the tensor without dlbridge.share: it is copied"
        )
    total = _memory_of_machine() if nbytes >= _LARGE else None
    if total is not None and nbytes > total:
        raise DeviceMemoryError(
            f"no room for {nbytes} bytes of shared memory: this machine has {total} bytes of "
            "memory and swap together; share the tensor in parts, or from a file (dlbridge.load)"
        )
    file = SharedFile(-(-nbytes // PAGE) * PAGE, os.urandom(16))
    try:
        if not hasattr(os, "memfd_create") or not _make_memory_file(file):
            _make_temporary_file(file)
    except (OSError, OverflowError) as exc:
        raise DeviceMemoryError(
            f"no room for {nbytes} bytes of shared memory: {exc}{way_out(exc)}"
        ) from exc
    remember(_files, file.token, file)
    return file


_LARGE = 1 << 30


def _memory_of_machine() -> int | None:
    """Bytes of memory and swap; None where Linux does not say it.

    The kernel refuses other memory that is larger than both, but not the file of a block: the
    process would end by a signal when it writes there.
    """
    from pathlib import Path

    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        sizes = dict(line.split(":", 1) for line in lines)
        return sum(int(sizes[name].split()[0]) << 10 for name in ("MemTotal", "SwapTotal"))
    except (OSError, KeyError, ValueError):
        return None


def way_out(exc: Exception) -> str:
    """What to do about *exc*, for the end of a message."""
    if getattr(exc, "errno", None) not in (errno.EMFILE, errno.ENFILE):
        return ""
    return (
        "; each block takes one or two: drop blocks, allow more (ulimit -n), or share one large "
        "tensor and use its parts"
    )


def _make_memory_file(file: SharedFile) -> bool:
    """False if the kernel has no such files."""
    import fcntl

    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        file.descriptor.extend(map(os.memfd_create, ["dlbridge"], [flags]))
    except OSError as exc:
        if exc.errno != errno.ENOSYS:
            raise
        return False
    fd = file.fileno()
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, file.nbytes)
    # Nobody can make it shorter then: a process that reads a mapping beyond its end is ended.
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return True


def _make_temporary_file(file: SharedFile) -> None:
    import tempfile

    with tempfile.TemporaryFile(buffering=0) as made:  # mode 0600, and in no folder
        file.descriptor.extend(map(os.dup, [made.fileno()]))
    fd = file.fileno()
    if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a signal later
        os.posix_fallocate(fd, 0, file.nbytes)
    else:
        os.ftruncate(fd, file.nbytes)


def receive_file(detach: Callable[[], int], nbytes: int, token: bytes) -> SharedFile:
    """The block whose descriptor *detach* returns; the one that is here already, if it is."""
    file = SharedFile(nbytes, token)
    receive_descriptor(file, detach, f"a block of {nbytes} bytes of shared memory")
    _check(file)
    here = recall(_files, token)
    if here is not None and os.path.sameopenfile(here.fileno(), file.fileno()):
        return here
    remember(_files, token, file)
    return file


def receive_descriptor(block: Block, detach: Callable[[], int], what: str) -> None:
    """Give *block* the descriptor that *detach* fetches from the sender, or an ExchangeError."""
    from multiprocessing import AuthenticationError

    try:
        block.descriptor.extend(map(operator.call, [detach]))
        os.set_inheritable(block.fileno(), False)
    except (OSError, EOFError, RuntimeError, AuthenticationError) as exc:
        raise ExchangeError(
            f"{what} has not come: {exc!r}; the process that "
            "sends it must live until the other one has received it, both must have been started "
            "by one multiprocessing (the same authkey), and this one must be allowed to open one "
            "more file (ulimit -n)"
        ) from exc


def _check(file: SharedFile) -> None:
    """ExchangeError unless the file is as long as the message says, and stays so."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.nbytes or file.nbytes <= 0:
        raise ExchangeError(
            f"the message names a block of {file.nbytes} bytes of shared memory, and the file "
            f"that came with it has {status.st_size}"
        )
    if not hasattr(os, "memfd_create"):
        return
    import fcntl

    try:
        seals = fcntl.fcntl(file.fileno(), fcntl.F_GET_SEALS)
    except OSError:  # a temporary file, of a sender that has no memfd_create
        return
    # Such a file on a tmpfs can have no seals: it has the one that says so.
    if seals != fcntl.F_SEAL_SEAL and not seals & fcntl.F_SEAL_SHRINK:
        raise ExchangeError(
            "the file of a block of shared memory can be cut off (F_SEAL_SHRINK is not set); "
            "dlbridge makes no such blocks"
        )


# Of a device ------------------------------------------------------------------------


_ORIGIN = "shared device memory"


class DeviceBlock(Block):
    """An allocation of a device of UUID *uuid*; *exported* describes it, without a descriptor."""

    __slots__ = ("_location", "exported", "uuid")

    def __init__(self, uuid: str, token: bytes) -> None:
        super().__init__(token)
        self.uuid = uuid
        self.exported = ExportedMemory(-1, 0, 0)
        self._location: tuple[ref[Memory], int] | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes tensors may lie in."""
        return self.exported.nbytes - self.exported.offset

    def location(self) -> tuple[Memory, int] | None:
        """The block in this process: its memory, and where it begins there; None if it is not."""
        location = self._location
        memory = None if location is None else location[0]()
        return None if location is None or memory is None else (memory, location[1])

    def enter(self, memory: Memory, start: int) -> None:
        """Be found as *memory*, in which it begins at *start*, as long as that lives."""
        self._location = ref(memory), start
        remember(_blocks, self.token, self)

    def export(self, memory: Memory) -> None:
        """Take a descriptor of *memory*, which has this object, from its backend."""
        device = memory.device
        exported = export_memory(memory)
        try:
            self.descriptor.extend(map(os.dup, [exported.fd]))
        except OSError as exc:
            raise DeviceMemoryError(
                f"{device} memory cannot be shared: {exc}{way_out(exc)}"
            ) from exc
        self.exported = exported._replace(fd=-1, owner=None)

    def on(self, name: str) -> tuple[Memory, int]:
        """As `location`; the device *name*, or another of its backend with the UUID, imports it.

        ExchangeError if no device here can.
        """
        here = self.location()
        if here is not None:
            return here
        device = self._device(name)
        refusal = export_refusal(device, importing=True)
        if refusal:
            raise ExchangeError(self._refused(name, refusal))
        exported = self.exported._replace(fd=self.fileno())
        try:
            memory, start = import_memory(device, exported, _ORIGIN, self)
        except Error as exc:
            raise ExchangeError(self._refused(name, str(exc))) from exc
        self.enter(memory, start)
        return memory, start

    def _device(self, name: str) -> Device:
        kind = name.partition(":")[0]
        try:
            here = bridge.devices(kind)
        except (Error, ValueError) as exc:
            raise ExchangeError(self._refused(name, str(exc))) from exc
        for device in sorted(here, key=lambda each: str(each) != name):  # that of the name first
            if device.uuid == self.uuid:
                return device
        raise ExchangeError(
            self._refused(name, f"no device of {kind!r} here has the UUID {self.uuid}")
        )

    def _refused(self, name: str, why: str) -> str:
        return (
            f"memory of {name} that another process shares cannot be used here: {why}; let the "
            'sender share the tensor on the CPU, dlbridge.share(x, "cpu"), or send a copy: '
            "dlbridge.to_device(t, t.device, copy=True)"
        )


_blocks: dict[bytes, ref[DeviceBlock]] = {}


def why_not_exported(device: Device) -> str:
    """Why *device* has no memory of its own for other processes; empty if it has."""
    return export_refusal(device) or export_refusal(device, importing=True)


def make_on_device(device: Device, nbytes: int) -> Memory:
    """New memory of *nbytes* > 0 bytes on *device*, for which `why_not_exported` has no reason."""
    block = DeviceBlock(device.uuid or "", os.urandom(16))
    memory = new_exportable(device, nbytes, _ORIGIN, block)
    block.export(memory)
    block.enter(memory, 0)
    return memory


def find_on_device(operand: Operand) -> tuple[DeviceBlock, int] | None:
    """The block that the elements are in, and where the first one is in it; None if in none.

    By the location, so that it is found whatever library has handed the memory on.
    """
    device = operand.device
    if not _blocks or not operand.size:
        return None
    low, nbytes = operand.span()
    for known in list(_blocks.values()):
        block = known()
        location = None if block is None else block.location()
        if block is None or location is None or location[0].device is not device:
            continue
        distance = operand.data - location[0].data
        if distance and not device.is_address:
            continue
        offset = distance + operand.byte_offset - location[1]
        if offset + low >= 0 and offset + low + nbytes <= block.nbytes:
            return block, offset
    return None


def receive_device_block(
    detach: Callable[[], int], uuid: str, nbytes: int, offset: int, driver: str, token: bytes
) -> DeviceBlock:
    """The block whose descriptor *detach* returns; the one that is here already, if it is."""
    block = DeviceBlock(uuid, token)
    receive_descriptor(block, detach, f"memory of a device, {nbytes} bytes,")
    here = recall(_blocks, token)
    if here is not None:
        return here
    if not 0 <= offset < nbytes < 1 << 63:
        raise ExchangeError(
            f"the message names byte {offset} of {nbytes} bytes of a device's memory, which "
            "cannot be"
        )
    block.exported = ExportedMemory(-1, nbytes, offset, driver)
    remember(_blocks, token, block)
    return block
