"""Streams that may be destroyed before the memory that was used on them.

NVIDIA's driver reads the handle of a destroyed stream unchecked: every question about it is a
segmentation fault, or an answer about a new stream (docs/cuda.md, "Streams that are gone"). So
the driver is asked about a stream later only if its owner, an object of a library, is known to be
there; for any other stream something else stands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dlbridge.kit.driver import ALL_STREAMS, LastingStream

from .contexts import primary
from .driver import call, cu, status

__all__ = [
    "KEPT",
    "has_owner",
    "is_capture_known",
    "lasting",
    "note_owner",
    "owner",
    "torch_stream",
]

_LEGACY, _PER_THREAD = 1, 2
_NON_BLOCKING = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)

KEPT = 32
"""Of so many streams the objects are kept alive, those that were noted last."""

_owners: dict[int, object] = {}
"""Handle -> the object that keeps the stream. Not a weak reference: that still gives an object
whose ``__del__`` is destroying the stream (cupy's releases the GIL there)."""
_endless: set[int] = set()
"""Handles of streams that exist until the process ends."""
_capturing: set[int] = set()
"""Handles of streams that were capturing when they were last asked."""


def lasting(stream: int, device_id: int) -> LastingStream:
    """What an event has to be recorded on later to be behind the work now on *stream*.

    The legacy stream is behind every blocking stream of its context, also behind one that was
    destroyed, and an event of the context is behind all (measured: tests/hardware/streams.py).
    """
    if stream <= _PER_THREAD:
        return LastingStream(_LEGACY, device_id)
    if has_owner(stream) or _find_owner(stream, device_id):
        return LastingStream(stream, device_id)
    _note_capture(stream)
    context = int(call("cuStreamGetCtx", stream))
    place = None if context == primary(device_id) else context
    is_blocking = not int(call("cuStreamGetFlags", stream)) & _NON_BLOCKING
    return LastingStream(_LEGACY if is_blocking else ALL_STREAMS, device_id, place)


def has_owner(stream: int) -> bool:
    """Whether what keeps *stream* is known."""
    return owner(stream) is not None


def owner(stream: int) -> object:
    """What keeps *stream*, to be held; None if that is not known, or not any more."""
    return True if stream in _endless else _owners.get(stream)


def note_owner(stream: int, keeper: object) -> None:
    """Note that *stream* exists as long as *keeper* does, and is destroyed in no other way."""
    _owners.setdefault(stream, keeper)
    while len(_owners) > KEPT:  # another thread may drop one more, which is harmless
        _owners.pop(next(iter(_owners.copy()), stream), None)


def torch_stream(stream: Any) -> int:
    """The handle of torch's stream object."""
    handle = int(stream.cuda_stream)
    # torch keeps its streams until the process ends. An ExternalStream is somebody else's, and
    # has its handle as stream_id.
    if getattr(stream, "stream_id", handle) != handle:
        _endless.add(handle)
    return handle


def _find_owner(stream: int, device_id: int) -> bool:
    """Whether a library that is loaded has *stream* as its current one; its owner is noted."""
    for name, note in _LIBRARIES.items():
        module = sys.modules.get(name)
        # Another library's trouble is no reason to refuse: the stream counts as unknown.
        with suppress(Exception):
            if module is not None and note(module, stream, device_id):
                return True
    return False


def _torchs(torch: Any, stream: int, device_id: int) -> bool:
    cuda = torch.cuda
    return (
        cuda.is_initialized()
        and torch_stream(cuda.current_stream(device_id)) == stream
        and has_owner(stream)
    )


def _cupys(cupy: Any, stream: int, device_id: int) -> bool:
    current = cupy.cuda.get_current_stream()
    if not isinstance(current, cupy.cuda.Stream) or current.ptr != stream:
        return False  # an ExternalStream is somebody else's
    note_owner(stream, current)
    return True


_LIBRARIES: dict[str, Callable[[Any, int, int], bool]] = {
    "torch": _torchs,
    "cupy": _cupys,
}
"""Not jax, though it keeps its streams: asking for them may start it, which takes GPU memory."""


def _note_capture(stream: int) -> None:
    """Remember whether *stream*, which exists, captures."""
    code, captured = status("cuStreamIsCapturing", stream)
    if code == 0 and int(captured):
        _capturing.add(stream)
    else:
        _capturing.discard(stream)


def is_capture_known() -> bool:
    """Whether a stream captures, as far as can be known without asking streams that may be gone."""
    if _capturing:
        return True
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda and cuda.is_initialized() and cuda.is_current_stream_capturing())
