"""Pickles of tensors: what is written, and how a tensor is made of it again."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

import dlbridge as bridge
from dlbridge.abi import FLAG_SUBBYTE_PADDED
from dlbridge.errors import Error, ExchangeError
from dlbridge.extending import (
    CPU,
    check_device,
    copy_elements,
    memory_of,
    operand_of,
    packed_bytes,
    public_in,
    recorded,
    tensor_on,
)

if TYPE_CHECKING:
    from dlbridge import Device, Operand, Tensor
    from dlbridge.typing import DeviceLike


SHARED_BYTES = 1000
"""Bytes up to this length may be an object that others have too, so they are never written."""


def tobytes(tensor: Tensor) -> bytes:
    """See `Tensor.tobytes`."""
    operand = operand_of(tensor)
    if not operand.size:
        return b""
    with recorded("the elements become bytes of Python", tensor, CPU):
        return _bytes_of(tensor, operand)


def _bytes_of(tensor: Tensor, operand: Operand) -> bytes:
    if operand.device.is_host or operand.nbytes <= SHARED_BYTES:
        return bytes(_host_bytes(tensor))
    # The device writes into a bytes object that nobody else has seen: there is no other buffer.
    raw = bytes(operand.nbytes)
    memory = memory_of(np.frombuffer(raw, "u1"), "a new bytes object")
    there = operand_of(tensor_on(memory, operand.dtype, operand.shape, padded=operand.padded))
    there.is_new = True
    copy_elements(there, operand)
    return raw


def _host_bytes(tensor: Tensor) -> memoryview:
    """The bytes of the elements, row-major without gaps; a copy only if needed."""
    host = tensor if tensor.device is CPU else bridge.to_device(tensor, CPU)
    if not host.is_contiguous():
        host = bridge.to_device(host, CPU, copy=True)
    return packed_bytes(operand_of(host))


def pickled(tensor: Tensor, protocol: int) -> tuple[Any, ...]:
    """What a pickle of that *protocol* has of *tensor*: the arguments of `unpickle`."""
    import pickle

    operand = operand_of(tensor)
    flags = FLAG_SUBBYTE_PADDED if operand.padded else 0
    raw: Any = b""
    if protocol < 5:
        raw = tobytes(tensor)
    elif operand.size:
        # A copy of a device's memory: who keeps the buffer may read it at any time.
        host = tensor if operand.device.is_host else bridge.to_device(tensor, CPU, copy=True)
        why = "the pickle has it, unless a buffer_callback takes the buffer as it is"
        raw = pickle.PickleBuffer(_host_bytes(host))
        with recorded(why, host, kind="pickle"):
            pass  # by pickle itself, which asks nobody
    return raw, operand.dtype.name, operand.shape, str(operand.device), flags, protocol < 5


_CPU_NAME = str(CPU)


class _Chosen(threading.local):
    """What `unpickle_to` has chosen in this thread; the policy without it belongs to the class."""

    places: Device | Mapping[str, Device] | None = None
    strict = False


_chosen = _Chosen()


@public_in("dlbridge")
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
        places = {_old(name): check_device(new) for name, new in device.items()}
    else:
        places = None if device is None else check_device(device)
    # The dictionary of this thread: a generator that a signal handler has interrupted may end
    # in another thread.
    mine = vars(_chosen)
    before = _chosen.places, _chosen.strict
    _chosen.places, _chosen.strict = places, device is None
    try:
        yield
    finally:
        mine["places"], mine["strict"] = before


_NAME = re.compile(r"([A-Za-z_]\w*(?:-\w+)?)(?::([0-9]+))?", re.ASCII)


def _old(name: object) -> str:
    """*name*, if a pickle can name its device so; it need not be known here."""
    parts = _NAME.fullmatch(name) if isinstance(name, str) else None
    if parts is not None:
        backend, index = parts.groups()
        return str(backend) if index is None else f"{backend}:{int(index)}"
    kind = ValueError if isinstance(name, str) else TypeError
    raise kind(
        f"{name!r} is not a device that a tensor was pickled on: write 'name' or 'name:index', as "
        "in 'cuda:0'"
    )


@public_in("dlbridge")
def unpickle(
    raw: Any, dtype: str, shape: tuple[int, ...], device: str, flags: int, owned: bool = False
) -> Tensor:
    """The tensor of a pickle; *owned* says that *raw* is bytes that only this tensor has.

    Of a method, pickles of protocol 2 would name ``getattr``, which `torch.load` asks to allow.
    """
    # numpy takes over such bytes as well, from the same length on; shorter ones may be shared.
    if owned and len(raw) <= SHARED_BYTES:
        raw = bytearray(raw)
    array = np.frombuffer(raw, "u1")
    kind = bridge.dtype(dtype)
    padded = bool(flags & FLAG_SUBBYTE_PADDED)
    need = kind.nbytes(prod(shape), padded=padded)
    if array.nbytes != need:
        raise ExchangeError(
            f"the pickle's buffer has {array.nbytes} bytes, and {dtype} {shape} takes {need}: give "
            "pickle.loads the buffers of this pickle, in their order"
        )
    readonly = bool(array.size) and not array.flags.writeable and not owned
    memory = memory_of(array, "a pickle")
    host = tensor_on(memory, kind, shape, readonly=readonly, padded=padded)
    where = target_for(device)
    if where is CPU:
        return host
    # A device that could use read-only memory in place would have a read-only tensor.
    return bridge.to_device(host, where, copy=True if readonly else None)


def chosen_device(pickled_on: str) -> Device | None:
    """The device that `unpickle_to` has chosen for tensors of the device of that name."""
    places = _chosen.places
    if places is None:
        return None
    backend = _backend_of(pickled_on)
    return places.get(pickled_on, places.get(backend)) if isinstance(places, Mapping) else places


def _backend_of(pickled_on: str) -> str:
    """The name without the number; ExchangeError if no device can be called so."""
    parts = _NAME.fullmatch(pickled_on)
    if parts is None:
        raise ExchangeError(f"a pickle names the device {pickled_on!r}, and none is called so")
    return parts[1]


def target_for(pickled_on: str) -> Device:
    """The device for a tensor that was pickled on the device of that name."""
    chosen = chosen_device(pickled_on)
    if chosen is not None:
        return chosen
    if pickled_on == _CPU_NAME:
        return CPU
    try:
        return check_device(pickled_on)
    except (Error, ValueError) as exc:
        _backend_of(pickled_on)
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
