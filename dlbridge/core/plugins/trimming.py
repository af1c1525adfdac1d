"""Memory that backends keep after it was freed goes back to the system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.public import public
from dlbridge.errors import DeviceLost, Error

from .lookup import find_device, plugin_of
from .records import Plugin, plugin_named
from .registry import LOADED

if TYPE_CHECKING:
    from dlbridge.typing import DeviceLike

__all__ = ["trim"]


@public
def trim(device: DeviceLike | None = None) -> None:
    """Give back to the system what backends keep of freed memory.

    A backend may keep the memory of freed tensors, because new memory costs time.
    Other programs, and other parts of this one, cannot use it meanwhile. The
    environment variable ``DLBRIDGE_POOL_LIMIT`` (bytes for each device) limits it
    from the start.

    Parameters
    ----------
    device : DeviceLike or None
        `dlbridge.device` says what is accepted. None: all devices of the backends that
        are loaded; no other backend is loaded for it.

    Raises
    ------
    BackendUnavailable
        If no backend here serves *device*.
    DeviceError
        If a driver refuses; with None the other devices have been asked all the same.

    Notes
    -----
    It may wait for work that was queued before. Memory of tensors that exist does not
    change, and a backend that keeps nothing has nothing to do.

    Examples
    --------
    >>> bridge.trim("cpu")
    """
    if device is not None:
        where = find_device(device)
        _trim(plugin_of(where), where.index)
        return
    failure: Error | None = None
    for name in LOADED.copy():  # one step: others may be loading a backend
        plugin = plugin_named(name)
        for index in range(0 if plugin.trim is None else plugin.device_count()):
            try:
                _trim(plugin, index)
            except DeviceLost:  # its memory is gone
                continue
            except Error as exc:
                failure = failure or exc
    if failure is not None:
        raise failure


def _trim(plugin: Plugin, index: int) -> None:
    if plugin.trim is not None:
        plugin.trim(index)
