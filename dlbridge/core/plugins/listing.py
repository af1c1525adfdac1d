"""The devices that can be used here, of all backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.public import public
from dlbridge.core.values.devices import Device
from dlbridge.errors import Error

from . import registry
from .records import plugin_named

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["devices"]


@public
def devices(backend: str | None = None) -> list[Device]:
    """Return the devices that can be used here now; loads the backends to ask them.

    Parameters
    ----------
    backend : str, optional
        The backend that is asked. None: all that are installed. Those that cannot be
        used here are left out then; `info` gives the reasons.

    Returns
    -------
    list of Device
        In the order of `backends`, and of the numbers of each backend.

    Raises
    ------
    BackendUnavailable
        With the reason, if *backend* is named and cannot be used here.
    BackendError
        If *backend* is named and broken.

    Examples
    --------
    >>> bridge.devices("cpu")
    [dlbridge.device('cpu:0')]
    >>> set(bridge.devices("cpu")) <= set(bridge.devices())
    True
    """
    if backend is not None:
        return list(_of(backend))
    found: list[Device] = []
    for name in registry.backends():
        try:
            found += _of(name)
        except Error:
            continue
    return found


def _of(name: str) -> Iterable[Device]:
    plugin = plugin_named(name)
    return [Device.of(plugin.device_type, index, name) for index in range(plugin.device_count())]
