"""The rules for the streams of ``__dlpack__``: S in ``docs/conformance.md``."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from .cases import (
    Offering,
    Source,
    Table,
    export,
    first_address,
    offered,
    read,
    refusal,
    require,
    require_equal,
)
from .producer import HOST
from .subject import Fail, NotOffered, Subject

case = STREAMS = Table()

_CUDA, _ROCM = {2, 13}, {10}


def _source() -> np.ndarray[Any, Any]:
    return np.arange(1 << 12, dtype="float32") % 128


def _array_on(subject: Subject, types: set[int] | frozenset[int], what: str) -> Any:
    """An array on one of these devices; NotOffered if the library's are elsewhere."""
    offered(subject.traits.device[0] in types, f"its arrays are not on {what}")
    return subject.make(_source())


_on_host = partial(_array_on, types=HOST, what="the host")
_on_cuda = partial(_array_on, types=_CUDA, what="CUDA")
_on_rocm = partial(_array_on, types=_ROCM, what="ROCm")
_on_either = partial(_array_on, types=_CUDA | _ROCM, what="CUDA or ROCm")


_REFUSALS = (BufferError, ValueError, NotImplementedError)


def _accepts(array: Any, *streams: Any) -> str:
    """The evidence that None is accepted, and other streams if the library has support for them."""
    array.__dlpack__(stream=None)
    for stream in streams:
        with Offering(f"stream={stream}", *_REFUSALS):
            array.__dlpack__(stream=stream)
    return "accepted"


def _refuses(array: Any, *streams: Any) -> str:
    for stream in streams:
        evidence = refusal(partial(array.__dlpack__, stream=stream))
    return evidence


@case("S1", "Host memory takes stream None", Source.EXPORT)
def _(subject: Subject) -> str:
    # "Only None is accepted" binds the consumer (C36); of the producer it is evidence.
    array = _on_host(subject)
    _accepts(array)
    try:
        return _refuses(array, "7", 7)
    except Fail:
        return "stream=7 is accepted, too, which no consumer may pass"


case("S2", "CUDA takes None", Source.EXPORT)(lambda subject: _accepts(_on_cuda(subject)))
case("S3", "CUDA and ROCm take -1, if other streams than None at all: no ordering", Source.EXPORT)(
    lambda subject: _accepts(_on_either(subject), -1)
)


class _Driver:
    """The CUDA driver that the process has: what a consumer needs of it."""

    def __init__(self, device: int) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as exc:
            raise NotOffered(f"no CUDA driver to read with: {exc}") from exc
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the function *name*; Fail with its status if that is not 0."""
        status = getattr(self.library, name)(*arguments)
        require(status == 0, f"{name} of the driver says {status}")

    def stream(self) -> int:
        """A new stream that does not wait for the legacy default stream."""
        handle = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(handle), 1)
        return handle.value or 0

    def read(self, address: int, nbytes: int, stream: int) -> bytes:
        """The memory at *address*, as work on *stream* sees it."""
        into = ctypes.create_string_buffer(nbytes)
        at = ctypes.c_uint64(address)
        on = ctypes.c_void_p(stream)
        self.call("cuMemcpyDtoHAsync_v2", into, at, ctypes.c_size_t(nbytes), on)
        self.call("cuStreamSynchronize", on)
        return into.raw


def _finished(subject: Subject, stream: int | None, *, copy: bool | None = None) -> str:
    """The evidence that *stream* (None: a new one) reads the array, or a copy of it, finished."""
    source = _source()
    array = _on_cuda(subject)
    driver = _Driver(subject.traits.device[1])
    for turn in range(4):
        on = driver.stream() if stream is None else stream
        with Offering("support for other streams than None is optional", *_REFUSALS):
            managed = export(array, stream=on, copy=copy)
        values = np.frombuffer(driver.read(first_address(managed), source.nbytes, on), "f4")
        require(np.array_equal(values, source), f"unfinished at turn {turn}")
    return "finished in 4 turns"


case("S4", "CUDA, 1: what the legacy default stream reads is finished", Source.EXPORT)(
    partial(_finished, stream=1)
)
case("S5", "CUDA, 2: what the per-thread default stream reads is finished", Source.EXPORT)(
    partial(_finished, stream=2)
)
case("S6", "CUDA, above 2: a handle; what that stream reads is finished", Source.EXPORT)(
    partial(_finished, stream=None)
)
case("S7", "CUDA, 0: an error", Source.EXPORT)(lambda subject: _refuses(_on_cuda(subject), 0))
case("S8", "Below -1: an error", Source.EXPORT)(lambda subject: _refuses(_on_either(subject), -2))
case("S9", "Not an int: an error", Source.NONE)(
    lambda subject: _refuses(subject.make(_source()), 1.5, "1")
)
case("S10", "A bool is not a stream", Source.NONE)(
    lambda subject: _refuses(subject.make(_source()), True)
)


@case("S11", "ROCm takes None and 0, and refuses 1 and 2", Source.EXPORT)
def _(subject: Subject) -> str:
    array = _on_rocm(subject)
    _accepts(array, 0)
    return _refuses(array, 1, 2)


@case("S12", "To the CPU: stream must be None, and the copy is finished", Source.EXPORT)
def _(subject: Subject) -> str:
    offered(subject.traits.device[0] not in HOST, "its arrays are in host memory")
    array = subject.make(_source())
    require_equal(read(subject, export(array, dl_device=(1, 0))), _source())
    return refusal(lambda: array.__dlpack__(dl_device=(1, 0), stream=1))


@case("S13", "A copy is finished for the consumer's stream", Source.EXPORT)
def _(subject: Subject) -> str:
    for stream in (1, 2, None):
        _finished(subject, stream, copy=True)
    return "finished on the default streams and on a new one"


@case("S16", "Other devices take None, and refuse what is no stream", Source.EXPORT)
def _(subject: Subject) -> str:
    other = subject.traits.device[0] not in HOST | _CUDA | _ROCM
    offered(other, "its arrays are in host memory, or on CUDA or ROCm")
    array = subject.make(_source())
    _accepts(array)
    return _refuses(array, "none")
