"""The valid values of ``stream=``, and who keeps a stream that another library has made.

A driver may not be asked about a stream that was destroyed: NVIDIA's ends the process, or answers
about a new stream that has the same handle. So it is asked about a stream only while what keeps the
stream is held.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LIBRARIES", "NO_ORDER", "StreamRules", "owner", "torch_captures", "torch_stream"]

NO_ORDER = -1
"""The ``stream=-1`` with which nothing is ordered (array API 2025.12, ``__dlpack__``)."""


@dataclass(frozen=True)
class StreamRules:
    """The rules for ``stream=`` of one driver."""

    api: str
    """The driver's name, for messages."""
    default: int
    """The handle for None, and for a stream object whose handle is 0."""
    forbidden: Mapping[int, str] = field(default_factory=dict)
    """Integers that are refused, with why and what to pass instead."""
    libraries: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    """First part of the module of a library's stream class, to what gives its handle."""
    protocol: str = ""
    """The method (or attribute) of stream objects that gives ``(version, handle)``."""
    advice: str = "an integer"
    """The kinds of streams that can be passed beside None, for messages."""

    def normalize(self, stream: object) -> int:
        """The handle for what a caller passed.

        Parameters
        ----------
        stream : object
            None, an integer, or a stream object of a library.

        Returns
        -------
        int
            The handle; -1 means: do not order.

        Raises
        ------
        ValueError
            For an integer that the rules forbid.
        TypeError
            For what is not a stream; a bool is not one.
        """
        if stream is None:
            return self.default
        if type(stream) is int:
            value = stream
        elif isinstance(stream, bool) or type(stream).__name__ in {"bool", "bool_"}:  # numpy's too
            raise TypeError(f"stream={stream} is a bool, not the handle of a stream of {self.api}")
        else:
            try:
                value = operator.index(stream)  # type: ignore[arg-type]  # TypeError is the answer
            except TypeError:
                value = self._handle_of(stream) or self.default
        if value in self.forbidden:
            raise ValueError(f"stream={value} {self.forbidden[value]}")
        if value < NO_ORDER:
            raise ValueError(
                f"stream={value} is not a valid {self.api} stream: only -1 (no order) is negative"
            )
        if value >= 1 << 64:
            raise ValueError(
                f"stream={value:#x} is not a valid {self.api} stream: a handle has 64 bits"
            )
        return value

    def _handle_of(self, stream: Any) -> int:
        protocol = getattr(stream, self.protocol, None) if self.protocol else None
        library = type(stream).__module__.partition(".")[0]
        try:
            if protocol is not None:
                _version, value = protocol() if callable(protocol) else protocol
            elif library in self.libraries:
                value = self.libraries[library](stream)
            else:
                raise TypeError("it is of a library that is not known here")
            return operator.index(value)
        except (AttributeError, TypeError, ValueError) as exc:
            raise TypeError(
                f"{type(stream).__module__}.{type(stream).__qualname__} is no {self.api} "
                f"stream; pass None, {self.advice}"
            ) from exc


# Who keeps a stream -------------------------------------------------------------------


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
            answer = module and ask(module, stream, device_id)
            if answer:
                return answer
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
