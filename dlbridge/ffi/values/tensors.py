"""Tensors as arguments and results: of any library in, ours (or those of a chosen library) out.

An argument becomes a Tensor object of libtvm_ffi over the same memory: our own
and torch's by the C exchange tables, other libraries' by ``__dlpack__``. The
stream of every device that an argument lies on is noted for the call.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from dlbridge.core._cdefs import ffi
from dlbridge.core.api import from_dlpack
from dlbridge.core.dlpack.capsules import Received, delete_managed, read_managed
from dlbridge.core.dlpack.exports import export_managed
from dlbridge.core.dlpack.foreign_tables import ForeignTable, table_of
from dlbridge.core.dlpack.structs import DLPACK_VERSION
from dlbridge.core.outgoing.like import as_library
from dlbridge.core.plugins.streams import chosen_streams, wait
from dlbridge.core.tensor.adopt import adopt
from dlbridge.core.tensor.exports import managed_address_of
from dlbridge.core.tensor.ordering import access
from dlbridge.core.tensor.tensor import Tensor
from dlbridge.core.values.devices import Device
from dlbridge.errors import BackendUnavailable, ExchangeError

from .._lib import C, address, destructor
from .errors import raised
from .weak import WeakTable
from .words import Handle, Temporaries, defines, packer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .words import Packer

__all__ = [
    "converter",
    "lent_tensor",
    "tensor_of",
    "tensor_rule",
    "view_packer_of",
    "view_packers",
]

_TENSOR: Final[int] = C.kTVMFFITensor
_DLTENSOR: Final[int] = C.kTVMFFIDLTensorPtr
_CPU: Final = 1
# Where DLManagedTensorVersioned has the device, in int32; the major version is first.
_DEVICE: Final = (
    ffi.offsetof("DLManagedTensorVersioned", "dl_tensor") + ffi.offsetof("DLTensor", "device")
) // 4
# With addresses as integers, which come and go: 0.3 us less than casting each.
_from_dlpack = ffi.cast(
    "int(*)(intptr_t, int32_t, int32_t, intptr_t *)",
    ffi.addressof(C, "TVMFFITensorFromDLPackVersioned"),
)
_FLAGS: Final = ffi.offsetof("DLManagedTensorVersioned", "flags") // 4  # the low half
_FLAG_READ_ONLY: Final = 1


# --- Arguments -----------------------------------------------------------------


def tensor_rule(cls: type) -> Packer | None:
    """Packers for tensors: ours, those with an exchange table, those with ``__dlpack__``."""
    if issubclass(cls, Tensor):
        return _pack_own
    if not defines(cls, "__dlpack__"):
        return None
    if cls is getattr(sys.modules.get("numpy"), "ndarray", None):
        return _pack_numpy
    table = table_of(cls)
    if table is None:
        return _pack_producer
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(cls, torch.Tensor):
        return _torch_packer(table)
    return _table_packer(table)


class _HostHandle(Handle):
    """A Tensor object on CPU memory that may be written to: nothing to check at each call."""

    __slots__ = ()


def _pack_own(value: Tensor, keep: Temporaries, name: str = "Tensor") -> tuple[int, int]:
    _ = value._array  # an expired tensor raises here
    try:
        handle = value._native
    except AttributeError:  # not passed before
        handle = None
    if type(handle) is _HostHandle:
        keep.append(handle)
        return _TENSOR, handle
    if value.readonly and not keep.reading:
        raise _read_only(name)
    device = value.device
    if handle is None:
        # As it is, with negative strides too: a copy would lose what a kernel writes.
        managed = managed_address_of(value)
        kind = _HostHandle if device.type == _CPU and not value.readonly else Handle
        handle = value._native = _tensor_object(managed, kind=kind)
    keep.append(handle)
    if device.type != _CPU:
        keep.on_device(device.type, device.index, lambda: _stream_of_own(value))
    return _TENSOR, handle


def _stream_of_own(tensor: Tensor) -> int | None:
    """The stream for work on *tensor*, ordered after ours; None where none is known."""
    try:
        return access(tensor._memory)
    except BackendUnavailable:
        return None


def _pack_producer(value: Any, keep: Temporaries) -> tuple[int, int]:
    """By ``__dlpack__``: ordered before our own stream, which the callee is told."""
    tensor = from_dlpack(value)
    keep.append(tensor)
    packed = _pack_own(tensor, keep, type(value).__name__)
    if not keep.streams:
        return packed
    stream = getattr(value, "__tvm_ffi_env_stream__", None)
    if stream is not None and tensor.device.type != _CPU:
        # The producer says on which stream it works; it goes before ours.
        device = tensor.device
        keep.streams.pop()
        keep.on_device(device.type, device.index, lambda: _stream_for(device, stream))
    return packed


def _pack_numpy(value: Any, keep: Temporaries) -> tuple[int, int]:
    """By numpy's own struct, without a Tensor of ours."""
    try:
        managed = export_managed(value, None)
    except Exception:  # from_dlpack knows more dtypes, older numpys, and why not
        return _pack_producer(value, keep)
    read_only = ffi.cast("int32_t *", managed)[_FLAGS] & _FLAG_READ_ONLY
    if read_only and not keep.reading:
        delete_managed(managed)
        raise _read_only("ndarray")
    handle = _read_only_object(managed) if read_only else _object_of(managed)
    keep.append(handle)
    return _TENSOR, handle


def _table_packer(table: ForeignTable) -> Packer:
    def pack_by_table(value: Any, keep: Temporaries) -> tuple[int, int]:
        try:
            managed = table.export_address(value)
        except BufferError:
            return _pack_producer(value, keep)
        head = ffi.cast("int32_t *", managed)
        if head[_FLAGS] & _FLAG_READ_ONLY and not keep.reading:
            delete_managed(managed)
            raise _read_only(type(value).__name__)
        device_type, device_id = head[_DEVICE], head[_DEVICE + 1]
        if head[0] == DLPACK_VERSION[0] and not head[_FLAGS] & _FLAG_READ_ONLY:
            handle = _object_of(managed)
        else:
            handle = _tensor_object(managed, head[0])
        keep.append(handle)
        if device_type != _CPU:
            device = Device.of(device_type, device_id)
            keep.on_device(
                device.type,
                device.index,
                lambda: _stream_for(device, lambda: table.current_work_stream(device)),
            )
        return _TENSOR, handle

    return pack_by_table


def view_packer_of(cls: type) -> Packer:
    """The packer for a callee that borrows its tensors (``DLTensor *`` parameters).

    Where the exchange table fills a DLTensor, nothing is allocated or counted.
    """
    packer = packer_of(cls)
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(cls, torch.Tensor):
        # A DLTensor has no flags; torch has no read-only tensors, which others may have.
        table = table_of(cls)
        if table is not None and table.has_view:
            packer = _view_packer(table, packer)
    view_packers[cls] = packer
    return packer


view_packers: dict[type, Packer] = {}
"""Class -> packer, as `view_packer_of` found them."""


def _view_packer(table: ForeignTable, otherwise: Packer) -> Packer:
    def pack_view(value: Any, keep: Temporaries) -> tuple[int, int]:
        view = ffi.new("DLTensor *")
        where = address(view)
        try:
            table.export_view(value, where)
        except BufferError:
            return otherwise(value, keep)
        if view.device.device_type != _CPU:
            return otherwise(value, keep)  # which knows about streams
        keep.append(view)
        return _DLTENSOR, where

    return pack_view


def _stream_for(device: Device, producers: Callable[[], int]) -> int:
    """The stream that `use_stream` chose for *device*, or else the producer's."""
    stream = producers()
    chosen = chosen_streams().get(device)
    if chosen is None:
        return stream
    wait(device, stream)
    return chosen


def _torch_packer(table: ForeignTable) -> Packer:
    pack_by_table = _table_packer(table)

    def pack_torch(value: Any, keep: Temporaries) -> tuple[int, int]:
        # A gradient does not hinder reading the memory; a lazy sign or conjugation does.
        if value.is_conj() or value.is_neg():
            raise ExchangeError(
                "the torch tensor is lazily conjugated or negated, which a kernel does not see; "
                "pass x.resolve_conj().resolve_neg()"
            )
        return pack_by_table(value, keep)

    return pack_torch


def _tensor_object(
    managed: int, major: int = DLPACK_VERSION[0], kind: type[Handle] = Handle
) -> Handle:
    """The Tensor object that owns the ``DLManagedTensorVersioned *`` at *managed*."""
    if major != DLPACK_VERSION[0]:  # libtvm_ffi does not look
        delete_managed(managed)
        raise ExchangeError(f"the tensor comes by DLPack {major}, libtvm_ffi speaks 1")
    if ffi.cast("int32_t *", managed)[_FLAGS] & _FLAG_READ_ONLY:
        return _read_only_object(managed)
    return _object_of(managed, kind)


def _object_of(managed: int, kind: type[Handle] = Handle) -> Handle:
    out = ffi.new("intptr_t[1]")
    try:
        failed = _from_dlpack(managed, 0, 0, out)
    except BaseException:  # a Ctrl-C that came meanwhile
        if out[0]:
            Handle(out[0])
        raise
    if failed:
        refusal = raised()
        delete_managed(managed)
        raise ExchangeError(f"libtvm_ffi refused the tensor: {refusal}") from refusal
    return kind(out[0])


def _read_only(name: str) -> ExchangeError:
    return ExchangeError(
        f"the {name} is read-only, and a function may write to its arguments: where it only "
        "reads, pass dlbridge.ffi.readonly(x), or call f.reading()(x); else pass a copy"
    )


# --- Read-only memory ----------------------------------------------------------

# libtvm_ffi forgets DLPack's flag (it exports its objects with flags 0), so the
# objects over read-only memory are noted here until they are deleted.
_readonly: Final[dict[int, int]] = {}
"""Address of a Tensor object -> address of the struct that it owns."""

_exports: Final[dict[int, list[Any]]] = {}
"""Address of a struct -> itself, the owner of the memory, the object's address or 0."""


def _forget_export(
    key: int, _exports: dict[int, list[Any]] = _exports, _readonly: dict[int, int] = _readonly
) -> None:
    # No call: an exception may be pending in whoever drops the object.
    if _exports[key][2] in _readonly:
        del _readonly[_exports[key][2]]
    del _exports[key]


_FORGET_EXPORT: Final = destructor("void(*)(DLManagedTensorVersioned *)", _forget_export)


def _read_only_object(managed: int) -> Handle:
    """`_object_of` for read-only memory, marked as such for as long as the object lives."""
    owner = Received()
    ffi.cast("intptr_t *", owner.address)[0] = managed
    struct = ffi.new(
        "DLManagedTensorVersioned *", ffi.cast("DLManagedTensorVersioned *", managed)[0]
    )
    struct.manager_ctx, struct.deleter = ffi.NULL, _FORGET_EXPORT
    key = address(struct)
    _exports[key] = export = [struct, owner, 0]
    handle = _object_of(key)
    export[2] = int(handle)
    _readonly[int(handle)] = key
    return handle


# --- Results -------------------------------------------------------------------

_tensors: Final[WeakTable[Tensor]] = WeakTable()
"""Address of a Tensor object -> our Tensor over it, which keeps it alive."""


def tensor_of(owned: Handle, _index: int) -> Tensor:
    """Our Tensor over a Tensor object."""
    handle = int(owned)  # the tables must own nothing
    known = _tensors.get(handle)
    if known is not None:
        return known
    received = Received()
    out = ffi.cast("DLManagedTensorVersioned **", received.address)
    if C.TVMFFITensorToDLPackVersioned(ffi.cast("void *", owned), out):
        raise raised()
    if handle in _readonly:
        out[0].flags |= _FLAG_READ_ONLY
    tensor = adopt(received.open(), "libtvm_ffi")
    tensor = _tensors.add(handle, tensor)
    tensor._native = owned  # what came from C goes back as the same object
    return tensor


def lent_tensor(_tag: int, payload: int) -> Tensor:
    """A Tensor over a DLTensor that C owns: good until the callback returns."""
    managed = ffi.new("DLManagedTensorVersioned *")
    managed.version.major = DLPACK_VERSION[0]
    managed.dl_tensor = ffi.cast("DLTensor *", payload)[0]
    return adopt(read_managed(address(managed)), "a borrowed DLTensor")


def converter(like: Any) -> Callable[[Any], Any]:
    """A function that makes a Tensor a tensor of *like*, and leaves other values alone.

    *like* is a class whose type has an exchange table (``torch.Tensor``), any
    other class of a library, or a library's name.
    """
    if isinstance(like, type):
        table = table_of(like)
        if table is not None:
            return lambda value: (
                table.wrap(managed_address_of(value)) if isinstance(value, Tensor) else value
            )
        like = like.__module__.partition(".")[0]
    return lambda value: as_library(value, like, None) if isinstance(value, Tensor) else value
