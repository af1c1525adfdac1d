"""Memory that backends keep after it was freed goes back to the system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.public import public
from dlbridge.errors import DeviceLost, Error
from dlbridge.protocol import Backend, SupportsTrim

from .failures import fail
from .lookup import backend_of, find_device, supports
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
        _trim(backend_of(where), where.name, where.index)
        return
    failure: Error | None = None
    for name, plugin in LOADED.copy().items():  # one step: others may be loading a backend
        trims = supports(plugin, SupportsTrim)
        for index in range(_count(plugin, name) if trims else 0):
            try:
                _trim(plugin, name, index)
            except DeviceLost:  # its memory is gone
                continue
            except Error as exc:
                failure = failure or exc
    if failure is not None:
        raise failure


def _trim(plugin: Backend, name: str, index: int) -> None:
    if supports(plugin, SupportsTrim):
        try:
            plugin.trim(index)
        except Exception as exc:
            fail(exc, name, "trim")


def _count(plugin: Backend, name: str) -> int:
    try:
        return plugin.device_count()
    except Exception as exc:
        fail(exc, name, "device_count")
