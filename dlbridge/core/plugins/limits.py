"""Copies within the limits that a backend declares: `protocol.Facts`.

A backend with ``copy_alignment`` or ``max_copy_nbytes`` is used through a
`LimitedCopies`, which takes bytes at any offset and of any number.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.protocol import (
    ADDRESS_DEVICES,
    Backend,
    Facts,
    Region,
    Span,
    SupportsAllocateFromHost,
    SupportsCopy,
    SupportsFill,
    SupportsStreams,
    SupportsStridedCopy,
)

from .contract import capabilities, members

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LIMITED", "LimitedCopies", "limited", "padded"]

LIMITED: dict[int, Backend] = {}
"""The backends with limits, by ``id``; each is referred to, so that no ``id`` is used again."""


def _renew_locks() -> None:
    # A thread that held one does not exist in the child.
    for plugin in LIMITED.copy().values():
        if isinstance(plugin, LimitedCopies):
            plugin._locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

STAGING = 16 << 20
"""Bytes of host memory through which a copy goes that the device cannot make."""

_leaked: list[object] = []
"""Host memory leaked on purpose: a transfer may still be using it, and could not be awaited."""


def limited(plugin: Backend) -> Backend:
    """*plugin* as the core uses it: itself, or a `LimitedCopies` if it declares limits."""
    known = LIMITED.get(id(plugin))
    if known is None:
        alignment = getattr(plugin, "copy_alignment", Facts.copy_alignment)
        most = getattr(plugin, "max_copy_nbytes", Facts.max_copy_nbytes)
        if alignment == 1 and most is None:
            return plugin
        # `supports` keeps its answers by class.
        cls = type(f"Limited{type(plugin).__name__}", (LimitedCopies,), {})
        made: Any = cls(plugin, alignment, most)
        known = LIMITED.setdefault(id(plugin), made)
    return known


def padded(plugin: Backend, nbytes: int) -> int:
    """*nbytes*, or the next number of bytes that *plugin* can copy."""
    alignment: int = getattr(plugin, "copy_alignment", Facts.copy_alignment)
    return nbytes + -nbytes % alignment


class _Word(NamedTuple):
    """A part of a span that does not fill the smallest unit that can be copied."""

    start: int
    """Where the part begins in the span."""
    nbytes: int
    whole: Span
    """The unit, *before* bytes of which lie before the part."""
    before: int

    def from_start(self) -> _Word:
        """The same part, of a source that begins with it."""
        return _Word(0, self.nbytes, self.whole, self.before)


class LimitedCopies:
    """A backend whose copies are cut, and completed at both ends, as its limits demand.

    A unit (`copy_alignment` bytes) of which only some bytes are written is read
    first and written back, under one lock for each device: two threads may write
    different bytes of one unit. Such a copy is done on return.
    """

    def __init__(self, plugin: Any, alignment: int, most: int | None) -> None:
        contracts = [Backend, *(each for each in capabilities() if isinstance(plugin, each))]
        if SupportsAllocateFromHost in contracts:  # it knows no unit
            contracts.remove(SupportsAllocateFromHost)
        for name in {name for contract in contracts for name in members(contract)}:
            if name not in vars(LimitedCopies):
                setattr(self, name, getattr(plugin, name))
        if isinstance(plugin, SupportsCopy):
            self.copy = self._copy
        if isinstance(plugin, SupportsFill):
            self.fill = self._fill
        if isinstance(plugin, SupportsStridedCopy):
            self.copy_strided = self._copy_strided
            self.copy_strided_from_host = self._copy_strided_from_host
            self.copy_strided_to_host = self._copy_strided_to_host
        self.host_copies_block = getattr(plugin, "host_copies_block", Facts.host_copies_block)
        self.copy_alignment = alignment
        self.max_copy_nbytes = None if most is None else most - most % alignment
        self._plugin = plugin
        self._waits = isinstance(plugin, SupportsStreams)
        self._addresses = plugin.device_type in ADDRESS_DEVICES
        self._locks: dict[int, Any] = {}

    def copy_from_host(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy the bytes of *source* to *target*, whose ends may lie anywhere."""
        words, start, nbytes = self._cut(target)
        for at, size in self._pieces(nbytes):
            begin = start + at
            part = source[begin : begin + size]
            self._plugin.copy_from_host(_part(target, begin, size), part, stream)
        self._write(words, target.device_id, source, stream)

    def copy_from_host_to_new(self, target: Span, source: memoryview, stream: int) -> None:
        """Copy *source* to a new allocation; the bytes after it there may be overwritten."""
        rest = target.nbytes % self.copy_alignment
        whole = target.nbytes - rest
        for at, size in self._pieces(whole):
            part = source[at : at + size]
            self._plugin.copy_from_host(_part(target, at, size), part, stream)
        if rest:
            word = bytearray(self.copy_alignment)
            word[:rest] = source[whole:]
            span = _part(target, whole, len(word))
            with self._waiting(target.device_id, stream, word):
                self._plugin.copy_from_host(span, memoryview(word), stream)

    def copy_to_host(self, source: Span, into: memoryview, stream: int) -> None:
        """Copy the bytes of *source*, whose ends may lie anywhere, to *into*."""
        words, start, nbytes = self._cut(source)
        for at, size in self._pieces(nbytes):
            begin = start + at
            part = into[begin : begin + size]
            self._plugin.copy_to_host(_part(source, begin, size), part, stream)
        for word, content in zip(words, self._read(words, stream), strict=True):
            part = content[word.before : word.before + word.nbytes]
            into[word.start : word.start + word.nbytes] = part

    def _copy(self, target: Span, source: Span, stream: int) -> None:
        """Copy on the device what it can copy, and the rest through the host."""
        if (self._address(target) - self._address(source)) % self.copy_alignment:
            self._copy_through_host(target, source, stream)
            return
        words, start, nbytes = self._cut(target)
        for at, size in self._pieces(nbytes):
            there, here = _part(target, start + at, size), _part(source, start + at, size)
            self._plugin.copy(there, here, stream)
        for word in words:
            span = _part(source, word.start, word.nbytes)
            content = memoryview(bytearray(word.nbytes))
            self._download(span, content, target.device_id, stream)
            self._write([word.from_start()], target.device_id, content, stream)

    def _copy_through_host(self, target: Span, source: Span, stream: int) -> None:
        room = memoryview(bytearray(min(STAGING, target.nbytes)))
        for at in range(0, target.nbytes, STAGING):
            part = room[: min(STAGING, target.nbytes - at)]
            self._download(_part(source, at, len(part)), part, target.device_id, stream)
            with self._waiting(target.device_id, stream, room):
                self.copy_from_host(_part(target, at, len(part)), part, stream)

    def _download(self, source: Span, into: memoryview, index: int, stream: int) -> None:
        """Copy to the host, done on return; *stream* belongs to device *index*."""
        if source.device_id != index:  # then the core has waited for the source's work
            stream = self._plugin.current_stream(source.device_id)
        with self._waiting(source.device_id, stream, into):
            self.copy_to_host(source, into, stream)

    def _fill(self, target: Span, value: int, stream: int) -> None:
        """Set each byte of *target*, whose ends may lie anywhere, to *value*."""
        words, start, nbytes = self._cut(target)
        for at, size in self._pieces(nbytes):
            self._plugin.fill(_part(target, start + at, size), value, stream)
        content = memoryview(bytes([value]) * self.copy_alignment)
        self._write([word.from_start() for word in words], target.device_id, content, stream)

    def _copy_strided(
        self,
        target: Span,
        target_region: Region,
        source: Span,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region inside one device, in parts that it can copy."""
        if self._fits(target, target_region) and self._fits(source, source_region):
            self._plugin.copy_strided(target, target_region, source, source_region, stream)
            return
        for (at, into), (begin, taken) in _halves(target_region, source_region):
            there, here = _part(target, at, into.extent), _part(source, begin, taken.extent)
            if into.shape:
                self._copy_strided(there, into, here, taken, stream)
            else:
                self._copy(there, here, stream)

    def _copy_strided_from_host(
        self,
        target: Span,
        target_region: Region,
        source: memoryview,
        source_region: Region,
        stream: int,
    ) -> None:
        """Copy a region of host memory, in parts that the device can copy."""
        if self._fits(target, target_region):
            plugin = self._plugin
            plugin.copy_strided_from_host(target, target_region, source, source_region, stream)
            return
        for (at, into), (begin, taken) in _halves(target_region, source_region):
            there, here = _part(target, at, into.extent), source[begin : begin + taken.extent]
            if into.shape:
                self._copy_strided_from_host(there, into, here, taken, stream)
            else:
                self.copy_from_host(there, here, stream)

    def _copy_strided_to_host(
        self,
        source: Span,
        source_region: Region,
        into: memoryview,
        into_region: Region,
        stream: int,
    ) -> None:
        """Copy a region to host memory, in parts that the device can copy."""
        if self._fits(source, source_region):
            self._plugin.copy_strided_to_host(source, source_region, into, into_region, stream)
            return
        for (begin, taken), (at, written) in _halves(source_region, into_region):
            here, there = _part(source, begin, taken.extent), into[at : at + written.extent]
            if taken.shape:
                self._copy_strided_to_host(here, taken, there, written, stream)
            else:
                self.copy_to_host(here, there, stream)

    def _fits(self, span: Span, region: Region) -> bool:
        """Whether the device can copy the region in one call."""
        unit, most = self.copy_alignment, self.max_copy_nbytes
        places = (self._address(span), region.run_nbytes, *region.strides)
        return not any(place % unit for place in places) and (most is None or span.nbytes <= most)

    def _address(self, span: Span) -> int:
        """Where the span begins, as its device counts for alignment."""
        return span.data + span.offset if self._addresses else span.offset

    def _cut(self, span: Span) -> tuple[list[_Word], int, int]:
        """The incomplete units at the ends of *span*; start and length of what is between."""
        unit = self.copy_alignment
        first = self._address(span)
        end = first + span.nbytes
        low, high = first + -first % unit, end - end % unit
        if first == low and end == high:
            return [], 0, span.nbytes
        words = []
        if low > first:  # the end may be in the same unit
            whole = _part(span, low - unit - first, unit)
            words.append(_Word(0, min(low, end) - first, whole, first + unit - low))
        if high < end and high >= low:
            words.append(_Word(high - first, end - high, _part(span, high - first, unit), 0))
        return words, low - first, max(high - low, 0)

    def _pieces(self, nbytes: int) -> Iterator[tuple[int, int]]:
        """Start and length of the parts of *nbytes* bytes that one call may copy."""
        most = self.max_copy_nbytes or max(nbytes, 1)
        for start in range(0, nbytes, most):
            yield start, min(most, nbytes - start)

    def _read(self, words: list[_Word], stream: int) -> list[memoryview]:
        """The content of the units, there on return."""
        contents = [memoryview(bytearray(self.copy_alignment)) for _ in words]
        if words:
            with self._waiting(words[0].whole.device_id, stream, contents):
                for word, content in zip(words, contents, strict=True):
                    self._plugin.copy_to_host(word.whole, content, stream)
        return contents

    def _write(self, words: list[_Word], index: int, source: memoryview, stream: int) -> None:
        """Write parts of *source* into units whose other bytes stay; done on return."""
        if not words:
            return
        # The lock is found and taken before anything is allocated that it protects.
        with self._locks.setdefault(index, threading.RLock()):
            contents = self._read(words, stream)
            with self._waiting(index, stream, contents):
                for word, content in zip(words, contents, strict=True):
                    part = source[word.start : word.start + word.nbytes]
                    content[word.before : word.before + word.nbytes] = part
                    self._plugin.copy_from_host(word.whole, content, stream)

    def _waiting(self, index: int, stream: int, host: object) -> _Waiting:
        return _Waiting(self._plugin if self._waits else None, index, stream, host)


class _Waiting:
    """A block that ends when the work on its stream is done, which may use *host*."""

    def __init__(self, plugin: Any, index: int, stream: int, host: object) -> None:
        self._plugin = plugin
        self._where = index, stream
        self._host = host

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._plugin is None:
            return
        try:
            self._plugin.synchronize(*self._where)
        except BaseException:
            _leaked.append(self._host)
            raise


def _halves(*regions: Region) -> Iterator[list[tuple[int, Region]]]:
    """Regions of one shape in two parts, with the offsets of these, or with a dimension less."""
    count, *inner = regions[0].shape
    if count == 1:
        yield [
            (0, Region(tuple(inner), region.strides[1:], region.run_nbytes)) for region in regions
        ]
        return
    half = count // 2
    for start, length in ((0, half), (half, count - half)):
        shape = (length, *inner)
        yield [
            (start * region.strides[0], Region(shape, region.strides, region.run_nbytes))
            for region in regions
        ]


def _part(span: Span, start: int, nbytes: int) -> Span:
    """*nbytes* bytes that begin *start* bytes after the beginning of *span*."""
    return Span(span.device_id, span.data, span.offset + start, nbytes)
