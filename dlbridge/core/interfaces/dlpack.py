"""DLPack in and out: other libraries' tensors as ours, and the body of our ``__dlpack__``.

In: by exchange table, by ``__dlpack__``, or from a capsule. Imported structs are always
validated; claims of a producer are never trusted. Out: the checks, order and copies.
Source: array API 2025.12, ``from_dlpack``, ``__dlpack__`` and ``__dlpack_device__``;
dlpack.h 1.3.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from dlbridge.core.dlpack.capsules import OneCapsule, open_capsule, readable_by_numpy, restore
from dlbridge.core.dlpack.exports import check_copy, check_device, check_host_stream, check_version
from dlbridge.core.dlpack.foreign_tables import table_of
from dlbridge.core.dlpack.structs import DLPACK_VERSION, FLAG_IS_COPIED
from dlbridge.core.implementation_details.handlers import unless_handler
from dlbridge.core.implementation_details.python_api import is_called_by_torch
from dlbridge.core.libraries.library import Library, origin_of
from dlbridge.core.libraries.lookup import find_description, library_of
from dlbridge.core.moves.host_views import shared_on_host
from dlbridge.core.moves.transfer import copy_of, move, why_no_host_view
from dlbridge.core.plugins.registry import plugin_of
from dlbridge.core.plugins.streams import consumer_stream, wait
from dlbridge.core.public import for_guests
from dlbridge.core.tensor.array_tensor import check_array, label_array, wrap_array
from dlbridge.core.tensor.exchange import adopt, capsule_of, order_consumer
from dlbridge.core.tensor.metadata import LOST_WRITES, has_negative_strides, memory_under
from dlbridge.core.tensor.operand import operand_of
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import CPU, Device, DLDeviceType, plain_number
from dlbridge.core.values.dtypes import check_numbers
from dlbridge.core.values.layout import MAX_NBYTES
from dlbridge.core.values.text import with_article
from dlbridge.errors import BackendUnavailable, Error, ExchangeError

if TYPE_CHECKING:
    from dlbridge.core.dlpack.foreign_tables import ForeignTable


@for_guests
def import_producer(
    x: Any, target: Device | None = None, copy: bool | None = None, stream: Any = None
) -> Tensor:
    """Return a tensor of a DLPack producer, by its exchange table or its method.

    As `dlbridge.from_dlpack`, but without the short way that the library of the producer has: for
    those who write one, and for what it leaves out.

    Parameters
    ----------
    x : SupportsDLPack or capsule
        The producer.
    target : Device, optional
        Where the producer is asked to bring it, if that is the CPU.
    copy : bool, optional
        False: the producer must not copy.
    stream : StreamLike, optional
        The stream of the consumer. None: ours.

    Returns
    -------
    Tensor
        On the device of *x*, or on *target* if the producer has brought it there.

    Raises
    ------
    TypeError
        If it is no producer.
    ExchangeError
        If it has no plain memory, or describes it against the standard. It is also a BufferError.

    Examples
    --------
    >>> from dlbridge.extending import import_producer
    >>> import_producer(np.arange(3)).tolist()
    [0, 1, 2]
    """
    if isinstance(x, Tensor):
        if stream is not None:
            order_consumer(x, stream)
        operand_of(x)  # raises if it was lent and has expired
        return x
    cls = type(x)
    traits = _TRAITS[cls] if cls in _TRAITS else _find_traits(cls)
    if traits.is_tensor:
        return import_producer(as_tensor(x), target, copy, stream)
    if traits.library.refuse is not None:
        traits.library.refuse(x)
    if traits.is_numpy:
        check_host_stream(stream)
        import numpy as np

        return wrap_array(np.ndarray.view(x, np.ndarray))  # of a subclass: memmap, recarray
    if traits.table is not None and target is None and copy is not False:
        try:
            return _import_by_table(traits.table, x, stream)
        except Error:
            raise  # ours: what it exported breaks the standard
        except unless_handler(Exception):
            if not traits.is_producer:
                raise
            # Its own __dlpack__ says better what is wrong, or knows a way.
            return _import_by_method(x, traits, target, copy, stream)
    if not traits.is_producer:
        return _import_capsule(x, stream)
    return _import_by_method(x, traits, target, copy, stream)


def as_tensor(x: Any) -> Tensor:
    """The Tensor that *x* is, by its ``__as_tensor__`` (`dlbridge.Exporter`)."""
    tensor = x.__as_tensor__()
    if isinstance(tensor, Tensor):
        return tensor
    raise no_tensor(x, tensor)


def no_tensor(x: Any, tensor: object) -> ExchangeError:
    """The error for an `Exporter` *x* whose method or attribute has given *tensor*, no Tensor."""
    attribute = getattr(type(x).__as_tensor__, "attribute", None)
    says = "__as_tensor__() returned" if attribute is None else f"{attribute} is"
    return ExchangeError(
        f"{origin_of(x)}.{says} {with_article(origin_of(tensor))}, not a "
        "dlbridge.Tensor; dlbridge.asarray(x) makes one of any array, from_blob of an address"
    )


@for_guests
def import_from_host(x: Any) -> Tensor:
    """Return a tensor of a DLPack producer whose memory is probably the CPU's.

    Its ``__dlpack__`` is called at once: to ask a jax array for its device takes 1.2 us. A capsule
    of other memory is dropped, and `import_producer` takes its place.

    Parameters
    ----------
    x : SupportsDLPack
        The producer.

    Returns
    -------
    Tensor
        On the device of *x*.

    Examples
    --------
    >>> from dlbridge.extending import import_from_host
    >>> import_from_host(np.arange(3)).tolist()
    [0, 1, 2]
    """
    cls = type(x)
    traits = _TRAITS[cls] if cls in _TRAITS else _find_traits(cls)
    try:
        capsule = x.__dlpack__(max_version=DLPACK_VERSION)
    except unless_handler(BufferError, RuntimeError, TypeError, ValueError):
        pass
    else:
        tensor = _by_numpy(capsule, traits.library, cls)
        if tensor is not None:
            return tensor
    return import_producer(x, None, None, None)


def needs_its_library(x: Any, tensor: Tensor, target: Device) -> bool:
    """Whether only the library of *x* can bring its *tensor* to *target*.

    That is so for the CPU as target, where no backend here serves the tensor's device.
    """
    device = tensor.device
    if target is not CPU or device.is_host or isinstance(x, Tensor):
        return False
    if not hasattr(type(x), "__dlpack_device__"):
        return False
    try:
        plugin_of(device)
    except BackendUnavailable:
        return True
    return False


class _ProducerTraits:
    """The traits of a type of producers."""

    __slots__ = ("is_numpy", "is_producer", "is_tensor", "library", "table")

    def __init__(self, cls: type) -> None:
        self.is_tensor = hasattr(cls, "__as_tensor__")
        self.is_producer = hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__")
        self.table = None if self.is_tensor else table_of(cls)
        self.library = library_of(cls) or _NO_LIBRARY
        self.is_numpy = _has_numpys_method(cls)


def _find_traits(cls: type) -> _ProducerTraits:
    traits = _ProducerTraits(cls)
    # Only classes that live for ever anyway; others are asked each time. And so are those that give
    # no tensors: an attribute that they get later counts.
    home = sys.modules.get(cls.__module__)
    if getattr(home, cls.__qualname__, None) is cls and (
        traits.is_tensor or traits.is_producer or traits.table
    ):
        _TRAITS[cls] = traits
    return traits


_NO_LIBRARY = Library("")
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
        "also takes buffers, array interfaces, and what libraries or device backends describe"
    )


def _import_by_table(table: ForeignTable, x: Any, stream: Any) -> Tensor:
    """Import by the C exchange API, with the library's own errors."""
    try:
        managed = table.export(x)
    except ExchangeError as exc:
        raise _named(exc, x) from exc
    tensor = adopt(managed, origin_of(x), producer=x)
    device = tensor.device
    if device.is_host:
        check_host_stream(stream)
    elif tensor.size or stream is not None:  # no work is queued on nothing
        if device.name.startswith(f"{type(x).__module__.partition('.')[0]}-"):
            # Its family asks the same library, which may have no handle of the stream.
            producer = plugin_of(device).current_stream(device.index)
        else:
            producer = table.current_work_stream(device)
        _order_after(tensor, producer, stream)
    return tensor


def _order_after(tensor: Tensor, producer: int, stream: Any) -> None:
    """Make our stream wait for the stream of *producer*; a table does not synchronise."""
    device = tensor.device
    try:
        plugin = plugin_of(device)
    except BackendUnavailable:
        if producer:
            raise  # memory that may not be ready, and nothing here to wait with
        return
    if stream is None:
        memory_under(tensor).use_on(wait(device, producer, plugin))
    elif plugin.normalize_stream is not None and plugin.wait is not None:
        consumer = plugin.normalize_stream(device.index, stream)
        if consumer not in (-1, producer):
            plugin.wait(device.index, consumer, producer)


def is_marked_readonly(x: Any, on_host: bool) -> bool:
    """Whether *x* says that its memory must not be written, by anything but a DLPack capsule.

    A legacy capsule has no flags: nanoarrow's is of Arrow's immutable memory, perhaps a mapped
    file, and only the buffer of the same object is read-only.
    """
    interface = "__array_interface__" if on_host else "__cuda_array_interface__"
    try:
        if memoryview(x).readonly:
            return True
    except unless_handler(Exception):  # it has no buffer
        pass
    try:
        said, flags = getattr(x, interface, None), getattr(x, "flags", None)
        return bool(said and said["data"][1]) or not getattr(flags, "writeable", True)
    except unless_handler(Exception):  # what it says cannot be read
        return False


def _import_by_method(
    x: Any, traits: _ProducerTraits, target: Device | None, copy: bool | None, stream: Any
) -> Tensor:
    try:
        source = device_of_producer(x)
    except unless_handler(ValueError):
        # torch 2.13 says it of no device that a vendor has named; its table was not asked before.
        if copy is not False or traits.table is None or target is not None:
            raise
        return _import_by_table(traits.table, x, stream)
    wanted: dict[str, Any] = {}
    use = None
    if stream is None and source is not CPU:
        stream, use = consumer_stream(source)
    if source is CPU:
        check_host_stream(stream)
        stream = None  # numpy knows None only
    if target is not None and target is not source and target is CPU:
        wanted["dl_device"] = target.dlpack
        stream = use = None  # the producer synchronises (array API: dl_device on the CPU)
    if copy is False:
        wanted["copy"] = False
    streams = {} if stream is None else {"stream": stream}
    capsule = _call(x, streams, wanted, source)
    # Numpy keeps nothing but the capsule's struct, and reads memory of the CPU only.
    if source is CPU and not traits.library.lends:
        tensor = _by_numpy(capsule, traits.library, type(x))
        if tensor is not None:
            return tensor
    try:
        managed = open_capsule(capsule)
    except ExchangeError as exc:
        raise _named(exc, x) from exc
    if copy is False and managed.fields.flags & FLAG_IS_COPIED:
        raise ExchangeError(f"{origin_of(x)} exported a copy although copy=False was asked for")
    return adopt(
        managed,
        origin_of(x),
        immutable=managed.legacy
        and (traits.library.immutable or is_marked_readonly(x, source.is_host)),
        beside=x if traits.library.lends else None,
        producer=x,
        ordered=None if use is None else (source, use),
    )


def _named(exc: ExchangeError, x: Any) -> ExchangeError:
    """*exc*, which says what is wrong with the struct, with the producer *x*."""
    return ExchangeError(f"the tensor of {origin_of(x)}: {exc}")


def _by_numpy(capsule: Any, library: Library, cls: type) -> Tensor | None:
    """The Tensor of a capsule that numpy's C code consumes, five times as fast as our own.

    None if numpy cannot, or refuses it: our own check says what is wrong.
    """
    readable = readable_by_numpy(capsule, library.immutable, library.new_structs)
    if readable is None:
        return None
    import numpy as np

    producer = OneCapsule()
    producer.capsule = capsule
    try:
        array = np.from_dlpack(producer)
    except unless_handler(ValueError, RuntimeError):  # it is still in the capsule
        restore(readable)
        return None
    if not array.flags.forc or array.nbytes >= MAX_NBYTES:
        check_array(array, f"the tensor of {cls.__module__}.{cls.__qualname__}")
    _, _, own, relabelled = readable
    if relabelled:
        return label_array(array, check_numbers(*own, 1), 0, cls)
    return wrap_array(array, cls)


def _call(x: Any, streams: dict[str, Any], wanted: dict[str, Any], source: Device) -> Any:
    """The capsule; a producer that does not know a keyword is asked again without keywords."""
    try:
        return x.__dlpack__(max_version=DLPACK_VERSION, **streams, **wanted)
    except unless_handler(TypeError) as first:
        if wanted.get("copy") is False and "dl_device" in wanted:
            raise ExchangeError(
                f"{origin_of(x)} on {source} cannot be brought to the CPU without a copy: its "
                "__dlpack__ takes no dl_device"
            ) from first
        try:
            return x.__dlpack__(**streams)
        except unless_handler(TypeError) as second:
            raise second from first
    except unless_handler(BufferError, ValueError):
        # If the producer does not copy to the CPU, we do.
        if "dl_device" not in wanted or "copy" in wanted:
            raise
        stream, _ = consumer_stream(source)
        again = {} if stream is None else {"stream": stream}
        return x.__dlpack__(max_version=DLPACK_VERSION, **again)


_CPU_TYPE = int(DLDeviceType.kDLCPU)  # whose own == is slow: it knows names, too


def device_of_producer(x: Any) -> Device:
    """What ``x.__dlpack_device__()`` says; TypeError or ValueError if that is no device."""
    pair = x.__dlpack_device__()
    two: Any = pair if type(pair) is tuple or isinstance(pair, tuple) else None
    wrong: type[Exception] = TypeError
    try:
        kind, index = two
    except (TypeError, ValueError) as exc:
        wrong = type(exc)
    else:
        if type(kind) is int and type(index) is int:
            if kind != _CPU_TYPE:
                return Device.of(kind, index)
            if not index:
                return CPU
        kind, index = plain_number(kind), plain_number(index)
        if kind is not None and index is not None:
            device = Device.of(kind, index)
            return CPU if kind == _CPU_TYPE else device  # the host is one
        if kind == _CPU_TYPE and pair[1] is None:  # paddle 3.3 says that, which numpy takes, too
            return CPU
    raise wrong(f"{origin_of(x)}.__dlpack_device__() returned {pair!r}, not two ints")


def refuse_class(x: Any) -> None:
    """TypeError if *x* is a class: its instances may be tensors, the class is not."""
    if isinstance(x, type):
        raise TypeError(
            f"the class {x.__module__}.{x.__qualname__} is not a tensor; pass an instance of it"
        )


def _has_numpys_method(cls: type) -> bool:
    """Whether *cls* is numpy's array class, or a subclass that exports as numpy does."""
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    return (
        array is not None
        and issubclass(cls, array)
        and (getattr(cls, "__dlpack__", None) is array.__dlpack__)
    )


# Out --------------------------------------------------------------------------


def produce(
    tensor: Tensor, stream: object, max_version: object, dl_device: object, copy: Any
) -> object:
    """A new capsule of *tensor*: the body of ``__dlpack__``, see `Tensor.__dlpack__`."""
    version = check_version(max_version)
    if copy is not None:
        check_copy(copy)
    device = tensor.device
    own = device.dlpack
    target = own if dl_device is None else check_device(dl_device)
    if target == own:
        if not (device.is_host or _is_usual_for_torch(device)) and is_called_by_torch(1):
            _refuse_torch(tensor, device)
        if dl_device is None and (copy is False or (stream is not None and version is None)):
            _refuse_elements(tensor, version)
            _refuse_handle(tensor, stream, version)
        exported, flags = tensor, 0
        if copy or has_negative_strides(tensor):
            exported, flags = _copied(tensor, copy), FLAG_IS_COPIED
        order_consumer(exported, stream)  # after the copy, which is work on our stream too
        return capsule_of(exported, version, flags)
    if target == CPU.dlpack:
        return _export_to_host(tensor, version, stream, copy)
    raise ExchangeError(
        f"a tensor on {tensor.device} cannot be exported to the device {target}: the standard "
        "asks for its own device or the CPU; use dlbridge.to_device first"
    )


@cache
def _is_usual_for_torch(device: Device) -> bool:
    """Whether torch has tensors on *device*, which `_refuse_torch` need not look at."""
    torch = find_description("torch")
    kinds = None if torch is None else torch.device_types
    return kinds is None or (device.type in kinds and device.type is not DLDeviceType.kDLExtDev)


def _refuse_torch(tensor: Tensor, device: Device) -> None:
    """ExchangeError to torch for a device that it has no tensors on.

    torch 2.13 answers the capsule with an internal error, which asks for a report to torch, or
    for kDLExtDev with the name of a module that is missing.
    """
    torch: Any = find_description("torch")
    if device.type in torch.device_types and torch.check is not None:
        torch.check(tensor, device)
        return
    raise ExchangeError(
        f"torch has no tensors on {device}; dlbridge.to_device(t, 'cpu', like='torch') "
        "brings the tensor to the CPU"
    )


def _copied(tensor: Tensor, copy: bool | None) -> Tensor:
    """The copy that is exported to the device of *tensor*: it was asked for, or must be made."""
    if copy is True:
        return copy_of(tensor)
    if copy is False:
        raise ExchangeError(
            f"negative strides {tensor.strides} are exported as a copy (some consumers "
            "abort on them), and copy=False forbids it; pass copy=None, or export a compact "
            "copy, dlbridge.to_device(t, t.device, copy=True)"
        )
    return copy_of(tensor, f"a consumer gets no negative strides {tensor.strides}: {LOST_WRITES}")


def _export_to_host(
    tensor: Tensor, version: tuple[int, int] | None, stream: object, copy: bool | None
) -> object:
    if stream is not None:
        raise ValueError(
            f"{with_article(str(tensor.device))} tensor exported to the CPU is synchronised; "
            "stream must be None, "
            f"not {stream!r}"
        )
    if copy is not True:
        shared = shared_on_host(tensor)
        if shared is not None:
            return capsule_of(shared, version, 0)
    if copy is False:
        raise ExchangeError(
            f"{why_no_host_view(operand_of(tensor))}; copy=None copies it, copy=False forbids it"
        )
    return capsule_of(move(tensor, CPU, True), version, FLAG_IS_COPIED)


# Questions of mpi4py that it could not answer for itself are refused, with the way out. It
# asks every producer for a capsule of version 1.0 without a copy, and does not look at the
# device: it takes `data` plus the offset for an address that its MPI can read. It gives each
# element a whole number of bytes, and it reads lanes as bytes or as a complex number. Source:
# mpi4py 4.1, ``asdlpack.pxi``; the questions of all peers are in
# ``tests/core/interfaces/test_questions.py``.


def _refuse_handle(tensor: Tensor, stream: object, version: tuple[int, int] | None) -> None:
    """ExchangeError if *tensor* has a handle, and the consumer would take it for an address.

    To be called where ``copy=False`` and no ``dl_device`` were given, or no version
    (mpi4py before 4.1). On CUDA, ROCm and oneAPI `data` is an address, and an MPI
    that is built for them reads it.
    """
    device = tensor.device
    if device.is_address or stream != -1 or version == DLPACK_VERSION:
        return
    try:
        refusal = why_no_host_view(operand_of(tensor))
    except ExchangeError as exc:  # no backend here serves the device
        refusal = str(exc)
    if refusal:
        way = (
            f"{refusal}, so send a copy, comm.Send(dlbridge.to_device(t, 'cpu')); to receive, make "
            "a tensor on the CPU and then dlbridge.copy_(t, received)"
        )
    else:
        way = (
            "use its host view, comm.Send(t.host_view()) or comm.Recv(t.host_view()), or send a "
            "copy, dlbridge.to_device(t, 'cpu')"
        )
    raise ExchangeError(
        f"memory of {device} was asked for as MPI asks (stream=-1, copy=False, no dl_device), "
        f"which would take a handle for an address: {way}"
    )


def _refuse_elements(tensor: Tensor, version: tuple[int, int] | None) -> None:
    """ExchangeError if the consumer would count the bytes of *tensor* wrongly, or add them up.

    To be called where ``copy=False`` and no ``dl_device`` were given.
    """
    dtype = tensor.dtype
    if version != (1, 0) or tensor.is_padded:
        return
    if dtype.is_subbyte:
        reason = f"packed {dtype} elements are less than a byte, and MPI would read past the end"
    elif dtype.name == "complex32":
        reason = f"MPI has no datatype for {dtype}"
    elif dtype.lanes != 1:
        reason = f"MPI would reduce the bytes of {dtype} elements as numbers"
    else:
        return
    if is_called_by_torch(2):
        return  # its from_dlpack(t, copy=False) asks the same
    raise ExchangeError(
        f"the tensor was asked for as MPI asks (version 1.0, copy=False), and {reason}: send it as "
        "an object, comm.send(t) and comm.recv(), or send its bytes, comm.Send(t.tobytes()), and "
        "receive them, comm.Recv(t.view('uint8')), if its last dimension is compact and a whole "
        "number of bytes"
    )
