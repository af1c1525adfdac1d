"""Import of any library's tensor: by exchange table, by ``__dlpack__``, or from a capsule.

Source: array API 2024.12, ``from_dlpack``; dlpack.h 1.3. Imported structs are
always validated; claims of a producer are never trusted.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import can_numpy_import, open_capsule
from dlbridge.core.dlpack.foreign_tables import table_of
from dlbridge.core.dlpack.requests import check_host_stream
from dlbridge.core.dlpack.structs import DLPACK_VERSION, FLAG_IS_COPIED
from dlbridge.core.plugins.lookup import backend_of, supports
from dlbridge.core.plugins.streams import consumer_stream, current_use, wait
from dlbridge.core.tensor.adopt import adopt
from dlbridge.core.tensor.carriers import NATIVE_DTYPES, native_dtypes
from dlbridge.core.tensor.consumers import order_consumer
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import ArrayTensor, Tensor, wrap_array
from dlbridge.core.values.devices import Device, DLDeviceType
from dlbridge.core.values.layout import reach
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.protocol import SupportsStreams

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbridge.core.dlpack.foreign_tables import ForeignTable

__all__ = [
    "IMPORTERS",
    "find_importer",
    "import_producer",
    "origin_of",
    "refuse_class",
    "refuse_hidden_state",
]

_CPU = Device.of(1, 0)

IMPORTERS: dict[type, Callable[[Any], Tensor]] = {}
"""Cache of `find_importer`: importers for exact types that need no protocol."""


def import_producer(x: Any, target: Device | None, copy: bool | None, stream: Any) -> Tensor:
    """A Tensor of *x*; it is on *target* only if the producer moved it there."""
    if isinstance(x, Tensor):
        if stream is not None:
            order_consumer(x, stream)
        operand_of(x)  # raises if it was lent and has expired
        return x
    traits = _TRAITS.get(type(x)) or _ProducerTraits(type(x))
    if traits.hides_state:
        refuse_hidden_state(x)
    elif traits.immutable and getattr(x, "is_deleted", bool)():
        raise ExchangeError(
            f"the {origin_of(x)} has been deleted (by delete(), or as a donated argument): it has "
            "no memory any more; pass the array that replaced it"
        )
    if traits.table is not None and target is None and copy is not False:
        tensor = _import_by_table(traits.table, x, stream)
        if tensor is not None:
            return tensor
    if not traits.is_producer:
        return _import_capsule(x, stream)
    return _import_by_method(x, traits, target, copy, stream)


class _ProducerTraits:
    """The traits of a type of producers, from a cache."""

    __slots__ = ("hides_state", "immutable", "is_producer", "table")

    def __init__(self, cls: type) -> None:
        module = cls.__module__.partition(".")[0]
        bases = {base.__module__.partition(".")[0] for base in cls.__mro__}
        self.hides_state = "torch" in bases or "numpy" in bases
        self.immutable = module in {"jax", "jaxlib"}
        self.is_producer = hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__")
        self.table = table_of(cls)
        # Only classes that live for ever anyway; others are asked each time.
        home = sys.modules.get(cls.__module__)
        if getattr(home, cls.__qualname__, None) is cls:
            _TRAITS[cls] = self


_TRAITS: dict[type, _ProducerTraits] = {}


def _import_capsule(x: Any, stream: Any) -> Tensor:
    if type(x).__name__ == "PyCapsule":
        tensor = adopt(open_capsule(x), "a capsule")
        if tensor.device.is_host:
            check_host_stream(stream)
        return tensor
    refuse_class(x)
    missing = "__dlpack_device__" if hasattr(type(x), "__dlpack__") else "__dlpack__"
    raise TypeError(
        f"{origin_of(x)} has no {missing}, so it is not a DLPack producer; dlbridge.asarray "
        "also takes buffers, array interfaces and the objects of device backends"
    )


def _import_by_table(table: ForeignTable, x: Any, stream: Any) -> Tensor | None:
    """Import by the C exchange API; None where the producer must be asked by ``__dlpack__``."""
    try:
        managed = table.export(x)
    except ExchangeError:
        raise  # ours: what it exported breaks the standard
    except BufferError:
        return None
    tensor = adopt(managed, origin_of(x))
    device = tensor.device
    if device.is_host:
        check_host_stream(stream)
    else:
        _order_after(tensor, table.current_work_stream(device), stream)
    return tensor


def _order_after(tensor: Tensor, producer: int, stream: Any) -> None:
    """Make our stream wait for the stream of *producer*; a table does not synchronise."""
    device = tensor.device
    try:
        plugin = backend_of(device)
    except BackendUnavailable:
        if producer:
            raise  # memory that may not be ready, and nothing here to wait with
        return
    if stream is None:
        wait(device, producer)
        _note_use(tensor, device)
    elif supports(plugin, SupportsStreams):
        consumer = plugin.normalize_stream(device.index, stream)
        if consumer not in (-1, producer):
            plugin.wait(device.index, consumer, producer)


def _import_by_method(
    x: Any, traits: _ProducerTraits, target: Device | None, copy: bool | None, stream: Any
) -> Tensor:
    source = _device_of(x)
    wanted: dict[str, Any] = {}
    ours = None
    if stream is None and source is not _CPU:
        stream = ours = consumer_stream(source)
    if source is _CPU:
        check_host_stream(stream)
        stream = None  # numpy knows None only
    if target is not None and target is not source and target is _CPU:
        wanted["dl_device"] = target.dlpack
        stream = None  # the producer synchronises (array API: dl_device on the CPU)
    if copy is False:
        wanted["copy"] = False
    streams = {} if stream is None else {"stream": stream}
    capsule = _call(x, streams, wanted, source)
    if can_numpy_import(capsule, traits.immutable):
        try:
            return _by_numpy(capsule, type(x))
        except (ValueError, RuntimeError):
            pass  # numpy has left it in the capsule; our own check says what is wrong
    managed = open_capsule(capsule)
    if copy is False and managed.fields.flags & FLAG_IS_COPIED:
        raise ExchangeError(f"{origin_of(x)} exported a copy although copy=False was asked for")
    tensor = adopt(managed, origin_of(x), immutable=traits.immutable and managed.legacy)
    if ours is not None and tensor.device is source:
        _note_use(tensor, source)  # the producer ordered it so
    return tensor


def _note_use(tensor: Tensor, device: Device) -> None:
    """Note that the memory is ready for work on our current stream of *device*."""
    memory = operand_of(tensor).memory
    if memory is not None:
        memory.last_use = current_use(device)


class _Once:
    """A producer of one capsule that is already made, for numpy."""

    __slots__ = ("capsule",)

    capsule: Any

    def __dlpack__(self, **_keywords: Any) -> Any:
        return self.capsule


def _by_numpy(capsule: Any, cls: type) -> Tensor:
    """The Tensor of a capsule that numpy's C code consumes, five times as fast as our own."""
    import numpy as np

    once = _Once()
    once.capsule = capsule
    array = np.from_dlpack(once)
    if not array.flags.forc:
        low, high = reach(array.shape, array.strides)
        if high - low >= 1 << 63:
            raise ExchangeError(f"byte strides {array.strides} span more than 63 bits can count")
    return wrap_array(array, cls)


def _call(x: Any, streams: dict[str, Any], wanted: dict[str, Any], source: Device) -> Any:
    """The capsule; a producer that does not know a keyword is asked again without keywords."""
    try:
        return x.__dlpack__(max_version=DLPACK_VERSION, **streams, **wanted)
    except TypeError as first:
        if wanted.get("copy") is False and "dl_device" in wanted:
            raise ExchangeError(
                f"{origin_of(x)} on {source} cannot be had on the CPU without a copy: its "
                "__dlpack__ takes no dl_device"
            ) from first
        try:
            return x.__dlpack__(**streams)
        except TypeError as second:
            raise second from first
    except (BufferError, ValueError):
        # If the producer does not copy to the CPU, we do.
        if "dl_device" not in wanted or "copy" in wanted:
            raise
        stream = consumer_stream(source)
        again = {} if stream is None else {"stream": stream}
        return x.__dlpack__(max_version=DLPACK_VERSION, **again)


def _device_of(x: Any) -> Device:
    pair = x.__dlpack_device__()
    if pair == (1, 0):
        return _CPU
    if not isinstance(pair, tuple) or any(not isinstance(part, int) for part in pair):
        raise TypeError(f"{origin_of(x)}.__dlpack_device__() returned {pair!r}, not two ints")
    if len(pair) != 2:
        raise ValueError(f"{origin_of(x)}.__dlpack_device__() returned {pair!r}, not two ints")
    kind, index = pair
    return _CPU if kind == DLDeviceType.kDLCPU else Device.of(int(kind), int(index))


def refuse_class(x: Any) -> None:
    """TypeError if *x* is a class: its instances may be tensors, the class is not."""
    if isinstance(x, type):
        raise TypeError(
            f"the class {x.__module__}.{x.__qualname__} is not a tensor; pass an instance of it"
        )


def origin_of(x: Any) -> str:
    """The type of *x* in words, for messages."""
    return f"{type(x).__module__}.{type(x).__qualname__}"


def refuse_hidden_state(x: Any) -> None:
    """ExchangeError for state of *x* that DLPack cannot express: lazy signs, masks, gradients."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if x.is_meta or type(x).__name__ == "FakeTensor":
            raise ExchangeError(
                f"the {origin_of(x)} is a meta or fake tensor: it has a shape and no memory; make "
                "a real one of it first (torch.empty_like(x, device='cpu') and its values)"
            )
        if x.requires_grad:
            raise ExchangeError("the torch tensor requires grad; pass x.detach()")
        if x.is_conj() or x.is_neg():
            raise ExchangeError(
                "the torch tensor is lazily conjugated or negated, which other libraries do not "
                "see; pass x.resolve_conj().resolve_neg()"
            )
    elif hasattr(type(x), "__array_ufunc__") and hasattr(x, "mask") and hasattr(x, "filled"):
        raise ExchangeError("a masked array has no DLPack form; pass x.filled() or x.data")


def find_importer(cls: type) -> Callable[[Any], Tensor] | None:
    """The importer for exactly *cls*, cached, if it needs no protocol."""
    module = cls.__module__.partition(".")[0]
    if module == "numpy" and cls is getattr(sys.modules.get(module), "ndarray", None):
        native_dtypes()
        IMPORTERS[cls] = _from_numpy
    elif module == "torch" and cls is getattr(sys.modules.get(module), "Tensor", None):
        native = {dtype.name for dtype in native_dtypes().values()}
        torch = sys.modules["torch"]
        _TORCH_NATIVE.update(getattr(torch, name) for name in native if hasattr(torch, name))
        IMPORTERS[cls] = _from_torch
    return IMPORTERS.get(cls)


def _from_numpy(x: Any) -> Tensor:
    array = x[...]  # our own view: x's metadata may change, and x stays alive
    if array.dtype in NATIVE_DTYPES and array.flags.forc and array.size:
        tensor = ArrayTensor()
        tensor._array = array
        tensor.__dlpack__ = array.__dlpack__  # type: ignore[method-assign]  # see ArrayTensor
        return tensor
    return wrap_array(array)


def _from_torch(x: Any) -> Tensor:
    # torch's own C conversion refuses what would be wrong (grad, conj, neg,
    # other devices) in a third of the time of __dlpack__. Its TypeError for a
    # type that numpy does not have costs 10 us, so that is looked up first.
    if x.dtype not in _TORCH_NATIVE:
        return import_producer(x, None, None, None)
    try:
        array = x.numpy()
    except (RuntimeError, TypeError):
        return import_producer(x, None, None, None)
    if array.size:  # torch has no negative strides: `wrap_array` would do the same
        tensor = ArrayTensor()
        tensor._array = array
        tensor.__dlpack__ = array.__dlpack__  # type: ignore[method-assign]  # see ArrayTensor
        return tensor
    return wrap_array(array)


_TORCH_NATIVE: set[Any] = set()
