"""Tensors as arguments and results: of any library in, ours (or those of a chosen library) out.

An argument becomes a Tensor object of libtvm_ffi over the same memory: our own
and torch's by the C exchange tables, other libraries' by ``__dlpack__``, native
objects of a backend (an array of pyopencl) by that backend. The stream of every
device that an argument lies on is noted for the call.

A ``DLTensor`` cannot say that its memory must not be written, and libtvm_ffi drops
the flag of DLPack that does. So the caller has to say that a function reads only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dlbridge import Device, DLDeviceType, Tensor
from dlbridge.abi import (
    DLPACK_VERSION,
    FLAG_READ_ONLY,
    FLAG_SUBBYTE_PADDED,
    ForeignTable,
    OwnExport,
    Received,
    access,
    adopt,
    as_tensor,
    memory_under,
    order_consumer,
    own_export_of,
    read_managed,
    table_of,
)
from dlbridge.api import moving
from dlbridge.api.like import as_library
from dlbridge.errors import BackendUnavailable, ExchangeError
from dlbridge.extending import (
    import_native,
    is_of_backend,
    library_of,
    origin_of,
    public_in,
    unless_handler,
)
from dlbridge.interop.torch import (
    LOWEST_USUAL,
    is_readonly_torch,
    plain_torch,
    refuse_hidden,
    refuse_type,
)
from dlbridge.protocol import HOST_DEVICES

from ._lib import C, address, destructor, ffi
from .any import (
    HEADER,
    Handle,
    Temporaries,
    Unowned,
    WeakTable,
    defines,
    numpy_classes,
    pack,
    packers,
    torch_classes,
    untrack,
)
from .errors import raised
from .lending import is_numpy_class
from .objects import Argument, pack_opaque

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlbridge.extending import Memory
    from dlbridge.typing import SupportsDLPack

    from .any import Packer


_TENSOR: Final[int] = C.kTVMFFITensor
_CPU: Final = DLDeviceType.kDLCPU  # compared by identity: `==` is a function in Python
_MANAGED: Final = DLDeviceType.kDLCUDAManaged
# Where DLManagedTensorVersioned has the device, in int32; the major version is first.
_DEVICE: Final = (
    ffi.offsetof("DLManagedTensorVersioned", "dl_tensor") + ffi.offsetof("DLTensor", "device")
) // 4
_DTYPE: Final = (
    ffi.offsetof("DLManagedTensorVersioned", "dl_tensor") + ffi.offsetof("DLTensor", "dtype")
) // 4
_BYTES: Final = frozenset(
    ffi.cast("int32_t *", ffi.new("DLDataType *", (code, 8, 1)))[0]
    for code in (C.kDLInt, C.kDLUInt)
)
"""The types as which torch exports those below a byte, too."""
# The high half of its data, and of the addresses that ask for a closer look.
_HIGH_OF_DATA: Final = (
    ffi.offsetof("DLManagedTensorVersioned", "dl_tensor") + ffi.offsetof("DLTensor", "data")
) // 4 + (sys.byteorder == "little")
_LOWEST_HIGH: Final = LOWEST_USUAL >> 32
# With addresses as integers, which come and go: 0.3 us less than casting each.
_from_dlpack = ffi.cast(
    "int(*)(intptr_t, int32_t, int32_t, intptr_t *)",
    ffi.addressof(C, "TVMFFITensorFromDLPackVersioned"),
)
_FLAGS: Final = ffi.offsetof("DLManagedTensorVersioned", "flags") // 4  # the low half
_WORDS: Final = ffi.typeof("int32_t *")


# --- Arguments -----------------------------------------------------------------


def tensor_rule(cls: type) -> Packer | None:
    """Packers for tensors: ours, those with an exchange table, those with ``__dlpack__``."""
    if issubclass(cls, Tensor):
        return pack_own
    if defines(cls, "__as_tensor__"):
        return _pack_exporter
    if not defines(cls, "__dlpack__"):
        return None
    table = table_of(cls)
    if table is None:
        library = library_of(cls)
        declared = library is not None and library.immutable  # as its users know
        if is_numpy_class(cls):
            numpy_classes.add(cls)
        return partial(_pack_producer, declared=True) if declared else _pack_producer
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(cls, torch.Tensor):
        torchs, declared = table_of(torch.Tensor), is_readonly_torch(cls)
        # A DLTensor has no flags; all other tensors of torch may be written. Structs of a
        # stranger are checked.
        if torchs and table.address == torchs.address and table.fill_view and not declared:
            whole = frozenset({torch.int8, torch.uint8})
            torch_classes[cls] = torch.Tensor.is_neg, table.fill_view, whole
        return _table_packer(table, torchs, declared=declared)
    return _table_packer(table)


class HostHandle(Handle):
    """A Tensor object on CPU memory that may be written to: nothing to check at each call."""

    __slots__ = ()


def pack_own(
    value: Tensor, keep: Temporaries, given: object = None, declared: bool = False
) -> tuple[int, int]:
    """A Tensor of ours, by the object of libtvm_ffi that it has from its first call on.

    *given* is what the user passed, where that is another object. *declared*: by its class
    the user says that it is only read.
    """
    device = value.device  # an expired tensor raises here
    try:
        handle = value._native
    except AttributeError:  # not passed before
        handle = None
    if type(handle) is HostHandle:
        return keep.own(_TENSOR, handle)
    if value.readonly and not (declared or keep.reading):
        raise _read_only(value if given is None else given)
    if handle is None:
        # As it is, with negative strides too: a copy would lose what a kernel writes.
        kind = HostHandle if device.type is _CPU and not value.readonly else Handle
        handle = _tensor_object(own_export_of(value, 0), kind)
        untrack(handle)
        value._native = handle
    if device.type is not _CPU:
        keep.on_device(device, partial(_stream_of_own, memory_under(value)))
    return keep.own(_TENSOR, handle)


def _pack_exporter(value: Any, keep: Temporaries) -> tuple[int, int]:
    return pack_own(as_tensor(value), keep, value)


def _stream_of_own(memory: Memory) -> int | None:
    """The stream for work on *memory*, ordered after ours; None where none is known."""
    try:
        return access(memory)
    except BackendUnavailable:
        return None


def _pack_producer(value: Any, keep: Temporaries, *, declared: bool = False) -> tuple[int, int]:
    """By ``__dlpack__``: ordered before our own stream, which the callee is told."""
    tensor = moving.from_dlpack(value)
    keep.append(tensor)
    packed = pack_own(tensor, keep, value, declared)
    if not keep.streams:
        return packed
    stream = getattr(value, "__tvm_ffi_env_stream__", None)
    if stream is not None and tensor.device.type is not _CPU:
        # The producer says on which stream it works; it goes before ours.
        device = tensor.device
        keep.streams.pop()
        keep.on_device(device, stream)
    return packed


def _table_packer(
    table: ForeignTable, torchs: ForeignTable | None = None, *, declared: bool = False
) -> Packer:
    """*torchs*: for a class of torch its own table, whose structs are right; others are checked.

    *declared*: by the class itself the user says that the tensor is only read.
    """
    is_own = torchs is not None and table.address == torchs.address

    def pack_by_table(value: Any, keep: Temporaries) -> tuple[int, int]:
        plain = value if torchs is None else _not_lazy(value, declared=declared)
        try:
            owner = table.receive(value)
        except BufferError:
            return _pack_producer(value, keep)
        except unless_handler(Exception):
            if torchs is not None:
                refuse_hidden(value)  # what torch hides, in words for users
            raise
        head = ffi.cast(_WORDS, owner.managed_address)
        if torchs is not None and 0 <= head[_HIGH_OF_DATA] < _LOWEST_HIGH:
            refuse_hidden(value)  # NULL, perhaps with an offset
        if head[_FLAGS] & FLAG_READ_ONLY and not (declared or keep.reading):
            raise _read_only(value)
        if torchs is not None and head[_DTYPE] in _BYTES:
            refuse_type(plain)
        device_type, device_id = head[_DEVICE], head[_DEVICE + 1]
        if head[0] != DLPACK_VERSION[0]:  # libtvm_ffi does not look
            raise ExchangeError(f"the tensor comes by DLPack {head[0]}, libtvm_ffi speaks 1")
        if not is_own:
            read_managed(owner.managed_address)
        packed = keep.own(_TENSOR, _tensor_object(owner))
        if device_type != _CPU:
            device = Device.of(device_type, device_id)
            keep.on_device(device, partial(table.current_work_stream, device))
        return packed

    return pack_by_table


def _not_lazy(value: Any, *, declared: bool) -> Any:
    """Torch's tensor itself. A gradient does not hinder reading the memory; a lazy sign does."""
    plain = plain_torch(value) if declared else value
    try:
        lazy = plain.is_conj() or plain.is_neg()
    except unless_handler(Exception):  # it answers no questions (an UninitializedParameter)
        lazy = True
    if lazy:
        refuse_hidden(value)
    return plain


def native_rule(cls: type) -> Packer | None:
    """The packer for classes of a backend, or of the library that it serves; none is loaded."""
    return _pack_native if is_of_backend(cls) else None


def _pack_native(value: Any, keep: Temporaries) -> tuple[int, int]:
    """A native object of a backend as a tensor; anything else of its package as it is."""
    try:
        tensor = import_native(value, library_of(type(value)))
    except BackendUnavailable:
        tensor = None
    if tensor is None:
        return pack_opaque(value, keep)
    keep.append(tensor)
    return pack_own(tensor, keep, value)


def pack_other(value: Any, keep: Temporaries) -> tuple[int, int]:
    """An object of a class that no rule knows, as it is; as a tensor if it has become one."""
    cls = type(value)
    if hasattr(cls, "__as_tensor__") or hasattr(cls, "__dlpack__"):
        packer = tensor_rule(cls)
        if packer is not None:
            packers[cls] = packer
            return packer(value, keep)
    return pack_opaque(value, keep)


def _tensor_object(owner: OwnExport | Received, kind: type[Handle] = Handle) -> Handle:
    """The Tensor object that takes the struct from *owner*."""
    if ffi.cast(_WORDS, owner.managed_address)[_FLAGS] & FLAG_READ_ONLY:
        return _read_only_object(owner)
    return _object_of(owner.managed_address, owner.release, kind)


def _object_of(managed: int, release: Callable[[], object], kind: type[Handle] = Handle) -> Handle:
    """The Tensor object that takes the struct at *managed*, which is then to be released."""
    owner: Any = None
    out = ffi.new("intptr_t[1]")
    try:
        if _from_dlpack(managed, 0, 0, out):
            refusal, way = raised(), ""
            if ffi.cast(_WORDS, managed)[_FLAGS] & FLAG_SUBBYTE_PADDED:
                way = "; pass their bytes, x.view('uint8')"
            raise ExchangeError(f"libtvm_ffi refused the tensor: {refusal}{way}") from refusal
        release()
        owner = Unowned(out[0])
        owner.__class__ = kind
    except BaseException:  # the refusal, or one that came meanwhile
        if out[0] and type(owner) is not kind:
            release()  # harmless the second time
            Handle(out[0])
        raise
    return owner  # type: ignore[no-any-return]


def _read_only(given: object) -> ExchangeError:
    error = ExchangeError(_READ_ONLY.format(f"the {origin_of(given)}", ""))
    vars(error)[_REFUSED] = given
    return error


_READ_ONLY: Final = (
    "{} is read-only, and a function may write to its arguments: where it only reads, pass "
    "dlbridge.ffi.readonly(x), or call f.reading({})(...); else pass a copy"
)
_REFUSED: Final = "refused"
"""Where the error keeps what it refuses, for `name_argument`."""


def name_argument(error: BaseException, arguments: Sequence[Any]) -> None:
    """Let the *error* about a read-only tensor say which of the *arguments* it is, or is in."""
    refused = vars(error).pop(_REFUSED, None)
    if refused is None:
        return
    for index, argument in enumerate(arguments):
        if argument is refused or _holds(argument, refused, 3):
            inside = "" if argument is refused else "a tensor inside "
            what = f"{inside}argument {index} ({origin_of(refused)})"
            error.args = (_READ_ONLY.format(what, index),)
            return


def _holds(container: object, value: object, depth: int) -> bool:
    """Whether *value* is in a list, tuple or dictionary, or in one inside it."""
    if isinstance(container, dict):
        container = list(container.values())
    if not depth or not isinstance(container, (list, tuple)):
        return False
    return any(each is value or _holds(each, value, depth - 1) for each in container)


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
    # No call, and one line that changes something, as in `objects._drop`.
    if _exports[key][2]:
        del _readonly[_exports[key][2]], _exports[key]
    else:  # there is no object
        del _exports[key]


_FORGET_EXPORT: Final = destructor("void(*)(DLManagedTensorVersioned *)", _forget_export)


def _read_only_object(owner: OwnExport | Received) -> Handle:
    """The Tensor object over *owner*'s read-only memory, marked as such as long as it lives.

    It takes a copy of the struct, which lives in `_exports` until its deleter is called.
    """
    theirs = ffi.cast("DLManagedTensorVersioned *", owner.managed_address)
    struct = ffi.new("DLManagedTensorVersioned *", theirs[0])
    struct.manager_ctx, struct.deleter = ffi.NULL, _FORGET_EXPORT
    key, taken = address(struct), [False]
    export = [struct, owner, 0]
    try:
        _exports[key] = export
        handle = _object_of(key, partial(taken.__setitem__, 0, True))
        at = int(handle)
        _readonly[at], export[2] = key, at  # in one line, which a trace function leaves whole
    except BaseException:  # refused, or a Ctrl-C
        if not taken[0]:
            _exports.pop(key, None)
        raise
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
    try:
        out = ffi.cast("DLManagedTensorVersioned **", received.address)
        if C.TVMFFITensorToDLPackVersioned(ffi.cast("void *", owned), out):
            raise raised()
        if handle in _readonly:
            out[0].flags |= FLAG_READ_ONLY
        managed = received.open()
    except BaseException:
        # Now: kept by the traceback, it may die in a collection that another signal meets.
        received.delete()
        raise
    tensor = adopt(managed, "libtvm_ffi")
    tensor = _tensors.add(handle, tensor)
    untrack(owned)
    tensor._native = owned  # what came from C goes back as the same object
    return tensor


def borrowed_tensor(_tag: int, payload: int) -> Tensor:
    """A Tensor over a DLTensor that C owns: good until the callback returns."""
    managed = ffi.new("DLManagedTensorVersioned *")
    managed.version.major = DLPACK_VERSION[0]
    managed.dl_tensor = ffi.cast("DLTensor *", payload)[0]
    return adopt(read_managed(address(managed)), "a borrowed DLTensor")


def converter(like: Any) -> Callable[[Any], Any]:
    """A function that makes a Tensor an array of *like*, and leaves other values alone.

    By the exchange table of a class that has one (torch's ReadOnlyTensorWrapper has that of plain
    tensors); else *like* is what `dlbridge.to_device` takes.
    """
    table = table_of(like) if isinstance(like, type) and not is_readonly_torch(like) else None
    if table is not None:
        return lambda value: _wrapped(value, table) if isinstance(value, Tensor) else value
    return lambda value: as_library(value, like, None) if isinstance(value, Tensor) else value


def _wrapped(tensor: Tensor, table: ForeignTable) -> Any:
    """*tensor* as a tensor of the library of *table*, whose stream comes after our work."""
    if not tensor.device.is_host or tensor.device.type is _MANAGED:
        with suppress(BackendUnavailable):  # no work of ours is on it
            # A library's 0 is its default stream.
            order_consumer(tensor, table.current_work_stream(tensor.device) or None)
    return table.wrap_export(own_export_of(tensor))


_DEVICE_OF_OBJECT: Final = HEADER + ffi.offsetof("DLTensor", "device")


class OfOneDevice(Temporaries):
    """Temporaries of a call that takes tensors of one kind of device only."""

    checking = True

    def __init__(self, device: Device, function: str) -> None:
        super().__init__()
        self._device, self._function = device, function

    def own(self, index: int, handle: Handle) -> tuple[int, Handle]:
        """As above; ExchangeError for a tensor that the function cannot reach."""
        if index == _TENSOR:
            at = ffi.cast("DLDevice *", handle + _DEVICE_OF_OBJECT)
            where, wanted = Device.of(at.device_type, at.device_id), self._device
            if where.type not in _REACHED.get(wanted.type, (wanted.type,)):
                raise ExchangeError(_of_another(where, wanted, self._function))
        return super().own(index, handle)


_REACHED: Final[dict[int, frozenset[int]]] = {
    **dict.fromkeys(HOST_DEVICES, HOST_DEVICES),
    DLDeviceType.kDLCUDA: frozenset(
        {DLDeviceType.kDLCUDA, DLDeviceType.kDLCUDAHost, DLDeviceType.kDLCUDAManaged}
    ),
    DLDeviceType.kDLROCM: frozenset({DLDeviceType.kDLROCM, DLDeviceType.kDLROCMHost}),
}
"""Device type -> those whose memory its functions reach, where there are others."""


def _of_another(where: Device, wanted: Device, function: str) -> str:
    view = ", or inside x.host_view()" if wanted.is_host else ""
    return (
        f"a tensor on {where} cannot be passed to {function}: its module was loaded for {wanted}, "
        f"where that memory is not; pass a copy, dlbridge.to_device(x, '{wanted}'){view}. "
        "What the function writes into a copy goes back by dlbridge.copy_(x, copy)"
    )


class ReadOnlyArgument(Argument):
    """The result of `readonly`: a value to be passed, whose tensors may be read-only."""

    __slots__ = ()

    def _pack(self, keep: Temporaries) -> tuple[int, int]:
        """The value itself; its tensors, nested ones included, may be read-only."""
        before, keep.reading = keep.reading, True
        try:
            return pack(self.value, keep)
        finally:
            keep.reading = before

    def __repr__(self) -> str:
        return f"dlbridge.ffi.readonly({self.value!r})"


@public_in("dlbridge.ffi")
def readonly(value: Any) -> ReadOnlyArgument:
    """Say that the function that gets *value* as an argument only reads it.

    A read-only tensor is refused as an argument otherwise, because a ``DLTensor``
    cannot tell the function that its memory must not be written.

    Parameters
    ----------
    value : object
        A tensor of any library, or a value with tensors in it.

    Returns
    -------
    ReadOnlyArgument
        To be passed to a function, or put into a container.

    Examples
    --------
    >>> x = np.arange(3.0)
    >>> x.flags.writeable = False
    >>> ffi.get_global_func("ffi.Array")(ffi.readonly(x))[0].readonly
    True
    """
    return ReadOnlyArgument(value)


@public_in("dlbridge.ffi")
def from_dlpack(
    x: SupportsDLPack,
    /,
    *,
    require_alignment: int = 0,
    require_contiguous: bool = False,
    **keywords: Any,  # those of dlbridge.from_dlpack
) -> Tensor:
    """Return a Tensor on the memory of a DLPack producer; ValueError unless it is as required.

    Parameters
    ----------
    x : SupportsDLPack
        Any object with ``__dlpack__`` and ``__dlpack_device__``, or a capsule.
    require_alignment : int, optional
        The number of bytes that the address of the first element must be a multiple
        of. 0: any address.
    require_contiguous : bool, optional
        Whether the elements must lie row-major without gaps.
    **keywords : object
        *device*, *copy* and *stream*, as in `dlbridge.from_dlpack`.

    Returns
    -------
    Tensor
        On the same memory, which it keeps alive.

    Raises
    ------
    ValueError
        If a requirement is not met.

    Examples
    --------
    >>> ffi.from_dlpack(np.ones((2, 3)), require_contiguous=True).shape
    (2, 3)
    """
    tensor: Tensor = moving.from_dlpack(x, **keywords)
    if require_contiguous and not tensor.is_contiguous():
        raise ValueError(
            f"the tensor of shape {tensor.shape} with strides {tensor.strides} is not contiguous, "
            "as require_contiguous=True asks; make a copy: numpy.ascontiguousarray(x)"
        )
    if require_alignment > 0 and tensor.data_ptr() % require_alignment:
        raise ValueError(
            f"the data at {tensor.data_ptr():#x} is not aligned to {require_alignment} bytes, "
            "as require_alignment asks; make a copy: dlbridge.from_dlpack(x, copy=True)"
        )
    return tensor
