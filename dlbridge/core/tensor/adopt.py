"""The Tensor that owns an imported struct, on the device that a backend knows it by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.core.dlpack.structs import FLAG_IS_COPIED, FLAG_READ_ONLY, FLAG_SUBBYTE_PADDED
from dlbridge.core.plugins.records import plugin_named
from dlbridge.core.plugins.registry import sharing
from dlbridge.core.values.devices import Device
from dlbridge.errors import BackendUnavailable, Error, ExchangeError
from dlbridge.protocol import CONTEXT_DEVICES

from .array_tensor import make_tensor
from .memory import Memory

if TYPE_CHECKING:
    from dlbridge.core.dlpack.capsules import ManagedTensor
    from dlbridge.core.plugins.streams import StreamUse

    from .tensor import Tensor


_CPU = Device.of(1, 0)
_CPU_TYPE = int(_CPU.type)  # comparing with a member of the enumeration takes 10 times as long


def adopt(
    managed: ManagedTensor,
    origin: str,
    *,
    name: str | None = None,
    immutable: bool = False,
    beside: object = None,
    ordered: tuple[Device, StreamUse] | None = None,
) -> Tensor:
    """The Tensor that owns *managed*.

    *origin* says where it came from, as text. *name* is the backend, for a device
    type that several backends share. *immutable* marks memory as read-only where
    the producer could not say it. *beside* is kept as long as *managed*.
    *ordered* is the device and its stream, on which the producer says that it is ready.
    """
    fields = managed.fields
    kind, index, data = fields.device_type, fields.device_id, fields.data
    if kind == _CPU_TYPE:
        device = _CPU
    else:
        device = Device.of(kind, index, name)
        asked = not device.is_address or kind in CONTEXT_DEVICES
        if asked and 0 not in fields.shape:
            device, data = bind(device, data, origin, name)
    if fields.flags & FLAG_SUBBYTE_PADDED and fields.dtype.bits < 8 and fields.dtype.lanes > 1:
        raise ExchangeError(
            f"padded {fields.dtype} elements: dlpack.h does not say whether each lane is padded; "
            "export them packed, or with one lane"
        )
    owner: object = managed if beside is None else (managed, beside)
    memory = Memory(device, data, origin, owner)
    if ordered is not None and ordered[0] is device:
        memory.last_use = ordered[1]
    return make_tensor(
        memory,
        fields.byte_offset,
        fields.dtype,
        fields.shape,
        fields.strides,
        readonly=immutable or bool(fields.flags & FLAG_READ_ONLY),
        # Padding means nothing on types of whole bytes.
        flags=fields.flags
        & (FLAG_IS_COPIED | (FLAG_SUBBYTE_PADDED if fields.dtype.is_subbyte else 0)),
    )


def bind(device: Device, data: int, origin: str, name: str | None) -> tuple[Device, int]:
    """The device and *data* as the backend that recognises the memory knows them.

    All backends of the device type are asked, or the one called *name*, so that the
    answer depends neither on what is loaded nor on the order. Where none of them
    can be asked, the handle stays as it is.
    """
    kind = int(device.type)  # comparing with a member of the enumeration runs Python
    taken: list[tuple[Device, int]] = []
    refusals: list[tuple[str, ExchangeError]] = []
    broken: list[Error] = []
    for each in sharing(kind) if name is None else _called(name):
        import_data = plugin_named(each).import_data
        if import_data is not None:
            try:
                index, own = import_data(device.index, data, origin.rpartition(".")[0])
            except ExchangeError as exc:
                refusals.append((each, exc))
            except Error as exc:
                broken.append(exc)
            else:
                taken.append((Device.of(kind, index, each), own))
    if len(taken) > 1:
        names = " and ".join(found.name for found, _ in taken)
        raise ExchangeError(
            f"the handle {data:#x} from {origin} is taken for their own by two backends, {names}: "
            "their handles cannot be told apart. DLBRIDGE_BACKENDS can leave one of them out"
        )
    if taken:
        return taken[0]
    if broken:  # nobody else knows the handle
        raise broken[0]
    if len(refusals) == 1:
        raise refusals[0][1]
    if refusals:
        said = "; ".join(f"{each}: {exc}" for each, exc in refusals)
        raise ExchangeError(
            f"no backend recognises the handle {data:#x} from {origin}: {said}"
        ) from refusals[-1][1]
    return device, data


def _called(name: str) -> list[str]:
    try:
        return [plugin_named(name).name]
    except BackendUnavailable:
        return []
