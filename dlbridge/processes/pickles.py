"""Pickles of tensors: what is written, and how a tensor is made of it again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge.core.dlpack.structs import FLAG_SUBBYTE_PADDED
from dlbridge.core.implementation_details.python_api import address_of
from dlbridge.core.moves.copies import copy_elements, packed_bytes, restore
from dlbridge.core.moves.transfer import copy_to_host, move, to_compact_host
from dlbridge.core.plugins.lookup import find_device
from dlbridge.core.public import public
from dlbridge.core.tensor.array_tensor import make_tensor
from dlbridge.core.tensor.memory import Memory
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.values.devices import CPU, Device, split
from dlbridge.core.values.dtypes import dtype as as_dtype
from dlbridge.errors import Error, ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.tensor.tensor import Tensor
    from dlbridge.typing import DeviceLike


SHARED_BYTES = 1000
"""Bytes up to this length may be an object that others have too, so they are never written."""


def tobytes(tensor: Tensor) -> bytes:
    """See `Tensor.tobytes`."""
    operand = operand_of(tensor)
    if not operand.size:
        return b""
    if operand.device.is_host or operand.nbytes <= SHARED_BYTES:
        return bytes(packed_bytes(operand_of(to_compact_host(tensor))))
    # The device writes into a bytes object that nobody else has seen: there is no other buffer.
    raw = bytes(operand.nbytes)
    copy_elements(restore(np.frombuffer(raw, "u1"), operand), operand)
    return raw


def reduce(tensor: Tensor, protocol: int) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The function that unpickles *tensor*, and its arguments."""
    import pickle

    operand = operand_of(tensor)
    flags = operand.flags & FLAG_SUBBYTE_PADDED
    raw: Any = b""
    if protocol < 5:
        raw = tobytes(tensor)
    elif operand.size:
        # A copy of a device's memory: who keeps the buffer may read it at any time.
        host = to_compact_host(tensor) if operand.device.is_host else copy_to_host(tensor)
        raw = pickle.PickleBuffer(packed_bytes(operand_of(host)))
    unpickle = type(tensor)._unpickle
    described = operand.dtype.name, operand.shape, str(tensor.device), flags
    return unpickle, (raw, *described, protocol < 5)


_CPU_NAME = str(CPU)


class _Chosen(threading.local):
    """What `unpickle_to` has chosen in this thread; the policy without it belongs to the class."""

    places: Device | Mapping[str, Device] | None = None
    strict = False


_chosen = _Chosen()


@public
@contextmanager
def unpickle_to(device: DeviceLike | Mapping[str, DeviceLike] | None) -> Iterator[None]:
    """Choose the device of the tensors that this thread unpickles inside the block.

    Without such a block a tensor goes to the device that it was pickled on. If that
    device is not here, it goes to the CPU, with a RuntimeWarning. (An exception in
    the middle of a message would leave the workers of some schedulers waiting.)

    Parameters
    ----------
    device : DeviceLike, mapping or None
        The device of all tensors. Or a mapping of old devices to new ones, as in
        ``{"cuda:0": "opencl:0"}``: a name without a number means all devices of that
        name, and tensors of other devices go where they go without the block. Old
        devices need not be here, nor their backends. None:
        the device that they were pickled on; it is an error if it is not here.

    Yields
    ------
    None
        The block holds for this thread only.

    Raises
    ------
    BackendUnavailable, ExchangeError, ValueError
        If a device that is named here cannot be used, or an old one has no name that a
        device can have.
    TypeError
        If a device is none, or the name of an old one is not a str.

    Examples
    --------
    >>> import pickle
    >>> pickled = pickle.dumps(bridge.zeros(3, device="cpu"))
    >>> with bridge.unpickle_to("cpu"):
    ...     pickle.loads(pickled).device
    dlbridge.device('cpu:0')
    """
    places: Device | Mapping[str, Device] | None
    if isinstance(device, Mapping):
        places = {_old(name): find_device(new) for name, new in device.items()}
    else:
        places = None if device is None else find_device(device)
    # The dictionary of this thread: a generator that a signal handler has interrupted may end
    # in another thread.
    mine = vars(_chosen)
    before = _chosen.places, _chosen.strict
    _chosen.places, _chosen.strict = places, device is None
    try:
        yield
    finally:
        mine["places"], mine["strict"] = before


def _old(name: object) -> str:
    """*name*, if a pickle can name its device so; it need not be known here."""
    if isinstance(name, str):
        backend, index = split(name)
        if index is None:
            return name
        if isinstance(index, int) and index >= 0:
            return f"{backend}:{index}"
    kind = ValueError if isinstance(name, str) else TypeError
    raise kind(
        f"{name!r} is not a device that a tensor was pickled on: write 'name' or 'name:index', as "
        "in 'cuda:0'"
    )


def unpickle(
    raw: Any, dtype: str, shape: tuple[int, ...], device: str, flags: int, owned: bool = False
) -> Tensor:
    """The tensor of a pickle; *owned* says that *raw* is bytes that only this tensor has."""
    # numpy takes over such bytes as well, from the same length on; shorter ones may be shared.
    if owned and len(raw) <= SHARED_BYTES:
        raw = bytearray(raw)
    array = np.frombuffer(raw, "u1")
    kind = as_dtype(dtype)
    need = kind.nbytes(prod(shape), padded=bool(flags & FLAG_SUBBYTE_PADDED))
    if array.nbytes != need:
        raise ExchangeError(
            f"the pickle's buffer has {array.nbytes} bytes, and {dtype} {shape} takes {need}: give "
            "pickle.loads the buffers of this pickle, in their order"
        )
    memory = Memory(CPU, address_of(array) if array.size else 0, "a pickle", array)
    readonly = bool(array.size) and not array.flags.writeable and not owned
    host = make_tensor(memory, 0, kind, shape, readonly=readonly, flags=flags)
    where = place_of(device)
    if where is CPU:
        return host
    # A device that could use read-only memory in place would have a read-only tensor.
    return move(host, where, True if readonly else None)


def chosen_place(pickled_on: str) -> Device | None:
    """The device that `unpickle_to` has chosen for tensors of the device of that name."""
    places = _chosen.places
    if places is None and pickled_on == _CPU_NAME:
        return None
    name, _ = split(pickled_on)  # refuses what is no name
    return places.get(pickled_on, places.get(name)) if isinstance(places, Mapping) else places


def place_of(pickled_on: str) -> Device:
    """The device for a tensor that was pickled on the device of that name."""
    chosen = chosen_place(pickled_on)
    if chosen is not None:
        return chosen
    if pickled_on == _CPU_NAME:
        return CPU
    try:
        return find_device(pickled_on)
    except (Error, ValueError) as exc:
        return land_on_cpu(pickled_on, "that device is not here", exc)


def land_on_cpu(pickled_on: str, why: str, error: Exception) -> Device:
    """The CPU, with a warning; *error* is raised in a block of ``unpickle_to(None)``."""
    if _chosen.strict:
        raise error
    warnings.warn(
        f"a tensor that was pickled on {pickled_on} is on the CPU now, because {why}: {error}; "
        "`with dlbridge.unpickle_to(...)` says where tensors go",
        RuntimeWarning,
        stacklevel=5,
    )
    return CPU
