"""The arguments of ``__dlpack__``, checked by the rules of the array API standard 2025.12."""

from __future__ import annotations

from dlbridge.core.values.devices import plain_number

from .structs import DLPACK_VERSION


def check_copy(copy: object) -> None:
    """TypeError for a *copy* that is neither a bool nor None: 0 would be taken for None."""
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


def check_version(max_version: object) -> tuple[int, int] | None:
    """*max_version* as the version to export: at most ours. TypeError if it is not a version."""
    if max_version is None:
        return None
    if type(max_version) is tuple and max_version == DLPACK_VERSION:
        return DLPACK_VERSION
    if isinstance(max_version, (tuple, list)) and len(max_version) == 2:
        major, minor = max_version
        if isinstance(major, int) and isinstance(minor, int):
            # A newer version means our own, which fits the struct.
            if (major, minor) >= DLPACK_VERSION:
                return DLPACK_VERSION
            return max((int(major), int(minor)), (0, 0))
    raise TypeError(f"max_version must be a tuple (major, minor) of two ints, not {max_version!r}")


def check_device(dl_device: object) -> tuple[int, int]:
    """*dl_device* as two plain ints. TypeError if it is not a device."""
    if isinstance(dl_device, (tuple, list)) and len(dl_device) == 2:
        kind, index = plain_number(dl_device[0]), plain_number(dl_device[1])
        if isinstance(kind, int) and isinstance(index, int):
            return int(kind), int(index)
    raise TypeError(
        f"dl_device must be a tuple (device_type, device_id) of two ints, not {dl_device!r}"
    )
