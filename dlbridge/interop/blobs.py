"""`from_blob`: a Tensor over memory that only its caller knows, and the call that frees it."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from math import prod
from operator import attrgetter, index, mul
from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Any

from dlbridge import Device, DLDeviceType
from dlbridge.abi import (
    RESUME,
    bind,
    ffi,
    handlers_exception,
    raise_when_dropped,
    report,
)
from dlbridge.api.creation import NAMED_TYPES, dtype_of, extents_of
from dlbridge.api.no_tensor import OF_ARRAYS
from dlbridge.errors import ExchangeError
from dlbridge.extending import (
    CPU,
    NUMPY_OWN,
    Memory,
    alignment_of,
    byte_reach,
    check_device,
    check_host_stream,
    order_after,
    origin_of,
    parameters_of,
    plugin_of,
    public_in,
    tensor_on,
    unless_handler,
    why_impossible,
    with_article,
)
from dlbridge.interop.exporter import Exporter
from dlbridge.kit.resources import AllocationOwner, Owner, Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlbridge import DType, Tensor
    from dlbridge.typing import DeviceLike, DTypeLike, StreamLike

_ORIGIN = "dlbridge.from_blob"
_ALIGNED = 16  # more than any element needs
_PAGE = 4096  # no system maps the first page of memory
_FAR = 1 << 48  # below it addresses and numbers of elements need no look at where they end


@public_in("dlbridge")
def from_blob(
    data: Any,
    shape: int | Sequence[int],
    dtype: DTypeLike,
    *,
    device: DeviceLike = "cpu",
    strides: Sequence[int] | None = None,
    byte_offset: int = 0,
    readonly: bool = False,
    owner: object = None,
    deleter: Callable[[Any], object] | None = None,
    stream: StreamLike | None = None,
) -> Tensor:
    """Return a Tensor over memory that you have the address of; nothing is copied.

    Whether there is such memory at the address, and for how long, cannot be checked: memory
    that is freed while something uses it is read and written all the same. Name what must live
    with *owner*, or give the memory away with *deleter*.

    Parameters
    ----------
    data : int, ctypes pointer or array, c_void_p, or cffi pointer or array
        The address of the memory. On devices whose memory has handles it is the handle
        (``cl.Buffer.int_ptr`` on OpenCL; see the documents of the backend). It is
        kept as *owner* is, if it is not an integer: cffi and ctypes arrays own their memory.
    shape : int or sequence of int
        The extents, in elements.
    dtype : DTypeLike
        The type of an element; `dlbridge.dtype` says what is accepted.
    device : DeviceLike
        Where the memory is; a backend here must serve the device.
    strides : sequence of int, optional
        The distance between neighbours along each dimension, in elements as in DLPack,
        not in bytes as in numpy: of an array *a* it is ``[s // a.itemsize for s in a.strides]``.
        None: row-major without gaps.
    byte_offset : int
        The bytes from *data* to the first element.
    readonly : bool
        Whether nobody may write to the memory.
    owner : object, optional
        Kept as long as anything uses the memory: the tensor, its views, and each consumer.
        It must not hold the tensor itself: the two would keep each other for ever.
    deleter : callable, optional
        Called with *data*, once, when nothing uses the memory any more; on a device, when
        dlbridge's work on it is done. *owner* is let go after that. The deleter must not hold
        the tensor either: no bound method of an object that does.
    stream : StreamLike, optional
        Where the memory was written last, by the rules of the device: dlbridge's work, and
        that of each consumer, comes after what is queued there now. None or -1: it is ready.

    Returns
    -------
    Tensor
        On that memory.

    Raises
    ------
    TypeError
        If an argument is not of its kind: *data* is an array, for example.
    ValueError
        If the elements cannot be there: *data* is NULL, an extent is negative, an address
        wraps around or is not aligned, elements lie outside a ctypes or cffi array,
        or the buffer of *owner* that the first one is in, a pointer to another type than *dtype*
        is given, or *owner* or the object of a bound *deleter* is an `Exporter` whose
        attribute waits for this tensor.
    ExchangeError
        If the device does not exist, or its backend does not know the memory.
    BackendUnavailable
        If no backend here serves *device*.

    Notes
    -----
    The collector cannot see what keeps *owner* and *deleter*: numpy's arrays and the structs of
    consumers in C do not show it, and a deleter must still be there when all else has ended. So a
    cycle through them is never freed. Let *owner* be another object than the one with the
    tensor, the one that has the memory, and *deleter* a function that needs nothing but *data*.

    If it raises, *deleter* is not called, and the memory is still yours. After that *deleter*
    is called in the thread that lets the memory go, which may be any thread, also one of C,
    or within a garbage collection. Nobody can catch its exceptions: they go to
    `sys.unraisablehook`; only a KeyboardInterrupt in the main thread is raised there, as it is
    taken for a Ctrl-C. It is not called in a child of ``os.fork()``, whose parent has the
    memory, and not once dlbridge has ended at the end of the process, when the
    system takes back everything.

    Examples
    --------
    >>> import ctypes
    >>> memory = (ctypes.c_float * 6)(1, 2, 3, 4, 5, 6)
    >>> t = bridge.from_blob(memory, (2, 3), "float32")
    >>> t[1].tolist()
    [4.0, 5.0, 6.0]
    >>> address = ctypes.addressof(memory)
    >>> columns = bridge.from_blob(address, (3, 2), "float32", strides=(1, 3), owner=memory)
    >>> columns.tolist()
    [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    """
    if type(data) is int:
        address, limit, element, keep = data, None, None, owner
    else:
        address, limit, element = _address_of(data)
        keep = data if owner is None else (data, owner)
    extents = extents_of(shape)
    known = type(dtype) is str and dtype in NAMED_TYPES
    kind = NAMED_TYPES[dtype] if known else dtype_of(dtype)  # type: ignore[index]  # a str
    if element is not None:
        _check_dtype(kind, *element)
    where = CPU if device == "cpu" else check_device(device)
    if type(byte_offset) is not int:
        byte_offset = index(byte_offset)
    steps = None if strides is None else _steps(strides, extents)
    count = prod(extents)
    end = count if steps is None else sum(map(mul, extents, steps))  # no element is behind that
    plain = (  # what nothing can be wrong with, seen at a glance
        where is CPU
        and kind.name in NUMPY_OWN
        and 0 <= byte_offset < _FAR
        and _PAGE <= address < _FAR
        and not (address + byte_offset) % _ALIGNED
        and 0 < count < _FAR
        and (steps is None or (0 < end < _FAR and min(steps) >= 0))
        and (limit is None or byte_offset + (end * kind.bits >> 3) <= limit)
    )
    if owner is not None and where is CPU:
        _check_owner(owner, address + byte_offset, kind, extents, steps)
    if not plain:
        _check_elements(where, address, byte_offset, kind, extents, steps, limit)
        if count and where is not CPU:
            address = _bound(where, address)
    if deleter is not None or (owner is not None and isinstance(owner, Exporter)):
        _check_end(owner, deleter, data)
    if _blobs.ended:  # a signal handler has cut the end of another one off
        _blobs.sweep()
    if deleter is None and (where is CPU or keep is None):
        memory = Memory(where, address, _ORIGIN, keep)
        blob = None
    else:
        blob = _Blob(data, keep)
        memory = _owned(where, address, blob)
    tensor = tensor_on(memory, kind, extents, steps, byte_offset=byte_offset, readonly=readonly)
    if stream is not None:
        _order_after(stream, memory, bool(tensor.size))
    if blob is not None:
        blob.deleter = deleter  # the last step: an exception before it leaves the memory to you
    return tensor


# What frees the memory ----------------------------------------------------------


class _Blob:
    """What is done when nothing uses the memory any more; *synchronize* waits for its *stream*."""

    __slots__ = ("arrived", "data", "deleter", "keep", "stream", "synchronize")

    def __init__(self, data: object, keep: object) -> None:
        self.data = data
        self.keep = keep
        self.deleter: Callable[[Any], object] | None = None
        self.arrived: object = None
        self.stream = 0
        self.synchronize: tuple[Callable[[int, int], None], int] | None = None


def _owned(where: Device, address: int, blob: _Blob) -> Memory:
    """The memory whose end is that of *blob*."""
    if where is CPU:
        return Memory(where, address, _ORIGIN, Owner(_blobs, blob))
    memory = Memory(where, address, _ORIGIN)
    allocation = memory.allocation = AllocationOwner(_blobs, blob)
    allocation.data, allocation.nbytes = address, 0
    # Only where there was work: `Memory.use_on` writes the stream into the allocation.
    blob.stream = _NO_WORK
    synchronize = plugin_of(where).synchronize
    if synchronize is not None:
        blob.synchronize = synchronize, where.index
    return memory


_NO_WORK = -1


def _release(blob: _Blob) -> bool:
    """Wait for dlbridge's work, and call the deleter, once. After any exception it goes on."""
    if blob.synchronize is not None:
        synchronize, number = blob.synchronize
        if blob.stream != _NO_WORK:
            try:
                synchronize(number, blob.stream)
            except unless_handler(Exception) as exc:
                report(exc, "the wait for the work on memory of dlbridge.from_blob")
        blob.synchronize = None
    while (deleter := blob.deleter) is not None:
        blob.deleter = None  # no handler can come between this line and the deleter
        try:
            deleter(blob.data)
        except BaseException as exc:
            # If a signal came before its first instruction it is called again. Nothing is called
            # here before that is noted: another signal could come.
            traceback = exc.__traceback__
            trace = traceback.tb_next  # type: ignore[union-attr]  # it has that of this frame
            if trace is None and exc.__class__ is RecursionError:  # it could not be entered
                blob.deleter = deleter
                return False
            if (
                trace is not None
                and RESUME not in trace.tb_frame.f_code.co_code[: trace.tb_lasti : 2]
            ):
                blob.deleter = deleter
            del trace
            # Signal handlers run in the main thread only.
            arrived = None
            if get_ident() == main_thread().ident:
                arrived = handlers_exception(type(exc), exc, traceback)  # type: ignore[arg-type]
            if arrived is None:
                report(exc, f"the deleter {deleter!r} of dlbridge.from_blob")
            else:
                # Raised where the thread goes on after this. Its frames hold the owner.
                blob.arrived = raise_when_dropped(exc.with_traceback(None))
            del traceback
    blob.data = blob.keep = None
    return True


_blobs: Resources[_Blob] = Resources(_release)


def _order_after(stream: Any, memory: Memory, has_elements: bool) -> None:
    """Make our stream, and so each consumer, wait for what is queued on *stream* now."""
    where = memory.device
    if where.is_host and where.type is not DLDeviceType.kDLCUDAManaged:
        check_host_stream(stream)
        return
    plugin = plugin_of(where)
    if plugin.normalize_stream is None or plugin.wait is None:
        raise TypeError(f"{where} has no streams; stream must be None, not {stream!r}")
    handle = plugin.normalize_stream(where.index, stream)
    if handle != -1 and has_elements:
        order_after(memory, handle)


# What is checked ------------------------------------------------------------------


_POINTERS: tuple[Any, ...] = (
    ctypes.POINTER(ctypes.c_char).__mro__[1],  # the base of the classes of pointers
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_wchar_p,
)
_Element = tuple[str, int, bool]
"""The name of a type of C, its bits, and whether it is a float."""


def _address_of(data: Any) -> tuple[int, int | None, _Element | None]:
    """The address that *data* is, the bytes there and their type, if it knows them; TypeError."""
    if isinstance(data, ffi.CData):
        ctype = ffi.typeof(data)
        if ctype.kind in ("pointer", "array"):
            limit = ffi.sizeof(data) if ctype.kind == "array" else None
            return int(ffi.cast(_ADDRESS, data)), limit, _element_of_cffi(ctype.item)
        if ctype.cname.endswith("intptr_t"):
            return int(data), None, None
    elif isinstance(data, _POINTERS):
        address = ctypes.c_void_p.from_buffer(data).value or 0
        return address, None, _element_of(type(data))  # type: ignore[arg-type]  # a class has a hash
    elif isinstance(data, ctypes.Array):
        return ctypes.addressof(data), ctypes.sizeof(data), _element_of(type(data))
    cls = type(data)
    is_array = any(hasattr(cls, name) for name in OF_ARRAYS)
    if cls is not bool and hasattr(cls, "__index__") and not is_array:
        return index(data), None, None
    raise TypeError(f"from_blob takes an address, and {origin_of(data)} is none: {_instead(data)}")


_ADDRESS = ffi.typeof("uintptr_t")


_IN_OUR_ORDER = f"__ctype_{sys.byteorder[0]}e__"
"""What a number of ctypes calls that of this machine's byte order."""


@lru_cache(maxsize=64)
def _element_of(cls: Any) -> _Element | None:
    """What a class of ctypes points to; None for bytes, structs and what it does not say."""
    item = cls._type_
    while isinstance(item, type) and issubclass(item, ctypes.Array):
        item = item._type_
    code = getattr(item, "_type_", None)
    if code == "O" or getattr(item, _IN_OUR_ORDER, item) is not item:
        return f"{item.__name__} ({'an object' if code == 'O' else 'foreign byte order'})", 0, True
    bits = 0 if code is None else 8 * ctypes.sizeof(item)
    return None if bits <= 8 else (item.__name__, bits, code in ("f", "d", "g"))


@lru_cache(maxsize=64)
def _element_of_cffi(item: Any) -> _Element | None:
    """The same of a type of cffi."""
    while item.kind == "array":
        item = item.item
    if item.kind not in ("primitive", "enum", "pointer"):
        return None
    name, bits = item.cname.removeprefix("_cffi_"), 8 * ffi.sizeof(item)
    if name.endswith("_complex_t"):  # _cffi_float_complex_t: the two parts have a half each
        bits >>= 1
    is_float = item.kind == "primitive" and name.startswith(("float", "double", "long double"))
    return None if bits == 8 else (name, bits, is_float)


@lru_cache(maxsize=64)
def _check_dtype(kind: DType, name: str, bits: int, is_float: bool) -> None:
    """ValueError for elements of *kind* behind a pointer to something else.

    A pointer to integers may be one to what C has no type for: bfloat16, or words of packed int4.
    """
    lane = kind.bits >> (kind.code == _COMPLEX)
    is_real = kind.code in (_FLOAT, _COMPLEX) and lane > 16
    if (lane == bits and is_real == is_float) or (kind.is_subbyte and not is_float):
        return
    raise ValueError(
        f"data points to {name}, which is not {kind}; pass the dtype of that, or a pointer that "
        "names no type if you know better: ctypes.cast(x, ctypes.c_void_p), or "
        "ffi.cast('void *', x)"
    )


_FLOAT = 2  # kDLFloat
_COMPLEX = 5  # kDLComplex


def _instead(data: Any) -> str:
    cls = type(data)
    if getattr(cls, "__index__", None) and hasattr(data, "item") and not getattr(data, "ndim", 1):
        return "pass int(x) if the number is the address"
    if hasattr(cls, "__dlpack__"):
        return "dlbridge.from_dlpack(x) takes the array itself, and keeps it"
    if any(hasattr(data, name) for name in OF_ARRAYS):
        return "dlbridge.asarray(x) takes the array itself, and keeps it"
    if hasattr(data, "int_ptr"):  # of pyopencl
        return "pass x.int_ptr, and keep the memory with owner=x"
    if isinstance(data, ctypes.Structure | ctypes.Union):
        return "pass ctypes.pointer(x)"
    if isinstance(data, ctypes.c_int.__mro__[1]):  # the base of the classes of numbers
        return "pass x.value if that is the address, or ctypes.pointer(x) for the number itself"
    if isinstance(data, ffi.CData):
        ways = {"struct": "pass ffi.addressof(x)", "union": "pass ffi.addressof(x)"}
        return {**ways, "function": _CALL}.get(ffi.typeof(data).kind, _WAYS)
    if callable(data):
        return _CALL
    try:
        memoryview(data)
    except TypeError:
        return _WAYS
    return "dlbridge.asarray(x) takes the buffer itself, and keeps it"


_CALL = "it is a function, which has no elements; call it, and pass the address that it returns"
_WAYS = "pass an int, a ctypes pointer, array or c_void_p, or a cffi pointer or array"


def _steps(strides: Sequence[int], extents: tuple[int, ...]) -> tuple[int, ...]:
    try:
        steps = tuple(map(index, strides))
    except TypeError as exc:
        raise TypeError(
            f"strides {strides!r} are not integers: {exc}; pass one for each dimension, in elements"
        ) from exc
    if len(steps) != len(extents):
        raise ValueError(
            f"{len(steps)} strides {steps} for {len(extents)} dimensions {extents}; pass one for "
            "each, or None for compact elements"
        )
    return steps


def _check_elements(
    where: Device,
    address: int,
    byte_offset: int,
    kind: DType,
    extents: tuple[int, ...],
    steps: tuple[int, ...] | None,
    limit: int | None,
) -> None:
    """Raise ValueError if no memory at *address*, of *limit* bytes if known, has the elements."""
    if steps and (min(steps) < -(1 << 63) or max(steps) >= 1 << 63):
        raise ValueError(f"strides {steps}: they are int64 in DLPack, and count elements")
    count = prod(extents)
    if not count:
        return
    low, high = byte_reach(kind, extents, steps)
    wrong = ""
    if address == 0:
        wrong = "data is NULL, and there are elements; check what the allocation returned"
    elif not 0 < address < 1 << 64:
        wrong = (
            f"data {address} is not an address, which is an unsigned 64-bit number (ctypes cuts "
            "the pointer that a function f gives until f.restype = ctypes.c_void_p is set)"
        )
    elif where.is_address and address < _PAGE:
        wrong = f"data {address} is not an address: no system maps the first page; pass the pointer"
    elif byte_offset < 0:
        wrong = f"byte_offset {byte_offset} is negative; add it to data"
    elif count * kind.bits * kind.lanes >> 66:
        wrong = "it has more bytes than 63 bits can count"
    elif not where.is_address and byte_offset + low < 0:
        wrong = f"the elements begin {-byte_offset - low} bytes before the memory {address:#x}"
    elif limit is not None and not 0 <= byte_offset + low <= byte_offset + high <= limit:
        wrong = (
            f"the elements are at bytes {byte_offset + low} to {byte_offset + high} of data, "
            f"which has {limit}"
        )
        if steps and _in_bytes(steps, extents, kind.itemsize):
            wrong += _in_elements(steps, kind.itemsize)
    else:
        wrong = why_impossible(address if where.is_address else 0, byte_offset, low, high)
    first = address + byte_offset if where.is_address else byte_offset
    wrong = wrong or _why_not_aligned(first, kind)
    if not wrong:
        return
    layout = f"shape {extents}" if steps is None else f"shape {extents} and strides {steps}"
    raise ValueError(f"from_blob of {kind} with {layout}: {wrong}")


def _check_owner(
    owner: Any, first: int, kind: DType, extents: tuple[int, ...], steps: tuple[int, ...] | None
) -> None:
    """ValueError for elements that begin in the buffer of *owner* and leave it.

    A view keeps all the memory of what it is a view of, so that is what must have them.
    """
    try:
        buffer = ffi.from_buffer(owner)
    except (TypeError, ValueError, BufferError):
        return
    begin, nbytes = int(ffi.cast(_ADDRESS, buffer)), len(buffer)
    if not begin <= first < begin + nbytes:
        return
    if steps is None:
        low, high = 0, (prod(extents) * kind.bits * kind.lanes + 7) >> 3
    else:
        low, high = byte_reach(kind, extents, steps)
    if begin <= first + low <= first + high <= begin + nbytes:
        return
    keeper = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    if keeper is not None:
        _check_owner(keeper, first, kind, extents, steps)
    elif getattr(owner, "_b_needsfree_", True):  # else ctypes describes what something else has
        layout = f"shape {extents}" if steps is None else f"shape {extents} and strides {steps}"
        is_bytes = steps is not None and _in_bytes(steps, extents, kind.itemsize)
        raise ValueError(
            f"from_blob of {kind} with {layout}: the elements are at bytes {first + low - begin} "
            f"to {first + high - begin} of the buffer of the owner, which has {nbytes}"
            + (_in_elements(steps or (), kind.itemsize) if is_bytes else _OF_OWNER)
        )


_OF_OWNER = "; shape and strides count elements, and the owner must be what has all of them"


def _in_elements(steps: tuple[int, ...], itemsize: int) -> str:
    steps = tuple(step // itemsize for step in steps)
    return f"; strides count elements, and these look like bytes: pass strides={steps}"


def _in_bytes(steps: tuple[int, ...], extents: tuple[int, ...], itemsize: int) -> bool:
    """Whether strides that reach too far look as if they counted bytes."""
    used = [abs(step) for step, extent in zip(steps, extents, strict=True) if extent > 1]
    return (
        itemsize > 1
        and min(used, default=0) == itemsize
        and not any(step % itemsize for step in used)
    )


def _why_not_aligned(first: int, kind: DType) -> str:
    """The reason why no element of *kind* is at *first*; empty if it can be there."""
    alignment = alignment_of(kind)
    if not (rest := first % alignment):
        return ""
    return (
        f"the first element is {rest} bytes behind an address that is a multiple of {alignment}, "
        f"as {kind} needs; describe the bytes as uint8 and copy them"
    )


def _bound(where: Device, address: int) -> int:
    """The data of the memory as the backend of *where* knows it; ExchangeError if it does not."""
    try:
        found, data = bind(where, address, _ORIGIN, where.name)
    except ExchangeError as exc:
        if type(exc) is not ExchangeError:
            raise
        raise ExchangeError(
            f"{exc}; if this is an address of the host, leave device= out, and move the tensor: "
            f"dlbridge.to_device(t, {str(where)!r})"
        ) from exc
    if found is not where:
        raise ExchangeError(
            f"the memory {address:#x} is on {found}, not on {where}; pass device={str(found)!r}"
        )
    return data


def _check_end(owner: object, deleter: Any, data: object) -> None:
    """Raise for an owner and a deleter that cannot end the memory, as far as it shows now."""
    _check_not_held(owner, "owner")
    if deleter is not None:
        _check_deleter(deleter, data)
        _check_not_held(getattr(deleter, "__self__", None), "deleter")


def _check_not_held(holder: object, role: str) -> None:
    """ValueError for an `Exporter` whose attribute will hold the tensor, as far as it shows now."""
    named: str | None = None
    if isinstance(holder, Exporter):
        named = getattr(type(holder).__as_tensor__, "attribute", None)
    if named is None:
        return
    try:
        attrgetter(named)(holder)
    except AttributeError as exc:
        name = f"{origin_of(holder)}.{named}"
        raise ValueError(
            f"the {role} of this memory is an Exporter, and {name} is not there yet: with this "
            "tensor in it the two would keep each other for ever, as the collector does not see "
            "what numpy keeps. Let owner be the object that has the memory and deleter a function "
            "of data alone, or define __as_tensor__(), which makes the tensor for each call"
        ) from exc


def _check_deleter(deleter: Any, data: object) -> None:
    """TypeError for what cannot be called with *data*, as far as it shows now."""
    if not callable(deleter):
        raise TypeError(
            f"deleter is {with_article(type(deleter).__name__)}, which cannot be called; pass a "
            "function of one argument, which gets data"
        )
    if isinstance(deleter, (ffi.CData, _FUNCTIONS)):
        wrong = _why_not_in_c(deleter, data)
    else:
        wrong = _why_not_in_python(deleter)
    if wrong:
        raise TypeError(f"the deleter {deleter!r} {wrong}")


def _why_not_in_python(deleter: Any) -> str:
    """The reason why a function takes not one argument; empty if it may."""
    if getattr(deleter, "__code__", None) is None:  # written in C, or another callable
        return ""
    names, required, more, keywords = parameters_of(deleter)
    given = 1 if getattr(deleter, "__self__", None) is None else 2
    if len(names) < given and not more:
        return "takes no argument; it is called with data: deleter=lambda data: ..."
    others = ", ".join((*names[given:required], *keywords))
    return others and (
        f"needs {others}, too; it is called with data alone: deleter=lambda data: ..."
    )


def _why_not_in_c(deleter: Any, data: object) -> str:
    """The reason why a function of cffi or ctypes cannot get *data*; empty if it can."""
    if not deleter:
        return "is NULL; check what gave you the pointer"
    is_cffi = isinstance(deleter, ffi.CData)
    types = ffi.typeof(deleter).args if is_cffi else deleter.argtypes
    if types is None:
        if type(data) is not int or not data >> 31:
            return ""
        return (
            "has no argtypes, so ctypes would pass 32 of the 64 bits of data; set its "
            "argtypes = [ctypes.c_void_p], or pass data as a ctypes.c_void_p"
        )
    if len(types) != 1:
        return (
            f"takes {len(types)} arguments; it is called with data alone: "
            "deleter=lambda data: function(data, ...)"
        )
    (kind,) = types
    if is_cffi and kind.kind == "pointer":
        if isinstance(data, ffi.CData):
            return ""
        return (
            f"takes a {kind.cname}, and cffi makes none of {with_article(type(data).__name__)}; "
            "pass data as ffi.cast('void *', address)"
        )
    is_number = kind.kind == "primitive" if is_cffi else getattr(kind, "_type_", "") in _INTEGERS
    bits = 8 * (ffi.sizeof(kind) if is_cffi else ctypes.sizeof(kind)) if is_number else 64
    if isinstance(data, int) and data >> bits:
        name = kind.cname if is_cffi else kind.__name__
        return (
            f"takes {name}, which has {bits} of the 64 bits of data; declare its argument as a "
            "pointer, void * (ctypes.c_void_p)"
        )
    return ""


_FUNCTIONS: Any = ctypes.CFUNCTYPE(None).__mro__[1]
_INTEGERS = ("b", "B", "h", "H", "i", "I", "l", "L", "q", "Q")
"""What ctypes calls the integers of C."""
