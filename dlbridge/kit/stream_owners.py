"""Who keeps a stream that another library has made.

A driver may not be asked about a stream that was destroyed: NVIDIA's ends the process, or answers
about a new stream that has the same handle. So it is asked about a stream only while what keeps the
stream is held.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["LIBRARIES", "owner", "torch_captures", "torch_stream"]

_endless: set[int] = set()
"""Handles of streams that exist until the process ends."""


def torch_stream(stream: Any) -> int:
    """The handle of torch's stream object."""
    handle = int(stream.cuda_stream)
    # torch keeps its streams until the process ends. An ExternalStream is somebody else's, and
    # has its handle as stream_id.
    if getattr(stream, "stream_id", handle) != handle:
        _endless.add(handle)
    return handle


def owner(stream: int, device_id: int) -> object:
    """What keeps *stream*, to be held; None if that is not known.

    A library is asked that is loaded and has *stream* as its current one.
    """
    if stream in _endless:
        return True
    for name, ask in LIBRARIES.items():
        module = sys.modules.get(name)
        # Another library's trouble is no reason to refuse: the stream counts as unknown.
        with suppress(Exception):
            found = module and ask(module, stream, device_id)
            if found:
                return found
    return None


def _torchs(torch: Any, stream: int, device_id: int) -> bool:
    cuda = torch.cuda
    return (
        cuda.is_initialized()
        and torch_stream(cuda.current_stream(device_id)) == stream
        and stream in _endless
    )


def _cupys(cupy: Any, stream: int, device_id: int) -> object:
    current = cupy.cuda.get_current_stream()
    # An ExternalStream is somebody else's.
    return current if isinstance(current, cupy.cuda.Stream) and current.ptr == stream else None


LIBRARIES: dict[str, Callable[[Any, int, int], object]] = {"torch": _torchs, "cupy": _cupys}
"""Module -> a function that gives what keeps a stream.

Not jax, though it keeps its streams: asking for them may start it, which takes GPU memory."""


def torch_captures() -> bool:
    """Whether torch captures its current stream."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda and cuda.is_initialized() and cuda.is_current_stream_capturing())
