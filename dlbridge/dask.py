"""What Dask asks about tensors: their sizes and tokens, frames, and memory after a spill.

Dask finds `register` by the entry point ``dask.sizeof``. Tensors travel as pickles, whose
buffers are frames that Dask does not copy.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge.errors import Error

if TYPE_CHECKING:
    from collections.abc import Hashable

    from dlbridge import Device, Tensor

__all__ = ["register", "size_of", "token_of"]

_log = logging.getLogger(__name__)


def register(sizeof: Any) -> None:
    """Tell ``dask.sizeof.sizeof`` how large a tensor is, when it first gets one.

    Parameters
    ----------
    sizeof : dask.utils.Dispatch
        Dask calls this function with it.

    Examples
    --------
    ``dask.sizeof.sizeof(tensor)``
    """

    def tensors() -> None:
        from dlbridge import Tensor

        sizeof.register(Tensor, size_of)

    sizeof.register_lazy("dlbridge", tensors)


def size_of(tensor: Tensor) -> int:
    """The bytes of the elements, on whatever device; those that a broadcast repeats count once."""
    _watch_pickling()
    repeats = 1
    for length, stride in zip(tensor.shape, tensor.strides, strict=True):
        if not stride:
            repeats *= length
    return tensor.nbytes // max(repeats, 1)


def token_of(tensor: Tensor) -> Hashable:
    """Equal for tensors with equal bytes, dtype, shape and device, in every process.

    Dask's own way would unpickle the tensor as well, on its device, and do all of it twice.
    """
    from dask.hashing import hash_buffer_hex

    _watch_pickling()
    _, (elements, *described) = tensor.__reduce_ex__(5)
    return hash_buffer_hex(elements), *described


# Before distributed pickles a tensor --------------------------------------------

_watched: Any = None
"""The registry of distributed in which `_before_pickling` is."""


def _watch_pickling() -> None:
    """Have distributed, if it is here, call `_before_pickling`.

    It has no entry point for that, and may be imported later than Dask. But a worker asks for
    the size of all that it keeps, and a client for the token of what it scatters.
    """
    global _watched
    serialize = sys.modules.get("distributed.protocol.serialize")
    dispatch = getattr(serialize, "dask_serialize", None)  # None while it is being imported
    if dispatch is not None and dispatch is not _watched:
        from dlbridge import Tensor

        dispatch.register(Tensor, _before_pickling)
        _watched = dispatch


def _before_pickling(tensor: Tensor, context: Any = None) -> NoReturn:
    """Prepare for what *tensor* is about to be pickled for: a message, or a spill.

    NotImplementedError, always: distributed then pickles it. To the disk goes what has no
    *context*.
    """
    if context is None:
        if not tensor.device.is_host:
            _trim_around(tensor.device)
    elif context.get("pickle-protocol") == 4:
        # Schedulers ask for it, and then the elements are copied into the pickle and out of it.
        # They hand the frames on unread, and every Python that Dask runs on reads protocol 5.
        context["pickle-protocol"] = 5
    raise NotImplementedError


def _trim_around(device: Device) -> None:
    """Give back what the backend keeps of earlier spills, and later what it keeps of this one.

    A backend keeps the memory of a tensor that is dropped after its spill. On a device whose
    memory is the host's, the worker would see no change, go on spilling, and then wait for ever.
    """
    import asyncio

    _trim(device)
    with suppress(RuntimeError):  # not in a worker's event loop
        asyncio.get_running_loop().call_soon(_trim, device)  # the worker drops the tensor first


def _trim(device: Device) -> None:
    from dlbridge import trim

    try:
        trim(device)
    except Error as exc:  # the spill itself must not fail
        _log.warning("memory that %s keeps is not given back: %s", device, exc)
