"""The rules for the streams of ``__dlpack__``: S in ``docs/conformance.md``."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .cases import Table, export, first_address, refusal, require
from .subject import Fail, NotOffered, Subject

__all__ = ["STREAMS"]

STREAMS = Table()
case = STREAMS.case

_CUDA, _ROCM = {2, 13}, {10}
_HOST = {1, 3, 11}
_WRONG = (ValueError, TypeError, BufferError)


def _source() -> np.ndarray[Any, Any]:
    return np.arange(1 << 12, dtype="float32") % 128


def _array_on(subject: Subject, types: set[int], what: str) -> Any:
    """An array on one of these devices; NotOffered if the library's are elsewhere."""
    if subject.place.device[0] not in types:
        raise NotOffered(f"its arrays are not on {what}")
    return subject.make(_source())


def _accepts(array: Any, *streams: Any) -> str:
    for stream in streams:
        try:
            array.__dlpack__(stream=stream)
        except Exception as exc:
            raise Fail(f"stream={stream}: {type(exc).__name__}: {exc}") from exc
    return "accepted"


@case("S1")
def _(subject: Subject) -> str:
    array = _array_on(subject, _HOST, "the host")
    _accepts(array, None, -1)
    refusal(lambda: array.__dlpack__(stream="7"), _WRONG)
    return refusal(lambda: array.__dlpack__(stream=7), _WRONG)


@case("S2")
def _(subject: Subject) -> str:
    return _accepts(_array_on(subject, _CUDA, "CUDA"), None)


@case("S3")
def _(subject: Subject) -> str:
    return _accepts(_array_on(subject, _CUDA | _ROCM, "CUDA or ROCm"), -1)


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
    array = _array_on(subject, _CUDA, "CUDA")
    driver = _Driver(subject.place.device[1])
    for turn in range(4):
        on = driver.stream() if stream is None else stream
        _capsule, managed = export(array, stream=on, copy=copy)
        found = np.frombuffer(driver.read(first_address(managed), source.nbytes, on), "f4")
        require(np.array_equal(found, source), f"unfinished at turn {turn}")
    return "finished in 4 turns"


@case("S4")
def _(subject: Subject) -> str:
    return _finished(subject, 1)


@case("S5")
def _(subject: Subject) -> str:
    return _finished(subject, 2)


@case("S6")
def _(subject: Subject) -> str:
    return _finished(subject, None)


@case("S13")
def _(subject: Subject) -> str:
    for stream in (1, 2, None):
        _finished(subject, stream, copy=True)
    return "finished on the default streams and on a new one"


@case("S7")
def _(subject: Subject) -> str:
    array = _array_on(subject, _CUDA, "CUDA")
    return refusal(lambda: array.__dlpack__(stream=0), _WRONG)


@case("S8")
def _(subject: Subject) -> str:
    array = _array_on(subject, _CUDA | _ROCM, "CUDA or ROCm")
    return refusal(lambda: array.__dlpack__(stream=-2), _WRONG)


@case("S9")
def _(subject: Subject) -> str:
    array = subject.make(_source())
    refusal(lambda: array.__dlpack__(stream=1.5), (*_WRONG, RuntimeError))
    return refusal(lambda: array.__dlpack__(stream="1"), (*_WRONG, RuntimeError))


@case("S10")
def _(subject: Subject) -> str:
    array = subject.make(_source())
    return refusal(lambda: array.__dlpack__(stream=True), (*_WRONG, RuntimeError))


@case("S11")
def _(subject: Subject) -> str:
    array = _array_on(subject, _ROCM, "ROCm")
    _accepts(array, None, 0)
    refusal(lambda: array.__dlpack__(stream=1), _WRONG)
    return refusal(lambda: array.__dlpack__(stream=2), _WRONG)


@case("S12")
def _(subject: Subject) -> str:
    array = subject.make(_source())
    if subject.place.device[0] in _HOST:
        raise NotOffered("its arrays are in host memory")
    export(array, dl_device=(1, 0))
    return refusal(lambda: array.__dlpack__(dl_device=(1, 0), stream=1), _WRONG)


@case("S16")
def _(subject: Subject) -> str:
    if subject.place.device[0] in _HOST | _CUDA | _ROCM:
        raise NotOffered("its arrays are in host memory, or on CUDA or ROCm")
    array = subject.make(_source())
    _accepts(array, None)
    array.__dlpack__(stream=-1, max_version=(1, 3))
    return refusal(lambda: array.__dlpack__(stream="none"), _WRONG)
