"""One tensor of a file on a device: in place where that is possible, else read into new memory.

Memory that the host can address is read into directly. Other devices get the
bytes through one small buffer.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.moves.allocate import allocate
from dlbridge.core.moves.copies import copy_elements
from dlbridge.core.moves.host_and_device import packed_bytes
from dlbridge.core.moves.host_views import host_view
from dlbridge.core.moves.plans import plan_move, why_no_host_view
from dlbridge.core.moves.steps import Plan
from dlbridge.core.moves.traces import record
from dlbridge.core.moves.transfer import run
from dlbridge.core.tensor.array_tensor import make_tensor, wrap_array
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import TRACES
from dlbridge.core.values.devices import Device
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import Error, ExchangeError, FileError

from .entries import name_of, refuse
from .npy import open_member

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.operand import Operand
    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.core.values.dtypes import DType

    from .entries import Entry
    from .source import Source

    Report = Callable[[int], None]
    """Called with the number of bytes that were read since the last call."""

__all__ = ["place"]

_CPU = Device.of(1, 0)

ALIGNMENT = 64
"""Bytes. Tensors at such places of the file can be used by a device in place.

Kernels of PoCL read up to 64 bytes as aligned (``dlbridge_opencl.imports``), and
Vulkan binds buffers at multiples of 16 to 64 on the devices that are known here.
"""

PAGE = 4096
"""Bytes. If a tensor cannot be imported alone, the import begins at a multiple of this."""

PIECE = 64 << 20
"""Bytes read at once; Ctrl-C works after each."""

STAGED = 16 << 20
"""Bytes of the buffer for devices whose memory the host cannot address."""


class _Place:
    """An entry on its way: what every step needs of it."""

    def __init__(self, source: Source, entry: Entry, target: Device, copy: bool | None) -> None:
        self.source = source
        self.entry = entry
        self.target = target
        self.copy = copy
        self.shape = entry.shape[::-1] if entry.fortran else entry.shape
        self.origin = f"{entry.name or 'the array'} of {source.path}"

    def plan(self, kind: str, nbytes: int, reason: str) -> Plan:
        """A plan of one step, for `dlbridge.trace`."""
        plan = Plan(self.entry.dtype, self.shape, self.origin, _CPU, self.target)
        plan.add(kind, _CPU, self.target, nbytes, reason)
        return plan


def place(
    source: Source, entry: Entry, target: Device, copy: bool | None, report: Report
) -> Tensor:
    """The tensor of *entry* on *target*; *copy* as in `dlbridge.load`."""
    if entry.problem:
        raise FileError(entry.problem)
    way = _Place(source, entry, target, copy)
    if not entry.nbytes:
        tensor = allocate(target, entry.dtype, way.shape, padded=entry.padded)
    else:
        found = "copy=True was asked for" if copy is True else _in_place(way)
        if isinstance(found, str) and copy is False:
            raise ExchangeError(
                f"{name_of(source.path, entry.name)} cannot be used in place on {target}: "
                f"{found}; pass copy=None to allow a copy"
            )
        if isinstance(found, str):
            tensor = _read(way, found, report)
        else:
            tensor = found
            report(entry.nbytes)
    return tensor.transpose() if entry.fortran else tensor


# In place ---------------------------------------------------------------------------


def _in_place(way: _Place) -> Tensor | str:
    """The tensor on the pages of the file, or the reason why it cannot be there."""
    entry, target = way.entry, way.target
    if entry.member:
        return "it is compressed"
    alignment = entry.dtype.itemsize if target is _CPU else ALIGNMENT
    if entry.offset % alignment:
        return (
            f"it begins at byte {entry.offset} of the file, which is not a multiple of {alignment}"
        )
    start = time.perf_counter()
    try:
        mapped = way.source.tensor(entry.offset, entry.dtype, way.shape, padded=entry.padded)
    except OSError as exc:
        return f"the file cannot be mapped: {exc}"
    if target is not _CPU:
        return _imported(way, mapped)
    if TRACES:
        plan = way.plan("share", 0, "the pages of the file are the memory")
        plan.seconds = time.perf_counter() - start
        record(plan)
    return mapped


def _imported(way: _Place, mapped: Tensor) -> Tensor | str:
    """The tensor in place on a device: by itself, or in the pages that it lies on."""
    entry = way.entry
    found = _import(way, mapped)
    # Some drivers take whole words; the system fills the last page of a file with zeros.
    before = entry.offset % PAGE
    nbytes = -(-(before + entry.nbytes) // 4) * 4
    if nbytes == entry.nbytes or not isinstance(found, str):
        return found
    pages = way.source.tensor(entry.offset - before, _BYTE, (nbytes,))
    found = _import(way, pages)
    if isinstance(found, str):
        return found
    return _part(operand_of(found), before, entry.dtype, way.shape, entry.padded)


def _import(way: _Place, mapped: Tensor) -> Tensor | str:
    operand = operand_of(mapped)
    try:
        plan = plan_move(operand, way.target, way.copy, way.origin)
        if plan.nbytes:
            return plan.steps[-1].reason
        plan.may_copy = False
        plan.dtype, plan.shape = way.entry.dtype, way.shape
        return run(plan, mapped, operand)
    except Error as exc:  # copy=False, or a driver that knows more than its backend
        return str(exc).removesuffix("; pass copy=None to allow it")  # `place` says so, too


_BYTE = as_dtype("uint8")


def _part(
    operand: Operand, start: int, dtype: DType, shape: tuple[int, ...], padded: bool
) -> Tensor:
    """A part of the memory of *operand*, from byte *start* of it on, as a tensor."""
    assert operand.memory is not None  # not on the CPU
    return make_tensor(
        operand.memory,
        operand.byte_offset + start,
        dtype,
        shape,
        readonly=operand.readonly,
        flags=FLAG_SUBBYTE_PADDED if padded else 0,
    )


# Read ------------------------------------------------------------------------------


def _read(way: _Place, reason: str, report: Report) -> Tensor:
    """A new tensor with the bytes of the file."""
    start = time.perf_counter()
    entry, target = way.entry, way.target
    way.source.check_size()
    tensor = allocate(target, entry.dtype, way.shape, padded=entry.padded)
    fill = _filler(way)
    if target.is_host:
        _fill_host(fill, packed_bytes(operand_of(tensor)), report)
    elif not why_no_host_view(operand_of(tensor)):
        with host_view(tensor) as viewed:
            _fill_host(fill, packed_bytes(operand_of(viewed)), report)
    else:
        _fill_staged(fill, operand_of(tensor), report)
    if TRACES:
        plan = way.plan("read", entry.nbytes, reason)
        plan.seconds = time.perf_counter() - start
        record(plan)
    return tensor


def _filler(way: _Place) -> Callable[[memoryview], None]:
    """A function that fills memory with the next bytes of the tensor."""
    source, entry = way.source, way.entry
    if entry.member:
        return _Unpacker(source, entry).fill
    position = entry.offset

    def fill(into: memoryview) -> None:
        nonlocal position
        source.read_into(position, into)
        position += len(into)

    return fill


class _Unpacker:
    """The bytes of a compressed member, in order."""

    CHUNK = 1 << 20  # of bytes that zipfile makes at once

    def __init__(self, source: Source, entry: Entry) -> None:
        self.where = f"{source.path}: member {entry.member!r}"
        self.open = partial(open_member, source, entry)
        self.stream: Any = None

    def fill(self, into: memoryview) -> None:
        """Fill *into* with the next bytes; FileError if the archive does not have them."""
        try:
            self.stream = self.stream or self.open()
            for start in range(0, len(into), self.CHUNK):
                part = into[start : start + self.CHUNK]
                if self.stream.readinto(part) != len(part):
                    raise EOFError("it ends too early")
        except Exception as exc:
            refuse(exc, f"{self.where} cannot be unpacked")


def _fill_host(fill: Callable[[memoryview], None], into: memoryview, report: Report) -> None:
    for start in range(0, len(into), PIECE):
        part = into[start : start + PIECE]
        fill(part)
        report(len(part))


def _fill_staged(fill: Callable[[memoryview], None], target: Operand, report: Report) -> None:
    import numpy as np

    buffer = np.empty(min(STAGED, target.nbytes), "u1")
    for start in range(0, target.nbytes, STAGED):
        part = buffer[: target.nbytes - start]
        fill(part.data)
        there = _part(target, start, _BYTE, (part.size,), False)
        copy_elements(operand_of(there), operand_of(wrap_array(part)))
        report(part.size)
