"""Between a Tensor and DLPack's structs, in and out; the consumer's stream that waits for ours.

An imported struct becomes a Tensor on the device that a backend knows the memory by. A tensor's
own structs and capsules go to consumers, whose stream is ordered after our work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.dlpack.exports import OwnExport, check_host_stream, export_array, with_image
from dlbridge.core.dlpack.structs import FLAG_IS_COPIED, FLAG_READ_ONLY, FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.registry import LOADED, family_of, plugin_named, sharing
from dlbridge.core.plugins.streams import current_use
from dlbridge.core.values.devices import CPU, Device, DLDeviceType
from dlbridge.errors import BackendUnavailable, Error, ExchangeError
from dlbridge.protocol import CONTEXT_DEVICES, NativeArray

from .array_tensor import ArrayTensor, NumpyTensor, tensor_on
from .memory import Memory, access, with_usual_strides
from .metadata import carrier_of, memory_under
from .operand import operand_of
from .tensor import Tensor

if TYPE_CHECKING:
    from typing import Any

    import numpy as np

    from dlbridge.core.dlpack.capsules import ManagedTensor
    from dlbridge.core.dlpack.exports import Image
    from dlbridge.core.plugins.streams import StreamUse


_CPU_TYPE = int(CPU.type)  # comparing with a member of the enumeration takes 10 times as long


def adopt(
    managed: ManagedTensor,
    origin: str,
    *,
    immutable: bool = False,
    beside: object = None,
    ordered: tuple[Device, StreamUse] | None = None,
    producer: object = None,
) -> Tensor:
    """The Tensor that owns *managed*.

    *origin* says where it came from, as text. *immutable* marks memory as read-only where
    the producer could not say it. *beside* is kept as long as *managed*.
    *ordered* is the device and its stream, on which the producer says that it is ready.
    *producer* is the object, if it is known: a backend of its library's family is asked about
    it where no other one knows the memory.
    """
    fields = managed.fields
    kind, index, data = fields.device_type, fields.device_id, fields.data
    offset, owner = fields.byte_offset, (managed if beside is None else (managed, beside))
    if kind == _CPU_TYPE:
        device = CPU
    else:
        device = Device.of(kind, index)
        asked = not device.is_address or kind in CONTEXT_DEVICES
        if asked and 0 in fields.shape:
            device = _of_nothing(device)
        elif asked:
            try:
                device, data = bind(device, data, origin)
                native = None if device.name in LOADED else _native(producer, kind)
            except ExchangeError:
                native = _native(producer, kind)
                if native is None:
                    raise
            if native is not None:
                device, array = native
                data, offset, owner = array.data, array.offset, (managed, array.owner)
    if fields.flags & FLAG_SUBBYTE_PADDED and fields.dtype.bits < 8 and fields.dtype.lanes > 1:
        raise ExchangeError(
            f"padded {fields.dtype} elements: dlpack.h does not say whether each lane is padded; "
            "export them packed, or with one lane"
        )
    memory = Memory(device, data, origin, owner)
    if ordered is not None and ordered[0] is device:
        memory.use_on(ordered[1])
    flags = fields.flags
    return tensor_on(
        memory,
        fields.dtype,
        fields.shape,
        fields.strides,
        byte_offset=offset,
        readonly=immutable or flags & FLAG_READ_ONLY != 0,
        # Padding means nothing on types of whole bytes.
        padded=flags & FLAG_SUBBYTE_PADDED != 0 and fields.dtype.is_subbyte,
        copied=flags & FLAG_IS_COPIED != 0,
    )


def _native(producer: object, kind: int) -> tuple[Device, NativeArray] | None:
    """The device and the description of *producer* by a backend of its library's own family."""
    for name in family_of(type(producer)):
        plugin = plugin_named(name)
        if plugin.device_type == kind and plugin.from_native is not None:
            array = plugin.from_native(producer)
            if array is not None:
                return Device.of(kind, array.device_id, name), array
    return None


def _of_nothing(device: Device) -> Device:
    """The device of a tensor without elements, whose ``data`` is NULL: nobody can recognise it.

    It is that of the backend which DLPack names, if it can be used here, or of the only one that
    can.
    """
    names = sharing(device.dlpack[0])
    if device.name in names or len(names) != 1:
        return device
    return Device.of(*device.dlpack, names[0])


def bind(device: Device, data: int, origin: str, name: str | None = None) -> tuple[Device, int]:
    """The device and *data* as the backend that recognises the memory knows them.

    All backends of the device type are asked, or the one called *name*, which is here, so that
    the answer depends neither on what is loaded nor on the order. Where none of them
    can be asked, the handle stays as it is.
    """
    kind, _ = device.dlpack
    module, _, _ = origin.rpartition(".")
    owners: list[tuple[Device, int]] = []
    errors: dict[str, Error] = {}
    for each in sharing(kind) if name is None else [name]:
        import_data = plugin_named(each).import_data
        if import_data is not None:
            try:
                index, own = import_data(device.index, data, module)
                same = index == device.index and each == device.name
                owners.append((device if same else Device.of(kind, index, each), own))
            except Error as exc:
                errors[each] = exc
    if owners:
        owner, *others = owners
        if others:
            # The backend that DLPack names knows all memory of its driver; one of a family, its
            # own.
            owner, *others = [each for each in owners if "-" in each[0].name] or owners
        if others:
            names = " and ".join(known.name for known, _ in (owner, *others))
            raise ExchangeError(
                f"the handle {data:#x} from {origin} is taken for their own by two backends, "
                f"{names}: their handles cannot be told apart. DLBRIDGE_BACKENDS can leave one of "
                "them out"
            )
        return owner
    for error in errors.values():  # a broken backend first: nobody else knows the handle
        if not isinstance(error, ExchangeError) or len(errors) == 1:
            raise error
    if errors:
        said = "; ".join(f"{each}: {error}" for each, error in errors.items())
        raise ExchangeError(
            f"no backend recognises the handle {data:#x} from {origin}: {said}"
        ) from error
    return device, data


# Out --------------------------------------------------------------------------


def capsule_of(tensor: Tensor, version: tuple[int, int] | None, flags: int) -> object:
    """A new capsule of *tensor*, with *flags* added; *version* as ``max_version``."""
    array, image = _described(tensor, flags)
    capsule = export_array(array, max_version=version)
    return capsule if image is None else with_image(capsule, image, version)


def own_export_of(tensor: Tensor, flags: int = 0) -> OwnExport:
    """A new struct of *tensor*, with *flags* added, and its owner."""
    return OwnExport(*_described(tensor, flags))


def _described(tensor: Tensor, flags: int) -> tuple[np.ndarray[Any, Any], Image | None]:
    """The carrier, and the fields that make numpy's export of it the tensor's; None if it is."""
    if type(tensor) is not Tensor and isinstance(tensor, NumpyTensor):  # which has no padding
        array = with_usual_strides(carrier_of(tensor))
        plain = not flags and type(tensor) is ArrayTensor
        return array, None if plain else (tensor.dtype, flags, None)
    operand = operand_of(tensor)
    array, device = operand.carrier, operand.device
    data, offset = operand.data, operand.byte_offset
    if 1 in operand.shape:
        array = with_usual_strides(array)
    if not operand.nbytes:
        data = offset = 0
    elif device.is_address:
        data, offset = data + offset, 0
    flags |= operand.flags & FLAG_SUBBYTE_PADDED
    return array, (operand.dtype, flags, (data, device.dlpack, offset))


def order_consumer(tensor: Tensor, stream: object) -> None:
    """Make the consumer's *stream* wait for our work on *tensor*; -1: no wait is wanted.

    The backend of the device knows which values are allowed. Without a backend
    only None and -1 are possible: the memory was ready on the default stream when
    it was imported.
    """
    # A property of an array's tensor would make a `Memory`.
    memory = memory_under(tensor) if type(tensor) is Tensor else None
    device = CPU if memory is None else memory.device
    if device.is_host and device.type is not DLDeviceType.kDLCUDAManaged:
        check_host_stream(stream)
        return
    if stream == -1 and not isinstance(stream, bool):
        return
    try:
        plugin = plugin_named(device.name)
    except BackendUnavailable:
        if stream is None:
            return
        raise
    if plugin.normalize_stream is not None and plugin.wait is not None:
        consumer = plugin.normalize_stream(device.index, stream)
        if consumer != -1:
            # The last work of ours, and what may have been queued beside it.
            ours = {current_use(device, plugin).handle}
            if memory is not None and memory.last_use is not None:
                ours |= {memory.last_use.handle}
            for producer in ours - {consumer}:
                plugin.wait(device.index, consumer, producer)
    elif stream is not None:
        raise TypeError(f"{device} has no streams; stream must be None or -1, not {stream!r}")


def order_consumer_on_current_stream(memory: Memory) -> None:
    """Treat the work of a consumer that asks for our current stream as work of ours on *memory*.

    The functions of an exchange table do not synchronise; the consumer launches on the stream
    that the table names. That stream waits for our earlier work on the memory, and a free waits
    for it. An error is logged, because those functions cannot raise.
    """
    try:
        access(memory)
    except BackendUnavailable:
        pass  # no work of ours is on it
    except Error as exc:
        import logging  # 4 ms, of the 20 that the first tensor takes

        log = logging.getLogger(__name__)
        log.warning("a consumer of %s memory is not ordered: %s", memory.device, str(exc))
