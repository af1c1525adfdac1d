"""The device that an array is on, whatever library it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.implementation_details.handlers import is_from_handler
from dlbridge.core.public import public
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device
from dlbridge.protocol import CONTEXT_DEVICES

from .array_likes import BUILTIN, import_anything
from .producers import device_of_producer, import_producer, refuse_class

if TYPE_CHECKING:
    from dlbridge.typing import ArrayLike

__all__ = ["device_of"]

_CPU = Device.of(1, 0)


@public
def device_of(x: ArrayLike, /) -> Device:
    """Return the device that the elements of *x* are on.

    Nothing is copied from a device, and no driver is loaded that *x* does not need.

    Parameters
    ----------
    x : ArrayLike
        Everything that `asarray` takes, except a capsule. Lists and numbers are on the
        CPU.

    Returns
    -------
    Device
        The device of ``asarray(x)``.

    Raises
    ------
    TypeError
        If *x* is not accepted by `asarray`, or a capsule, which looking would
        consume. For the device that a text or a number names see `device`.
    ExchangeError
        If *x* is an array that dlbridge cannot take.

    Examples
    --------
    >>> bridge.device_of(np.zeros(3))
    dlbridge.device('cpu:0')
    """
    if isinstance(x, Tensor):
        return x.device
    cls = type(x)
    if cls in BUILTIN:
        return _CPU
    if cls.__name__ == "PyCapsule":
        raise TypeError(
            "device_of would consume the capsule: import it first "
            "(t = dlbridge.from_dlpack(capsule)) and take t.device"
        )
    refuse_class(x)
    if not hasattr(cls, "__dlpack_device__"):
        return import_anything(x, None, None).device
    try:
        found = device_of_producer(x)
    except Exception as exc:
        if not is_from_handler(exc.__traceback__):
            import_producer(x, None, None, None)  # says better what is wrong (a meta tensor)
        raise
    if found.is_host or (found.is_address and found.type not in CONTEXT_DEVICES):
        return found
    # Which of its devices it is, and which backend's, the memory says.
    return import_producer(x, None, None, None).device
