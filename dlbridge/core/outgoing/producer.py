"""The producer's side of the standard: what ``__dlpack__`` checks, orders and copies.

Source: array API 2024.12, ``__dlpack__`` and ``__dlpack_device__``; dlpack.h 1.3.
Copies are made by modules that come later and fill `OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import FLAG_IS_COPIED, export_capsule
from dlbridge.core.dlpack.structs import DLPACK_VERSION
from dlbridge.core.plugins.lookup import supports
from dlbridge.core.plugins.registry import backend
from dlbridge.core.values.devices import DLDeviceType
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.protocol import SupportsStreams

if TYPE_CHECKING:
    from dlbridge.core.tensor.tensor import Tensor  # the type only; this module stands before it

__all__ = [
    "OPERATIONS",
    "check_copy",
    "check_host_stream",
    "has_negative_strides",
    "order_consumer",
    "produce",
]

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""What a `Tensor` does through modules that stand after it, by name."""

_CPU = (1, 0)


def produce(
    tensor: Tensor, stream: object, max_version: object, dl_device: object, copy: Any
) -> object:
    """A new capsule of *tensor*: the body of ``__dlpack__``, see `Tensor.__dlpack__`."""
    version = _check_version(max_version)
    check_copy(copy)
    own = tensor.__dlpack_device__()
    target = own if dl_device is None else _check_device(dl_device)
    if target == own:
        exported, flags = _copied_or_not(tensor, copy)
        order_consumer(exported, stream)  # after the copy, which is work on our stream too
        return _export(exported, version, flags)
    if target == _CPU:
        return _export_to_host(tensor, version, stream, copy)
    raise ExchangeError(
        f"a tensor on {tensor.device} cannot be exported to the device {target}: the standard "
        "asks for its own device or the CPU; use dlbridge.to_device first"
    )


def order_consumer(tensor: Tensor, stream: object) -> None:
    """Make the consumer's *stream* wait for our work on *tensor*; -1: it does not ask.

    The device's backend knows which values it may pass. Without a backend only
    None and -1 are possible: the memory came ready on the default stream.
    """
    device = tensor.device
    if device.is_host and device.type != DLDeviceType.kDLCUDAManaged:
        check_host_stream(stream)
        return
    if stream == -1 and not isinstance(stream, bool):
        return
    try:
        plugin = backend(device.name)
    except BackendUnavailable:
        if stream is None:
            return
        raise
    if supports(plugin, SupportsStreams):
        consumer = plugin.normalize_stream(device.index, stream)
        if consumer != -1:
            # The last work of ours, and what may have been queued beside it.
            last = tensor._memory.last_use
            ours = {OPERATIONS["current_stream"](device)} | ({last.handle} if last else set())
            for producer in ours - {consumer}:
                plugin.wait(device.index, consumer, producer)
    elif stream is not None:
        raise TypeError(f"{device} has no streams; stream must be None or -1, not {stream!r}")


def check_copy(copy: object) -> None:
    """TypeError for a *copy* that is no bool and not None: 0 would be taken for None."""
    if copy is not None and not isinstance(copy, bool):
        raise TypeError(f"copy must be True, False or None, not {copy!r}")


def check_host_stream(stream: object) -> None:
    """TypeError or ValueError unless *stream* is None or -1: host memory has no streams."""
    if stream is None:
        return
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise TypeError(f"host memory has no streams; stream must be None or -1, not {stream!r}")
    if stream != -1:
        raise ValueError(f"host memory has no streams; stream must be None or -1, not {stream}")


def _check_version(max_version: object) -> tuple[int, int] | None:
    if max_version is None:
        return None
    if isinstance(max_version, (tuple, list)) and len(max_version) == 2:
        major, minor = max_version
        if isinstance(major, int) and isinstance(minor, int):
            # What stands above ours is ours, and fits the struct.
            return max(min((int(major), int(minor)), DLPACK_VERSION), (0, 0))
    raise TypeError(f"max_version must be a tuple (major, minor) of two ints, not {max_version!r}")


def _check_device(dl_device: object) -> tuple[int, int]:
    if isinstance(dl_device, (tuple, list)) and len(dl_device) == 2:
        kind, index = dl_device
        if isinstance(kind, int) and isinstance(index, int):
            return int(kind), int(index)
    raise TypeError(
        f"dl_device must be a tuple (device_type, device_id) of two ints, not {dl_device!r}"
    )


def _copied_or_not(tensor: Tensor, copy: bool | None) -> tuple[Tensor, int]:
    """What is exported to the tensor's own device, and the flags that it adds."""
    if copy is True:
        return OPERATIONS["copy"](tensor), FLAG_IS_COPIED
    if has_negative_strides(tensor):
        if copy is False:
            raise ExchangeError(
                f"negative strides {tensor.strides} are exported as a copy (some consumers "
                "abort on them), and copy=False forbids it; pass copy=None"
            )
        return OPERATIONS["copy"](tensor), FLAG_IS_COPIED
    return tensor, 0


def has_negative_strides(tensor: Tensor) -> bool:
    """Whether some stride runs backwards.

    torch <= 2.13 aborts the process on those, and a producer cannot know its
    consumer, so they are exported as a copy.
    """
    return any(step < 0 for step in tensor._array.strides) and any(
        stride < 0 and extent > 1
        for stride, extent in zip(tensor.strides, tensor.shape, strict=True)
    )


def _export_to_host(
    tensor: Tensor, version: tuple[int, int] | None, stream: object, copy: bool | None
) -> object:
    if stream is not None:
        raise ValueError(
            f"a {tensor.device} tensor exported to the CPU is synchronised; stream must be None, "
            f"not {stream!r}"
        )
    if copy is not True:
        shared = OPERATIONS["as_host"](tensor)
        if shared is not None:
            return _export(shared, version, 0)
    if copy is False:
        raise ExchangeError(
            f"{OPERATIONS['why_no_host_view'](tensor)}; copy=False forbids copying it to the CPU"
        )
    return _export(OPERATIONS["to_host"](tensor), version, FLAG_IS_COPIED)


def _export(tensor: Tensor, version: tuple[int, int] | None, flags: int) -> object:
    return export_capsule(tensor._array, version, tensor._image(flags))
